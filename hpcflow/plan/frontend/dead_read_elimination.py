"""Dead read elimination: reads of variables whose values nobody uses any longer go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpcflow.plan.ir.control_flow_nodes import whole
from hpcflow.plan.ir.program import Node, Program
from hpcflow.plan.ir.program_rewriting import substitute


def used_reads(program: Program) -> list[str]:
    """The reads of which a value is used or fetched."""
    return [name for name in _used(program) if _only_reads(program.nodes[name])]


def drop_reads(program: Program, names: Iterable[str]) -> Program:
    """Without those reads among `names` whose value nobody uses any longer.

    Updates follow a read so that it sees the value before them. What followed such a read follows
    what the read followed, but for pure nodes and for what is there before the step.
    """
    used = _used(program) | set(program.targets)
    gone = {name for name in names if name in program.nodes and name not in used}
    order = {name: tuple(_acting(program, program.nodes[name].before())) for name in gone}
    return substitute(program, {}, order)


def _used(program: Program) -> set[str]:
    """The nodes of which a value is used or fetched."""
    refs = (ref for node in program.nodes.values() for ref in node.inputs)
    return {ref.node for ref in (*refs, *program.fetches)}


def _only_reads(node: Node) -> bool:
    row = node.row
    return bool(row.reads) and not (row.writes or row.stateful or row.collective or row.waits)


def _acting(program: Program, names: Iterable[str]) -> Iterator[str]:
    """The named nodes, in place of pure ones those that they follow."""
    stack, seen = list(names), set(names)
    while stack:
        node = program.nodes[stack.pop()]
        if all(n.row.pure for n in whole(node)):
            new = [b for b in dict.fromkeys(node.before()) if b not in seen]
            stack += new
            seen.update(new)
        elif node.type not in ("Feed", "Variable"):
            yield node.name
