"""A transformer block in bfloat16, but for its weights; the loss is in float32."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("sgd", 0.01)
TOLERANCE = (1e-2, 3e-2)
BATCH_AXES = (0, 0)
BATCH, STEPS, SIZE, HEADS, INNER = 4, 64, 256, 4, 1024


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {}
    sizes = {"qkv": (SIZE, 3 * SIZE), "out": (SIZE, SIZE), "up": (SIZE, INNER)}
    for name, (n, m) in (sizes | {"down": (INNER, SIZE)}).items():
        values[name] = (rng.standard_normal((n, m)) / n**0.5).astype("f4")
        values[f"{name}_bias"] = np.zeros(m, "f4")
    for i in (1, 2):
        values |= {f"scale{i}": np.ones(SIZE, "f4"), f"shift{i}": np.zeros(SIZE, "f4")}
    return values


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    shape = BATCH, STEPS, SIZE
    return rng.standard_normal(shape).astype("f4"), rng.standard_normal(shape).astype("f4")


def hpcflow_loss(hf: Any, v: Any, x: Any, y: Any) -> Any:
    w = {name: hf.cast(value, hf.bfloat16) for name, value in v.items()}

    def dense(x: Any, name: str) -> Any:
        rows = hf.matmul(hf.reshape(x, [-1, int(x.shape[-1])]), w[name])
        return hf.reshape(hf.nn.bias_add(rows, w[f"{name}_bias"]), [-1, STEPS, int(rows.shape[-1])])

    def normal(x: Any, i: int) -> Any:
        return hf.nn.layer_normalization(x, w[f"scale{i}"], w[f"shift{i}"])

    h = hf.cast(x, hf.bfloat16)
    parts = hf.split(dense(normal(h, 1), "qkv"), 3, axis=-1)
    by_head = [-1, STEPS, HEADS, SIZE // HEADS]
    q, k, u = (hf.transpose(hf.reshape(part, by_head), [0, 2, 1, 3]) for part in parts)
    mixed = hf.transpose(hf.nn.scaled_dot_product_attention(q, k, u), [0, 2, 1, 3])
    h = h + dense(hf.reshape(mixed, [-1, STEPS, SIZE]), "out")
    h = h + dense(hf.nn.gelu(dense(normal(h, 2), "up"), approximate=True), "down")
    return hf.reduce_mean(hf.square(hf.cast(h, hf.float32) - y))


def tensorflow_loss(tf: Any, v: Any, x: Any, y: Any) -> Any:
    w = {name: tf.cast(value, tf.bfloat16) for name, value in v.items()}

    def dense(x: Any, name: str) -> Any:
        rows = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), w[name])
        return tf.reshape(tf.nn.bias_add(rows, w[f"{name}_bias"]), [-1, STEPS, rows.shape[-1]])

    def normal(x: Any, i: int) -> Any:
        mean, variance = tf.nn.moments(tf.cast(x, tf.float32), [-1], keepdims=True)
        x = tf.cast((tf.cast(x, tf.float32) - mean) * tf.math.rsqrt(variance + 1e-5), tf.bfloat16)
        return x * w[f"scale{i}"] + w[f"shift{i}"]

    h = tf.cast(x, tf.bfloat16)
    parts = tf.split(dense(normal(h, 1), "qkv"), 3, axis=-1)
    by_head = [-1, STEPS, HEADS, SIZE // HEADS]
    q, k, u = (tf.transpose(tf.reshape(part, by_head), [0, 2, 1, 3]) for part in parts)
    scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (SIZE // HEADS) ** -0.5)
    mixed = tf.transpose(tf.matmul(scores, u), [0, 2, 1, 3])
    h = h + dense(tf.reshape(mixed, [-1, STEPS, SIZE]), "out")
    h = h + dense(tf.nn.gelu(dense(normal(h, 2), "up"), approximate=True), "down")
    return tf.reduce_mean(tf.square(tf.cast(h, tf.float32) - y))


def torch_loss(torch: Any, v: Any, x: Any, y: Any) -> Any:
    F = torch.nn.functional
    w = {name: value.to(torch.bfloat16) for name, value in v.items()}

    def dense(x: Any, name: str) -> Any:
        return (torch.addmm(w[f"{name}_bias"], x.flatten(0, 1), w[name])).view(*x.shape[:2], -1)

    def normal(x: Any, i: int) -> Any:
        return F.layer_norm(x, (SIZE,), w[f"scale{i}"], w[f"shift{i}"])

    h = x.to(torch.bfloat16)
    parts = dense(normal(h, 1), "qkv").chunk(3, -1)
    q, k, u = (part.view(-1, STEPS, HEADS, SIZE // HEADS).transpose(1, 2) for part in parts)
    mixed = F.scaled_dot_product_attention(q, k, u).transpose(1, 2).reshape(-1, STEPS, SIZE)
    h = h + dense(mixed, "out")
    h = h + dense(F.gelu(dense(normal(h, 2), "up"), approximate="tanh"), "down")
    return F.mse_loss(h.float(), y)


def jax_loss(jax: Any, v: Any, x: Any, y: Any) -> Any:
    jnp = jax.numpy
    w = {name: value.astype(jnp.bfloat16) for name, value in v.items()}

    def dense(x: Any, name: str) -> Any:
        return x @ w[name] + w[f"{name}_bias"]

    def normal(x: Any, i: int) -> Any:
        x = x.astype(jnp.float32)
        away = x - x.mean(-1, keepdims=True)
        x = away * jax.lax.rsqrt((away * away).mean(-1, keepdims=True) + 1e-5)
        return x.astype(jnp.bfloat16) * w[f"scale{i}"] + w[f"shift{i}"]

    h = x.astype(jnp.bfloat16)
    parts = jnp.split(dense(normal(h, 1), "qkv"), 3, axis=-1)
    q, k, u = (part.reshape(-1, STEPS, HEADS, SIZE // HEADS) for part in parts)
    h = h + dense(jax.nn.dot_product_attention(q, k, u).reshape(-1, STEPS, SIZE), "out")
    h = h + dense(jax.nn.gelu(dense(normal(h, 2), "up")), "down")
    return jnp.mean((h.astype(jnp.float32) - y) ** 2)
