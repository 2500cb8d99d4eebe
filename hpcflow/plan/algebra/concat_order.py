"""Concat order: the order in which values are concatenated, so that most are contiguous."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.plan.algebra.split_concat_to_views import span_of
from hpcflow.plan.ir.program import Program, Ref


def common_permutation(program: Program, columns: Sequence[Sequence[Ref]]) -> list[int]:
    """Return one permutation for the values of all columns.

    It is the order in which the values of a column are rows of one array, or the order of an
    existing Concat or Pack of them. Without either, it is the creation order of the first column.
    """
    for column in columns:
        order = _row_order(program, column) or _concat_order(program, column)
        if order is not None:
            return order
    position = {name: i for i, name in enumerate(program.nodes)}
    first = columns[0]
    return sorted(range(len(first)), key=lambda i: (position[first[i].node], first[i].index))


def _row_order(program: Program, column: Sequence[Ref]) -> list[int] | None:
    spans = [span_of(program, ref) for ref in column]
    if len({s.root for s in spans}) > 1 or len({s.start for s in spans}) < len(spans):
        return None
    return sorted(range(len(spans)), key=lambda i: spans[i].start)


def _concat_order(program: Program, column: Sequence[Ref]) -> list[int] | None:
    refs = set(column)
    for node in program.nodes.values():
        if node.row.joins and refs.issubset(node.inputs):
            rank = len(node.specs[0].shape or ())
            if node.attrs["axis"] in (0, -rank) and len(refs) == len(column):
                return sorted(range(len(column)), key=lambda i: node.inputs.index(column[i]))
    return None
