"""Capture hoisting: variable reads move out of loops and branches, constants move in.

A read sees the updates that it follows and no other updates of its step. It can therefore move to
any point where it follows the same updates, such as in front of a loop that does not update its
variable. There it runs once, on the device of the variable, and equal reads are merged.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcflow.ops.control_flow.cond_while_gradients import EARLY
from hpcflow.plan.ir.control_flow_nodes import (
    map_nested_programs,
    nested_programs,
    node_with_nested,
)
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import substitute_values
from hpcflow.plan.verification.effect_verifier import used_state

CONSTANT_BYTES = 1 << 16  # a body captures a larger constant like any other value


def hoist_variable_reads(program: Program) -> Program:
    """Move reads of variables in front of loops and branches.

    A read stays in its body in these cases: the body updates the variable or tests whether it is
    initialized; the read has control inputs; such an update or test precedes the loop. A read for
    the gradient of a body (`EARLY`) moves to the place of the body's own reads. A read that follows
    an update of its variable is removed if its value is unused.
    """
    program = map_nested_programs(program, hoist_variable_reads)
    program = _drop_unused(program)
    if not any(n.row.control_flow or EARLY in n.attrs for n in program.nodes.values()):
        return program
    changes = _VariableChanges(program)
    front: dict[str, Node] = {}
    nodes: dict[str, Node] = {}
    for node in program.nodes.values():
        if EARLY in node.attrs:
            attrs = {k: value for k, value in node.attrs.items() if k != EARLY}
            control = node.control if changes.before(node) else ()
            node = node.but(attrs=attrs, control=control)
        elif node.row.control_flow:
            node = _drop_reads(node, changes, front)
        nodes[node.name] = node
    return program.but(nodes={**front, **nodes})


def sink_constants(program: Program) -> Program:
    """Copy small constants into the bodies that capture them, where they can be folded."""
    nodes = {}
    for node in program.nodes.values():
        if node.row.control_flow:
            for key, body in nested_programs(node):
                constants = {}
                for feed, slot in zip(body.feeds, node.attrs[f"{key}_feeds"], strict=True):
                    outer = captured_value(node, slot)
                    source = None if outer is None else program.nodes[outer.node]
                    if source is None or source.control:
                        continue
                    if source.row.source == "constant":
                        if source.specs[0].nbytes <= CONSTANT_BYTES:
                            constants[feed] = source
                if constants:
                    node = _with_constants(node, key, constants)
        nodes[node.name] = node
    return program.but(nodes=nodes)


def _drop_unused(program: Program) -> Program:
    used = {ref.node for node in program.nodes.values() for ref in node.inputs}
    used.update(ref.node for ref in program.fetches)
    gone = {}
    for node in program.nodes.values():
        if node.row.variable == "read" and node.name not in used:
            before = [program.nodes[name] for name in node.control]
            if any(node.inputs[0] in (b.inputs[i] for i in b.row.writes) for b in before):
                gone[node.name] = node.control
    return substitute_values(program, {}, gone)


class _VariableChanges:
    """Tracks which variables may have changed before each node of a program.

    A set of variables is an integer with one bit for each variable, because every node has a set.
    """

    def __init__(self, program: Program) -> None:
        self._bits: dict[str, int] = {}  # variable -> its bit
        self._changes: dict[str, int] = {}  # node -> variables updated or tested so far
        self._waits: set[str] = set()  # nodes that follow a wait, a collective or a script call
        for node in program.nodes.values():
            before = node.before()
            changed = self._set_of(_changed_variables(node))
            for name in before:
                changed |= self._changes[name]
            self._changes[node.name] = changed
            acts = any(
                n.row.waits or n.row.collective or n.row.script for n in node_with_nested(node)
            )
            if acts or not self._waits.isdisjoint(before):
                self._waits.add(node.name)

    def _set_of(self, variables: Iterable[str]) -> int:
        bits = 0
        for variable in variables:
            bits |= self._bits.setdefault(variable, 1 << len(self._bits))
        return bits

    def before(self, node: Node, variable: str = "") -> bool:
        """Return whether a read of the variable must not move before `node`.

        The default variable is the one that `node` reads.
        """
        if not self._waits.isdisjoint(node.control):
            return True  # other steps may change the variable during the wait
        bit = self._bits.get(variable or node.inputs[0].node, 0)
        return any(bit & self._changes[name] for name in node.before())


def _changed_variables(node: Node) -> set[str]:
    """Return the variables that a node or its bodies update or test for initialization."""
    tests = (test for test in node_with_nested(node) if test.row.variable == "is_initialized")
    return used_state(node)[1] | {test.inputs[0].node for test in tests}


def _drop_reads(frame: Node, changes: _VariableChanges, front: dict[str, Node]) -> Node:
    """Return the loop or branch without the reads that can move; add these to `front`."""
    changed, original = _changed_variables(frame), frame
    for key, body in nested_programs(frame):
        moved: dict[str, Node] = {}
        for node in body.nodes.values():
            if node.row.variable == "read" and not node.control:
                variable = node.inputs[0].node
                if variable not in changed and not changes.before(original, variable):
                    front[variable], front[node.name] = body.nodes[variable], node
                    moved[node.name] = node
        if moved:
            frame = with_captures(frame, key, moved)
    return frame


def with_captures(frame: Node, key: str, moved: dict[str, Node]) -> Node:
    """Return the loop or branch with captures in place of the named nodes of its body."""
    body = frame.attrs[key]
    inputs, slots = list(frame.inputs), list(frame.attrs[f"{key}_feeds"])
    nodes, values, gone = {}, {}, {}
    for name, node in moved.items():
        feed = f"{name}/outside"
        attrs = {"dtype": node.specs[0].dtype, "shape": node.specs[0].shape}
        nodes[feed] = Node(feed, "Feed", attrs=attrs, specs=node.specs, line=node.line)
        values[Ref(name)], gone[name] = Ref(feed), ()
        if Ref(name) not in inputs:
            inputs.append(Ref(name))
        slots.append(inputs.index(Ref(name)) - _capture_offset(frame))
    feeds = (*body.feeds, *nodes)
    body = substitute_values(body.but(nodes={**nodes, **body.nodes}, feeds=feeds), values, gone)
    return frame.but(
        inputs=tuple(inputs), attrs={**frame.attrs, key: body, f"{key}_feeds": tuple(slots)}
    )


def _capture_offset(frame: Node) -> int:
    """Return the input index of a captured slot minus the slot number."""
    return -frame.attrs["empty"] if frame.row.control_flow == "loop" else 1


def captured_value(frame: Node, slot: int) -> Ref | None:
    """Return the captured value that is fed as this slot; None for a loop variable."""
    if frame.row.control_flow == "loop" and slot < len(frame.attrs["made"]):
        return None
    return frame.inputs[slot + _capture_offset(frame)]


def _with_constants(frame: Node, key: str, constants: dict[str, Node]) -> Node:
    body, slots = frame.attrs[key], frame.attrs[f"{key}_feeds"]
    nodes = {
        n: constants[n].but(name=n) if n in constants else node for n, node in body.nodes.items()
    }
    pairs = [(f, s) for f, s in zip(body.feeds, slots, strict=True) if f not in constants]
    body = body.but(nodes=nodes, feeds=tuple(f for f, _ in pairs))
    attrs = {**frame.attrs, key: body, f"{key}_feeds": tuple(s for _, s in pairs)}
    return frame.but(attrs=attrs)
