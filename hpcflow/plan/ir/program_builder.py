"""Program builder: adds nodes to a program and replaces values, for rewrites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.static_shape import require_known, sizes_along
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import (
    eliminate_dead_nodes,
    infer_specs,
    sorted_program,
    substitute_values,
)


class ProgramBuilder:
    """New nodes, and the old values that they replace."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes: dict[str, Node] = dict(program.nodes)
        self.values: dict[Ref, Ref] = {}

    def add(self, like: Node, type: str, inputs: Sequence[Ref], word: str, **attrs: Any) -> Ref:
        """Add a node placed like `like` and named after it; return its first output."""
        name = base = f"{like.name}/{word}"
        number = 1
        while name in self.nodes:
            number += 1
            name = f"{base}_{number}"
        input_specs = [self.spec(ref) for ref in inputs]
        specs = infer_specs(type, input_specs, attrs, op=name, line=like.line)
        self.nodes[name] = like.but(
            name=name, type=type, inputs=tuple(inputs), control=(), attrs=attrs, specs=specs
        )
        return Ref(name)

    def spec(self, ref: Ref) -> Any:
        """Return the spec of an old or new value."""
        return self.nodes[ref.node].specs[ref.index]

    def put(self, new: Ref, old: Ref) -> None:
        """Replace the value `old` with `new` in all its consumers."""
        self.values[old] = new

    def build(self) -> Program:
        """Return the program with the new nodes, without dead nodes."""
        if not self.values:
            return self.program
        changed = substitute_values(self.program.but(nodes=self.nodes), self.values)
        return sorted_program(eliminate_dead_nodes(changed))


def control_edge_nodes(program: Program) -> set[str]:
    """Return the nodes at either end of a control edge, and the targets; rewrites keep them."""
    waiting = (n.name for n in program.nodes.values() if n.control)
    before = (c for n in program.nodes.values() for c in n.control)
    return {*program.targets, *waiting, *before}


def consumer_names(program: Program) -> dict[Ref, list[str]]:
    """Return the consumers of each value, once per input; "" for each fetch of it."""
    consumers: dict[Ref, list[str]] = {}
    for node in program.nodes.values():
        for ref in node.inputs:
            consumers.setdefault(ref, []).append(node.name)
    for ref in program.fetches:
        consumers.setdefault(ref, []).append("")
    return consumers


def concat_widths(program: Program, node: Node) -> tuple[int, ...] | None:
    """Return the widths of the matrices that a node concatenates by columns.

    None if the node is not such a Concat, has control inputs, or if a size is unknown.
    """
    if node.row.joins != "concat" or node.control or node.attrs["axis"] not in (1, -1):
        return None
    specs = [program.spec(ref) for ref in node.inputs]
    if not all(spec.known and len(require_known(spec.shape)) == 2 for spec in specs):
        return None
    return sizes_along(1, (spec.shape for spec in specs))


def requested_placement(node: Node) -> tuple[str, frozenset[str]]:
    """Return the requested placement of a node; merged nodes must have the same."""
    return node.device, frozenset(node.colocate)
