"""Dead read elimination: removes variable reads whose values became unused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpcflow.plan.ir.control_flow_nodes import node_with_nested
from hpcflow.plan.ir.program import Node, Program
from hpcflow.plan.ir.program_rewriting import substitute_values


def live_reads(program: Program) -> list[str]:
    """Return the reads whose values are used or fetched."""
    return [name for name in _used_nodes(program) if _is_pure_read(program.nodes[name])]


def drop_dead_reads(program: Program, names: Iterable[str]) -> Program:
    """Remove the reads in `names` whose values are no longer used.

    An update has a control edge from each read that must see the value before the update. The
    successors of a removed read follow its predecessors instead. Pure predecessors are replaced by
    their own predecessors. Feeds and variables exist before the step and are left out.
    """
    used = _used_nodes(program) | set(program.targets)
    gone = {name for name in names if name in program.nodes and name not in used}
    order = {name: tuple(_ordering_nodes(program, program.nodes[name].before())) for name in gone}
    return substitute_values(program, {}, order)


def _used_nodes(program: Program) -> set[str]:
    """Return the nodes with an output that is used or fetched."""
    refs = (ref for node in program.nodes.values() for ref in node.inputs)
    return {ref.node for ref in (*refs, *program.fetches)}


def _is_pure_read(node: Node) -> bool:
    row = node.row
    return bool(row.reads) and not (row.writes or row.stateful or row.collective or row.waits)


def _ordering_nodes(program: Program, names: Iterable[str]) -> Iterator[str]:
    """Yield the named nodes; a pure node is replaced by the nodes that it follows."""
    stack, visited = list(names), set(names)
    while stack:
        node = program.nodes[stack.pop()]
        if all(n.row.pure for n in node_with_nested(node)):
            new = [b for b in dict.fromkeys(node.before()) if b not in visited]
            stack += new
            visited.update(new)
        elif node.row.source != "feed" and node.row.variable != "handle":
            yield node.name
