"""Unproved properties: what the rules of `plan_verifier.py` do not prove; none is an error.

`hpcflow plan` lists them: sizes that are known only at run time, and uses of a variable without an
order.
"""

from __future__ import annotations

from collections import Counter

from hpcflow.plan.ir.program import Plan, Ref
from hpcflow.plan.verification.plan_verifier import NodeLocation, order_pairs


def unproved_properties(plan: Plan) -> list[str]:
    """Return what the rules do not prove, as text: unknown sizes, unordered uses of a variable."""
    unproved = [
        f"the size of {edge.ref} from {edge.source} to {edge.dest} is not known"
        for edge in plan.edges
        if not edge.spec.sized
    ]
    unproved += [
        f"values decide how often {name!r} runs, and so how often {count} values cross in it"
        for name, count in Counter(edge.frame for edge in plan.edges if edge.frame).items()
    ]
    for task, part in plan.parts.items():
        for node in part.nodes.values():
            if node.row.collective and not all(s.known for s in node.specs):
                unproved.append(f"the size of collective {node.name!r} on {task} is not known")
    return unproved + _unordered_accesses(plan)


def _unordered_accesses(plan: Plan) -> list[str]:
    """Return the unordered pairs of an update and another use of one variable, as text."""
    uses: dict[tuple[str, Ref], list[tuple[str, bool]]] = {}
    for task, part in plan.parts.items():
        for node in part.nodes.values():
            for i in {*node.row.reads, *node.row.writes}:
                uses.setdefault((task, node.inputs[i]), []).append(
                    (node.name, i in node.row.writes)
                )
    reach = _CrossTaskReachability(
        plan, {(t, name) for (t, _), us in uses.items() for name, _ in us}
    )
    unordered: list[str] = []
    for (task, handle), users in uses.items():
        for i, (a, a_writes) in enumerate(users):
            for b, b_writes in users[:i]:
                if not (a_writes or b_writes) or reach(task, a, b) or reach(task, b, a):
                    continue
                words = "updates" if a_writes and b_writes else "a read and an update"
                unordered.append(
                    f"{words} of variable {handle.node!r} in no order: {b!r} and {a!r} on {task}"
                )
    return unordered


class _CrossTaskReachability:
    """Records for each node, over all tasks, which of the marked nodes it depends on."""

    def __init__(self, plan: Plan, marked: set[NodeLocation]) -> None:
        self.bit = {at: 1 << i for i, at in enumerate(sorted(marked))}
        self.masks: dict[NodeLocation, int] = {}
        cross: dict[NodeLocation, NodeLocation] = {
            receive: send for send, receive in order_pairs(plan)
        }
        stack = [(t, name) for t, part in plan.parts.items() for name in part.nodes]
        while stack:
            at = stack[-1]
            if at in self.masks:
                stack.pop()
                continue
            task, name = at
            before = [(task, b) for b in plan.parts[task].nodes[name].before()]
            if at in cross:
                before.append(cross[at])
            missing = [b for b in before if b not in self.masks]
            if missing:
                stack += missing
                continue
            mask = self.bit.get(at, 0)
            for b in before:
                mask |= self.masks[b]
            self.masks[at] = mask
            stack.pop()

    def __call__(self, task: str, after: str, before: str) -> bool:
        return bool(self.masks[task, after] & self.bit[task, before])
