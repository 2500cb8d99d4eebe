"""Sum of MatMuls: a sum of products becomes one product over a longer inner dimension.

The gradient of weights that a network uses at each step of a sequence is the sum over the steps of
x^T g. This sum is one product of all rows of x with all rows of g.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from hpcflow.graph.static_shape import is_known, require_known, size_of
from hpcflow.plan.algebra.concat_order import common_permutation
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import (
    ProgramBuilder,
    concat_widths,
    consumer_names,
    control_edge_nodes,
    requested_placement,
)

SUMS = ("Add", "AddN")


def merge_product_sums(program: Program) -> Program:
    """Replace the sum of several products, or of row sums, by one product or row sum.

    The rounding of sums may change.
    """
    anchors = control_edge_nodes(program)
    for name in list(program.nodes):
        node = program.nodes.get(name)
        if node is not None and node.type in SUMS and name not in anchors:
            kinds = [_merge_key(program, program.nodes[ref.node]) for ref in node.inputs]
            if len(kinds) - kinds.count(None) > 1:
                program = _merged_sum(program, node)
    return program


def _merged_sum(program: Program, total: Node) -> Program:
    used, anchors = consumer_names(program), control_edge_nodes(program)
    groups: dict[Hashable, list[Node]] = {}
    for ref in total.inputs:
        node = program.nodes[ref.node]
        alike = node.specs[0][:2] == total.specs[0][:2]
        if len(used[ref]) == 1 and node.name not in anchors and alike:
            kind = _merge_key(program, node)
            if kind is not None:
                groups.setdefault((kind, requested_placement(node)), []).append(node)
    draft, gone, merged = ProgramBuilder(program), set[Ref](), list[Ref]()
    for nodes in groups.values():
        if len(nodes) > 1:
            columns = [[n.inputs[k] for n in nodes] for k in range(len(nodes[0].inputs))]
            order = common_permutation(program, columns)
            make = _joined_product if nodes[0].type == "MatMul" else _joined_sum
            merged.append(make(draft, [nodes[i] for i in order]))
            gone.update(Ref(n.name) for n in nodes)
    if not merged:
        return program
    refs = [*(r for r in total.inputs if r not in gone), *merged]
    new_total = refs[0] if len(refs) == 1 else draft.add(total, "AddN", refs, "rest")
    draft.put(new_total, Ref(total.name))
    return draft.build()


def _merge_key(program: Program, node: Node) -> Hashable | None:
    """Return a key that is equal for nodes that can be merged; None for other nodes."""
    if node.type == "MatMul":
        shapes = [program.spec(r).shape for r in node.inputs]
        if not all(is_known(s) and len(require_known(s)) == 2 and size_of(s) for s in shapes):
            return None
        if not node.attrs["transpose_a"] or node.attrs["transpose_b"]:
            return None
        (n, rows), (_, columns) = map(require_known, shapes)
        # copying all operands once must not cost more than adding the products
        return "MatMul" if n * (rows + columns) <= 2 * rows * columns else None
    if node.type == "Sum" and node.attrs["axis"] in ((0,), 0) and not node.attrs["keepdims"]:
        shape = program.spec(node.inputs[0]).shape
        return "Sum" if is_known(shape) and size_of(shape) else None
    return None


def _joined_product(draft: ProgramBuilder, nodes: Sequence[Node]) -> Ref:
    """Return the sum of the products a^T b, as a product of all rows of a and b."""
    lefts = [draft.program.nodes[n.inputs[0].node] for n in nodes]
    right = _joined_rows(draft, nodes, [n.inputs[1] for n in nodes], "right")
    widths = {concat_widths(draft.program, left) for left in lefts}
    if len(widths) > 1 or None in widths:
        left = _joined_rows(draft, nodes, [n.inputs[0] for n in nodes], "left")
        return draft.add(nodes[0], "MatMul", [left, right], "all", **nodes[0].attrs)
    parts = []
    for column in zip(*(left.inputs for left in lefts), strict=True):
        left = _joined_rows(draft, nodes, column, "left")
        parts.append(draft.add(nodes[0], "MatMul", [left, right], "part", **nodes[0].attrs))
    return draft.add(nodes[0], "Concat", parts, "all", axis=0)


def _joined_sum(draft: ProgramBuilder, nodes: Sequence[Node]) -> Ref:
    rows = _joined_rows(draft, nodes, [n.inputs[0] for n in nodes], "rows")
    return draft.add(nodes[0], "Sum", [rows], "all", **nodes[0].attrs)


def _joined_rows(
    draft: ProgramBuilder, nodes: Sequence[Node], refs: Sequence[Ref], word: str
) -> Ref:
    return draft.add(nodes[0], "Concat", refs, word, axis=0)
