"""The passes that leave fewer nodes for the same values and effects, in their order."""

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
    """The same values and effects from fewer nodes.

    `evaluate` computes pure nodes of constants; `fold_floats=False` leaves floats to the device
    that would have computed them, to the last bit.
    """
    reads = used_reads(program)
    program = drop_identities(program)
    program = known_values(program)
    if evaluate is not None:
        program = fold(live(program), evaluate, fold_floats)
    program = drop_reads(live(program), reads)
    return live(drop_noops(merge_equal(program)))
