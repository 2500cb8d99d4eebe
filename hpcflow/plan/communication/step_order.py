"""One global order of the step; every task's order is a restriction of it."""

from __future__ import annotations

from itertools import pairwise

from hpcflow.plan.ir.program import Program
from hpcflow.plan.ir.program_rewriting import topological


def order(program: Program) -> Program:
    """The nodes in the order of the step: as the graph was made, collectives as early as they can.

    Collectives keep the order of their `sequence`. Sends are put right behind what they send when
    the program is cut. Errors: VerifyError if the nodes depend on each other in a circle.
    """
    position = {name: i for i, name in enumerate(program.nodes)}
    collectives = [n for n in program.nodes.values() if n.row.collective]
    collectives.sort(key=lambda n: n.attrs["sequence"])
    first = {n.name for n in collectives}
    names = topological(
        program.nodes,
        lambda name: (name not in first, position[name]),
        [(a.name, b.name) for a, b in pairwise(collectives)],
    )
    return program.but(nodes={name: program.nodes[name] for name in names})
