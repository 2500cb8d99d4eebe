"""A program while a rewrite adds nodes to it and puts values in place of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.static_shape import known, sizes_along
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import infer, live, sorted_program, substitute


class Draft:
    """New nodes, and which of the old values they stand for."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.nodes: dict[str, Node] = dict(program.nodes)
        self.values: dict[Ref, Ref] = {}

    def add(self, like: Node, type: str, inputs: Sequence[Ref], word: str, **attrs: Any) -> Ref:
        """The first output of a new node that is placed as `like` and named after it."""
        name = base = f"{like.name}/{word}"
        number = 1
        while name in self.nodes:
            number += 1
            name = f"{base}_{number}"
        given = [self.spec(ref) for ref in inputs]
        specs = infer(type, given, attrs, op=name, line=like.line)
        self.nodes[name] = like.but(
            name=name, type=type, inputs=tuple(inputs), control=(), attrs=attrs, specs=specs
        )
        return Ref(name)

    def spec(self, ref: Ref) -> Any:
        """What is known of a value, old or new."""
        return self.nodes[ref.node].specs[ref.index]

    def put(self, new: Ref, old: Ref) -> None:
        """Whoever takes the value `old` takes `new` from now on."""
        self.values[old] = new

    def done(self) -> Program:
        """The program with the new nodes, without those that nobody needs any more."""
        if not self.values:
            return self.program
        changed = substitute(self.program.but(nodes=self.nodes), self.values)
        return sorted_program(live(changed))


def followed(program: Program) -> set[str]:
    """Nodes whose end others wait for, and those that wait for others' ends: they stay."""
    waiting = (n.name for n in program.nodes.values() if n.control)
    before = (c for n in program.nodes.values() for c in n.control)
    return {*program.targets, *waiting, *before}


def takers(program: Program) -> dict[Ref, list[str]]:
    """The nodes that take each value, once per input; "" for each time that it is fetched."""
    found: dict[Ref, list[str]] = {}
    for node in program.nodes.values():
        for ref in node.inputs:
            found.setdefault(ref, []).append(node.name)
    for ref in program.fetches:
        found.setdefault(ref, []).append("")
    return found


def joined_columns(program: Program, node: Node) -> tuple[int, ...] | None:
    """How wide the matrices of known sizes are that a node joins by columns, and does nothing else.

    None if it does not.
    """
    if node.type != "Concat" or node.control or node.attrs["axis"] not in (1, -1):
        return None
    specs = [program.spec(ref) for ref in node.inputs]
    if not all(spec.known and len(known(spec.shape)) == 2 for spec in specs):
        return None
    return sizes_along(1, (spec.shape for spec in specs))


def wish(node: Node) -> tuple[str, frozenset[str]]:
    """Where a node is asked to be; nodes that are joined have the same."""
    return node.device, frozenset(node.colocate)
