"""Rearrange kernels: roll, reverse_sequence and shape functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import RangeError, ShapeError
from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.array.dynamic_axis_kernels import listed, normal_axes
from hpcflow.ops.array.gather_kernels import check_indices


@kernel("Roll", "out", moves=True, uncaptured=READS_VALUES)
def _roll(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, shift: Any, axes: Any, out: Any) -> None:
        by, along = listed(shift), listed(axes)
        if len(by) != len(along):
            raise ShapeError(
                f"roll needs one shift for each axis, not shifts {by} for axes {along}"
            )
        normalized = tuple(normal_axes([a], x.ndim)[0] for a in along)
        xp.copyto(out, xp.roll(x, by, normalized))

    return run


@kernel("RollBy", "out", moves=True)
def _roll_by(xp: Any, node: KernelNode) -> Callable[..., Any]:
    shifts, axes = node.attrs["shift"], node.attrs["axis"]
    shape = node.outputs[0].shape
    known = shape is not None and None not in shape
    static_parts = _rolled_parts(shape, shifts, axes) if known else None

    def run(x: Any, out: Any) -> None:
        parts = _rolled_parts(x.shape, shifts, axes) if static_parts is None else static_parts
        for target, source in parts:
            out[target] = x[source]

    return run


def _rolled_parts(
    shape: tuple[int, ...], shifts: tuple[int, ...], axes: tuple[int, ...]
) -> list[tuple[Any, Any]]:
    """The parts of a rolled array: where each is in the output, and where in the input."""
    total = [0] * len(shape)
    for shift, axis in zip(shifts, axes, strict=True):
        total[axis] += shift
    pairs = []
    for shift, size in zip(total, shape, strict=True):
        at = shift % size if size else 0
        whole = [(slice(at, None), slice(0, size - at))]
        pairs.append(whole if not at else [*whole, (slice(0, at), slice(size - at, None))])
    return [tuple(zip(*part, strict=True)) or ((), ()) for part in itertools.product(*pairs)]


@kernel("ReverseSequence", "out", moves=True)
def _reverse_sequence(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, lengths: Any, out: Any) -> None:
        along, batch = node.attrs["seq_axis"] % x.ndim, node.attrs["batch_axis"] % x.ndim
        check_indices(xp, lengths, x.shape[along] + 1, "reverse_sequence: length")
        steps, limits = [1] * x.ndim, [1] * x.ndim
        steps[along], limits[batch] = x.shape[along], x.shape[batch]
        place = xp.arange(x.shape[along]).reshape(steps)
        length = lengths.astype(np.int64).reshape(limits)
        source = xp.where(place < length, length - 1 - place, place)
        xp.copyto(out, xp.take_along_axis(x, source, along))

    return run


@kernel("BroadcastArgs", "out", uncaptured=READS_VALUES)
def _broadcast_args(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(x: Any, y: Any, out: Any) -> None:
        shapes = [s.tolist() for s in (x, y)]
        try:
            joint = np.broadcast_shapes(*shapes)
        except ValueError:
            raise ShapeError(
                f"shapes {shapes[0]} and {shapes[1]} cannot be broadcast together"
            ) from None
        xp.copyto(out, xp.asarray(joint, out.dtype))

    return run


@kernel("UnravelIndex", "out", uncaptured=READS_VALUES)
def _unravel(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(indices: Any, dims: Any, out: Any) -> None:
        sizes = dims.tolist()
        if any(d < 0 for d in sizes):
            raise RangeError(f"unravel_index: dims {sizes} have a negative size")
        check_indices(xp, indices, math.prod(sizes), "unravel_index: index")
        quotient = indices
        for axis in range(len(sizes) - 1, -1, -1):
            out[axis] = quotient % max(sizes[axis], 1)
            quotient = quotient // max(sizes[axis], 1)

    return run
