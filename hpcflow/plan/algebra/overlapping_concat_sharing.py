"""Overlapping Concat sharing: two overlapping Concats become rows of one array."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.graph.static_shape import is_known, known
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import Draft, followed, wish


def share_windows(program: Program) -> Program:
    """Replace two Concats along axis 0 by one if the first ends with what the second begins.

    The states of a recurrent network before each step and after each step then lie in one array.
    """
    while (pair := _pair(program)) is not None:
        program = _shared(program, *pair)
    return program


def _pair(program: Program) -> tuple[Node, Node, int] | None:
    """Return two Concats and the index in the first where the inputs of the second begin."""
    anchors = followed(program)
    found = [
        n
        for n in program.nodes.values()
        if n.row.joins == "concat" and n.name not in anchors and n.attrs["axis"] == 0
        if is_known(n.specs[0].shape) and len(n.inputs) > 2
    ]
    holders: dict[Ref, list[Node]] = {}
    for a in found:
        for ref in a.inputs:
            holders.setdefault(ref, []).append(a)
    for b in found:
        for a in holders[b.inputs[0]]:
            if a is not b and wish(a) == wish(b):
                at = _begins(a.inputs, b.inputs)
                if at is not None and not _apart(program, a, b):
                    return a, b, at
    return None


def _begins(a: Sequence[Ref], b: Sequence[Ref]) -> int | None:
    """Return the index in `a` from which `a` and `b` agree to the end of one of them.

    None if the overlap is not more than half of the shorter one.
    """
    if len(set(a)) < len(a) or len(set(b)) < len(b) or b[0] not in a:
        return None
    at = a.index(b[0])
    n = min(len(a) - at, len(b))
    return at if 2 * n > min(len(a), len(b)) and a[at : at + n] == b[:n] else None


def _apart(program: Program, a: Node, b: Node) -> bool:
    """Return whether one node depends on the other, so that they cannot be computed at once."""
    reached = {a.name: {a.name}, b.name: {b.name}}
    for name, seen in reached.items():
        for node in program.nodes.values():
            if not seen.isdisjoint(node.before()):
                seen.add(node.name)
        other = b if name == a.name else a
        if other.name in seen:
            return True
    return False


def _shared(program: Program, a: Node, b: Node, at: int) -> Program:
    draft = Draft(program)
    after = b.inputs[len(a.inputs) - at :]
    whole = draft.add(a, "Concat", [*a.inputs, *after], "joined", axis=0)
    sizes = [draft.spec(r).shape[0] for r in a.inputs]
    for node, start in ((a, 0), (b, sum(sizes[:at]))):
        stop = start + known(node.specs[0].shape)[0]
        draft.put(draft.add(node, "Rows", [whole], "rows", start=start, stop=stop), Ref(node.name))
    return draft.done()
