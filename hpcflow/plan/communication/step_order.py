"""Step order: one global order of the nodes; each task runs a subsequence of it."""

from __future__ import annotations

from itertools import pairwise

from hpcflow.plan.ir.program import Program
from hpcflow.plan.ir.program_rewriting import topological_order


def order_step(program: Program) -> Program:
    """Return the nodes in step order: creation order, with collectives as early as possible.

    Collectives keep the order of their `sequence`. Partitioning later inserts each Send right
    behind the node whose value it sends.
    Errors: VerifyError if nodes depend on each other in a cycle.
    """
    position = {name: i for i, name in enumerate(program.nodes)}
    collectives = [n for n in program.nodes.values() if n.row.collective]
    collectives.sort(key=lambda n: n.attrs["sequence"])
    first = {n.name for n in collectives}
    names = topological_order(
        program.nodes,
        lambda name: (name not in first, position[name]),
        [(a.name, b.name) for a, b in pairwise(collectives)],
    )
    return program.but(nodes={name: program.nodes[name] for name in names})
