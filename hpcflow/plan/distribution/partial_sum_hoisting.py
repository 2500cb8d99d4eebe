"""Partial sums: terms on one device are added there, and only the sum is sent."""

from __future__ import annotations

from hpcflow.plan.ir.control_flow_nodes import map_nested_programs
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import unused_name


def hoist_partial_sums(program: Program) -> Program:
    """Add an AddN on each device that has several terms of an AddN elsewhere.

    The rounding of sums may change.
    """
    nodes: dict[str, Node] = {}
    for node in program.nodes.values():
        for new in _partial_sums(program, node) if node.type == "AddN" else [node]:
            nodes[new.name] = new
    return map_nested_programs(program.but(nodes=nodes), hoist_partial_sums)


def _partial_sums(program: Program, total: Node) -> list[Node]:
    """Return the partial sums and their total."""
    groups: dict[str, list[Ref]] = {}
    for ref in total.inputs:
        maker = program.nodes[ref.node]
        everywhere = maker.row.source == "feed"  # a feed of a loop is present on each task
        groups.setdefault(total.device if everywhere else maker.device, []).append(ref)
    parts, terms = list[Node](), list[Ref]()
    for device, refs in groups.items():
        if device == total.device or len(refs) == 1:
            terms += refs
            continue
        name = unused_name(
            f"{total.name}/part", program.nodes.keys() | {part.name for part in parts}
        )
        parts.append(total.but(name=name, inputs=tuple(refs), control=(), device=device))
        terms.append(Ref(name))
    type = "AddN" if len(terms) > 1 else "Identity"
    attrs = total.attrs if type == "AddN" else {}
    return [*parts, total.but(type=type, inputs=tuple(terms), attrs=attrs)] if parts else [total]
