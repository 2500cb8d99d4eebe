"""A net of inverted residual blocks: depthwise convolutions, batch normalization and ReLU6."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("momentum", 0.01)
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 0)
BATCH, SIDE, CLASSES, EXPANSION, DECAY, EPSILON = 8, 32, 10, 4, 0.9, 1e-3
BLOCKS = ((24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1))


def shapes() -> dict[str, tuple[int, ...]]:
    """Name -> shape of the filters; those of channels on their own have 1 as the last size."""
    sizes = {"stem": (3, 3, 3, 24)}
    for i, (n, m, _) in enumerate(BLOCKS):
        wide = n * EXPANSION
        sizes |= {f"wide{i}": (1, 1, n, wide), f"own{i}": (3, 3, wide, 1)}
        sizes[f"narrow{i}"] = (1, 1, wide, m)
    return sizes | {"head": (1, 1, 64, 128)}


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {}
    for name, (k, _, n, m) in shapes().items():
        of, channels = (k * k, n) if m == 1 else (k * k * n, m)
        values[name] = (rng.standard_normal((k, k, n, m)) * (2 / of) ** 0.5).astype("f4")
        values |= {f"{name}_scale": np.ones(channels, "f4")}
        values |= {f"{name}_shift": np.zeros(channels, "f4")}
        values[f"moving_mean_{name}"] = np.zeros(channels, "f4")
        values[f"moving_variance_{name}"] = np.ones(channels, "f4")
    values["w"] = (rng.standard_normal((128, CLASSES)) * 0.1).astype("f4")
    return values | {"b": np.zeros(CLASSES, "f4")}


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    images = rng.standard_normal((BATCH, SIDE, SIDE, 3)).astype("f4")
    return images, rng.integers(0, CLASSES, BATCH).astype("i4")


def features(normal_conv: Any, relu6: Any, x: Any) -> Any:
    """What is before the mean, of a framework's convolution and normalization."""
    x = relu6(normal_conv(x, "stem", 1))
    for i, (n, m, stride) in enumerate(BLOCKS):
        h = relu6(normal_conv(x, f"wide{i}", 1))
        h = normal_conv(relu6(normal_conv(h, f"own{i}", stride)), f"narrow{i}", 1)
        x = x + h if n == m else h
    return relu6(normal_conv(x, "head", 1))


def averages(v: Any, name: str, mean: Any, variance: Any) -> dict[str, Any]:
    """The new values of the moving averages."""
    new = {f"moving_mean_{name}": mean, f"moving_variance_{name}": variance}
    return {key: v[key] * DECAY + value * (1 - DECAY) for key, value in new.items()}


def hpcflow_loss(hf: Any, v: Any, x: Any, y: Any) -> Any:
    updates = {}

    def normal_conv(x: Any, name: str, stride: int) -> Any:
        conv = hf.nn.depthwise_conv2d if name.startswith("own") else hf.nn.conv2d
        x = conv(x, v[name], [1, stride, stride, 1], "SAME")
        scale, shift = v[f"{name}_scale"], v[f"{name}_shift"]
        x, mean, variance = hf.nn.fused_batch_norm(x, scale, shift, epsilon=EPSILON)
        updates.update(averages(v, name, mean, variance))
        return x

    x = hf.reduce_mean(features(normal_conv, hf.nn.relu6, x), [1, 2])
    logits = hf.nn.bias_add(hf.matmul(x, v["w"]), v["b"])
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return hf.reduce_mean(losses), updates


def tensorflow_loss(tf: Any, v: Any, x: Any, y: Any) -> Any:
    updates = {}

    def normal_conv(x: Any, name: str, stride: int) -> Any:
        conv = tf.nn.depthwise_conv2d if name.startswith("own") else tf.nn.conv2d
        x = conv(x, v[name], [1, stride, stride, 1], "SAME")
        scale, shift = tf.convert_to_tensor(v[f"{name}_scale"]), v[f"{name}_shift"]
        x, mean, variance = tf.compat.v1.nn.fused_batch_norm(x, scale, shift, epsilon=EPSILON)
        updates.update(averages(v, name, mean, variance))
        return x

    x = tf.reduce_mean(features(normal_conv, tf.nn.relu6, x), [1, 2])
    logits = tf.matmul(x, v["w"]) + v["b"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses), updates


def torch_weights(torch: Any, values: Any) -> dict[str, Any]:
    """Filters as OIHW in the memory format of NHWC images."""
    values = dict(values)
    for name in shapes():
        order = (2, 3, 0, 1) if name.startswith("own") else (3, 2, 0, 1)
        x = values[name].permute(*order)
        values[name] = x.contiguous(memory_format=torch.channels_last)
    return values


def torch_loss(torch: Any, v: Any, x: Any, y: Any) -> Any:
    F = torch.nn.functional

    def normal_conv(x: Any, name: str, stride: int) -> Any:
        w = v[name]
        groups = w.shape[0] if name.startswith("own") else 1
        if stride > 1:  # "SAME" has its zeros behind the last rows and columns
            x = F.conv2d(F.pad(x, (0, 1, 0, 1)), w, None, stride, groups=groups)
        else:
            x = F.conv2d(x, w, None, 1, w.shape[2] // 2, groups=groups)
        moving = v[f"moving_mean_{name}"], v[f"moving_variance_{name}"]
        scale, shift = v[f"{name}_scale"], v[f"{name}_shift"]
        return F.batch_norm(x, *moving, scale, shift, True, 1 - DECAY, EPSILON)

    x = features(normal_conv, F.relu6, x.permute(0, 3, 1, 2)).mean((2, 3))
    return F.cross_entropy(torch.addmm(v["b"], x, v["w"]), y)


def jax_loss(jax: Any, v: Any, x: Any, y: Any) -> Any:
    """Filters of channels on their own as sums of shifted images: XLA is slow at such groups."""
    jnp, updates, images = jax.numpy, {}, ("NHWC", "HWIO", "NHWC")

    def shifted(x: Any, w: Any, stride: int) -> Any:
        side = x.shape[1]
        x = jnp.pad(x, ((0, 0), (2 - stride, 1), (2 - stride, 1), (0, 0)))
        ends = [slice(k, k + side, stride) for k in range(3)]
        return sum(x[:, ends[i], ends[j]] * w[i, j, :, 0] for i in range(3) for j in range(3))

    def normal_conv(x: Any, name: str, stride: int) -> Any:
        if name.startswith("own"):
            x = shifted(x, v[name], stride)
        else:
            x = jax.lax.conv_general_dilated(x, v[name], (1, 1), "SAME", dimension_numbers=images)
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        updates.update(averages(v, name, mean, variance))
        x = (x - mean) * (jax.lax.rsqrt(variance + EPSILON) * v[f"{name}_scale"])
        return x + v[f"{name}_shift"]

    x = features(normal_conv, jax.nn.relu6, x).mean((1, 2))
    logits = jax.nn.log_softmax(x @ v["w"] + v["b"])
    return -jnp.mean(jnp.take_along_axis(logits, y[:, None], 1)), updates
