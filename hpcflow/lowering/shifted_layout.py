"""Layouts of values that are another value at shifted indices: rolled, padded, gradient of a slice.

A stencil is a sum of such values. A generated loop reads them from the array that is shifted, so
that they are never stored.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from hpcflow.codegen.fused_loop_ir import FULL, ROW, AxisShift, Begins
from hpcflow.graph.static_shape import Shape, is_known, require_known, size_of
from hpcflow.lowering.strided_layout import SHIFTING, StridedLayout, axis_windows
from hpcflow.plan.ir.program import Node

LONGEST_ZEROS = 1 << 13  # elements of a row of zeros, which is part of a kernel's code


class Shift(NamedTuple):
    """Index i of an axis of `size` elements is read at i + `by`: modulo `size`, or 0 outside."""

    by: int
    size: int
    wraps: bool = False


class ShiftedLayout(NamedTuple):
    """The layout of an array at shifted indices: `shifts` has an entry for each axis, or is empty.

    `strided` has the sizes of the shifted value, and the strides of the array.
    """

    strided: StridedLayout
    shifts: tuple[Shift, ...] = ()

    def is_packed(self) -> bool:
        """Whether the elements are contiguous in C order."""
        return not self.shifts and self.strided.is_packed()

    def run(self) -> int:
        """The number of trailing elements that a loop can read as one row."""
        if self.has_shifted_columns():
            return self.strided.sizes[-1] if self.strided.strides[-1] == 1 else 1
        return self._unshifted().run()

    def has_shifted_columns(self) -> bool:
        """Whether the last axis is shifted, so that rows are read in several pieces."""
        return bool(self.shifts) and _moves(self.shifts[-1], self.strided.sizes[-1])

    def rows(self, cols: int) -> tuple[Begins | None, tuple[AxisShift, ...]] | None:
        """Where rows of `cols` elements begin, and their shifts; None if they are in pieces."""
        sizes, strides = self.strided.sizes, self.strided.strides
        if self.has_shifted_columns() and cols != sizes[-1]:
            return None
        ends = any(
            not shift.wraps and _moves(shift, size)
            for shift, size in zip(self.shifts[:-1], sizes, strict=False)
        )
        if ends and cols > LONGEST_ZEROS:
            return None
        mapping = self._unshifted().row_mapping(cols)
        if mapping is None or mapping[0] not in (FULL, ROW):
            return None
        begins, shifts = mapping[1], []
        if not self.shifts:
            return (begins, ()) if mapping[0] == FULL else None
        for axis, shift in enumerate(self.shifts):
            if not _moves(shift, sizes[axis]):
                continue
            if axis == len(sizes) - 1:
                shifts.append(AxisShift(*shift))
            else:
                over = math.prod(sizes[axis + 1 :]) // cols
                of = sizes[axis] if math.prod(sizes[:axis]) > 1 else 0
                shifts.append(AxisShift(*shift, over, of, strides[axis]))
        if begins is None:
            begins = (0, ((1, 0, cols),) if mapping[0] == FULL else ())
        return begins, tuple(shifts)

    def _unshifted(self) -> StridedLayout:
        """The layout with stride 0 along shifted axes, but for the last."""
        strides = list(self.strided.strides)
        for axis, shift in enumerate(self.shifts[:-1]):
            if _moves(shift, self.strided.sizes[axis]):
                strides[axis] = 0
        return self.strided._replace(strides=tuple(strides))


def _moves(shift: Shift, size: int) -> bool:
    """Whether a shift of an axis of `size` elements changes anything."""
    return bool(shift.by % shift.size if shift.wraps else (shift.by or shift.size != size))


def shifts_of(node: Node, source: Shape) -> tuple[Shift, ...] | None:
    """How the elements of a node's output are those of its input, of shape `source`.

    One shift for each axis of the output: the input is seen in a shape of that rank. None if the
    node does something else, or is not static.
    """
    shape = node.specs[0].shape
    if node.type not in SHIFTING or len(node.inputs) != 1 or node.control:
        return None
    if not (is_known(shape) and is_known(source) and size_of(source)):
        return None
    out, rank = require_known(shape), len(require_known(shape))
    if node.type == "RollBy":
        by = [0] * rank
        for shift, axis in zip(node.attrs["shift"], node.attrs["axis"], strict=True):
            by[axis] -= shift
        return tuple(Shift(b, n, True) for b, n in zip(by, out, strict=True))
    if node.type == "Pad" and _is_plain_zero(node.attrs["value"]):
        pairs = zip(node.attrs["paddings"], require_known(source), strict=True)
        return tuple(Shift(-before, n) for (before, _), n in pairs)
    if node.type == "StridedSliceGrad":
        windows = axis_windows(out, node.attrs["key"])
        return None if windows is None else tuple(Shift(-w.first, w.size) for w in windows)
    return None


def shifted_layout(
    source: StridedLayout, sizes: tuple[int, ...], shifts: tuple[Shift, ...]
) -> ShiftedLayout | None:
    """The layout of a value of `sizes` that is an array of layout `source` shifted.

    None if the strides of the array do not allow it.
    """
    seen = source.reshaped([shift.size for shift in shifts])
    if seen is None:
        return None
    return ShiftedLayout(StridedLayout(seen.start, sizes, seen.strides), shifts)


def _is_plain_zero(value: Any) -> bool:
    return not isinstance(value, bytes) and value == 0 and math.copysign(1, value) > 0
