"""Estimated rows: how many rows of a table a step sends, where a plan knows only the rows it reads.

The rows that a lookup reads are divided over the parts of a table in proportion to their rows, as
if all rows were read equally often. A row that is read twice counts twice, up to the rows of a part
if the sender adds equal rows first.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpcflow.graph.static_shape import Spec, is_known, size_of
from hpcflow.plan.ir.program import Node, Partition, Ref

DISTINCT = "SumEqualRows"  # adds equal rows, so that none occurs twice


class EstimatedRows:
    """Estimates of the number of rows of values, where a plan knows all but their first size."""

    def __init__(self, parts: Iterable[Partition]) -> None:
        self._rows: dict[tuple[str, Ref], float] = {}
        self._sent: dict[int, float] = {}  # channel -> rows
        parts, before = list(parts), -1
        while len(self._rows) > before:  # what one task sends, another may send on
            before = len(self._rows)
            for part in parts:
                self._look_at(part)

    def nbytes(self, part: Partition, ref: Ref) -> float:
        """Return the bytes of a value, by its estimated rows if its size is unknown; 0 without."""
        spec = part.spec(ref)
        if spec.sized:
            return float(spec.nbytes)
        rows = self._rows.get((part.task, ref), 0.0)
        return rows * size_of((spec.shape or ())[1:]) * spec.dtype.itemsize

    def _look_at(self, part: Partition) -> None:
        for node in part.nodes.values():
            if node.row.message == "send" and node.inputs:
                rows = self._rows.get((part.task, node.inputs[0]))
                if rows is not None:
                    self._sent[node.attrs["channel"]] = rows
                continue
            unknown = [i for i, spec in enumerate(node.specs) if _is_rows(spec)]
            rows = self._rows_of(node, part) if unknown else None
            if rows is not None:
                self._rows.update({(part.task, Ref(node.name, i)): rows for i in unknown})

    def _rows_of(self, node: Node, part: Partition) -> float | None:
        """The rows of the outputs of a node whose number of rows is unknown."""
        if node.row.message == "receive":
            return self._sent.get(node.attrs["channel"])
        if node.type == "PieceRows":
            numbers, piece = node.inputs[0], node.attrs["stop"] - node.attrs["start"]
            count = self._count(part, numbers)
            share = None if count is None else count * piece / node.attrs["size"]
            is_distinct = part.nodes[numbers.node].type == DISTINCT
            return min(share, piece) if share is not None and is_distinct else share
        if node.type in (DISTINCT, "ReadRows"):
            return self._count(part, node.inputs[1])  # the numbers of the rows
        known = [self._rows.get((part.task, ref)) for ref in node.inputs]
        return max((rows for rows in known if rows is not None), default=None)

    def _count(self, part: Partition, ref: Ref) -> float | None:
        """The elements of an array of numbers of rows."""
        spec = part.spec(ref)
        return float(size_of(spec.shape)) if spec.sized else self._rows.get((part.task, ref))


def _is_rows(spec: Spec) -> bool:
    """Whether only the first size is unknown."""
    shape = spec.shape or (0,)
    return shape[0] is None and is_known(shape[1:]) and spec.dtype.kind != "O"
