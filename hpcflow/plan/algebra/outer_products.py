"""Outer products: a matrix product over an axis of one element is a broadcast multiplication.

The gradient of a layer of one unit is such a product, and that of a weighted sum of rows in an
attention. BLAS takes many times as long as a loop, and a multiplication is fused with its
neighbours.
"""

from __future__ import annotations

from hpcflow.graph.static_shape import is_known, require_known
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import ProgramBuilder, control_edge_nodes


def multiply_outer_products(program: Program) -> Program:
    """Replace products over one element; zeros may have another sign."""
    anchors, draft = control_edge_nodes(program), ProgramBuilder(program)
    for node in program.nodes.values():
        if node.type == "MatMul" and node.name not in anchors and _is_outer(program, node):
            factors = [_factor(draft, node, k) for k in range(2)]
            draft.put(draft.add(node, "Mul", factors, "outer"), Ref(node.name))
    return draft.build()


def _is_outer(program: Program, node: Node) -> bool:
    """Whether the summed axis has one element.

    The weights' gradient of a batch of one sample is left alone: a loop may sum up such products.
    """
    shapes = [program.spec(ref).shape for ref in node.inputs]
    if node.specs[0].dtype.kind != "f" or not all(map(is_known, shapes)):
        return False
    left, right = map(require_known, shapes)
    if node.attrs["transpose_a"] and len(left) == len(right) == 2:
        return False
    return left[-2 if node.attrs["transpose_a"] else -1] == 1


def _factor(draft: ProgramBuilder, node: Node, k: int) -> Ref:
    """An operand: columns for k = 0, rows for k = 1."""
    ref = node.inputs[k]
    if not node.attrs["transpose_b" if k else "transpose_a"]:
        return ref
    *lead, rows, columns = require_known(draft.spec(ref).shape)
    return draft.add(node, "Reshape", [ref], "turned", shape=(*lead, columns, rows))
