"""Unused product columns: a product is not computed where nobody reads it.

The gradient of `matmul(concat([a, b], 1), w)` is a product whose columns are split into those of
`a` and of `b`. If `a` is a constant or a feed, nobody reads its columns.
"""

from __future__ import annotations

from typing import Any

from hpcflow.graph.static_shape import require_known
from hpcflow.plan.algebra.split_concat_to_views import has_known_sizes
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import ProgramBuilder, consumer_names, control_edge_nodes


def drop_unused_columns(program: Program) -> Program:
    """Multiply by the columns between the first and the last that a Split's readers need."""
    anchors, used = control_edge_nodes(program), consumer_names(program)
    draft = ProgramBuilder(program)
    for node in program.nodes.values():
        if node.row.splits != "split" or node.name in anchors:
            continue
        needed = [i for i in range(len(node.specs)) if Ref(node.name, i) in used]
        product = _product(program, node.inputs[0], used)
        if product is None or product.name in anchors or not _splits_columns(program, node):
            continue
        if needed and not {0, len(node.specs) - 1} <= set(needed):
            _multiply_needed(draft, node, product, range(needed[0], needed[-1] + 1))
    return draft.build()


def _product(program: Program, ref: Ref, used: dict[Ref, list[str]]) -> Node | None:
    """The product that only one node reads, maybe through Reshapes of its rows; else None."""
    columns = (program.spec(ref).shape or ())[-1:]
    while len(used[ref]) == 1:
        node = program.nodes[ref.node]
        if not has_known_sizes(program, node) or (program.spec(ref).shape or ())[-1:] != columns:
            return None
        if node.type == "MatMul":
            return node
        if node.type != "Reshape" or node.control:
            return None
        ref = node.inputs[0]
    return None


def _splits_columns(program: Program, node: Node) -> bool:
    """Whether a Split of known sizes splits along the last axis, of more than one axis."""
    shape = program.spec(node.inputs[0]).shape
    if shape is None or not all(spec.known for spec in node.specs):
        return False
    return len(shape) > 1 and node.attrs["axis"] % len(shape) == len(shape) - 1


def _multiply_needed(draft: ProgramBuilder, split: Node, product: Node, parts: range) -> None:
    """Replace the outputs `parts` of a Split by those of a narrower product."""
    shape = require_known(draft.spec(split.inputs[0]).shape)
    widths = [require_known(spec.shape)[-1] for spec in split.specs]
    start, width = sum(widths[: parts[0]]), sum(widths[k] for k in parts)
    left, right = product.inputs
    rank, stop = len(require_known(draft.spec(right).shape)), start + width
    if product.attrs["transpose_b"] and rank == 2:
        right = draft.add(product, "Rows", [right], "needed", start=start, stop=stop)
    else:
        key: list[Any] = [("slice", None, None, None)] * rank
        key[-2 if product.attrs["transpose_b"] else -1] = ("slice", start, stop, None)
        right = draft.add(product, "StridedSlice", [right], "needed", key=tuple(key))
    narrow = draft.add(product, "MatMul", [left, right], "narrow", **product.attrs)
    if require_known(draft.spec(narrow).shape) != (*shape[:-1], width):
        narrow = draft.add(split, "Reshape", [narrow], "shaped", shape=(*shape[:-1], width))
    if len(parts) == 1:
        draft.put(narrow, Ref(split.name, parts[0]))
        return
    sizes = tuple(widths[k] for k in parts)
    again = draft.add(split, "Split", [narrow], "needed", axis=len(shape) - 1, sizes=sizes)
    for k in parts:
        draft.put(Ref(again.node, k - parts[0]), Ref(split.name, k))
