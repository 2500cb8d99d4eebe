"""All rewrites by the rules of matrices, in their order."""

from __future__ import annotations

from hpcflow.plan.algebra.loop_ends import loop_ends
from hpcflow.plan.algebra.products import batch_products
from hpcflow.plan.algebra.reshapes import reshapes_first
from hpcflow.plan.algebra.row_views import row_views
from hpcflow.plan.algebra.slice_sums import join_slices
from hpcflow.plan.algebra.sums import sum_products
from hpcflow.plan.algebra.windows import share_windows
from hpcflow.plan.ir import Program
from hpcflow.plan.rewrite import live
from hpcflow.plan.simplify import merge_equal


def by_algebra(program: Program, exact: bool) -> Program:
    """The same values from fewer products and copies; with `exact` only what changes no bit.

    For programs of one task: no other waits for what is put off, nor is sent more.
    """
    program = live(merge_equal(reshapes_first(row_views(program))))
    if exact:
        return program
    program = row_views(batch_products(program))
    program = live(merge_equal(row_views(join_slices(sum_products(program)))))
    return live(merge_equal(loop_ends(share_windows(program))))
