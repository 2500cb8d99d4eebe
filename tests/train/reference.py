"""Training written again in plain NumPy, in float64 and from the papers: what ours is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import hpcflow as hf

DECAY = 0.01  # of the weights, so that the loss has a term that no sample enters
Step = Callable[[int, np.ndarray, np.ndarray], np.ndarray]  # (t, value, gradient) -> value


def data(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels, the same everywhere."""
    rng = np.random.default_rng(3)
    features = rng.standard_normal((samples, 5)).astype(np.float32)
    return features, rng.integers(0, 3, samples).astype(np.int32)


def initial() -> list[np.ndarray]:
    """Weights and biases of a 5-7-3 net."""
    rng = np.random.default_rng(4)
    shapes = [(5, 7), (7,), (7, 3), (3,)]
    return [(0.5 * rng.standard_normal(shape)).astype(np.float32) for shape in shapes]


def gradients(p: Sequence[np.ndarray], x: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """The gradient of mean cross entropy + DECAY / 2 |weights|^2 of a batch, by hand."""
    hidden = np.maximum(x @ p[0] + p[1], 0)
    logits = hidden @ p[2] + p[3]
    y = np.exp(logits - logits.max(1, keepdims=True))
    y /= y.sum(1, keepdims=True)
    y[np.arange(len(x)), labels] -= 1
    y /= len(x)
    back = (y @ p[2].T) * (hidden > 0)
    return [x.T @ back + DECAY * p[0], back.sum(0), hidden.T @ y + DECAY * p[2], y.sum(0)]


def descent(rate: float) -> Step:
    """Gradient descent."""
    return lambda t, value, g: value - rate * g


def momentum(rate: float, mu: float, nesterov: bool) -> Step:
    """Momentum as Sutskever et al. (2013) after the change of variables that TensorFlow uses."""
    speed = 0.0

    def step(t: int, value: np.ndarray, g: np.ndarray) -> np.ndarray:
        nonlocal speed
        speed = mu * speed + g
        return value - rate * (g + mu * speed if nesterov else speed)

    return step


def adam(rate: float, beta1: float = 0.9, beta2: float = 0.999, hat: float = 1e-8) -> Step:
    """Kingma and Ba's Algorithm 1 with `epsilon_t = hat / sqrt(1 - beta2^t)`.

    With that epsilon it is the form of their section 2, as in TensorFlow: epsilon-hat is constant.
    """
    m = v = 0.0

    def step(t: int, value: np.ndarray, g: np.ndarray) -> np.ndarray:
        nonlocal m, v
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        return value - rate * m_hat / (np.sqrt(v_hat) + hat / np.sqrt(1 - beta2**t))

    return step


# name -> (ours, the reference)
OPTIMIZERS: dict[str, tuple[Callable[[], hf.train.Optimizer], Callable[[], Step]]] = {
    "descent": (lambda: hf.train.GradientDescentOptimizer(0.2), lambda: descent(0.2)),
    "momentum": (
        lambda: hf.train.MomentumOptimizer(0.05, 0.9),
        lambda: momentum(0.05, 0.9, False),
    ),
    "nesterov": (
        lambda: hf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
        lambda: momentum(0.05, 0.9, True),
    ),
    "adam": (lambda: hf.train.AdamOptimizer(0.02), lambda: adam(0.02)),
    # An epsilon so large that the two places for it differ by far.
    "adam with a large epsilon": (
        lambda: hf.train.AdamOptimizer(0.02, 0.8, 0.99, 0.1),
        lambda: adam(0.02, 0.8, 0.99, 0.1),
    ),
}


def trained(
    batches: Sequence[tuple[np.ndarray, np.ndarray]], make: Callable[[], Step]
) -> list[np.ndarray]:
    """The parameters after a step on each batch."""
    values = [p.astype(np.float64) for p in initial()]
    steps = [make() for _ in values]
    for t, (x, labels) in enumerate(batches, 1):
        grads = gradients(values, x.astype(np.float64), labels)
        values = [step(t, p, g) for step, p, g in zip(steps, values, grads, strict=True)]
    return values


def net(
    optimizer: hf.train.Optimizer,
) -> tuple[hf.Tensor, hf.Tensor, hf.Tensor, hf.Operation, list[hf.Variable]]:
    """The same net in a graph: (x, labels, loss, train, parameters)."""
    x = hf.placeholder(hf.float32, [None, 5], name="x")
    labels = hf.placeholder(hf.int32, [None], name="labels")
    p = [hf.Variable(value, name=f"p{i}") for i, value in enumerate(initial())]
    hidden = hf.nn.relu(hf.matmul(x, p[0]) + p[1])
    logits = hf.matmul(hidden, p[2]) + p[3]
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    decay = DECAY * (hf.nn.l2_loss(p[0]) + hf.nn.l2_loss(p[2]))
    loss = hf.reduce_mean(losses) + decay
    return x, labels, loss, optimizer.minimize(loss), p
