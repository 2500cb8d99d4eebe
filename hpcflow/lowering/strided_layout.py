"""Strided layouts: offset, sizes and strides of an array that is a view of another, or shifted."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

from hpcflow.codegen.fused_loop_ir import COLUMN, FULL, ONE, ROW, AxisShift, Begins
from hpcflow.graph.static_shape import Shape, is_known, require_known, size_of
from hpcflow.plan.ir.program import Node, Partition, Ref

# operations whose result is their input at shifted indices: see `ShiftedLayout`
SHIFTING = frozenset({"RollBy", "Pad", "StridedSliceGrad"})
LONGEST_ZEROS = 1 << 13  # elements of a row of zeros, which is part of a kernel's code
Views = Callable[[Node], bool]


def is_view(node: Node) -> bool:
    """Whether outputs are views of the input: all of it, a slice, or permuted axes."""
    return bool(node.row.view)


class StridedLayout(NamedTuple):
    """A layout: an array of `sizes` at offset `start` with `strides`, both in elements."""

    start: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def is_packed(self) -> bool:
        """Whether the elements are contiguous in C order."""
        expected, pairs = c_order_layout(self.sizes), zip(self.sizes, self.strides, strict=True)
        return all(n == 1 or s == e for (n, s), e in zip(pairs, expected.strides, strict=True))

    def transposed(self, perm: Sequence[int]) -> StridedLayout:
        """The layout with its axes permuted by `perm`."""
        sizes = tuple(self.sizes[i] for i in perm)
        return StridedLayout(self.start, sizes, tuple(self.strides[i] for i in perm))

    def swapped(self) -> StridedLayout:
        """The layout with the last two axes swapped."""
        return self.transposed([*range(len(self.sizes) - 2), -1, -2])

    def part(self, axis: int, first: int, count: int) -> StridedLayout:
        """The slice of `count` indices of an axis from `first` on."""
        sizes = (*self.sizes[:axis], count, *self.sizes[axis + 1 :])
        return StridedLayout(self.start + first * self.strides[axis], sizes, self.strides)

    def at(self, axis: int, index: int) -> StridedLayout:
        """The slice at one index of an axis, without the axis."""
        sliced = self.part(axis, index, 1)
        return sliced.transposed([i for i in range(len(self.sizes)) if i != axis])

    def reshaped(self, shape: Sequence[int]) -> StridedLayout | None:
        """The layout of the elements in another shape; None if no strides describe it."""
        runs: list[tuple[int, int]] = []  # merged axes: (size, stride)
        for n, stride in zip(self.sizes, self.strides, strict=True):
            if n == 1:
                continue
            if runs and runs[-1][1] == n * stride:
                runs[-1] = (runs[-1][0] * n, stride)
            else:
                runs.append((n, stride))
        strides: list[int] = []
        for n in reversed(shape):
            if n == 1:
                strides.append(1)
                continue
            count, stride = runs.pop()
            if count % n:
                return None
            strides.append(stride)
            if count > n:
                runs.append((count // n, n * stride))
        return StridedLayout(self.start, tuple(shape), tuple(reversed(strides)))

    def broadcast(self, shape: Sequence[int]) -> StridedLayout:
        """The layout with the elements broadcast to `shape`."""
        new_axes = len(shape) - len(self.sizes)
        sizes, strides = (1,) * new_axes + self.sizes, (0,) * new_axes + self.strides
        spread = (s if n == m else 0 for n, m, s in zip(sizes, shape, strides, strict=True))
        return StridedLayout(self.start, tuple(shape), tuple(spread))

    def run(self) -> int:
        """The number of trailing elements that are contiguous in memory."""
        count = 1
        for n, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if n > 1 and stride != count:
                break
            count *= n
        return count

    def row_mapping(self, cols: int) -> tuple[str, Begins | None] | None:
        """How the elements map to rows of `cols`, and the row offsets where that is not enough.

        None: a row is neither contiguous nor a single repeated element.
        """
        axis, count = len(self.sizes), 1
        while axis and count < cols:
            axis -= 1
            count *= self.sizes[axis]
        inside = StridedLayout(0, self.sizes[axis:], self.strides[axis:])
        along = inside.run() == cols
        pairs = zip(inside.sizes, inside.strides, strict=True)
        if count != cols or not (along or all(n == 1 or not stride for n, stride in pairs)):
            return None
        terms: list[tuple[int, int, int]] = []
        over = 1
        for n, stride in zip(self.sizes[:axis][::-1], self.strides[:axis][::-1], strict=True):
            if n > 1 and terms and stride == terms[-1][1] * terms[-1][2]:
                terms[-1] = (terms[-1][0], terms[-1][1] * n, terms[-1][2])
            elif n > 1:
                terms.append((over, n, stride))
            over *= n
        terms = [(a, 0 if a * n == over else n, s) for a, n, s in terms if s]
        if not self.start and not terms:
            return ROW if along else ONE, None
        if not self.start and terms == [(1, 0, cols if along else 1)]:
            return FULL if along else COLUMN, None
        return FULL if along else COLUMN, (self.start, tuple(terms))

    def strided_slice(self, key: Sequence[tuple[Any, ...]]) -> StridedLayout | None:
        """The layout that a `StridedSlice` key selects; None unless it is static, of step 1."""
        windows = axis_windows(self.sizes, key)
        if windows is None or ("new",) in key:
            return None
        lay = self
        for axis, window in enumerate(windows):
            lay = lay.part(axis, window.first, window.size)
        return lay.transposed([axis for axis, window in enumerate(windows) if window.kept])


class AxisWindow(NamedTuple):
    """The indices of an axis that a slice selects, and whether the result keeps the axis."""

    first: int
    size: int
    kept: bool = True


def axis_windows(sizes: Sequence[int], key: Sequence[tuple[Any, ...]]) -> list[AxisWindow] | None:
    """What a `StridedSlice` key selects of each axis; None unless it is static, of step 1."""
    whole = [AxisWindow(0, n) for n in sizes]
    places = sum(part[0] in ("at", "slice") for part in key)
    windows: list[AxisWindow] = []
    for kind, *args in key:
        axis = len(windows)
        if kind == "rest":
            windows += whole[axis : axis + len(sizes) - places]
        elif kind == "at" and isinstance(args[0], int):
            windows.append(AxisWindow(args[0] % sizes[axis], 1, False))
        elif kind == "slice" and not any(isinstance(v, tuple) for v in args):
            start, stop, step = slice(*args).indices(sizes[axis])
            if step != 1 or start >= stop:
                return None
            windows.append(AxisWindow(start, stop - start))
        elif kind != "new":
            return None
    return windows + whole[len(windows) :]


def c_order_layout(shape: Sequence[int]) -> StridedLayout:
    """The layout of an array of this shape in C order."""
    sizes = tuple(shape)
    return StridedLayout(0, sizes, tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes))))


def layout_of_view(
    part: Partition, ref: Ref, device: str, views: Views = is_view
) -> tuple[Ref, StridedLayout]:
    """The array that a value is a view of by nodes that are `views`, and its layout there."""
    chain, node = [ref], part.nodes[ref.node]
    while views(node) and not node.control and node.device == device:
        plain = len(node.inputs) == 1 or node.row.view == "same_order"
        if not plain or not is_known(part.spec(node.inputs[0]).shape):
            break
        chain.append(node.inputs[0])
        node = part.nodes[node.inputs[0].node]
    root = chain.pop()
    lay = c_order_layout(require_known(part.spec(root).shape))
    for ref in reversed(chain):
        view_layout = layout_after(part.nodes[ref.node], ref.index, lay)
        if view_layout is None:  # no strides describe it
            root, view_layout = ref, c_order_layout(require_known(part.spec(ref).shape))
        lay = view_layout
    return root, lay


def transpose_axes(node: Node) -> list[int]:
    """The permutation of a Transpose: the input axis of each output axis."""
    rank, perm = len(require_known(node.specs[0].shape)), node.attrs["perm"]
    return [axis % rank for axis in (reversed(range(rank)) if perm is None else perm)]


def layout_after(node: Node, index: int, lay: StridedLayout) -> StridedLayout | None:
    """The layout of output `index` of a node whose input has the layout `lay`."""
    shape, attrs = require_known(node.specs[index].shape), node.attrs
    if node.type == "Transpose":
        return lay.transposed(transpose_axes(node))
    if node.type == "Rows":
        return lay.part(0, attrs["start"], shape[0])
    if node.type == "StridedSlice":
        return lay.strided_slice(attrs["key"])
    if node.row.view == "same_order":
        return lay.reshaped(shape)
    axis = attrs["axis"] % len(lay.sizes)
    if node.row.splits == "unstack":
        return lay.at(axis, index)
    before = sum(require_known(spec.shape)[axis] for spec in node.specs[:index])
    return lay.part(axis, before, shape[axis])


def drop_unused_views(part: Partition, had: Set[str]) -> Partition:
    """The partition without nodes that only rearrange or shift, and have lost their last user.

    `had` are the nodes that had users before.
    """
    nodes = dict(part.nodes)
    uses = Counter(ref.node for node in nodes.values() for ref in node.inputs)
    uses.update(ref.node for ref in part.fetches)
    uses.update(c for node in nodes.values() for c in node.control)
    for name, node in reversed(list(nodes.items())):
        if (node.row.view or node.type in SHIFTING) and name in had and not uses[name]:
            uses.subtract(ref.node for ref in node.inputs)
            del nodes[name]
    return dataclasses.replace(part, nodes=nodes)


# -- shifted: rolled, padded, gradient of a slice. A stencil is a sum of such values. A generated
# loop reads them from the array that is shifted, so that they are never stored.


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
