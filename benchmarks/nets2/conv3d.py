"""A net of three-dimensional convolutions with group normalization, as for volumes."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("momentum", 0.01)
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 0)
BATCH, SIDE, CLASSES, GROUPS, EPSILON = 4, 16, 10, 4, 1e-5
LAYERS = ((1, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1))  # channels before and after, stride


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {}
    for i, (n, m, _) in enumerate(LAYERS):
        shape = 3, 3, 3, n, m
        values[f"w{i}"] = (rng.standard_normal(shape) * (2 / (27 * n)) ** 0.5).astype("f4")
        values |= {f"scale{i}": np.ones(m, "f4"), f"shift{i}": np.zeros(m, "f4")}
    values["w"] = (rng.standard_normal((32, CLASSES)) * 0.2).astype("f4")
    return values | {"b": np.zeros(CLASSES, "f4")}


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    volumes = rng.standard_normal((BATCH, SIDE, SIDE, SIDE, 1)).astype("f4")
    return volumes, rng.integers(0, CLASSES, BATCH).astype("i4")


def hpcflow_loss(hf: Any, v: Any, x: Any, y: Any) -> Any:
    for i, (*_, stride) in enumerate(LAYERS):
        x = hf.nn.conv3d(x, v[f"w{i}"], [1, stride, stride, stride, 1], "SAME")
        x = hf.nn.group_normalization(x, GROUPS, v[f"scale{i}"], v[f"shift{i}"], EPSILON)
        x = hf.nn.relu(x)
    logits = hf.nn.bias_add(hf.matmul(hf.reduce_mean(x, [1, 2, 3]), v["w"]), v["b"])
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return hf.reduce_mean(losses)


def tensorflow_loss(tf: Any, v: Any, x: Any, y: Any) -> Any:
    def normal(x: Any, i: int) -> Any:
        _, d, h, w, channels = x.shape
        parts = tf.reshape(x, [-1, d * h * w, GROUPS, channels // GROUPS])
        mean, variance = tf.nn.moments(parts, [1, 3], keepdims=True)
        parts = (parts - mean) * tf.math.rsqrt(variance + EPSILON)
        return tf.reshape(parts, [-1, d, h, w, channels]) * v[f"scale{i}"] + v[f"shift{i}"]

    for i, (*_, stride) in enumerate(LAYERS):
        x = tf.nn.conv3d(x, v[f"w{i}"], [1, stride, stride, stride, 1], "SAME")
        x = tf.nn.relu(normal(x, i))
    logits = tf.matmul(tf.reduce_mean(x, [1, 2, 3]), v["w"]) + v["b"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses)


def torch_weights(torch: Any, values: Any) -> dict[str, Any]:
    """Filters as OIDHW in the memory format of NDHWC volumes."""
    channels_last = {"memory_format": torch.channels_last_3d}
    return {
        name: x.permute(4, 3, 0, 1, 2).contiguous(**channels_last) if x.dim() == 5 else x
        for name, x in values.items()
    }


def torch_loss(torch: Any, v: Any, x: Any, y: Any) -> Any:
    F, x = torch.nn.functional, x.permute(0, 4, 1, 2, 3)
    for i, (*_, stride) in enumerate(LAYERS):
        if stride > 1:  # "SAME" has its zeros behind the last planes, rows and columns
            x = F.conv3d(F.pad(x, (0, 1) * 3), v[f"w{i}"], None, stride)
        else:
            x = F.conv3d(x, v[f"w{i}"], None, 1, 1)
        x = F.relu(F.group_norm(x, GROUPS, v[f"scale{i}"], v[f"shift{i}"], EPSILON))
    return F.cross_entropy(torch.addmm(v["b"], x.mean((2, 3, 4)), v["w"]), y)


def jax_loss(jax: Any, v: Any, x: Any, y: Any) -> Any:
    """By convolutions of images with the channels of three planes: XLA is slow at volumes."""
    jnp, images = jax.numpy, ("NHWC", "HWIO", "NHWC")

    def conv(x: Any, w: Any, stride: int) -> Any:
        n, d, *sides, channels = x.shape
        x = jnp.pad(x, ((0, 0), (2 - stride, 1), (0, 0), (0, 0), (0, 0)))
        planes = jnp.concatenate([x[:, k : k + d : stride] for k in range(3)], 4)
        x = planes.reshape(-1, *sides, 3 * channels)
        w = w.transpose(1, 2, 0, 3, 4).reshape(3, 3, 3 * channels, -1)
        x = jax.lax.conv_general_dilated(x, w, (stride,) * 2, "SAME", dimension_numbers=images)
        return x.reshape(n, d // stride, *x.shape[1:])

    def normal(x: Any, i: int) -> Any:
        parts = x.reshape(x.shape[0], -1, GROUPS, x.shape[4] // GROUPS)
        mean, variance = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
        parts = (parts - mean) * jax.lax.rsqrt(variance + EPSILON)
        return parts.reshape(x.shape) * v[f"scale{i}"] + v[f"shift{i}"]

    for i, (*_, stride) in enumerate(LAYERS):
        x = jax.nn.relu(normal(conv(x, v[f"w{i}"], stride), i))
    logits = jax.nn.log_softmax(x.mean((1, 2, 3)) @ v["w"] + v["b"])
    return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))
