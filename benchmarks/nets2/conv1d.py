"""A net of one-dimensional convolutions for signals, as of sound."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("momentum", 0.01)
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 0)
BATCH, LENGTH, CLASSES = 16, 2048, 10
LAYERS = ((9, 1, 32, 4), (5, 32, 64, 2), (5, 64, 64, 2), (3, 64, 128, 1))  # size, in, out, stride
HALF = [size // 2 for size, *_ in LAYERS]


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {}
    for i, (k, n, m, _) in enumerate(LAYERS):
        values[f"w{i}"] = (rng.standard_normal((k, n, m)) * (2 / (k * n)) ** 0.5).astype("f4")
        values[f"b{i}"] = np.zeros(m, "f4")
    values["w"] = (rng.standard_normal((128, CLASSES)) * 0.1).astype("f4")
    return values | {"b": np.zeros(CLASSES, "f4")}


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    signals = rng.standard_normal((BATCH, LENGTH, 1)).astype("f4")
    return signals, rng.integers(0, CLASSES, BATCH).astype("i4")


def hpcflow_loss(hf: Any, v: Any, x: Any, y: Any) -> Any:
    for i, (*_, stride) in enumerate(LAYERS):
        x = hf.pad(x, [[0, 0], [HALF[i], HALF[i]], [0, 0]])
        x = hf.nn.conv1d(x, v[f"w{i}"], stride, "VALID")
        x = hf.nn.relu(hf.nn.bias_add(x, v[f"b{i}"]))
    logits = hf.nn.bias_add(hf.matmul(hf.reduce_mean(x, 1), v["w"]), v["b"])
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return hf.reduce_mean(losses)


def tensorflow_loss(tf: Any, v: Any, x: Any, y: Any) -> Any:
    for i, (*_, stride) in enumerate(LAYERS):
        x = tf.pad(x, [[0, 0], [HALF[i], HALF[i]], [0, 0]])
        x = tf.nn.conv1d(x, v[f"w{i}"], stride, "VALID")
        x = tf.nn.relu(tf.nn.bias_add(x, v[f"b{i}"]))
    logits = tf.matmul(tf.reduce_mean(x, 1), v["w"]) + v["b"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses)


def torch_weights(torch: Any, values: Any) -> dict[str, Any]:
    """Filters as OIW."""
    return {
        name: x.permute(2, 1, 0).contiguous() if x.dim() == 3 else x for name, x in values.items()
    }


def torch_loss(torch: Any, v: Any, x: Any, y: Any) -> Any:
    F, x = torch.nn.functional, x.transpose(1, 2)
    for i, (*_, stride) in enumerate(LAYERS):
        x = F.relu(F.conv1d(x, v[f"w{i}"], v[f"b{i}"], stride, HALF[i]))
    return F.cross_entropy(torch.addmm(v["b"], x.mean(2), v["w"]), y)


def jax_loss(jax: Any, v: Any, x: Any, y: Any) -> Any:
    jnp = jax.numpy
    for i, (*_, stride) in enumerate(LAYERS):
        x = jax.lax.conv_general_dilated(
            x, v[f"w{i}"], (stride,), [(HALF[i],) * 2], dimension_numbers=("NWC", "WIO", "NWC")
        )
        x = jax.nn.relu(x + v[f"b{i}"])
    logits = jax.nn.log_softmax(x.mean(1) @ v["w"] + v["b"])
    return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1))
