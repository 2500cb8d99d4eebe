"""Residual blocks whose channels are weighed by a small net of their means."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("momentum", 0.01)
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 0)
BATCH, SIDE, CHANNELS, SQUEEZED, BLOCKS, CLASSES = 8, 32, 32, 8, 3, 10


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def normal(of: float, *shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * of**-0.5).astype("f4")

    n, values = CHANNELS, {"stem": normal(14, 3, 3, 3, CHANNELS)}
    for i in range(BLOCKS):
        values |= {f"a{i}": normal(4.5 * n, 3, 3, n, n), f"b{i}": normal(9 * n, 3, 3, n, n)}
        values |= {f"squeeze{i}": normal(n, n, SQUEEZED)}
        values |= {f"excite{i}": normal(SQUEEZED, SQUEEZED, n)}
        values |= {f"{name}{i}_bias": np.zeros(n, "f4") for name in ("a", "b", "excite")}
        values |= {f"squeeze{i}_bias": np.zeros(SQUEEZED, "f4")}
    values |= {"stem_bias": np.zeros(n, "f4"), "head_bias": np.zeros(CLASSES, "f4")}
    return values | {"head": normal(n, n, CLASSES)}


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    images = rng.standard_normal((BATCH, SIDE, SIDE, 3)).astype("f4")
    return images, rng.integers(0, CLASSES, BATCH).astype("i4")


def hpcflow_loss(hf: Any, v: Any, x: Any, y: Any) -> Any:
    def conv(x: Any, name: str) -> Any:
        return hf.nn.bias_add(hf.nn.conv2d(x, v[name], 1, "SAME"), v[f"{name}_bias"])

    def dense(x: Any, name: str) -> Any:
        return hf.nn.bias_add(hf.matmul(x, v[name]), v[f"{name}_bias"])

    x = hf.nn.relu(conv(x, "stem"))
    for i in range(BLOCKS):
        h = conv(hf.nn.relu(conv(x, f"a{i}")), f"b{i}")
        means = hf.nn.relu(dense(hf.reduce_mean(h, [1, 2]), f"squeeze{i}"))
        scales = hf.reshape(hf.sigmoid(dense(means, f"excite{i}")), [-1, 1, 1, CHANNELS])
        x = hf.nn.relu(x + h * scales)
    logits = dense(hf.reduce_mean(x, [1, 2]), "head")
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return hf.reduce_mean(losses)


def tensorflow_loss(tf: Any, v: Any, x: Any, y: Any) -> Any:
    def conv(x: Any, name: str) -> Any:
        return tf.nn.bias_add(tf.nn.conv2d(x, v[name], 1, "SAME"), v[f"{name}_bias"])

    def dense(x: Any, name: str) -> Any:
        return tf.nn.bias_add(tf.matmul(x, v[name]), v[f"{name}_bias"])

    x = tf.nn.relu(conv(x, "stem"))
    for i in range(BLOCKS):
        h = conv(tf.nn.relu(conv(x, f"a{i}")), f"b{i}")
        means = tf.nn.relu(dense(tf.reduce_mean(h, [1, 2]), f"squeeze{i}"))
        scales = tf.reshape(tf.sigmoid(dense(means, f"excite{i}")), [-1, 1, 1, CHANNELS])
        x = tf.nn.relu(x + h * scales)
    logits = dense(tf.reduce_mean(x, [1, 2]), "head")
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses)


def torch_weights(torch: Any, values: Any) -> dict[str, Any]:
    """Filters as OIHW in the memory format of NHWC images."""
    channels_last = {"memory_format": torch.channels_last}
    return {
        name: x.permute(3, 2, 0, 1).contiguous(**channels_last) if x.dim() == 4 else x
        for name, x in values.items()
    }


def torch_loss(torch: Any, v: Any, x: Any, y: Any) -> Any:
    F = torch.nn.functional

    def conv(x: Any, name: str) -> Any:
        return F.conv2d(x, v[name], v[f"{name}_bias"], 1, 1)

    def dense(x: Any, name: str) -> Any:
        return torch.addmm(v[f"{name}_bias"], x, v[name])

    x = F.relu(conv(x.permute(0, 3, 1, 2), "stem"))
    for i in range(BLOCKS):
        h = conv(F.relu(conv(x, f"a{i}")), f"b{i}")
        means = F.relu(dense(h.mean((2, 3)), f"squeeze{i}"))
        x = F.relu(x + h * torch.sigmoid(dense(means, f"excite{i}"))[:, :, None, None])
    return F.cross_entropy(dense(x.mean((2, 3)), "head"), y)


def jax_loss(jax: Any, v: Any, x: Any, y: Any) -> Any:
    jnp, images = jax.numpy, ("NHWC", "HWIO", "NHWC")

    def conv(x: Any, name: str) -> Any:
        x = jax.lax.conv_general_dilated(x, v[name], (1, 1), "SAME", dimension_numbers=images)
        return x + v[f"{name}_bias"]

    def dense(x: Any, name: str) -> Any:
        return x @ v[name] + v[f"{name}_bias"]

    x = jax.nn.relu(conv(x, "stem"))
    for i in range(BLOCKS):
        h = conv(jax.nn.relu(conv(x, f"a{i}")), f"b{i}")
        means = jax.nn.relu(dense(h.mean((1, 2)), f"squeeze{i}"))
        x = jax.nn.relu(x + h * jax.nn.sigmoid(dense(means, f"excite{i}"))[:, None, None])
    logits = jax.nn.log_softmax(dense(x.mean((1, 2)), "head"))
    return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))
