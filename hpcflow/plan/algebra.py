"""Rewrites by the rules of matrices: the same values from fewer copies and larger products."""

from __future__ import annotations

from hpcflow.plan.ir import Program
from hpcflow.plan.products import batch_products
from hpcflow.plan.reshapes import reshapes_first
from hpcflow.plan.rewrite import live
from hpcflow.plan.row_views import row_views
from hpcflow.plan.simplify import merge_equal
from hpcflow.plan.slice_sums import join_slices
from hpcflow.plan.sums import sum_products
from hpcflow.plan.windows import share_windows


def by_algebra(program: Program, exact: bool) -> Program:
    """The same values from fewer products and copies; with `exact` only what changes no bit.

    For programs of one task: no other waits for what is put off, nor is sent more.
    """
    program = live(merge_equal(reshapes_first(row_views(program))))
    if exact:
        return program
    program = row_views(batch_products(program))
    program = live(merge_equal(row_views(join_slices(sum_products(program)))))
    return live(merge_equal(share_windows(program)))
