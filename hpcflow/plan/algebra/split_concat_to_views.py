"""Split and Concat to views: rows along the first axis become views instead of copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hpcflow.graph.dtypes import OPAQUE
from hpcflow.graph.static_shape import Shape, Spec, is_known, require_known, size_of
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import ProgramBuilder


class ElementSpan(NamedTuple):
    """Elements `start` to `stop` of a value, in its order."""

    root: Ref
    start: int
    stop: int


def rows_as_views(program: Program) -> Program:
    """Replace copies of rows by views, with the same values.

    Unpack and Split along axis 0 become `Rows`. A Concat or Pack of neighbouring rows becomes the
    value that the rows are views of, or its `Rows`.
    """
    return concats_to_views(splits_to_rows(slices_to_rows(program)))


def slices_to_rows(program: Program) -> Program:
    """Replace slices of consecutive whole rows by `Rows` of the same names."""
    nodes = dict(program.nodes)
    for name, node in program.nodes.items():
        if node.type == "StridedSlice" and not node.control and has_known_sizes(program, node):
            rows = sliced_rows(node, program.spec(node.inputs[0]).shape)
            if rows is not None:
                nodes[name] = node.but(type="Rows", attrs={"start": rows[0], "stop": rows[1]})
    return program.but(nodes=nodes)


def splits_to_rows(program: Program) -> Program:
    """Replace Unpack and Split along the first axis by `Rows`."""
    draft = ProgramBuilder(program)
    for node in program.nodes.values():
        if not node.row.splits or node.control or not _first_axis(node, program):
            continue
        start = 0
        for i, spec in enumerate(node.specs):
            rows = 1 if node.row.splits == "unstack" else (spec.shape or (0,))[0] or 0
            ref = draft.add(node, "Rows", node.inputs[:1], "rows", start=start, stop=start + rows)
            if node.row.splits == "unstack":
                ref = draft.add(node, "Reshape", [ref], "row", shape=spec.shape)
            draft.put(ref, Ref(node.name, i))
            start += rows
    return draft.build()


def has_known_sizes(program: Program, node: Node) -> bool:
    """Return whether a node and its inputs have known sizes and numeric dtypes."""
    return _specs_known([*node.specs, *map(program.spec, node.inputs)])


def _specs_known(specs: Sequence[Spec]) -> bool:
    return all(s.known and s.dtype not in OPAQUE and s.dtype.kind in "iufcb" for s in specs)


def sliced_rows(node: Node, shape: Shape) -> tuple[int, int] | None:
    """Return (start, stop) of the rows that a slice takes of `shape`.

    None if it takes no rows, or not consecutive whole rows.
    """
    (kind, *limits), *inner_parts = node.attrs["key"] or (("rest",),)
    if kind != "slice" or len(node.inputs) > 1 or not shape or 0 in require_known(shape):
        return None
    if any(part not in (("rest",), ("slice", None, None, None)) for part in inner_parts):
        return None
    start, stop, step = slice(*limits).indices(require_known(shape)[0])
    return (start, stop) if step == 1 and start < stop else None


def _first_axis(node: Node, program: Program) -> bool:
    """Return whether a node splits or concatenates values of known sizes along axis 0."""
    specs = [*node.specs, *(program.spec(r) for r in node.inputs[: _joined_inputs(node)])]
    if not _specs_known(specs):
        return False
    rank = max(len(s.shape or ()) for s in specs)
    axis: int = node.attrs["axis"]
    return (axis + rank if axis < 0 else axis) == 0 and all(size_of(s.shape) for s in specs)


def _joined_inputs(node: Node) -> int:
    """Return how many inputs of a node are split or concatenated."""
    return 1 if node.row.splits else len(node.inputs)


def concats_to_views(program: Program) -> Program:
    """Replace a Concat or Pack of neighbouring rows of a value by the value or its `Rows`."""
    draft = ProgramBuilder(program)
    for node in program.nodes.values():
        if not node.row.joins or node.control or not _first_axis(node, program):
            continue
        spans = [span_of(program, ref) for ref in node.inputs]
        root = spans[0].root
        chained = all(a.stop == b.start for a, b in pairwise(spans))
        if not chained or any(s.root != root for s in spans):
            continue
        ref = _span_view(draft, node, ElementSpan(root, spans[0].start, spans[-1].stop))
        if ref is not None:
            draft.put(ref, Ref(node.name))
    return draft.build()


def _span_view(draft: ProgramBuilder, node: Node, part: ElementSpan) -> Ref | None:
    """Return a view of a span in the shape of `node`.

    None if the span begins within a row of that shape.
    """
    shape, root_shape, ref = node.specs[0].shape, draft.spec(part.root).shape, part.root
    assert shape is not None
    row, size = math.prod(shape[1:]), size_of(root_shape)  # type: ignore[arg-type]
    if part.start % row or size % row:
        return None
    rows = (size // row, *shape[1:])
    if rows != root_shape:
        ref = draft.add(node, "Reshape", [ref], "all", shape=rows)
    if rows == shape:
        return ref
    return draft.add(node, "Rows", [ref], "rows", start=part.start // row, stop=part.stop // row)


def span_of(program: Program, ref: Ref) -> ElementSpan:
    """Return the span of elements that a value of known size is, looking through views."""
    start, size = 0, size_of(program.spec(ref).shape)
    while True:
        node = program.nodes[ref.node]
        if not node.inputs or node.control or not is_known(program.spec(node.inputs[0]).shape):
            break
        if node.type == "Rows":
            shape = program.spec(ref).shape or ()
            start += node.attrs["start"] * math.prod(shape[1:])  # type: ignore[arg-type]
        elif node.row.view != "same_order":
            break
        ref = node.inputs[0]
    return ElementSpan(ref, start, start + size)
