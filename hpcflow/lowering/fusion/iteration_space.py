"""Iteration space of a node: rows of a number of elements, and how its values map to them.

Often several row lengths are possible. A mask of [t, t] that is added to [b, h, t, t] maps to rows
of t * t, and also to rows of t: each of these then has one of the t rows of the mask.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcflow.codegen import elementwise_formulas
from hpcflow.codegen.fused_loop_ir import COLUMN, FULL, JOIN, JOINED, ONE, ROW, Begins
from hpcflow.codegen.llvm_builder import Lines, Value, type_of
from hpcflow.codegen.row_op_decomposition import EXPANSIONS, Steps
from hpcflow.graph.static_shape import is_known, normalize_axes, size_of
from hpcflow.lowering.strided_layout import Lay, packed
from hpcflow.plan.ir.attribute_values import Same
from hpcflow.plan.ir.program import Node, Part, shape_is_told

FEW = 1 << 12  # elements of a full sum: NumPy sums more as fast, and more accurately
LONGEST = 1 << 15  # elements of a row that is summed: some of its values are on the stack
IGNORED = ""  # the mapping of an input of which only the shape is used
REPEATED = "repeated"  # of an input whose mapping depends on the row length
Lengths = tuple[int, ...]  # possible row lengths, the longest first; () if any will do


def common(a: Lengths, b: Lengths) -> Lengths | None:
    """The row lengths in both `a` and `b`; None if there is none."""
    if not (a and b):
        return a or b
    return tuple(cols for cols in a if cols in b) or None


class Domain(NamedTuple):
    """An iteration space of `size` elements in rows of one of the lengths `cols`."""

    size: int
    cols: Lengths
    device: str
    strand: int

    def joined(self, other: Domain) -> Domain | None:
        """The domain of nodes of either domain; None if the two have none in common."""
        if self._replace(cols=()) != other._replace(cols=()):
            return None
        cols = common(self.cols, other.cols)
        return None if cols is None else self._replace(cols=cols)


class Reading(NamedTuple):
    """A node as part of a kernel: how its inputs and outputs map to the rows of a domain.

    `lays` are the layouts of the inputs that are REPEATED.
    """

    size: int
    cols: Lengths
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    lays: tuple[Lay | None, ...] = ()

    def by_rows(self, cols: int) -> Reading | None:
        """The node with one value a row of a larger domain; None if that is impossible."""
        if self.cols or not set(self.inputs) <= {FULL, ONE} or self.outputs != (FULL,):
            return None
        inputs = tuple(COLUMN if way == FULL else way for way in self.inputs)
        return Reading(self.size * cols, (cols,), inputs, (COLUMN,), self.attrs)

    def ways(self, cols: int) -> tuple[tuple[str, Begins | None], ...]:
        """How inputs map to rows of that length, and where rows begin in them."""
        lays = self.lays or (None,) * len(self.inputs)
        pairs = zip(self.inputs, lays, strict=True)
        found = [(way, None) if lay is None else lay.by_rows(cols) for way, lay in pairs]
        assert None not in found
        return tuple(way for way in found if way is not None)

    def in_order(self) -> Reading | None:
        """The same node over rows that are consecutive in all arrays; None if there are none."""
        if JOINED in self.outputs:
            return None
        if REPEATED not in self.inputs:
            return self
        cols = [c for c in self.cols if all(begins is None for _, begins in self.ways(c))]
        return self._replace(cols=tuple(cols)) if cols else None

    def with_rows(self, cols: int) -> Reading | None:
        """The same node over rows of one length; None if it is not one of its lengths."""
        if cols not in self.cols:
            return None
        inputs = tuple(REPEATED if begins else way for way, begins in self.ways(cols))
        return self._replace(cols=(cols,), inputs=inputs)


def read(part: Part, node: Node, exact: bool) -> Reading | None:
    """How `node` can be part of a kernel; None if it cannot, or not `exact`.

    GPU kernels read and write rows that are consecutive in memory.
    """
    found = _read(part, node, exact)
    return found if found is None or node.kind == "cpu" else found.in_order()


def _read(part: Part, node: Node, exact: bool) -> Reading | None:
    given = [part.spec(ref) for ref in node.inputs]
    types = [type_of(spec.dtype) for spec in (*given, *node.specs)]
    if None in types:
        return None
    if not all(is_known(s.shape) and size_of(s.shape) for s in (*given, *node.specs)):
        return None
    shapes = [tuple(spec.shape or ()) for spec in given]
    made = [tuple(spec.shape or ()) for spec in node.specs]
    if shape_is_told(node, part.spec):
        return None
    if node.type in EXPANSIONS:
        found = None if exact else _over_rows(node, shapes, made)
        if found is None or (found.cols and not 1 < found.cols[-1] <= LONGEST):
            return None
        found = found._replace(cols=tuple(cols for cols in found.cols if cols <= LONGEST))
        return found if {*types[:1], *types[len(given) :]} == {"float"} else None
    if node.row.joins == "concat":
        return _side_by_side(node, shapes, made[0])
    if elementwise_formulas.find(node.type, exact) is None:
        return None
    found = _by_elements(node, shapes, made[0])
    kind = _made(node.type, tuple(types[: len(given)]), Same(node.attrs), exact)
    return found if kind == types[len(given)] else None


@functools.lru_cache(4096)
def _made(type: str, given: tuple[str, ...], attrs: Same, exact: bool) -> str | None:
    """The result type of an operation for operands of these types; None if it has no formula."""
    values = [Value(f"%x{i}", of) for i, of in enumerate(given)]
    value = elementwise_formulas.written(Lines(), type, values, attrs.value, exact)
    return value and value.type


def steps_of(steps: Steps, node: Node, reading: Reading, inputs: Sequence[int]) -> tuple[int, ...]:
    """Add the computation of a node to the steps of a kernel; return the values of its outputs."""
    if node.row.joins == "concat":
        return (steps.add(JOIN, inputs, {}, JOINED),)
    if node.type in EXPANSIONS:
        expand = EXPANSIONS[node.type]
        return expand(steps, node.specs[0].dtype, {**node.attrs, **reading.attrs}, *inputs)
    return (steps.add(node.type, inputs, node.attrs, reading.outputs[0]),)


def way_of(shape: Sequence[int], whole: Sequence[int]) -> tuple[str, Lengths, Lay | None]:
    """How an operand of `shape` maps to the elements of `whole`: mapping, row lengths, and layout.

    There is a layout if the mapping depends on the row length.
    """
    shape, whole = tuple(shape), tuple(whole)
    if shape == whole:
        return FULL, (), None
    if size_of(shape) == 1:
        return ONE, (), None
    lay = packed(shape).broadcast(whole)
    lengths = dict.fromkeys(size_of(whole[k:]) for k in range(1, len(whole)))
    rows = {cols: found for cols in lengths if cols > 1 and (found := lay.by_rows(cols))}
    if len(rows) == 1:
        ((way, begins),) = rows.values()
        if begins is None:
            return way, tuple(rows), None
    return REPEATED, tuple(rows), lay


def _by_elements(node: Node, shapes: list[tuple], made: tuple) -> Reading | None:
    ways = [way_of(shape, made) for shape in shapes]
    cols: Lengths | None = ()
    for way, lengths, _ in ways:
        if way not in (FULL, ONE) and not lengths:
            return None
        cols = None if cols is None else common(cols, lengths)
    if cols is None:
        return None
    inputs, _, lays = zip(*ways, strict=True)
    return Reading(size_of(made), cols, inputs, (FULL,), {}, lays)


def _side_by_side(node: Node, shapes: list[tuple], made: tuple) -> Reading | None:
    """The reading of a Concat of arrays of one shape along another axis than the first."""
    axis = node.attrs["axis"] % len(made)
    if len(set(shapes)) > 1 or len(shapes) < 2 or size_of(made[:axis]) == 1:
        return None
    full = tuple(FULL for _ in shapes)
    return Reading(size_of(shapes[0]), (size_of(shapes[0][axis:]),), full, (JOINED,), {})


def _over_rows(node: Node, shapes: list[tuple], made: list[tuple]) -> Reading | None:
    """The reading of an operation with an expansion."""
    x, type = shapes[0], node.type
    if node.row.spreads:
        return _spread(node, x, made[0])
    if node.row.sums:
        return _summed(node, shapes, made[0])
    if not x:
        return None
    size, cols = size_of(x), x[-1]
    full = tuple(FULL for _ in shapes)
    if type == "SparseSoftmaxCrossEntropy":
        return Reading(size, (cols,), (FULL, COLUMN), (COLUMN, FULL), {"device": node.kind})
    if type == "SoftmaxCrossEntropy":
        return Reading(size, (cols,), full, (COLUMN, FULL), {}) if shapes[1] == x else None
    axes = node.attrs["axis"]
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    if sorted(a % len(x) for a in axes) != list(range(len(x) - len(axes), len(x))):
        return None
    cols = size_of(x[len(x) - len(axes) :])
    if type == "Normalize":
        return Reading(size, (cols,), full, (FULL, COLUMN, COLUMN), {})
    if type == "NormalizeGrad":
        return Reading(size, (cols,), (FULL, FULL, COLUMN), (FULL,), {})
    return Reading(size, (cols,), full, (FULL,), {})


def _summed(node: Node, shapes: list[tuple], made: tuple) -> Reading | None:
    """The reading of a sum over the last axes, or over the first."""
    x = shapes[0]
    if node.type == "SumToShape":
        kept = (1,) * (len(x) - len(made)) + made
        axes = [i for i, n in enumerate(x) if n != kept[i]]
    else:
        axes = [i for i in normalize_axes(node.attrs["axis"], len(x)) if x[i] > 1]
    long = [i for i, n in enumerate(x) if n > 1]
    if not axes or (len(axes) == len(long) and size_of(x) > FEW):
        return None
    ignored = tuple(IGNORED for _ in shapes[1:])
    if axes == long[-len(axes) :]:
        cols = math.prod(x[i] for i in axes)
        return Reading(size_of(x), (cols,), (FULL, *ignored), (COLUMN,), {"way": COLUMN})
    if axes == long[: len(axes)] and node.type != "Mean":
        cols = size_of(x) // math.prod(x[i] for i in axes)
        return Reading(size_of(x), (cols,), (FULL, *ignored), (ROW,), {"way": ROW})
    return None


def _spread(node: Node, g: tuple, made: tuple) -> Reading | None:
    """The reading of a broadcast along some axes."""
    if node.type != "BroadcastTo":
        axes = normalize_axes(node.attrs["axis"], len(made))
        g = tuple(1 if i in axes else n for i, n in enumerate(made))
    way, cols, lay = way_of(g, made)
    if way == FULL or (way != ONE and not cols):
        return None
    count = size_of(made) // size_of(g)
    more = len(node.inputs) - 1
    inputs, lays = (way, *(IGNORED,) * more), (lay, *(None,) * more)
    return Reading(size_of(made), cols, inputs, (FULL,), {"count": count}, lays)
