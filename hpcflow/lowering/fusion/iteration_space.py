"""Iteration space of a node: rows of a number of elements, and how its values map to them.

Often several row lengths are possible. A mask of [t, t] that is added to [b, h, t, t] maps to rows
of t * t, and also to rows of t: each of these then has one of the t rows of the mask.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.codegen import elementwise_formulas
from hpcflow.codegen.fused_loop_ir import (
    COLUMN,
    COLUMN_INDEX,
    COLUMN_SUM,
    FULL,
    JOIN,
    JOINED,
    NUMBER,
    OF_ROWS,
    ONE,
    ROUND,
    ROW,
    Begins,
    KernelOperand,
)
from hpcflow.codegen.llvm_builder import (
    HALVES,
    InstructionBuilder,
    LlvmValue,
    storage_type_of,
    value_type,
)
from hpcflow.codegen.row_op_decomposition import EXPANSIONS, StepBuilder
from hpcflow.graph.static_shape import is_known, normalize_axes, size_of
from hpcflow.lowering.strided_layout import StridedLayout, c_order_layout
from hpcflow.plan.ir.attribute_values import CanonicalValue
from hpcflow.plan.ir.program import Node, Partition, has_runtime_shape

MIN_SUM_ELEMENTS = 1 << 12  # elements of a full sum: NumPy sums more as fast, and more accurately
LONGEST = 1 << 15  # elements of a row that is summed: some of its values are on the stack
SHAPE_ONLY = ""  # the mapping of an input of which only the shape is used
BY_ROW_LENGTH = "repeated"  # of an input whose mapping depends on the row length
Lengths = tuple[int, ...]  # possible row lengths, the longest first; () if any will do


def common_lengths(a: Lengths, b: Lengths) -> Lengths | None:
    """The row lengths in both `a` and `b`; None if there is none."""
    if not (a and b):
        return a or b
    return tuple(cols for cols in a if cols in b) or None


class IterationSpace(NamedTuple):
    """An iteration space of `size` elements in rows of one of the lengths `cols`."""

    size: int
    cols: Lengths
    device: str
    segment: int

    def intersect(self, other: IterationSpace) -> IterationSpace | None:
        """The domain of nodes of either domain; None if the two have none in common."""
        if self._replace(cols=()) != other._replace(cols=()):
            return None
        cols = common_lengths(self.cols, other.cols)
        return None if cols is None else self._replace(cols=cols)


class NodeMapping(NamedTuple):
    """A node as part of a kernel: how its inputs and outputs map to the rows of a domain.

    `lays` are the layouts of the inputs that are REPEATED.
    """

    size: int
    cols: Lengths
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    input_layouts: tuple[StridedLayout | None, ...] = ()

    def as_row_values(self, cols: int) -> NodeMapping | None:
        """The node with one value a row of a larger domain; None if that is impossible."""
        if self.cols or not set(self.inputs) <= {FULL, ONE} or self.outputs != (FULL,):
            return None
        inputs = tuple(COLUMN if mapping == FULL else mapping for mapping in self.inputs)
        return NodeMapping(self.size * cols, (cols,), inputs, (COLUMN,), self.attrs)

    def input_mappings(self, cols: int) -> tuple[tuple[str, Begins | None], ...]:
        """How inputs map to rows of that length, and where rows begin in them."""
        lays = self.input_layouts or (None,) * len(self.inputs)
        pairs = zip(self.inputs, lays, strict=True)
        maps = [(mapping, None) if lay is None else lay.row_mapping(cols) for mapping, lay in pairs]
        assert None not in maps
        return tuple(mapping for mapping in maps if mapping is not None)

    def for_row_length(self, cols: int) -> NodeMapping | None:
        """The same node over rows of one length; None if it is not one of its lengths."""
        if cols not in self.cols:
            return None
        inputs = tuple(
            BY_ROW_LENGTH if begins else mapping for mapping, begins in self.input_mappings(cols)
        )
        return self._replace(cols=(cols,), inputs=inputs)


def node_mapping(part: Partition, node: Node, exact: bool) -> NodeMapping | None:
    """How `node` can be part of a kernel; None if it cannot, or not `exact`."""
    inputs = [part.spec(ref) for ref in node.inputs]
    storage = [storage_type_of(spec.dtype) for spec in (*inputs, *node.specs)]
    has_halves = not HALVES.keys().isdisjoint(storage)
    if None in storage or (has_halves and exact):
        return None
    types = [value_type(type or "") for type in storage]
    if not all(is_known(s.shape) and size_of(s.shape) for s in (*inputs, *node.specs)):
        return None
    shapes = [tuple(spec.shape or ()) for spec in inputs]
    outputs = [tuple(spec.shape or ()) for spec in node.specs]
    if has_runtime_shape(node, part.spec):
        return None
    if node.type in EXPANSIONS:
        mapping = None if exact else _rowwise_mapping(node, shapes, outputs)
        if mapping is None or (mapping.cols and not 1 < mapping.cols[-1] <= LONGEST):
            return None
        if ROW in mapping.outputs and not HALVES.keys().isdisjoint(storage[len(inputs) :]):
            return None  # sums of columns are added up in their result
        mapping = mapping._replace(cols=tuple(cols for cols in mapping.cols if cols <= LONGEST))
        computed = {*types[:1], *types[len(inputs) :]}
        wide = computed == {"double"} and node.kind == "cpu" and _has_formulas(node, mapping)
        if computed != {"float"} and not wide:
            return None
        return mapping
    if node.row.joins == "concat":
        return _concat_mapping(node, shapes, outputs[0])
    if elementwise_formulas.find_formula(node.type, exact) is None:
        return None
    mapping = _elementwise_mapping(node, shapes, outputs[0])
    kind = _result_type(node.type, tuple(types[: len(inputs)]), CanonicalValue(node.attrs), exact)
    return mapping if kind == types[len(inputs)] else None


@functools.lru_cache(4096)
def _result_type(
    type: str, types: tuple[str, ...], attrs: CanonicalValue, exact: bool
) -> str | None:
    """The result type of an operation for operands of these types; None if it has no formula."""
    values = [LlvmValue(f"%x{i}", of) for i, of in enumerate(types)]
    value = elementwise_formulas.written(InstructionBuilder(), type, values, attrs.value, exact)
    return value and value.type


def _has_formulas(node: Node, mapping: NodeMapping) -> bool:
    """Whether all steps of an operation of float64 have a formula: exponentials have none."""
    dtype = node.specs[0].dtype
    kinds = [way for way in mapping.inputs if way != SHAPE_ONLY]
    operands = tuple(KernelOperand(dtype, FULL if way == BY_ROW_LENGTH else way) for way in kinds)
    steps = StepBuilder(operands, 2)
    append_steps(steps, node, mapping, range(len(operands)))
    return all(
        step.type in (*OF_ROWS, COLUMN_SUM, COLUMN_INDEX, NUMBER)
        or _result_type(
            step.type, ("double",) * len(step.inputs), CanonicalValue(step.attrs), False
        )
        for step in steps.steps
    )


def append_steps(
    steps: StepBuilder, node: Node, reading: NodeMapping, inputs: Sequence[int]
) -> tuple[int, ...]:
    """Add the computation of a node to the steps of a kernel; return the values of its outputs."""
    if node.row.joins == "concat":
        parts = [stored_value(steps, i, node.specs[0].dtype) for i in inputs]
        return (steps.add(JOIN, parts, {}, JOINED),)
    if node.type in EXPANSIONS:
        expand = EXPANSIONS[node.type]
        return expand(steps, node.specs[0].dtype, {**node.attrs, **reading.attrs}, *inputs)
    return (steps.add(node.type, inputs, node.attrs, reading.outputs[0]),)


def stored_value(steps: StepBuilder, value: int, dtype: np.dtype) -> int:
    """The value as it is stored: rounded if its type is computed with more digits."""
    storage = storage_type_of(dtype)
    if storage not in HALVES or steps.mappings[value] == JOINED:
        return value
    return steps.add(ROUND, (value,), {"storage": storage}, steps.mappings[value])


def operand_mapping(
    shape: Sequence[int], full_shape: Sequence[int]
) -> tuple[str, Lengths, StridedLayout | None]:
    """How an operand of `shape` maps to `full_shape`: mapping, row lengths, and layout.

    There is a layout if the mapping depends on the row length.
    """
    shape, full_shape = tuple(shape), tuple(full_shape)
    if shape == full_shape:
        return FULL, (), None
    if size_of(shape) == 1:
        return ONE, (), None
    lay = c_order_layout(shape).broadcast(full_shape)
    lengths = dict.fromkeys(size_of(full_shape[k:]) for k in range(1, len(full_shape)))
    rows = {cols: row_map for cols in lengths if cols > 1 and (row_map := lay.row_mapping(cols))}
    if len(rows) == 1:
        ((mapping, begins),) = rows.values()
        if begins is None:
            return mapping, tuple(rows), None
    return BY_ROW_LENGTH, tuple(rows), lay


def _elementwise_mapping(node: Node, shapes: list[tuple], out_shape: tuple) -> NodeMapping | None:
    mappings = [operand_mapping(shape, out_shape) for shape in shapes]
    cols: Lengths | None = ()
    for mapping, lengths, _ in mappings:
        if mapping not in (FULL, ONE) and not lengths:
            return None
        cols = None if cols is None else common_lengths(cols, lengths)
    if cols is None:
        return None
    inputs, _, lays = zip(*mappings, strict=True)
    return NodeMapping(size_of(out_shape), cols, inputs, (FULL,), {}, lays)


def _concat_mapping(node: Node, shapes: list[tuple], out_shape: tuple) -> NodeMapping | None:
    """The reading of a Concat of arrays of one shape along another axis than the first."""
    axis = node.attrs["axis"] % len(out_shape)
    if len(set(shapes)) > 1 or len(shapes) < 2 or size_of(out_shape[:axis]) == 1:
        return None
    full = tuple(FULL for _ in shapes)
    return NodeMapping(size_of(shapes[0]), (size_of(shapes[0][axis:]),), full, (JOINED,), {})


def _rowwise_mapping(node: Node, shapes: list[tuple], outputs: list[tuple]) -> NodeMapping | None:
    """The reading of an operation with an expansion."""
    x, type = shapes[0], node.type
    if node.row.spreads:
        return _broadcast_mapping(node, x, outputs[0])
    if node.row.sums:
        return _reduction_mapping(node, shapes, outputs[0])
    if not x:
        return None
    if type == "ExtremeGrad":
        x = shapes[1]
    size, cols = size_of(x), x[-1]
    full = tuple(FULL for _ in shapes)
    if type == "SparseSoftmaxCrossEntropy":
        return NodeMapping(size, (cols,), (FULL, COLUMN), (COLUMN, FULL), {"device": node.kind})
    if type == "SoftmaxCrossEntropy":
        return NodeMapping(size, (cols,), full, (COLUMN, FULL), {}) if shapes[1] == x else None
    axes = [i for i in normalize_axes(node.attrs["axis"], len(x)) if x[i] > 1]
    if not axes or axes != [i for i, n in enumerate(x) if n > 1][-len(axes) :]:
        return None
    cols = math.prod(x[i] for i in axes)
    if node.row.reduction:
        return NodeMapping(size, (cols,), full, (COLUMN,), {})
    if type == "ExtremeGrad":
        return NodeMapping(size, (cols,), (COLUMN, FULL, COLUMN), (FULL,), {})
    if type == "Normalize":
        return NodeMapping(size, (cols,), full, (FULL, COLUMN, COLUMN), {})
    if type == "NormalizeGrad":
        return NodeMapping(size, (cols,), (FULL, FULL, COLUMN), (FULL,), {})
    return NodeMapping(size, (cols,), full, (FULL,), {})


def _reduction_mapping(node: Node, shapes: list[tuple], out_shape: tuple) -> NodeMapping | None:
    """The reading of a sum over the last axes, or over the first."""
    x = shapes[0]
    if node.type == "SumToShape":
        padded_shape = (1,) * (len(x) - len(out_shape)) + out_shape
        axes = [i for i, n in enumerate(x) if n != padded_shape[i]]
    else:
        axes = [i for i in normalize_axes(node.attrs["axis"], len(x)) if x[i] > 1]
    long = [i for i, n in enumerate(x) if n > 1]
    if not axes or (len(axes) == len(long) and size_of(x) > MIN_SUM_ELEMENTS):
        return None
    ignored = tuple(SHAPE_ONLY for _ in shapes[1:])
    if axes == long[-len(axes) :]:
        cols = math.prod(x[i] for i in axes)
        return NodeMapping(size_of(x), (cols,), (FULL, *ignored), (COLUMN,), {"way": COLUMN})
    if axes == long[: len(axes)] and node.type != "Mean":
        cols = size_of(x) // math.prod(x[i] for i in axes)
        return NodeMapping(size_of(x), (cols,), (FULL, *ignored), (ROW,), {"way": ROW})
    return None


def _broadcast_mapping(node: Node, g: tuple, out_shape: tuple) -> NodeMapping | None:
    """The reading of a broadcast along some axes."""
    if node.type != "BroadcastTo":
        axes = normalize_axes(node.attrs["axis"], len(out_shape))
        g = tuple(1 if i in axes else n for i, n in enumerate(out_shape))
    mapping, cols, lay = operand_mapping(g, out_shape)
    if mapping == FULL or (mapping != ONE and not cols):
        return None
    count = size_of(out_shape) // size_of(g)
    extra_inputs = len(node.inputs) - 1
    inputs, lays = (mapping, *(SHAPE_ONLY,) * extra_inputs), (lay, *(None,) * extra_inputs)
    return NodeMapping(size_of(out_shape), cols, inputs, (FULL,), {"count": count}, lays)
