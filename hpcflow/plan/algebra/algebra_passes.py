"""Algebraic simplification passes, in their order."""

from __future__ import annotations

from hpcflow.plan.algebra.matmul_batching import batch_products
from hpcflow.plan.algebra.overlapping_concat_sharing import share_windows
from hpcflow.plan.algebra.reduction_reshaping import loop_ends
from hpcflow.plan.algebra.reshape_hoisting import reshapes_first
from hpcflow.plan.algebra.slice_gradient_concat import join_slices
from hpcflow.plan.algebra.split_concat_to_views import row_views
from hpcflow.plan.algebra.sum_of_matmuls import sum_products
from hpcflow.plan.frontend.common_subexpression_elimination import merge_equal
from hpcflow.plan.ir.program import Program
from hpcflow.plan.ir.program_rewriting import live


def by_algebra(program: Program, exact: bool) -> Program:
    """Return the same values from fewer products and copies; `exact` allows no bit to change.

    Valid only for programs of one task: no other task waits for a delayed value or receives more
    data.
    """
    program = live(merge_equal(reshapes_first(row_views(program))))
    if exact:
        return program
    program = row_views(batch_products(program))
    program = live(merge_equal(row_views(join_slices(sum_products(program)))))
    return live(merge_equal(loop_ends(share_windows(program))))
