"""The networks of Table 1 of the TensorFlow paper, as of convnet-benchmarks: layers and weights.

    AlexNet  (one tower), Overfeat (fast), OxfordNet (VGG-A), GoogleNet (v1, without side outputs)

A network is a list of layers; `logits` walks it with the few operations of a framework (`Ops`), so
that all compute the same. Filters are followed by a bias and a ReLU. NumPy only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np


class Conv(NamedTuple):
    """Filters of size x size."""

    size: int
    channels: int
    stride: int = 1
    around: int = 0


class Pool(NamedTuple):
    """The largest of size x size; what lies beyond the last row and column counts if `rest`."""

    size: int
    stride: int
    rest: bool = False


class Inception(NamedTuple):
    """Filters of 1x1; 1x1 and 3x3; 1x1 and 5x5; of the largest of 3x3: side by side."""

    one: int
    three: tuple[int, int]
    five: tuple[int, int]
    pooled: int


class Mean(NamedTuple):
    """Of each channel."""


class Dense(NamedTuple):
    """A matrix and a bias, then a ReLU but for the last one."""

    size: int


class Net(NamedTuple):
    """Pixels of an image's side, the batch of convnet-benchmarks, and the layers."""

    side: int
    batch: int
    layers: Sequence[Any]


def _oxford() -> list[Any]:
    made: list[Any] = []
    for group in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        made += [*(Conv(3, n, 1, 1) for n in group), Pool(2, 2)]
    return made


HEAD = [Dense(4096), Dense(4096), Dense(1000)]
NETS = {
    "alexnet": Net(
        224,
        128,
        [
            *(Conv(11, 64, 4, 2), Pool(3, 2), Conv(5, 192, 1, 2), Pool(3, 2)),
            *(Conv(3, 384, 1, 1), Conv(3, 256, 1, 1), Conv(3, 256, 1, 1), Pool(3, 2)),
            *HEAD,
        ],
    ),
    "overfeat": Net(
        231,
        128,
        [
            *(Conv(11, 96, 4), Pool(2, 2), Conv(5, 256), Pool(2, 2)),
            *(Conv(3, 512, 1, 1), Conv(3, 1024, 1, 1), Conv(3, 1024, 1, 1), Pool(2, 2)),
            *(Dense(3072), Dense(4096), Dense(1000)),
        ],
    ),
    "oxfordnet": Net(224, 64, [*_oxford(), *HEAD]),
    "googlenet": Net(
        224,
        128,
        [
            *(Conv(7, 64, 2, 3), Pool(3, 2, True), Conv(1, 64), Conv(3, 192, 1, 1)),
            *(Pool(3, 2, True), Inception(64, (96, 128), (16, 32), 32)),
            *(Inception(128, (128, 192), (32, 96), 64), Pool(3, 2, True)),
            *(Inception(192, (96, 208), (16, 48), 64), Inception(160, (112, 224), (24, 64), 64)),
            *(Inception(128, (128, 256), (24, 64), 64), Inception(112, (144, 288), (32, 64), 64)),
            *(Inception(256, (160, 320), (32, 128), 128), Pool(3, 2, True)),
            Inception(256, (160, 320), (32, 128), 128),
            Inception(384, (192, 384), (48, 128), 128),
            *(Mean(), Dense(1000)),
        ],
    ),
}


class Ops(Protocol):
    """What a framework does; images are NHWC, filters HWIO and matrices [in, out] in `v`."""

    def conv(self, x: Any, w: Any, b: Any, stride: int, around: int) -> Any: ...
    def pool(self, x: Any, size: int, stride: int, rest: bool) -> Any: ...
    def joined(self, parts: list[Any]) -> Any: ...
    def mean(self, x: Any) -> Any: ...
    def flat(self, x: Any) -> Any: ...
    def dense(self, x: Any, w: Any, b: Any, last: bool) -> Any: ...


def logits(net: str, ops: Ops, v: dict[str, Any], x: Any) -> Any:
    """The outputs of a network for images `x`, with weights `w0`, `b0`, ... in `v`."""
    names = iter(range(len(v)))

    def conv(x: Any, stride: int, around: int) -> Any:
        i = next(names)
        return ops.conv(x, v[f"w{i}"], v[f"b{i}"], stride, around)

    is_flat, layers = False, NETS[net].layers
    for at, layer in enumerate(layers):
        if isinstance(layer, Conv):
            x = conv(x, layer.stride, layer.around)
        elif isinstance(layer, Pool):
            x = ops.pool(x, layer.size, layer.stride, layer.rest)
        elif isinstance(layer, Inception):
            parts = [conv(x, 1, 0), conv(conv(x, 1, 0), 1, 1), conv(conv(x, 1, 0), 1, 2)]
            x = ops.joined([*parts, conv(ops.pool(x, 3, 1, True), 1, 0)])
        elif isinstance(layer, Mean):
            x, is_flat = ops.mean(x), True
        else:
            x, is_flat, i = x if is_flat else ops.flat(x), True, next(names)
            x = ops.dense(x, v[f"w{i}"], v[f"b{i}"], at == len(layers) - 1)
    return x


def shapes(net: str) -> list[tuple[int, ...]]:
    """Of all filters and matrices, in the order in which `logits` uses them."""
    side, channels, found = NETS[net].side, 3, list[tuple[int, ...]]()

    def conv(size: int, before: int, after: int) -> int:
        found.append((size, size, before, after))
        return after

    for layer in NETS[net].layers:
        if isinstance(layer, Conv):
            side = (side + 2 * layer.around - layer.size) // layer.stride + 1
            channels = conv(layer.size, channels, layer.channels)
        elif isinstance(layer, Pool):
            over = layer.stride - 1 if layer.rest else 0
            side = (side - layer.size + over) // layer.stride + 1
        elif isinstance(layer, Inception):
            made = conv(1, channels, layer.one)
            made += conv(3, conv(1, channels, layer.three[0]), layer.three[1])
            made += conv(5, conv(1, channels, layer.five[0]), layer.five[1])
            channels = made + conv(1, channels, layer.pooled)
        elif isinstance(layer, Mean):
            side = 1
        else:
            found.append((side * side * channels, layer.size))
            side, channels = 1, layer.size
    return found


def weights(net: str) -> dict[str, np.ndarray]:
    """Name -> first value, normal numbers as of He et al. 2015 and zeros."""
    rng, made = np.random.default_rng(1), dict[str, np.ndarray]()
    for i, shape in enumerate(shapes(net)):
        scale = np.float32((2.0 / int(np.prod(shape[:-1]))) ** 0.5)
        made[f"w{i}"] = rng.standard_normal(shape, np.float32) * scale
        made[f"b{i}"] = np.zeros(shape[-1], np.float32)
    return made


def batches(net: str, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same images and labels without end."""
    rng, side = np.random.default_rng(0), NETS[net].side
    images = rng.standard_normal((size, side, side, 3), np.float32)
    labels = rng.integers(0, 1000, size).astype(np.int32)
    while True:
        yield images, labels
