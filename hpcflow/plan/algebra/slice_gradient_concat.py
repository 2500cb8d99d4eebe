"""Slice gradient concat: the sum of slice gradients that cover all rows becomes a Concat.

Each gradient of a slice is as large as the sliced value and zero outside the slice.
"""

from __future__ import annotations

from hpcflow.plan.algebra.split_concat_to_views import has_known_sizes, sliced_rows
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import ProgramBuilder, consumer_names, control_edge_nodes


def concat_slice_gradients(program: Program) -> Program:
    """Replace the sum of gradients of adjacent row slices by a Concat.

    Values are equal except for the sign of zeros.
    """
    anchors, used, draft = (
        control_edge_nodes(program),
        consumer_names(program),
        ProgramBuilder(program),
    )
    for node in program.nodes.values():
        if node.type not in ("Add", "AddN") or node.name in anchors:
            continue
        slices = [
            _gradient_slice(program, ref)
            for ref in node.inputs
            if len(used[ref]) == 1 and program.spec(ref)[:2] == node.specs[0][:2]
        ]
        parts = sorted(part for part in slices if part is not None)
        ends = [0, *(stop for _, stop, _ in parts)]
        rows = (node.specs[0].shape or (None,))[0]
        if len(parts) < 2 or [a for a, _, _ in parts] != ends[:-1] or ends[-1] != rows:
            continue
        gone = {part[2] for part in parts}
        grads = [program.nodes[ref.node].inputs[0] for _, _, ref in parts]
        total = draft.add(node, "Concat", grads, "joined", axis=0)
        others = [ref for ref in node.inputs if ref not in gone]
        if others:
            total = draft.add(node, "AddN", [total, *others], "sum")
        draft.put(total, Ref(node.name))
    return draft.build()


def _gradient_slice(program: Program, ref: Ref) -> tuple[int, int, Ref] | None:
    """Return (start, stop, ref) of the rows that a value is the gradient of.

    None if it is not the gradient of a slice of rows.
    """
    node: Node = program.nodes[ref.node]
    if node.type != "StridedSliceGrad" or node.control or not has_known_sizes(program, node):
        return None
    rows = sliced_rows(node, node.specs[0].shape)
    return None if rows is None else (*rows, ref)
