"""A small U-Net: convolutions, transposed convolutions and what is passed across the levels."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("momentum", 0.01)
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 0)
BATCH, SIDE, LEVELS = 4, 64, (16, 32, 64)


def shapes() -> dict[str, tuple[int, ...]]:
    """Name -> shape of the filters; those of transposed convolutions are [2, 2, after, before]."""
    sizes, n = {}, 1
    for i, m in enumerate(LEVELS):
        sizes |= {f"down{i}a": (3, 3, n, m), f"down{i}b": (3, 3, m, m)}
        n = m
    for i in reversed(range(len(LEVELS) - 1)):
        m = LEVELS[i]
        sizes |= {f"over{i}": (2, 2, m, n), f"up{i}a": (3, 3, 2 * m, m), f"up{i}b": (3, 3, m, m)}
        n = m
    return sizes | {"out": (1, 1, n, 1)}


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {}
    for name, (k, _, n, m) in shapes().items():
        of, channels = (m, n) if name.startswith("over") else (k * k * n, m)
        values[name] = (rng.standard_normal((k, k, n, m)) * (2 / of) ** 0.5).astype("f4")
        values[f"{name}_bias"] = np.zeros(channels, "f4")
    return values


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    shape = BATCH, SIDE, SIDE, 1
    images = rng.standard_normal(shape).astype("f4")
    return images, (rng.random(shape) < 0.3).astype("f4")


def logits(conv: Any, over: Any, pooled: Any, joined: Any, x: Any) -> Any:
    """The net of a framework's operations."""
    across, last = [], len(LEVELS) - 1
    for i in range(last + 1):
        x = conv(conv(x, f"down{i}a"), f"down{i}b")
        if i < last:
            across.append(x)
            x = pooled(x)
    for i in reversed(range(last)):
        x = joined(across[i], over(x, f"over{i}", SIDE >> i))
        x = conv(conv(x, f"up{i}a"), f"up{i}b")
    return conv(x, "out", False)


def hpcflow_loss(hf: Any, v: Any, x: Any, y: Any) -> Any:
    def conv(x: Any, name: str, relu: bool = True) -> Any:
        x = hf.nn.bias_add(hf.nn.conv2d(x, v[name], 1, "SAME"), v[f"{name}_bias"])
        return hf.nn.relu(x) if relu else x

    def over(x: Any, name: str, side: int) -> Any:
        shape = [hf.shape(x)[0], side, side, shapes()[name][2]]
        return hf.nn.bias_add(hf.nn.conv2d_transpose(x, v[name], shape, 2), v[f"{name}_bias"])

    out = logits(
        conv,
        over,
        lambda x: hf.nn.max_pool2d(x, 2, 2, "VALID"),
        lambda a, b: hf.concat([a, b], 3),
        x,
    )
    return hf.reduce_mean(hf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=out))


def tensorflow_loss(tf: Any, v: Any, x: Any, y: Any) -> Any:
    def conv(x: Any, name: str, relu: bool = True) -> Any:
        x = tf.nn.bias_add(tf.nn.conv2d(x, v[name], 1, "SAME"), v[f"{name}_bias"])
        return tf.nn.relu(x) if relu else x

    def over(x: Any, name: str, side: int) -> Any:
        shape = tf.stack([tf.shape(x)[0], side, side, shapes()[name][2]])
        return tf.nn.bias_add(tf.nn.conv2d_transpose(x, v[name], shape, 2), v[f"{name}_bias"])

    out = logits(
        conv,
        over,
        lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"),
        lambda a, b: tf.concat([a, b], 3),
        x,
    )
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=out))


def torch_weights(torch: Any, values: Any) -> dict[str, Any]:
    """Filters as OIHW (transposed: IOHW) in the memory format of NHWC images."""
    channels_last = {"memory_format": torch.channels_last}
    return {
        name: x.permute(3, 2, 0, 1).contiguous(**channels_last) if x.dim() == 4 else x
        for name, x in values.items()
    }


def torch_loss(torch: Any, v: Any, x: Any, y: Any) -> Any:
    F = torch.nn.functional

    def conv(x: Any, name: str, relu: bool = True) -> Any:
        w = v[name]
        x = F.conv2d(x, w, v[f"{name}_bias"], 1, w.shape[2] // 2)
        return F.relu(x) if relu else x

    def over(x: Any, name: str, side: int) -> Any:
        return F.conv_transpose2d(x, v[name], v[f"{name}_bias"], 2)

    x = x.permute(0, 3, 1, 2)
    out = logits(conv, over, lambda x: F.max_pool2d(x, 2), lambda a, b: torch.cat([a, b], 1), x)
    return F.binary_cross_entropy_with_logits(out, y.permute(0, 3, 1, 2))


def jax_loss(jax: Any, v: Any, x: Any, y: Any) -> Any:
    jnp, images = jax.numpy, ("NHWC", "HWIO", "NHWC")

    def conv(x: Any, name: str, relu: bool = True) -> Any:
        x = jax.lax.conv_general_dilated(x, v[name], (1, 1), "SAME", dimension_numbers=images)
        x = x + v[f"{name}_bias"]
        return jax.nn.relu(x) if relu else x

    def over(x: Any, name: str, side: int) -> Any:
        """Windows do not overlap: a product, whose columns are the pixels of a window."""
        n, h, w, _ = x.shape
        x = jnp.einsum("nhwi,aboi->nhawbo", x, v[name])
        return x.reshape(n, 2 * h, 2 * w, -1) + v[f"{name}_bias"]

    def pooled(x: Any) -> Any:
        window = (1, 2, 2, 1)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")

    out = logits(conv, over, pooled, lambda a, b: jnp.concatenate([a, b], 3), x)
    return jnp.mean(jnp.maximum(out, 0) - out * y + jnp.log1p(jnp.exp(-jnp.abs(out))))
