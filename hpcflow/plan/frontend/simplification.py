"""Graph simplification: the list of passes that remove redundant nodes, in order."""

from __future__ import annotations

from hpcflow.plan.frontend.common_subexpression_elimination import merge_equal
from hpcflow.plan.frontend.constant_folding import Evaluate, fold, known_values
from hpcflow.plan.frontend.dead_read_elimination import drop_reads, used_reads
from hpcflow.plan.frontend.identity_elimination import drop_identities, drop_noops
from hpcflow.plan.ir.program import Program
from hpcflow.plan.ir.program_rewriting import live


def simplify(
    program: Program, evaluate: Evaluate | None = None, fold_floats: bool = True
) -> Program:
    """Return a program with fewer nodes and the same values and effects.

    `evaluate` computes pure nodes of constants. With `fold_floats=False` floats are not folded, so
    that the device computes them, bit for bit.
    """
    reads = used_reads(program)
    program = drop_identities(program)
    program = known_values(program)
    if evaluate is not None:
        program = fold(live(program), evaluate, fold_floats)
    program = drop_reads(live(program), reads)
    return live(drop_noops(merge_equal(program)))
