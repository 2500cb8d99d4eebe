"""Kernels of random draws: Philox, a generator that is a function of key and counter.

Draw number n of an op takes the counters that begin at n * 2**128, so what one draw takes never
overlaps the next. The numbers are made on the CPU for every device, so that all draw the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.kernels.table import Node, kernel

Draw = Callable[[np.random.Generator, Any], None]


class Draws:
    """How many draws of an op were made: what a checkpoint keeps of it."""

    __slots__ = ("made",)

    def __init__(self, made: int = 0) -> None:
        self.made = made


class _Drawer:
    """Fills its last argument by `draw(generator, array)`, by the next draw of `draws`."""

    def __init__(self, xp: Any, key: int, draw: Draw) -> None:
        self.xp, self.key, self.draw, self.draws = xp, key, draw, Draws()

    def generator(self) -> np.random.Generator:
        """The generator of the next draw."""
        bits = np.random.Philox(key=self.key, counter=self.draws.made << 128)
        self.draws.made += 1
        return np.random.Generator(bits)

    def __call__(self, *args: Any) -> None:
        out, generator = args[-1], self.generator()
        host = out if self.xp is np else np.empty(out.shape, out.dtype)
        self.draw(generator, host)
        if host is not out:
            self.xp.copyto(out, self.xp.asarray(host))


def _random(xp: Any, node: Node, draw: Draw) -> Callable[..., Any]:
    return _Drawer(xp, node.attrs["key"], draw)


def _native(generator: np.random.Generator, name: str, out: np.ndarray) -> None:
    """Fill `out` by a method of the generator that draws float32 or float64."""
    if out.dtype.itemsize >= 4:
        getattr(generator, name)(out=out, dtype=out.dtype)
    else:
        out[...] = getattr(generator, name)(size=out.shape, dtype=np.float32)


@kernel("RandomUniform", "out")
def _uniform(xp: Any, node: Node) -> Callable[..., Any]:
    low, high, dtype = node.attrs["minval"], node.attrs["maxval"], node.attrs["dtype"]

    def floats(generator: np.random.Generator, out: np.ndarray) -> None:
        _native(generator, "random", out)
        if (low, high) != (0, 1):
            np.multiply(out, dtype.type(high - low), out)
            np.add(out, dtype.type(low), out)

    def integers(generator: np.random.Generator, out: np.ndarray) -> None:
        out[...] = generator.integers(low, high, out.shape, dtype)

    return _random(xp, node, floats if dtype.kind == "f" else integers)


@kernel("RandomNormal", "out")
def _normal(xp: Any, node: Node) -> Callable[..., Any]:
    def draw(generator: np.random.Generator, out: np.ndarray) -> None:
        _native(generator, "standard_normal", out)
        _scale(node, out)

    return _random(xp, node, draw)


@kernel("TruncatedNormal", "out")
def _truncated(xp: Any, node: Node) -> Callable[..., Any]:
    def draw(generator: np.random.Generator, out: np.ndarray) -> None:
        _native(generator, "standard_normal", out)
        while (far := np.abs(out) > 2).any():
            out[far] = generator.standard_normal(int(far.sum()))
        _scale(node, out)

    return _random(xp, node, draw)


class _Shuffler(_Drawer):
    """Its first argument in an order drawn anew, in its second one."""

    def __call__(self, *args: Any) -> None:
        x, out = args
        order = self.generator().permutation(len(x))
        self.xp.take(x, self.xp.asarray(order), 0, out)


@kernel("RandomShuffle", "out")
def _shuffle(xp: Any, node: Node) -> Callable[..., Any]:
    return _Shuffler(xp, node.attrs["key"], lambda generator, out: None)


def _scale(node: Node, out: np.ndarray) -> None:
    if (node.attrs["mean"], node.attrs["stddev"]) != (0, 1):
        np.multiply(out, out.dtype.type(node.attrs["stddev"]), out)
        np.add(out, out.dtype.type(node.attrs["mean"]), out)
