"""A ResNet of six blocks for small images, with batch normalization in training mode."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("momentum", 0.01)
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 0)
BATCH, SIDE, CLASSES, DECAY, EPSILON = 16, 32, 10, 0.9, 1e-3
BLOCKS = ((16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1))


def filters() -> dict[str, tuple[int, int, int, int]]:
    """Name -> size, channels before and after, stride."""
    sizes = {"stem": (3, 3, 16, 1)}
    for i, (n, m, stride) in enumerate(BLOCKS):
        sizes |= {f"a{i}": (3, n, m, stride), f"b{i}": (3, m, m, 1)}
        if stride > 1:
            sizes[f"past{i}"] = (1, n, m, stride)
    return sizes


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {}
    for name, (k, n, m, _) in filters().items():
        values[name] = (rng.standard_normal((k, k, n, m)) * (2 / (k * k * n)) ** 0.5).astype("f4")
        values |= {f"{name}_scale": np.ones(m, "f4"), f"{name}_shift": np.zeros(m, "f4")}
        values[f"moving_mean_{name}"] = np.zeros(m, "f4")
        values[f"moving_variance_{name}"] = np.ones(m, "f4")
    values["w"] = (rng.standard_normal((64, CLASSES)) * 0.1).astype("f4")
    return values | {"b": np.zeros(CLASSES, "f4")}


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    images = rng.standard_normal((BATCH, SIDE, SIDE, 3)).astype("f4")
    return images, rng.integers(0, CLASSES, BATCH).astype("i4")


def features(normal_conv: Any, relu: Any, x: Any) -> Any:
    """What is before the mean: the blocks, of a framework's convolution and normalization."""
    x = relu(normal_conv(x, "stem"))
    for i, (_, _, stride) in enumerate(BLOCKS):
        past = normal_conv(x, f"past{i}") if stride > 1 else x
        x = relu(normal_conv(relu(normal_conv(x, f"a{i}")), f"b{i}") + past)
    return x


def averages(v: Any, name: str, mean: Any, variance: Any) -> dict[str, Any]:
    """The new values of the moving averages."""
    new = {f"moving_mean_{name}": mean, f"moving_variance_{name}": variance}
    return {key: v[key] * DECAY + value * (1 - DECAY) for key, value in new.items()}


def hpcflow_loss(hf: Any, v: Any, x: Any, y: Any, dtype: Any = None) -> Any:
    dtype, updates, strides = dtype or hf.float32, {}, filters()

    def normal_conv(x: Any, name: str) -> Any:
        x = hf.nn.conv2d(x, hf.cast(v[name], dtype), strides[name][3], "SAME")
        scale, shift = (hf.cast(v[name + part], dtype) for part in ("_scale", "_shift"))
        x, mean, variance = hf.nn.fused_batch_norm(x, scale, shift, epsilon=EPSILON)
        mean, variance = hf.cast(mean, hf.float32), hf.cast(variance, hf.float32)
        updates.update(averages(v, name, mean, variance))
        return x

    x = hf.reduce_mean(features(normal_conv, hf.nn.relu, hf.cast(x, dtype)), [1, 2])
    logits = hf.nn.bias_add(hf.matmul(hf.cast(x, hf.float32), v["w"]), v["b"])
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return hf.reduce_mean(losses), updates


def tensorflow_loss(tf: Any, v: Any, x: Any, y: Any, dtype: Any = None) -> Any:
    dtype, updates, strides = dtype or tf.float32, {}, filters()

    def normal_conv(x: Any, name: str) -> Any:
        x = tf.nn.conv2d(x, tf.cast(v[name], dtype), strides[name][3], "SAME")
        scale, shift = tf.convert_to_tensor(v[f"{name}_scale"]), v[f"{name}_shift"]
        x, mean, variance = tf.compat.v1.nn.fused_batch_norm(x, scale, shift, epsilon=EPSILON)
        updates.update(averages(v, name, mean, variance))
        return x

    x = tf.reduce_mean(features(normal_conv, tf.nn.relu, tf.cast(x, dtype)), [1, 2])
    logits = tf.matmul(tf.cast(x, tf.float32), v["w"]) + v["b"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses), updates


def torch_weights(torch: Any, values: Any) -> dict[str, Any]:
    """Filters as OIHW in the memory format of NHWC images."""
    channels_last = {"memory_format": torch.channels_last}
    return {
        name: x.permute(3, 2, 0, 1).contiguous(**channels_last) if x.dim() == 4 else x
        for name, x in values.items()
    }


def torch_loss(torch: Any, v: Any, x: Any, y: Any, dtype: Any = None) -> Any:
    F, dtype, sizes = torch.nn.functional, dtype or torch.float32, filters()

    def normal_conv(x: Any, name: str) -> Any:
        k, _, _, stride = sizes[name]
        if stride > 1 and k > 1:  # "SAME" has its zeros behind the last rows and columns
            x = F.conv2d(F.pad(x, (0, 1, 0, 1)), v[name].to(dtype), None, stride)
        else:
            x = F.conv2d(x, v[name].to(dtype), None, stride, k // 2)
        moving = v[f"moving_mean_{name}"], v[f"moving_variance_{name}"]
        scale, shift = v[f"{name}_scale"], v[f"{name}_shift"]
        return F.batch_norm(x, *moving, scale, shift, True, 1 - DECAY, EPSILON)

    x = features(normal_conv, F.relu, x.permute(0, 3, 1, 2).to(dtype)).mean((2, 3))
    return F.cross_entropy(torch.addmm(v["b"], x.float(), v["w"]), y)


def jax_loss(jax: Any, v: Any, x: Any, y: Any, dtype: Any = None) -> Any:
    jnp, updates, strides = jax.numpy, {}, filters()
    dtype = dtype or jnp.float32

    def normal_conv(x: Any, name: str) -> Any:
        strides_of = (strides[name][3],) * 2
        x = jax.lax.conv_general_dilated(
            x, v[name].astype(dtype), strides_of, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x, axes = x.astype(jnp.float32), (0, 1, 2)
        mean, variance = x.mean(axes), x.var(axes)
        updates.update(averages(v, name, mean, variance))
        x = (x - mean) * (jax.lax.rsqrt(variance + EPSILON) * v[f"{name}_scale"])
        return (x + v[f"{name}_shift"]).astype(dtype)

    x = features(normal_conv, jax.nn.relu, x.astype(dtype)).mean((1, 2))
    logits = jax.nn.log_softmax(x.astype(jnp.float32) @ v["w"] + v["b"])
    return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1)), updates
