"""A neural ODE: Runge-Kutta steps of a small net in a loop, and the gradient of the loop."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

OPTIMIZER = ("adam", 1e-3)
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 0)
BATCH, STEPS, LAYERS = 128, 30, (9, 64, 64, 8)  # the net's inputs are the state and the time
H = 1.0 / STEPS


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {}
    for i, (n, m) in enumerate(itertools.pairwise(LAYERS)):
        w = rng.standard_normal((n, m)) / n**0.5
        values |= {f"w{i}": w.astype("f4"), f"b{i}": np.zeros(m, "f4")}
    return values


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    start = rng.standard_normal((BATCH, LAYERS[-1])).astype("f4")
    return start, np.roll(start, 1, 1) * np.float32(0.5)


def runge_kutta(f: Any, y: Any, t: Any) -> Any:
    k1 = f(y, t)
    k2 = f(y + 0.5 * H * k1, t + 0.5 * H)
    k3 = f(y + 0.5 * H * k2, t + 0.5 * H)
    k4 = f(y + H * k3, t + H)
    return y + H / 6 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def hpcflow_loss(hf: Any, v: Any, start: Any, end: Any) -> Any:
    of_y, of_t = v["w0"][:-1], v["w0"][-1]

    def f(y: Any, t: Any) -> Any:
        x = hf.tanh(hf.nn.bias_add(hf.matmul(y, of_y), of_t * t + v["b0"]))
        x = hf.tanh(hf.nn.bias_add(hf.matmul(x, v["w1"]), v["b1"]))
        return hf.nn.bias_add(hf.matmul(x, v["w2"]), v["b2"])

    def body(i: Any, y: Any) -> Any:
        return i + 1, runge_kutta(f, y, hf.cast(i, hf.float32) * H)

    _, y = hf.while_loop(lambda i, y: i < STEPS, body, [hf.constant(0), start])
    return hf.reduce_mean(hf.square(y - end))


def tensorflow_loss(tf: Any, v: Any, start: Any, end: Any) -> Any:
    """Unrolled, which is faster than a loop."""
    v = {name: tf.convert_to_tensor(x) for name, x in v.items()}

    of_y, of_t = v["w0"][:-1], v["w0"][-1]

    def f(y: Any, t: Any) -> Any:
        x = tf.tanh(tf.nn.bias_add(tf.matmul(y, of_y), of_t * t + v["b0"]))
        x = tf.tanh(tf.nn.bias_add(tf.matmul(x, v["w1"]), v["b1"]))
        return tf.nn.bias_add(tf.matmul(x, v["w2"]), v["b2"])

    y = start
    for i in range(STEPS):
        y = runge_kutta(f, y, i * H)
    return tf.reduce_mean(tf.square(y - end))


def torch_loss(torch: Any, v: Any, start: Any, end: Any) -> Any:
    """The product with the time's column of weights, of one number, is a bias."""
    of_y, of_t = v["w0"][:-1], v["w0"][-1]

    def f(y: Any, t: float) -> Any:
        x = torch.tanh(torch.addmm(torch.add(v["b0"], of_t, alpha=t), y, of_y))
        x = torch.tanh(torch.addmm(v["b1"], x, v["w1"]))
        return torch.addmm(v["b2"], x, v["w2"])

    y = start
    for i in range(STEPS):
        y = runge_kutta(f, y, i * H)
    return (y - end).square().mean()


def jax_loss(jax: Any, v: Any, start: Any, end: Any) -> Any:
    jnp = jax.numpy
    of_y, of_t = v["w0"][:-1], v["w0"][-1]

    def f(y: Any, t: Any) -> Any:
        x = jnp.tanh(y @ of_y + (of_t * t + v["b0"]))
        x = jnp.tanh(x @ v["w1"] + v["b1"])
        return x @ v["w2"] + v["b2"]

    def body(y: Any, t: Any) -> Any:
        return runge_kutta(f, y, t), None

    y, _ = jax.lax.scan(body, start, jnp.arange(STEPS, dtype=jnp.float32) * H)
    return jnp.mean((y - end) ** 2)
