"""A graph attention network: the edges that end at a node share it by a softmax, several heads."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("adam", 5e-3)
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 0, 0, 0)
NODES, EDGES, SIZE, CLASSES = 1000, 7000, 64, 10
LAYERS = ((SIZE, 4, 16), (64, 4, 16), (64, 1, CLASSES))  # inputs, heads, units of each


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def normal(of: int, *shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / of**0.5).astype("f4")

    values = {}
    for i, (n, heads, units) in enumerate(LAYERS):
        values |= {
            f"w{i}": normal(n, n, heads * units),
            f"of_source{i}": normal(units, heads, units),
            f"of_end{i}": normal(units, heads, units),
            f"b{i}": np.zeros(heads * units, "f4"),
        }
    return values


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Each node has an edge to itself."""
    nodes = rng.standard_normal((NODES, SIZE)).astype("f4")
    selves = np.tile(np.arange(NODES), (2, 1))
    edges = np.concatenate([rng.integers(0, NODES, (2, EDGES)), selves], 1)
    source, end = rng.permutation(edges, axis=1).astype("i4")
    return nodes, source.copy(), end.copy(), rng.integers(0, CLASSES, NODES).astype("i4")


def hpcflow_loss(hf: Any, v: Any, x: Any, source: Any, end: Any, y: Any) -> Any:
    count = hf.shape(x)[0]

    def segment_softmax(scores: Any) -> Any:
        most = hf.stop_gradient(hf.math.unsorted_segment_max(scores, end, count))
        powers = hf.exp(scores - hf.gather(most, end))
        return powers / hf.gather(hf.math.unsorted_segment_sum(powers, end, count), end)

    for i, (_, heads, units) in enumerate(LAYERS):
        h = hf.reshape(hf.matmul(x, v[f"w{i}"]), [-1, heads, units])
        of_source = hf.reduce_sum(h * v[f"of_source{i}"], 2)
        of_end = hf.reduce_sum(h * v[f"of_end{i}"], 2)
        scores = hf.nn.leaky_relu(hf.gather(of_source, source) + hf.gather(of_end, end), 0.2)
        shares = hf.expand_dims(segment_softmax(scores), 2)
        sums = hf.math.unsorted_segment_sum(hf.gather(h, source) * shares, end, count)
        x = hf.nn.bias_add(hf.reshape(sums, [-1, heads * units]), v[f"b{i}"])
        x = hf.nn.elu(x) if i < len(LAYERS) - 1 else x
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x)
    return hf.reduce_mean(losses)


def tensorflow_loss(tf: Any, v: Any, x: Any, source: Any, end: Any, y: Any) -> Any:
    count = tf.shape(x)[0]

    def segment_softmax(scores: Any) -> Any:
        most = tf.stop_gradient(tf.math.unsorted_segment_max(scores, end, count))
        powers = tf.exp(scores - tf.gather(most, end))
        return powers / tf.gather(tf.math.unsorted_segment_sum(powers, end, count), end)

    for i, (_, heads, units) in enumerate(LAYERS):
        h = tf.reshape(tf.matmul(x, v[f"w{i}"]), [-1, heads, units])
        of_source = tf.reduce_sum(h * v[f"of_source{i}"], 2)
        of_end = tf.reduce_sum(h * v[f"of_end{i}"], 2)
        scores = tf.nn.leaky_relu(tf.gather(of_source, source) + tf.gather(of_end, end), 0.2)
        shares = tf.expand_dims(segment_softmax(scores), 2)
        sums = tf.math.unsorted_segment_sum(tf.gather(h, source) * shares, end, count)
        x = tf.nn.bias_add(tf.reshape(sums, [-1, heads * units]), v[f"b{i}"])
        x = tf.nn.elu(x) if i < len(LAYERS) - 1 else x
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x)
    return tf.reduce_mean(losses)


def torch_loss(torch: Any, v: Any, x: Any, source: Any, end: Any, y: Any) -> Any:
    F, count = torch.nn.functional, x.shape[0]

    def segment_softmax(scores: Any) -> Any:
        with torch.no_grad():
            ends = end[:, None].expand_as(scores)
            most = scores.new_full((count, scores.shape[1]), -torch.inf)
            most = most.scatter_reduce_(0, ends, scores, "amax").index_select(0, end)
        powers = torch.exp(scores - most)
        sums = powers.new_zeros(count, scores.shape[1]).index_add(0, end, powers)
        return powers / sums.index_select(0, end)

    for i, (_, heads, units) in enumerate(LAYERS):
        h = (x @ v[f"w{i}"]).view(-1, heads, units)
        of_source = (h * v[f"of_source{i}"]).sum(2)
        of_end = (h * v[f"of_end{i}"]).sum(2)
        scores = of_source.index_select(0, source) + of_end.index_select(0, end)
        shares = segment_softmax(F.leaky_relu(scores, 0.2)).unsqueeze(2)
        messages = h.index_select(0, source) * shares
        x = torch.zeros_like(h).index_add(0, end, messages).flatten(1) + v[f"b{i}"]
        x = F.elu(x) if i < len(LAYERS) - 1 else x
    return F.cross_entropy(x, y)


def jax_loss(jax: Any, v: Any, x: Any, source: Any, end: Any, y: Any) -> Any:
    jnp, count = jax.numpy, x.shape[0]

    def segment_softmax(scores: Any) -> Any:
        most = jax.ops.segment_max(jax.lax.stop_gradient(scores), end, count)
        powers = jnp.exp(scores - most[end])
        return powers / jax.ops.segment_sum(powers, end, count)[end]

    for i, (_, heads, units) in enumerate(LAYERS):
        h = (x @ v[f"w{i}"]).reshape(-1, heads, units)
        of_source = (h * v[f"of_source{i}"]).sum(2)
        of_end = (h * v[f"of_end{i}"]).sum(2)
        scores = jax.nn.leaky_relu(of_source[source] + of_end[end], 0.2)
        messages = h[source] * segment_softmax(scores)[..., None]
        sums = jax.ops.segment_sum(messages, end, count)
        x = sums.reshape(-1, heads * units) + v[f"b{i}"]
        x = jax.nn.elu(x) if i < len(LAYERS) - 1 else x
    logits = jax.nn.log_softmax(x)
    return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))
