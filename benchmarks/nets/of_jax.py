"""The networks in JAX: one compiled function a step, its parameters donated."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nets import spec


def limit_threads() -> None:
    """As many as OMP_NUM_THREADS says: XLA takes one for each core that it may run on."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-int(os.environ["OMP_NUM_THREADS"]) :])


def step(net: str, mode: str = "") -> Callable[[], float]:
    limit_threads()
    v = {name: jnp.asarray(value) for name, value in spec.weights(net).items()}
    kind, rate = spec.OPTIMIZERS[net]
    train = by_rows(net, rate) if net in ROWS else whole(LOSSES[net], kind, rate)
    held = [v, started(v, kind)]
    batches = spec.batches(net)

    def run() -> float:
        held[0], held[1], loss = train(held[0], held[1], *map(jnp.asarray, next(batches)))
        return float(loss)

    return run


def started(v: Any, kind: str) -> Any:
    """What the optimizer keeps."""
    zeros = jax.tree.map(jnp.zeros_like, v)
    if kind == "adam":
        return zeros, jax.tree.map(jnp.zeros_like, v), jnp.float32(0)
    return zeros if kind == "momentum" else None


def whole(loss: Any, kind: str, rate: float) -> Any:
    if kind == "none":
        gradients = jax.jit(jax.value_and_grad(loss))
        return lambda v, kept, *b: (v, kept, jax.block_until_ready(gradients(v, *b))[0])

    def train(v: Any, kept: Any, *batch: Any) -> Any:
        found, g = jax.value_and_grad(loss)(v, *batch)
        each = jax.tree.map
        if kind == "momentum":
            kept = each(lambda a, g: 0.9 * a + g, kept, g)
            v = each(lambda x, a: x - rate * a, v, kept)
        elif kind == "adam":
            m, s, t = kept
            t = t + 1
            m = each(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            s = each(lambda s, g: 0.999 * s + 0.001 * g * g, s, g)
            now = rate * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            v, kept = each(lambda x, m, s: x - now * m / (jnp.sqrt(s) + 1e-8), v, m, s), (m, s, t)
        else:
            v = each(lambda x, g: x - rate * g, v, g)
        return v, kept, found

    return jax.jit(train, donate_argnums=(0, 1))


# Tables whose rows are gathered before the loss: net -> (table, number of the batch's array)
ROWS = {
    "word2vec": [("center", 0), ("context", 1), ("context", 2)],
    "lstm_sampled": [
        ("embedding", 0),
        ("softmax", 1),
        ("softmax_bias", 1),
        ("softmax", 2),
        ("softmax_bias", 2),
    ],
}


def by_rows(net: str, rate: float) -> Any:
    """Gradients of rows are scattered into their tables.

    By a compiled function of its own: in one with the rest XLA copies the tables.
    """
    tables = {name for name, _ in ROWS[net]}

    def gradients(v: Any, *batch: Any) -> Any:
        rows = [v[name][batch[i]] for name, i in ROWS[net]]
        others = {name: x for name, x in v.items() if name not in tables}
        return jax.value_and_grad(ROW_LOSSES[net], (0, 1))(others, rows, *batch)

    def update(v: Any, g: Any, *batch: Any) -> Any:
        for name in g[0]:
            v[name] = v[name] - rate * g[0][name]
        for (name, i), of_rows in zip(ROWS[net], g[1], strict=True):
            flat = of_rows.reshape(-1, *v[name].shape[1:])
            v[name] = v[name].at[batch[i].reshape(-1)].add(-rate * flat)
        return v

    first, second = jax.jit(gradients), jax.jit(update, donate_argnums=0)

    def train(v: Any, kept: Any, *batch: Any) -> Any:
        found, g = first(v, *batch)
        return second(v, g, *batch), kept, found

    return train


def cross_entropy(logits: Any, y: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))


def dense(v: Any, i: int, x: Any) -> Any:
    return x @ v[f"w{i}"] + v[f"b{i}"]


def mlp(v: Any, x: Any, y: Any) -> Any:
    for i in range(2):
        x = jax.nn.relu(dense(v, i, x))
    return cross_entropy(dense(v, 2, x), y)


def conv(v: Any, i: int, x: Any, stride: int, around: int) -> Any:
    made = jax.lax.conv_general_dilated(
        x,
        v[f"w{i}"],
        (stride, stride),
        [(around, around)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return jax.nn.relu(made + v[f"b{i}"])


def pooled(x: Any, size: int) -> Any:
    window, strides = (1, size, size, 1), (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "VALID")


def lenet(v: Any, x: Any, y: Any) -> Any:
    for i in range(2):
        x = pooled(conv(v, i, x, 1, 2), 2)
    return cross_entropy(dense(v, 3, jax.nn.relu(dense(v, 2, x.reshape(-1, 3136)))), y)


def alexnet(v: Any, x: Any, y: Any) -> Any:
    for i, (_, _, _, stride, around, then) in enumerate(spec.ALEXNET_CONV):
        x = conv(v, i, x, stride, around)
        x = pooled(x, 3) if then else x
    x = x.reshape(-1, 9216)
    for i in (5, 6):
        x = jax.nn.relu(dense(v, i, x))
    return cross_entropy(dense(v, 7, x), y)


def hidden(v: Any, inputs: Any) -> Any:
    """The outputs of all steps, [steps x batch, hidden]."""

    def cell(state: Any, x: Any) -> Any:
        h, c = state
        gates = jnp.concatenate([x, h], 1) @ v["kernel"] + v["bias"]
        i, j, f, o = jnp.split(gates, 4, axis=1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(j)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros(inputs.shape[1:], jnp.float32)
    return jax.lax.scan(cell, (zeros, zeros), inputs)[1].reshape(-1, inputs.shape[2])


def lstm_full(v: Any, words: Any, following: Any) -> Any:
    logits = hidden(v, v["embedding"][words]) @ v["softmax"].T + v["softmax_bias"]
    return cross_entropy(logits, following.reshape(-1))


def lstm_sampled(v: Any, rows: Any, words: Any, following: Any, candidates: Any) -> Any:
    inputs, weights, bias, far_weights, far_bias = rows
    out, labels = hidden(v, inputs), following.reshape(-1)
    true = (out * weights.reshape(out.shape)).sum(1) + bias.reshape(-1)
    true = true - spec.log_expected(labels.astype(jnp.float32), jnp)
    far = out @ far_weights.T + far_bias
    far = far - spec.log_expected(candidates.astype(jnp.float32), jnp)
    far = jnp.where(candidates[None, :] == labels[:, None], -1e9, far)
    logits = jnp.concatenate([true[:, None], far], 1)
    return -jnp.mean(jax.nn.log_softmax(logits)[:, 0])


def word2vec(v: Any, rows: Any, center: Any, context: Any, negative: Any) -> Any:
    u, near_rows, far_rows = rows
    near = (u * near_rows).sum(1)
    far = jnp.einsum("bd,bnd->bn", u, far_rows)
    return -(jax.nn.log_sigmoid(near).mean() + jax.nn.log_sigmoid(-far).sum(1).mean())


def transformer(v: Any, x: Any, y: Any) -> Any:
    b, t, d = x.shape
    heads = spec.TRANSFORMER["heads"]

    def normal(x: Any, i: int) -> Any:
        away = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((away * away).mean(-1, keepdims=True) + 1e-5)
        return away * scale * v[f"scale{i}"] + v[f"shift{i}"]

    def dense(x: Any, name: str) -> Any:
        return x @ v[name] + v[f"{name}_bias"]

    parts = jnp.split(dense(normal(x, 1), "qkv"), 3, axis=-1)
    q, k, w = (p.reshape(b, t, heads, d // heads).transpose(0, 2, 1, 3) for p in parts)
    scores = jax.nn.softmax(q @ k.swapaxes(-1, -2) * (d // heads) ** -0.5)
    mixed = (scores @ w).transpose(0, 2, 1, 3).reshape(b, t, d)
    h = x + dense(mixed, "out")
    h = h + dense(jax.nn.gelu(dense(normal(h, 2), "up")), "down")
    return jnp.mean((h - y) ** 2)


LOSSES = {
    "mlp_sgd": mlp,
    "mlp_adam": mlp,
    "lenet": lenet,
    "alexnet": alexnet,
    "lstm_full": lstm_full,
    "transformer": transformer,
}
ROW_LOSSES = {"word2vec": word2vec, "lstm_sampled": lstm_sampled}
