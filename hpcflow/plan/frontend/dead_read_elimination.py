"""Dead read elimination: removes variable reads whose values became unused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpcflow.plan.ir.control_flow_nodes import whole
from hpcflow.plan.ir.program import Node, Program
from hpcflow.plan.ir.program_rewriting import substitute


def used_reads(program: Program) -> list[str]:
    """Return the reads whose values are used or fetched."""
    return [name for name in _used(program) if _only_reads(program.nodes[name])]


def drop_reads(program: Program, names: Iterable[str]) -> Program:
    """Remove the reads in `names` whose values are no longer used.

    An update has a control edge from each read that must see the value before the update. The
    successors of a removed read follow its predecessors instead. Pure predecessors are replaced by
    their own predecessors. Feeds and variables exist before the step and are left out.
    """
    used = _used(program) | set(program.targets)
    gone = {name for name in names if name in program.nodes and name not in used}
    order = {name: tuple(_acting(program, program.nodes[name].before())) for name in gone}
    return substitute(program, {}, order)


def _used(program: Program) -> set[str]:
    """Return the nodes with an output that is used or fetched."""
    refs = (ref for node in program.nodes.values() for ref in node.inputs)
    return {ref.node for ref in (*refs, *program.fetches)}


def _only_reads(node: Node) -> bool:
    row = node.row
    return bool(row.reads) and not (row.writes or row.stateful or row.collective or row.waits)


def _acting(program: Program, names: Iterable[str]) -> Iterator[str]:
    """Yield the named nodes; a pure node is replaced by the nodes that it follows."""
    stack, seen = list(names), set(names)
    while stack:
        node = program.nodes[stack.pop()]
        if all(n.row.pure for n in whole(node)):
            new = [b for b in dict.fromkeys(node.before()) if b not in seen]
            stack += new
            seen.update(new)
        elif node.row.source != "feed" and node.row.variable != "handle":
            yield node.name
