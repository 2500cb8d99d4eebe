"""Messages along the edges of a graph: rows are gathered, and summed at the edges' ends."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("momentum", 0.01)
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 0, 0, 0)
NODES, EDGES, SIZE, ROUNDS, CLASSES = 1000, 8000, 64, 2, 10


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def normal(n: int, m: int) -> np.ndarray:
        return (rng.standard_normal((n, m)) / n**0.5).astype("f4")

    values = {}
    for i in range(ROUNDS):
        for name in ("message", "node"):
            values |= {
                f"{name}{i}": normal(2 * SIZE, SIZE),
                f"{name}_bias{i}": np.zeros(SIZE, "f4"),
            }
    return values | {"w": normal(SIZE, CLASSES), "b": np.zeros(CLASSES, "f4")}


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    nodes = rng.standard_normal((NODES, SIZE)).astype("f4")
    source, end = rng.integers(0, NODES, (2, EDGES)).astype("i4")
    return nodes, source, end, rng.integers(0, CLASSES, NODES).astype("i4")


def hpcflow_loss(hf: Any, v: Any, x: Any, source: Any, end: Any, y: Any) -> Any:
    def dense(x: Any, name: str, i: int) -> Any:
        return hf.nn.relu(hf.nn.bias_add(hf.matmul(x, v[f"{name}{i}"]), v[f"{name}_bias{i}"]))

    count = hf.shape(x)[0]
    for i in range(ROUNDS):
        ends = hf.concat([hf.gather(x, source), hf.gather(x, end)], 1)
        sums = hf.math.unsorted_segment_sum(dense(ends, "message", i), end, count)
        x = dense(hf.concat([x, sums * 0.125], 1), "node", i)
    logits = hf.nn.bias_add(hf.matmul(x, v["w"]), v["b"])
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return hf.reduce_mean(losses)


def tensorflow_loss(tf: Any, v: Any, x: Any, source: Any, end: Any, y: Any) -> Any:
    def dense(x: Any, name: str, i: int) -> Any:
        return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, v[f"{name}{i}"]), v[f"{name}_bias{i}"]))

    count = tf.shape(x)[0]
    for i in range(ROUNDS):
        ends = tf.concat([tf.gather(x, source), tf.gather(x, end)], 1)
        sums = tf.math.unsorted_segment_sum(dense(ends, "message", i), end, count)
        x = dense(tf.concat([x, sums * 0.125], 1), "node", i)
    logits = tf.nn.bias_add(tf.matmul(x, v["w"]), v["b"])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses)


def torch_loss(torch: Any, v: Any, x: Any, source: Any, end: Any, y: Any) -> Any:
    F = torch.nn.functional

    def dense(x: Any, name: str, i: int) -> Any:
        return F.relu(torch.addmm(v[f"{name}_bias{i}"], x, v[f"{name}{i}"]))

    for i in range(ROUNDS):
        ends = torch.cat([x.index_select(0, source), x.index_select(0, end)], 1)
        sums = torch.zeros_like(x).index_add(0, end, dense(ends, "message", i))
        x = dense(torch.cat([x, sums * 0.125], 1), "node", i)
    return F.cross_entropy(torch.addmm(v["b"], x, v["w"]), y)


def jax_loss(jax: Any, v: Any, x: Any, source: Any, end: Any, y: Any) -> Any:
    jnp = jax.numpy

    def dense(x: Any, name: str, i: int) -> Any:
        return jax.nn.relu(x @ v[f"{name}{i}"] + v[f"{name}_bias{i}"])

    for i in range(ROUNDS):
        ends = jnp.concatenate([x[source], x[end]], 1)
        sums = jax.ops.segment_sum(dense(ends, "message", i), end, x.shape[0])
        x = dense(jnp.concatenate([x, sums * 0.125], 1), "node", i)
    logits = jax.nn.log_softmax(x @ v["w"] + v["b"])
    return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))
