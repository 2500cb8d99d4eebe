"""Dead loop variable elimination: loops and branches compute only what is used.

After simplification some values of a loop are useless: a gradient keeps values of which it needs
only the shapes, and these may have become constants. Their lists are filled by the forward loop and
emptied by the backward loop. Both loops lose the list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from hpcflow.plan.ir.node_effects import has_effect
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import dependencies, eliminate_dead_nodes


def drop_dead_loop_variables(program: Program) -> Program:
    """Drop the loop variables, outputs and captures of loops and branches that nothing needs.

    A loop variable is needed if its last value is used, or if the condition, an effect or another
    needed variable depends on it. No effect is lost. An output of a body stays if an effect of the
    body runs for it alone. A loop or branch waits for the effects behind inputs that it loses.
    """
    for name in reversed(program.nodes):  # consumers first: each may leave outputs unused
        node = program.nodes[name]
        if node.row.control_flow:
            used = _used_outputs(program, name)
            reduce = _reduced_loop if node.row.control_flow == "loop" else _reduced_branch
            reduced, outputs = reduce(node, used)
            if reduced is not node:
                reduced = _after_effects(program, node, reduced)
                program = _with_outputs(program, reduced, outputs)
    return eliminate_dead_nodes(program)


def _after_effects(program: Program, node: Node, reduced: Node) -> Node:
    """Return `reduced`, which waits for each lost input of `node` that depends on an effect."""
    lost = {ref.node for ref in node.inputs} - {ref.node for ref in reduced.inputs}
    waited = [
        name
        for name in sorted(lost)
        if any(has_effect(program, program.nodes[n]) for n in dependencies(program, [name]))
    ]
    return reduced.but(control=tuple(dict.fromkeys((*reduced.control, *waited))))


def _used_outputs(program: Program, name: str) -> set[int]:
    refs = [ref for node in program.nodes.values() for ref in node.inputs]
    return {ref.index for ref in (*refs, *program.fetches) if ref.node == name}


def _with_outputs(program: Program, node: Node, outputs: list[int]) -> Program:
    """Return the program with `node`, whose outputs were those numbered `outputs`."""
    values = {Ref(node.name, old): Ref(node.name, new) for new, old in enumerate(outputs)}
    nodes = {name: other.taking(values) for name, other in program.nodes.items()}
    fetches = tuple(values.get(ref, ref) for ref in program.fetches)
    return program.but(nodes={**nodes, node.name: node}, fetches=fetches)


class _Nested(NamedTuple):
    """A program of a loop or branch, and the slot of each of its feeds."""

    program: Program
    slots: tuple[int, ...]

    def keeping(self, outputs: Iterable[int]) -> _Nested:
        """Return it with only these fetches, and the feeds that they or its targets need."""
        fetches = tuple(self.program.fetches[i] for i in outputs)
        needed = self._needed(outputs)
        pairs = [p for p in zip(self.program.feeds, self.slots, strict=True) if p[0] in needed]
        feeds, slots = tuple(f for f, _ in pairs), tuple(s for _, s in pairs)
        return _Nested(eliminate_dead_nodes(self.program.but(feeds=feeds, fetches=fetches)), slots)

    def needed_slots(self, outputs: Iterable[int]) -> set[int]:
        """Return the slots that the fetches numbered `outputs` and the targets need."""
        needed = self._needed(outputs)
        return {s for f, s in zip(self.program.feeds, self.slots, strict=True) if f in needed}

    def with_effects(self, outputs: Collection[int]) -> set[int]:
        """Return `outputs` and each fetch that depends on an effect which they do not need."""
        chosen = set(outputs)
        kept = self._needed(chosen)
        for i, ref in enumerate(self.program.fetches):
            if i not in chosen:
                ancestors = dependencies(self.program, [ref.node])
                if any(has_effect(self.program, self.program.nodes[n]) for n in ancestors - kept):
                    chosen.add(i)
                    kept |= ancestors
        return chosen

    def _needed(self, outputs: Iterable[int]) -> set[str]:
        ends = [self.program.fetches[i].node for i in outputs]
        return dependencies(self.program, [*ends, *self.program.targets])


def _reduced_loop(loop: Node, used: set[int]) -> tuple[Node, list[int]]:
    """Return the loop with the loop variables and captures that are needed; and their old slots."""
    count, empty = len(loop.specs), loop.attrs["empty"]
    cond = _Nested(loop.attrs["cond"], loop.attrs["cond_feeds"]).keeping([0])
    body = _Nested(loop.attrs["body"], loop.attrs["body_feeds"])
    needed, kept = used | {slot for slot in cond.slots if slot < count}, set[int]()
    while needed != kept:
        kept = body.with_effects(needed)
        needed = kept | {slot for slot in body.needed_slots(kept) if slot < count}
    outputs = sorted(needed)
    reduced = body.keeping(outputs)
    captures = _captures(count, (cond, reduced))
    slots = [*outputs, *captures]
    if len(slots) == len(loop.inputs) + empty:
        return loop, outputs
    begin = count - empty
    inputs = [loop.inputs[i] for i in outputs if i < begin]
    inputs += [loop.inputs[slot - empty] for slot in captures]
    attrs = {
        **loop.attrs,
        **_attrs("cond", cond, slots),
        **_attrs("body", reduced, slots),
        "empty": sum(i >= begin for i in outputs),
        "made": tuple(loop.attrs["made"][i] for i in outputs),
    }
    specs = tuple(loop.specs[i] for i in outputs)
    return loop.but(inputs=tuple(inputs), attrs=attrs, specs=specs), outputs


def _reduced_branch(branch: Node, used: set[int]) -> tuple[Node, list[int]]:
    """Return the branch with the outputs and captures that are needed; and the old outputs."""
    both = [_Nested(branch.attrs[key], branch.attrs[f"{key}_feeds"]) for key in ("then", "else")]
    kept = sorted(set.union(*(side.with_effects(used) for side in both)))
    sides = {key: side.keeping(kept) for key, side in zip(("then", "else"), both, strict=True)}
    slots = _captures(0, sides.values())
    if len(kept) == len(branch.specs) and len(slots) == len(branch.inputs) - 1:
        return branch, kept
    attrs = {**branch.attrs, "made": tuple(branch.attrs["made"][i] for i in kept)}
    for key, side in sides.items():
        attrs |= _attrs(key, side, slots)
    inputs = (branch.inputs[0], *(branch.inputs[1 + slot] for slot in slots))
    specs = tuple(branch.specs[i] for i in kept)
    return branch.but(inputs=inputs, attrs=attrs, specs=specs), kept


def _captures(first: int, nested: Iterable[_Nested]) -> list[int]:
    return sorted({slot for n in nested for slot in n.slots if slot >= first})


def _attrs(key: str, nested: _Nested, slots: list[int]) -> dict[str, object]:
    """Return the attributes of a program whose slots are those numbered `slots`."""
    return {key: nested.program, f"{key}_feeds": tuple(slots.index(s) for s in nested.slots)}
