"""Reshapes move up, through what is computed element by element, to what makes its operands.

There they are views of what was made, and what is computed element by element has one shape from
beginning to end, so that one loop can do it.
"""

from __future__ import annotations

from hpcflow.codegen import elementwise_formulas
from hpcflow.graph.static_shape import is_known, known, size_of
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import Draft, followed, takers

# operations of which the shape is that of their operands, broadcast
BY_ELEMENT = frozenset({*elementwise_formulas.EXACT, *elementwise_formulas.CLOSE}) - {"Identity"}


def reshapes_first(program: Program) -> Program:
    """The same values, to the last bit, with Reshapes in front of elementwise operations."""
    while True:
        moved = _moved(program)
        if moved is program:
            return program
        program = moved


def _moved(program: Program) -> Program:
    """With all Reshapes one operation further up that may go there."""
    anchors, used, draft = followed(program), takers(program), Draft(program)
    for node in program.nodes.values():
        if node.type != "Reshape" or node.name in anchors or not is_known(node.specs[0].shape):
            continue
        source = program.nodes[node.inputs[0].node]
        if source.type not in BY_ELEMENT or source.name in anchors or len(source.specs) != 1:
            continue
        if used[Ref(source.name)] != [node.name] or not is_known(source.specs[0].shape):
            continue
        takes = [program.nodes[name].type for name in used.get(Ref(node.name), []) if name]
        if BY_ELEMENT.isdisjoint(takes):  # it ends what is computed element by element
            continue
        made = _above(draft, node, source)
        if made is not None:
            draft.put(made, Ref(node.name))
    return draft.done()


def _above(draft: Draft, reshape: Node, source: Node) -> Ref | None:
    """The operation on reshaped operands; None if one of them is broadcast in another way."""
    whole, new = known(source.specs[0].shape), known(reshape.specs[0].shape)
    if source.type == "BiasAdd" and (len(new) < 2 or whole[-1] != new[-1]):
        return None
    shapes = [draft.spec(ref).shape for ref in source.inputs]
    if not all(is_known(s) for s in shapes) or whole not in shapes:
        return None
    targets = [_target(known(s), whole, new) for s in shapes]
    if None in targets:
        return None
    inputs = [
        ref if shape == target else draft.add(source, "Reshape", [ref], "reshaped", shape=target)
        for ref, shape, target in zip(source.inputs, shapes, targets, strict=True)
    ]
    return draft.add(source, source.type, inputs, "moved", **source.attrs)


def _target(
    shape: tuple[int, ...], whole: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The shape of an operand of `shape` when the result has shape `new` in place of `whole`."""
    if shape == whole:
        return new
    if size_of(shape) == 1 and len(shape) <= len(new):
        return shape
    tail = shape
    while tail and tail[0] == 1:
        tail = tail[1:]
    ends_alike = len(tail) < min(len(whole), len(new)) and tail == whole[-len(tail) :]
    return tail if ends_alike and tail == new[-len(tail) :] else None
