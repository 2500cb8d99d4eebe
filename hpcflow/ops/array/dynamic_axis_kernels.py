"""Dynamic axis kernels: shapes around axes known at run time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel

Sizes = list[int]


def normal_axes(axes: list[int], rank: int) -> list[int]:
    """Axes as non-negative ints.

    Errors: ShapeError if an axis is repeated or out of range.
    """
    for axis in axes:
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is out of range for rank {rank}")
    normalized = [axis % rank for axis in axes]
    if len(set(normalized)) != len(normalized):
        raise ShapeError(f"axes {axes} name one axis twice")
    return normalized


def listed(vector: Any) -> list[int]:
    """The numbers in a scalar or a vector."""
    return vector.reshape(-1).tolist()


def _one_axis(axis: Any, rank: int) -> int:
    if axis.ndim:
        raise ShapeError(f"an axis must be a scalar, not of shape {list(axis.shape)}")
    return normal_axes(listed(axis), rank)[0]


def _flat(sizes: Sizes, at: int) -> Sizes:
    return [math.prod(sizes[:at]), sizes[at], math.prod(sizes[at + 1 :])]


def _vectors(xp: Any, lists: list[Sizes]) -> tuple[Any, ...]:
    return tuple(xp.asarray(sizes, np.int64) for sizes in lists)


@kernel("AroundAxis", "new", uncaptured=READS_VALUES)
def _around_axis(xp: Any, node: KernelNode) -> Callable[..., Any]:
    insert = node.attrs["insert"]

    def run(shape: Any, axis: Any, middle: Any) -> Any:
        sizes, inserted = shape.tolist(), middle.tolist()
        if insert:
            at = _one_axis(axis, len(sizes) + 1)
            return _vectors(xp, [[1, 1, 1], [*sizes[:at], *inserted, *sizes[at:]]])
        at = _one_axis(axis, len(sizes))
        return _vectors(xp, [_flat(sizes, at), [*sizes[:at], *inserted, *sizes[at + 1 :]]])

    return run


@kernel("JoinedShapes", "new", uncaptured=READS_VALUES)
def _joined_shapes(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(axis: Any, *vectors: Any) -> Any:
        shapes = [g.tolist() for g in vectors]
        at = _one_axis(axis, len(shapes[0]))
        rest = [s[:at] + s[at + 1 :] for s in shapes]
        if any(r != rest[0] or len(s) != len(shapes[0]) for r, s in zip(rest, shapes, strict=True)):
            shapes_text = " and ".join(map(str, shapes))
            raise ShapeError(f"concat: shapes {shapes_text} differ along an axis other than {at}")
        joined = [*shapes[0][:at], sum(s[at] for s in shapes), *shapes[0][at + 1 :]]
        return _vectors(xp, [*(_flat(s, at) for s in shapes), joined])

    return run


def _parted(sizes: Sizes, axes: list[int]) -> tuple[list[int], int, int]:
    """The other axes, their number of elements, and that of `axes`."""
    free = [i for i in range(len(sizes)) if i not in axes]
    return free, math.prod(sizes[i] for i in free), math.prod(sizes[i] for i in axes)


@kernel("ReducedAxes", "new", uncaptured=READS_VALUES)
def _reduced_axes(xp: Any, node: KernelNode) -> Callable[..., Any]:
    keep = node.attrs["keepdims"]

    def run(shape: Any, axes: Any) -> Any:
        sizes = shape.tolist()
        gone = normal_axes(listed(axes), len(sizes))
        free, rows, each = _parted(sizes, gone)
        out_shape = [1 if i in gone else d for i, d in enumerate(sizes) if keep or i not in gone]
        return _vectors(xp, [[*free, *gone], [rows, each], out_shape])

    return run


@kernel("DotAxes", "new", uncaptured=READS_VALUES)
def _dot_axes(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(shape_a: Any, shape_b: Any, axes_a: Any, axes_b: Any) -> Any:
        a, b = shape_a.tolist(), shape_b.tolist()
        first, second = normal_axes(listed(axes_a), len(a)), normal_axes(listed(axes_b), len(b))
        if [a[i] for i in first] != [b[j] for j in second]:
            raise ShapeError(f"axes {first} of {a} and {second} of {b} have different sizes")
        free_a, rows, each = _parted(a, first)
        free_b, cols, _ = _parted(b, second)
        out_shape = [a[i] for i in free_a] + [b[j] for j in free_b]
        perms = [*free_a, *first], [*second, *free_b]
        return _vectors(xp, [perms[0], [rows, each], perms[1], [each, cols], out_shape])

    return run
