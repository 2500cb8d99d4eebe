"""Loop-invariant hoisting: a loop computes only what differs between its iterations.

An operation of captured values and constants gives the same in each iteration. It is computed once
in front of the loop, if it cannot fail: a loop without iterations must not raise its error.
"""

from __future__ import annotations

from collections.abc import Container

from hpcflow.graph.static_shape import is_known, size_of
from hpcflow.plan.frontend.capture_hoisting import captured_value, with_captures
from hpcflow.plan.ir.control_flow_nodes import map_nested_programs
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_builder import consumer_names, control_edge_nodes
from hpcflow.plan.ir.program_rewriting import eliminate_dead_nodes, sorted_program

MOST_ELEMENTS = 1 << 14  # of an elementwise result: a fused loop computes more as fast as it reads


def hoist_loop_invariants(program: Program) -> Program:
    """Move operations whose inputs are captured out of the bodies of loops.

    Products, reductions and small elementwise results move, with what they need; views and copies
    alone do not.
    """
    program = map_nested_programs(program, hoist_loop_invariants)
    for name in list(program.nodes):
        loop = program.nodes[name]
        if loop.row.control_flow == "loop":
            moved = _invariants(program, loop)
            if moved:
                program = _with_moved(program, loop, moved)
    return program


def _invariants(program: Program, loop: Node) -> dict[str, Node]:
    """The nodes of the body to move, in its order, constants included."""
    body, outside = loop.attrs["body"], set[str]()
    anchors, captured = control_edge_nodes(body), _captures(loop)
    for node in body.nodes.values():
        if node.name in anchors or node.name in program.nodes or len(node.specs) > 1:
            continue
        row, known = node.row, all(is_known(spec.shape) for spec in node.specs)
        computes = row.elementwise or row.reduction or row.contraction is not None or row.view
        depends = {ref.node for ref in node.inputs} <= captured.keys() | outside
        if row.source == "constant" or (computes and row.pure and known and depends):
            outside.add(node.name)
    roots = [name for name in body.nodes if name in outside and _is_worth(body.nodes[name])]
    return _with_inputs(body, roots, captured)


def _captures(loop: Node) -> dict[str, Ref]:
    """The feeds of the body that are captured values, and these."""
    pairs = zip(loop.attrs["body"].feeds, loop.attrs["body_feeds"], strict=True)
    values = ((feed, captured_value(loop, slot)) for feed, slot in pairs)
    return {feed: value for feed, value in values if value is not None}


def _is_worth(node: Node) -> bool:
    """Whether a node takes longer than reading its result, and cannot fail."""
    if node.row.source or node.specs[0].dtype.kind not in "fb":
        return False
    if node.row.reduction or node.row.contraction is not None:
        return True
    return node.row.elementwise and size_of(node.specs[0].shape) <= MOST_ELEMENTS


def _with_inputs(body: Program, roots: list[str], captured: Container[str]) -> dict[str, Node]:
    """The nodes `roots` of a body and all that they are computed of there."""
    needed = set[str]()
    while roots:
        name = roots.pop()
        if name not in needed and name not in captured:
            needed.add(name)
            roots += [ref.node for ref in body.nodes[name].inputs]
    if all(body.nodes[name].row.source for name in needed):
        return {}
    return {name: node for name, node in body.nodes.items() if name in needed}


def _with_moved(program: Program, loop: Node, moved: dict[str, Node]) -> Program:
    """The program with nodes of the body in front of the loop, which captures what it uses."""
    used, outer = consumer_names(loop.attrs["body"]), _captures(loop)
    front = {
        name: node.but(inputs=tuple(outer.get(ref.node, ref) for ref in node.inputs))
        for name, node in moved.items()
    }
    captures = {
        name: node
        for name, node in moved.items()
        if not node.row.source and not moved.keys() >= set(used.get(Ref(name), ()))
    }
    changed = with_captures(loop, "body", captures)
    body = eliminate_dead_nodes(changed.attrs["body"])
    changed = changed.but(attrs={**changed.attrs, "body": body})
    return sorted_program(program.but(nodes={**front, **program.nodes, loop.name: changed}))
