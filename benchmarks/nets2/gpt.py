"""A small GPT with dropout, its gradients clipped by their global norm.

Each framework draws what it drops, so that losses agree roughly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

OPTIMIZER = ("adam", 1e-3)
CLIP = 1.0
TOLERANCE = (2e-2, 5e-2)
BATCH_AXES = (0, 0)
BATCH, STEPS, WORDS, SIZE, HEADS, LAYERS, DROP = 8, 64, 1000, 128, 4, 2, 0.1


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def normal(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.02).astype("f4")

    values = {"words": normal(WORDS, SIZE), "places": normal(STEPS, SIZE)}
    values["moving_seed"] = np.zeros((), "i4")  # JAX draws by it
    for layer in range(LAYERS):
        sizes = {"qkv": 3 * SIZE, "mixed": SIZE, "up": 4 * SIZE, "down": SIZE}
        for name, m in sizes.items():
            values[f"{name}{layer}"] = normal(4 * SIZE if name == "down" else SIZE, m)
            values[f"{name}_bias{layer}"] = np.zeros(m, "f4")
    for name in (*(f"{part}{i}" for part in "ab" for i in range(LAYERS)), "last"):
        values |= {f"scale_{name}": np.ones(SIZE, "f4"), f"shift_{name}": np.zeros(SIZE, "f4")}
    return values


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    text = rng.integers(0, WORDS, (BATCH, STEPS + 1)).astype("i4")
    return text[:, :-1], text[:, 1:]


class Ops(NamedTuple):
    """What a framework does."""

    embedded: Callable[..., Any]
    drop: Callable[..., Any]
    dense: Callable[..., Any]
    normal: Callable[..., Any]
    gelu: Callable[..., Any]
    attention: Callable[..., Any]
    by_word: Callable[..., Any]


def logits(ops: Ops, v: Any, words: Any) -> Any:
    """The net of a framework's operations."""
    x = ops.drop(ops.embedded(v["words"], words) + v["places"])
    for i in range(LAYERS):
        parts = ops.dense(ops.normal(x, f"a{i}"), f"qkv{i}", f"qkv_bias{i}")
        x = x + ops.drop(ops.dense(ops.attention(parts), f"mixed{i}", f"mixed_bias{i}"))
        h = ops.gelu(ops.dense(ops.normal(x, f"b{i}"), f"up{i}", f"up_bias{i}"))
        x = x + ops.drop(ops.dense(h, f"down{i}", f"down_bias{i}"))
    return ops.by_word(ops.normal(x, "last"), v["words"])


def hpcflow_loss(hf: Any, v: Any, words: Any, following: Any) -> Any:
    def embedded(table: Any, ids: Any) -> Any:
        return hf.nn.embedding_lookup(table, ids)

    def drop(x: Any) -> Any:
        return hf.nn.dropout(x, rate=DROP)

    def dense(x: Any, w: str, b: str) -> Any:
        rows = hf.matmul(hf.reshape(x, [-1, int(x.shape[-1])]), v[w])
        return hf.reshape(hf.nn.bias_add(rows, v[b]), [-1, STEPS, int(rows.shape[-1])])

    def normal(x: Any, name: str) -> Any:
        return hf.nn.layer_normalization(x, v[f"scale_{name}"], v[f"shift_{name}"])

    def gelu(x: Any) -> Any:
        return hf.nn.gelu(x, approximate=True)

    def attention(parts: Any) -> Any:
        heads = (
            hf.transpose(hf.reshape(part, [-1, STEPS, HEADS, SIZE // HEADS]), [0, 2, 1, 3])
            for part in hf.split(parts, 3, axis=-1)
        )
        x = hf.nn.scaled_dot_product_attention(*heads, causal=True, dropout_rate=DROP)
        return hf.reshape(hf.transpose(x, [0, 2, 1, 3]), [-1, STEPS, SIZE])

    def by_word(x: Any, table: Any) -> Any:
        return hf.matmul(hf.reshape(x, [-1, SIZE]), table, transpose_b=True)

    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=hf.reshape(following, [-1]),
        logits=logits(Ops(embedded, drop, dense, normal, gelu, attention, by_word), v, words),
    )
    return hf.reduce_mean(losses)


def tensorflow_loss(tf: Any, v: Any, words: Any, following: Any) -> Any:
    def embedded(table: Any, ids: Any) -> Any:
        return tf.nn.embedding_lookup(table, ids)

    def drop(x: Any) -> Any:
        return tf.nn.dropout(x, rate=DROP)

    def dense(x: Any, w: str, b: str) -> Any:
        rows = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), v[w])
        return tf.reshape(tf.nn.bias_add(rows, v[b]), [-1, STEPS, rows.shape[-1]])

    def normal(x: Any, name: str) -> Any:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        shift, scale = v[f"shift_{name}"], v[f"scale_{name}"]
        return tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-5)

    def gelu(x: Any) -> Any:
        return tf.nn.gelu(x, approximate=True)

    def attention(parts: Any) -> Any:
        q, k, u = (
            tf.transpose(tf.reshape(part, [-1, STEPS, HEADS, SIZE // HEADS]), [0, 2, 1, 3])
            for part in tf.split(parts, 3, axis=-1)
        )
        scores = tf.matmul(q, k, transpose_b=True) * (SIZE // HEADS) ** -0.5
        later = tf.constant(np.triu(np.full((STEPS, STEPS), -1e9, "f4"), 1))
        x = tf.matmul(drop(tf.nn.softmax(scores + later)), u)
        return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [-1, STEPS, SIZE])

    def by_word(x: Any, table: Any) -> Any:
        return tf.matmul(tf.reshape(x, [-1, SIZE]), table, transpose_b=True)

    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.reshape(following, [-1]),
        logits=logits(Ops(embedded, drop, dense, normal, gelu, attention, by_word), v, words),
    )
    return tf.reduce_mean(losses)


def torch_loss(torch: Any, v: Any, words: Any, following: Any) -> Any:
    F = torch.nn.functional

    def embedded(table: Any, ids: Any) -> Any:
        return F.embedding(ids, table)

    def drop(x: Any) -> Any:
        return F.dropout(x, DROP)

    def dense(x: Any, w: str, b: str) -> Any:
        return torch.addmm(v[b], x.flatten(0, 1), v[w]).view(-1, STEPS, v[w].shape[1])

    def normal(x: Any, name: str) -> Any:
        return F.layer_norm(x, (SIZE,), v[f"scale_{name}"], v[f"shift_{name}"])

    def gelu(x: Any) -> Any:
        return F.gelu(x, approximate="tanh")

    def attention(parts: Any) -> Any:
        heads = (
            part.view(-1, STEPS, HEADS, SIZE // HEADS).transpose(1, 2)
            for part in parts.chunk(3, -1)
        )
        x = F.scaled_dot_product_attention(*heads, dropout_p=DROP, is_causal=True)
        return x.transpose(1, 2).reshape(-1, STEPS, SIZE)

    def by_word(x: Any, table: Any) -> Any:
        return F.linear(x.flatten(0, 1), table)

    return F.cross_entropy(
        logits(Ops(embedded, drop, dense, normal, gelu, attention, by_word), v, words),
        following.flatten(),
    )


def jax_loss(jax: Any, v: Any, words: Any, following: Any) -> Any:
    jnp, keys = jax.numpy, [jax.random.key(v["moving_seed"], impl="rbg")]

    def embedded(table: Any, ids: Any) -> Any:
        return table[ids]

    def drop(x: Any) -> Any:
        keys[0], key = jax.random.split(keys[0])
        return jnp.where(jax.random.bernoulli(key, 1 - DROP, x.shape), x / (1 - DROP), 0)

    def dense(x: Any, w: str, b: str) -> Any:
        return x @ v[w] + v[b]

    def normal(x: Any, name: str) -> Any:
        away = x - x.mean(-1, keepdims=True)
        x = away * jax.lax.rsqrt((away * away).mean(-1, keepdims=True) + 1e-5)
        return x * v[f"scale_{name}"] + v[f"shift_{name}"]

    def gelu(x: Any) -> Any:
        return jax.nn.gelu(x)

    def attention(parts: Any) -> Any:
        heads = (x.reshape(-1, STEPS, HEADS, SIZE // HEADS) for x in jnp.split(parts, 3, -1))
        q, k, u = (x.transpose(0, 2, 1, 3) for x in heads)
        scores = q @ k.swapaxes(-1, -2) * (SIZE // HEADS) ** -0.5
        scores = jnp.where(np.tri(STEPS, dtype=bool), scores, -1e9)
        x = drop(jax.nn.softmax(scores)) @ u
        return x.transpose(0, 2, 1, 3).reshape(-1, STEPS, SIZE)

    def by_word(x: Any, table: Any) -> Any:
        return x @ table.T

    out = jax.nn.log_softmax(
        logits(Ops(embedded, drop, dense, normal, gelu, attention, by_word), v, words)
    )
    loss = -jnp.mean(jnp.take_along_axis(out, following[..., None], 2))
    return loss, {"moving_seed": v["moving_seed"] + 1}
