"""Threads for Python functions: `PyFunc` calls without a mutual order run in threads.

One of them may wait for another.
"""

from __future__ import annotations

from hpcflow.plan.ir.control_flow_nodes import (
    map_nested_programs,
    nested_programs,
    node_with_nested,
)
from hpcflow.plan.ir.program import Node, Partition, Program
from hpcflow.plan.verification.effect_verifier import Reachability


def thread_py_func_calls(program: Program) -> Program:
    """Replace `PyFunc` with `PyFuncThread` where no path orders two calls."""
    program = map_nested_programs(program, thread_py_func_calls)
    names = [
        n.name
        for n in program.nodes.values()
        if any(m.type == "PyFunc" for m in node_with_nested(n))
    ]
    if len(names) < 2:
        return program
    follows = Reachability(program.nodes, names)
    alone = {b for a in names for b in names if a != b and not (follows(a, b) or follows(b, a))}
    return program.but(
        nodes={**program.nodes, **{n: _as_threaded(program.nodes[n]) for n in alone}}
    )


def _as_threaded(node: Node) -> Node:
    """Return the call as `PyFuncThread`; in a loop or branch replace all calls."""
    if node.type == "PyFunc":
        return node.but(type="PyFuncThread")
    inside = {key: _all_threaded(body) for key, body in nested_programs(node)}
    return node.but(attrs={**node.attrs, **inside}) if inside else node


def _all_threaded(program: Program | Partition) -> Program:
    assert isinstance(program, Program)
    return program.but(nodes={name: _as_threaded(n) for name, n in program.nodes.items()})
