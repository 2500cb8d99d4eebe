"""Variable update kernels: in-place updates in cache-sized tiles; deterministic.

They operate on flat views: variables and their slots are C-contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hpcflow.kernels.cuda_graph_restrictions import STATE_ON_HOST
from hpcflow.kernels.kernel_registry import KernelNode, TiledUpdate, kernel

TILE = 32 << 10  # elements: a tile's variable, slots, gradient and scratch fit a core's L2 cache


@kernel("IsVariableInitialized", "new", moves=True, uncaptured=STATE_ON_HOST)
def _is_initialized(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda array: xp.asarray(array is not None)


@kernel("AssignAdd", "update")
def _assign_add(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda var, x: xp.add(var, x, var)


@kernel("AssignSub", "update")
def _assign_sub(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda var, x: xp.subtract(var, x, var)


def _scratch(xp: Any, node: KernelNode) -> Any:
    """A scratch array for one tile; on a GPU for all elements."""
    size = int(np.prod(node.attrs["shape"], dtype=np.int64))
    return xp.empty(min(size, TILE) if xp is np else size, node.attrs["dtype"])


def _tiles(scratch: Any, *arrays: Any) -> Iterator[list[Any]]:
    """The corresponding tiles of `arrays`, and of the scratch array."""
    flats = [a.reshape(-1) for a in arrays]
    size, step = flats[0].size, scratch.size
    if size == step:
        yield [*flats, scratch]
        return
    for start in range(0, size, step):
        stop = min(start + step, size)
        yield [*(f[start:stop] for f in flats), scratch[: stop - start]]


@kernel("ApplyGradientDescent", "update", tiles=True)
def _gradient_descent(xp: Any, node: KernelNode) -> Callable[..., Any]:
    scratch = _scratch(xp, node)

    def tiles(var: Any, lr: Any, grad: Any) -> Iterator[None]:
        for v, g, s in _tiles(scratch, var, grad):
            xp.multiply(g, lr, s)
            xp.subtract(v, s, v)
            yield

    return TiledUpdate(tiles)


@kernel("ApplyMomentum", "update", tiles=True)
def _momentum(xp: Any, node: KernelNode) -> Callable[..., Any]:
    scratch, nesterov = _scratch(xp, node), node.attrs.get("use_nesterov", False)

    def tiles(var: Any, accum: Any, lr: Any, momentum: Any, grad: Any) -> Iterator[None]:
        for v, a, g, s in _tiles(scratch, var, accum, grad):
            xp.multiply(a, momentum, a)
            xp.add(a, g, a)
            if nesterov:
                xp.multiply(a, momentum, s)
                xp.add(s, g, s)
                xp.multiply(s, lr, s)
            else:
                xp.multiply(a, lr, s)
            xp.subtract(v, s, v)
            yield

    return TiledUpdate(tiles)


@kernel("ApplyAdam", "update", tiles=True)
def _adam(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """Adam (Kingma and Ba) in TensorFlow's form; `step` (int64 scalar) counts the updates."""
    scratch = _scratch(xp, node)
    dtype = node.attrs["dtype"]
    exact = float if xp is np else lambda c: c.astype(np.float64)  # no GPU synchronization

    def tiles(
        var: Any, m: Any, v: Any, step: Any, lr: Any, beta1: Any, beta2: Any, eps: Any, grad: Any
    ) -> Iterator[None]:
        xp.add(step, 1, step)
        t, rest1, rest2 = exact(step), 1 - exact(beta1), 1 - exact(beta2)
        rate = exact(lr) * (1 - (1 - rest2) ** t) ** 0.5 / (1 - (1 - rest1) ** t)
        rest1, rest2, rate = (xp.asarray(c, dtype) for c in (rest1, rest2, rate))
        for x, m1, v1, g, s in _tiles(scratch, var, m, v, grad):
            xp.subtract(g, m1, s)  # m += (1 - beta1) (g - m)
            xp.multiply(s, rest1, s)
            xp.add(m1, s, m1)
            xp.multiply(g, g, s)  # v += (1 - beta2) (g g - v)
            xp.subtract(s, v1, s)
            xp.multiply(s, rest2, s)
            xp.add(v1, s, v1)
            xp.sqrt(v1, s)  # var -= rate m / (sqrt(v) + eps)
            xp.add(s, eps, s)
            xp.true_divide(m1, s, s)
            xp.multiply(s, rate, s)
            xp.subtract(x, s, x)
            yield

    return TiledUpdate(tiles)
