"""Reshape hoisting: Reshapes move up through elementwise operations to their operands.

There they are views. The elementwise operations then have one shape from beginning to end, so that
one loop can compute them.
"""

from __future__ import annotations

from hpcflow.codegen import elementwise_formulas
from hpcflow.graph.static_shape import is_known, require_known, size_of
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import ProgramBuilder, consumer_names, control_edge_nodes


def by_element(node: Node) -> bool:
    """Return whether a node is elementwise and has a formula for generated code."""
    return node.row.elementwise and elementwise_formulas.find_formula(node.type, False) is not None


def hoist_reshapes(program: Program) -> Program:
    """Move Reshapes in front of elementwise operations; values are equal to the last bit."""
    while True:
        moved = _hoist_once(program)
        if moved is program:
            return program
        program = moved


def _hoist_once(program: Program) -> Program:
    """Move every Reshape up by one operation where possible."""
    anchors, used, draft = (
        control_edge_nodes(program),
        consumer_names(program),
        ProgramBuilder(program),
    )
    for node in program.nodes.values():
        if node.type != "Reshape" or node.name in anchors or not is_known(node.specs[0].shape):
            continue
        source = program.nodes[node.inputs[0].node]
        if not by_element(source) or source.name in anchors or len(source.specs) != 1:
            continue
        if used[Ref(source.name)] != [node.name] or not is_known(source.specs[0].shape):
            continue
        takes = [program.nodes[name] for name in used.get(Ref(node.name), []) if name]
        if not any(map(by_element, takes)):
            continue
        hoisted = _on_reshaped_operands(draft, node, source)
        if hoisted is not None:
            draft.put(hoisted, Ref(node.name))
    return draft.build()


def _on_reshaped_operands(draft: ProgramBuilder, reshape: Node, source: Node) -> Ref | None:
    """Return the operation on reshaped operands; None if an operand would broadcast differently."""
    old, new = require_known(source.specs[0].shape), require_known(reshape.specs[0].shape)
    if source.type == "BiasAdd" and (len(new) < 2 or old[-1] != new[-1]):
        return None
    shapes = [draft.spec(ref).shape for ref in source.inputs]
    if not all(is_known(s) for s in shapes) or old not in shapes:
        return None
    targets = [_operand_shape(require_known(s), old, new) for s in shapes]
    if None in targets:
        return None
    inputs = [
        ref if shape == target else draft.add(source, "Reshape", [ref], "reshaped", shape=target)
        for ref, shape, target in zip(source.inputs, shapes, targets, strict=True)
    ]
    return draft.add(source, source.type, inputs, "moved", **source.attrs)


def _operand_shape(
    shape: tuple[int, ...], result_shape: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the operand's shape when the result has shape `new` in place of `result_shape`.

    None if the operand would broadcast differently.
    """
    if shape == result_shape:
        return new
    if size_of(shape) == 1 and len(shape) <= len(new):
        return shape
    tail = shape
    while tail and tail[0] == 1:
        tail = tail[1:]
    ends_alike = len(tail) < min(len(result_shape), len(new)) and tail == result_shape[-len(tail) :]
    return tail if ends_alike and tail == new[-len(tail) :] else None
