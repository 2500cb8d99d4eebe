"""Overlapping Concat sharing: two overlapping Concats become rows of one array."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.graph.static_shape import is_known, require_known
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import ProgramBuilder, control_edge_nodes, requested_placement


def share_overlapping_concats(program: Program) -> Program:
    """Replace two Concats along axis 0 by one if the first ends with what the second begins.

    The states of a recurrent network before each step and after each step then lie in one array.
    """
    while (pair := _overlapping_pair(program)) is not None:
        program = _shared_concat(program, *pair)
    return program


def _overlapping_pair(program: Program) -> tuple[Node, Node, int] | None:
    """Return two Concats and the index in the first where the inputs of the second begin."""
    anchors = control_edge_nodes(program)
    concats = [
        n
        for n in program.nodes.values()
        if n.row.joins == "concat" and n.name not in anchors and n.attrs["axis"] == 0
        if is_known(n.specs[0].shape) and len(n.inputs) > 2
    ]
    holders: dict[Ref, list[Node]] = {}
    for a in concats:
        for ref in a.inputs:
            holders.setdefault(ref, []).append(a)
    for b in concats:
        for a in holders[b.inputs[0]]:
            if a is not b and requested_placement(a) == requested_placement(b):
                at = _overlap_start(a.inputs, b.inputs)
                if at is not None and not _is_dependent(program, a, b):
                    return a, b, at
    return None


def _overlap_start(a: Sequence[Ref], b: Sequence[Ref]) -> int | None:
    """Return the index in `a` from which `a` and `b` agree to the end of one of them.

    None if the overlap is not more than half of the shorter one.
    """
    if len(set(a)) < len(a) or len(set(b)) < len(b) or b[0] not in a:
        return None
    at = a.index(b[0])
    n = min(len(a) - at, len(b))
    return at if 2 * n > min(len(a), len(b)) and a[at : at + n] == b[:n] else None


def _is_dependent(program: Program, a: Node, b: Node) -> bool:
    """Return whether one node depends on the other, so that they cannot be computed at once."""
    reached = {a.name: {a.name}, b.name: {b.name}}
    for name, reachable in reached.items():
        for node in program.nodes.values():
            if not reachable.isdisjoint(node.before()):
                reachable.add(node.name)
        other = b if name == a.name else a
        if other.name in reachable:
            return True
    return False


def _shared_concat(program: Program, a: Node, b: Node, at: int) -> Program:
    draft = ProgramBuilder(program)
    after = b.inputs[len(a.inputs) - at :]
    joined = draft.add(a, "Concat", [*a.inputs, *after], "joined", axis=0)
    sizes = [draft.spec(r).shape[0] for r in a.inputs]
    for node, start in ((a, 0), (b, sum(sizes[:at]))):
        stop = start + require_known(node.specs[0].shape)[0]
        draft.put(draft.add(node, "Rows", [joined], "rows", start=start, stop=stop), Ref(node.name))
    return draft.build()
