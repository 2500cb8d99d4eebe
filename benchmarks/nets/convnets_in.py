"""The convolutional networks in each framework: `made(module, net, batch, device)`.

Two functions of no arguments, forward and forward with all gradients of the weights; each takes the
next batch, as NumPy arrays, and gives the loss as a float when all of it is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from nets import convnets


class Steps(NamedTuple):
    """What is timed."""

    forward: Callable[[], float]
    both: Callable[[], float]


def made(module: str, net: str, batch: int, device: str) -> Steps:
    makers = {"of_hpcflow": _hpcflow, "of_torch": _torch}
    makers |= {"of_tensorflow": _tensorflow, "of_jax": _jax}
    return makers[module](net, batch, device)


def _hpcflow(net: str, batch: int, device: str) -> Steps:
    import hpcflow as hf

    class Ops:
        def conv(self, x: Any, w: Any, b: Any, stride: int, around: int) -> Any:
            pads = [[0, 0], [around, around], [around, around], [0, 0]]
            return hf.nn.relu(hf.nn.bias_add(hf.nn.conv2d(x, w, stride, pads), b))

        def pool(self, x: Any, size: int, stride: int, rest: bool) -> Any:
            return hf.nn.max_pool2d(x, size, stride, "SAME" if rest else "VALID")

        def joined(self, parts: list[Any]) -> Any:
            return hf.concat(parts, 3)

        def mean(self, x: Any) -> Any:
            return hf.reduce_mean(x, [1, 2])

        def flat(self, x: Any) -> Any:
            return hf.reshape(x, [batch, -1])

        def dense(self, x: Any, w: Any, b: Any, last: bool) -> Any:
            x = hf.nn.bias_add(hf.matmul(x, w), b)
            return x if last else hf.nn.relu(x)

    source = convnets.batches(net, batch)
    first = next(source)
    x, labels = (hf.placeholder(hf.as_dtype(a.dtype), a.shape) for a in first)
    v = {name: hf.Variable(value, name=name) for name, value in convnets.weights(net).items()}
    logits = convnets.logits(net, Ops(), v, x)
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = hf.reduce_mean(losses)
    slopes = hf.group(*hf.gradients(loss, list(v.values())))
    session = hf.Session()
    session.run(hf.global_variables_initializer())

    def run(fetches: Any) -> float:
        return float(session.run(fetches, dict(zip((x, labels), next(source), strict=True)))[0])

    return Steps(lambda: run([loss]), lambda: run([loss, slopes]))


def _torch(net: str, batch: int, device: str) -> Steps:
    import torch
    from torch.nn import functional as F

    where = "cuda" if device == "gpu" else "cpu"

    class Ops:
        def conv(self, x: Any, w: Any, b: Any, stride: int, around: int) -> Any:
            return F.relu(F.conv2d(x, w, b, stride, around))

        def pool(self, x: Any, size: int, stride: int, rest: bool) -> Any:
            around = size // 2 if rest and stride == 1 else 0
            return F.max_pool2d(x, size, stride, around, ceil_mode=rest and stride > 1)

        def joined(self, parts: list[Any]) -> Any:
            return torch.cat(parts, 1)

        def mean(self, x: Any) -> Any:
            return x.mean((2, 3))

        def flat(self, x: Any) -> Any:
            return x.permute(0, 2, 3, 1).flatten(1)  # pixels in the order of NHWC

        def dense(self, x: Any, w: Any, b: Any, last: bool) -> Any:
            x = torch.addmm(b, x, w)
            return x if last else F.relu(x)

    def placed(array: Any) -> Any:
        value = torch.from_numpy(array).to(where)
        if value.dim() == 4:
            value = value.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
        return torch.nn.Parameter(value)

    v = {name: placed(value) for name, value in convnets.weights(net).items()}
    source = convnets.batches(net, batch)

    def loss() -> Any:
        images, labels = (torch.from_numpy(a).to(where) for a in next(source))
        found = convnets.logits(net, Ops(), v, images.permute(0, 3, 1, 2))
        return F.cross_entropy(found, labels.long())

    def forward() -> float:
        with torch.inference_mode():
            return loss().item()

    def both() -> float:
        for parameter in v.values():
            parameter.grad = None
        found = loss()
        found.backward()
        if device == "gpu":
            torch.cuda.synchronize()
        return found.item()

    return Steps(forward, both)


def _tensorflow(net: str, batch: int, device: str) -> Steps:
    import tensorflow as tf

    from nets.of_tensorflow import session_of_threads

    t1 = tf.compat.v1
    t1.disable_eager_execution()

    class Ops:
        def conv(self, x: Any, w: Any, b: Any, stride: int, around: int) -> Any:
            pads = [[0, 0], [around, around], [around, around], [0, 0]]
            return tf.nn.relu(tf.nn.conv2d(x, w, stride, pads) + b)

        def pool(self, x: Any, size: int, stride: int, rest: bool) -> Any:
            return tf.nn.max_pool2d(x, size, stride, "SAME" if rest else "VALID")

        def joined(self, parts: list[Any]) -> Any:
            return tf.concat(parts, 3)

        def mean(self, x: Any) -> Any:
            return tf.reduce_mean(x, [1, 2])

        def flat(self, x: Any) -> Any:
            return tf.reshape(x, [batch, -1])

        def dense(self, x: Any, w: Any, b: Any, last: bool) -> Any:
            x = tf.matmul(x, w) + b
            return x if last else tf.nn.relu(x)

    source = convnets.batches(net, batch)
    feeds = [t1.placeholder(a.dtype, a.shape) for a in next(source)]
    v, starts, values = {}, {}, convnets.weights(net)
    for name, value in values.items():  # fed, as constants of a graph are 2 GB at most together
        starts[name] = t1.placeholder(tf.float32, value.shape)
        v[name] = t1.Variable(starts[name])
    logits = convnets.logits(net, Ops(), v, feeds[0])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=feeds[1], logits=logits)
    loss = tf.reduce_mean(losses)
    # an element of each, for gradients that nothing uses are not made
    slopes = tf.add_n([tf.reshape(g, [-1])[0] for g in tf.gradients(loss, list(v.values()))])
    session = session_of_threads()
    session.run(
        t1.global_variables_initializer(), {starts[name]: value for name, value in values.items()}
    )

    def run(fetches: Any) -> float:
        return float(session.run(fetches, dict(zip(feeds, next(source), strict=True)))[0])

    return Steps(lambda: run([loss]), lambda: run([loss, slopes]))


def _jax(net: str, batch: int, device: str) -> Steps:
    import jax
    import jax.numpy as jnp
    from jax import lax

    from nets.of_jax import limit_threads

    limit_threads()

    class Ops:
        def conv(self, x: Any, w: Any, b: Any, stride: int, around: int) -> Any:
            pads, kinds = [(around, around)] * 2, ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(x, w, (stride, stride), pads, dimension_numbers=kinds)
            return jax.nn.relu(x + b)

        def pool(self, x: Any, size: int, stride: int, rest: bool) -> Any:
            window, steps = (1, size, size, 1), (1, stride, stride, 1)
            return lax.reduce_window(
                x, -jnp.inf, lax.max, window, steps, "SAME" if rest else "VALID"
            )

        def joined(self, parts: list[Any]) -> Any:
            return jnp.concatenate(parts, 3)

        def mean(self, x: Any) -> Any:
            return x.mean((1, 2))

        def flat(self, x: Any) -> Any:
            return x.reshape(batch, -1)

        def dense(self, x: Any, w: Any, b: Any, last: bool) -> Any:
            x = x @ w + b
            return x if last else jax.nn.relu(x)

    def loss(v: Any, images: Any, labels: Any) -> Any:
        found = jax.nn.log_softmax(convnets.logits(net, Ops(), v, images))
        return -jnp.mean(found[jnp.arange(batch), labels])

    v = jax.device_put(convnets.weights(net))
    source = convnets.batches(net, batch)
    forward, both = jax.jit(loss), jax.jit(jax.value_and_grad(loss))

    def run_both() -> float:
        found, slopes = both(v, *next(source))
        jax.block_until_ready(slopes)
        return float(found)

    return Steps(lambda: float(forward(v, *next(source))), run_both)
