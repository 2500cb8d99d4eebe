"""Trip counts: how often the body of a loop runs, where constants tell it.

The condition compares integers that change by a constant in each iteration, as LLVM's scalar
evolution has them: `while i < n`, the loops of `scan` and `dynamic_rnn`, and their gradients, whose
counter begins at the number of iterations of the forward loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hpcflow.plan.ir.control_flow_nodes import TRIPS
from hpcflow.plan.ir.program import Node, Program, Ref

# Less holds while the second input is at least 1 larger than the first; Greater is swapped
COMPARISONS = {
    **{"Less": (False, 1), "LessEqual": (False, 0)},
    **{"Greater": (True, 1), "GreaterEqual": (True, 0)},
}


class Affine(NamedTuple):
    """An integer that is `start + step * k` in iteration k."""

    start: int
    step: int = 0

    def plus(self, other: Affine, sign: int) -> Affine:
        """The sum, or the difference if `sign` is -1."""
        return Affine(self.start + sign * other.start, self.step + sign * other.step)

    def times(self, other: Affine) -> Affine | None:
        """The product; None if both change."""
        if self.step and other.step:
            return None
        return Affine(self.start * other.start, self.start * other.step + self.step * other.start)


def record_trip_counts(program: Program) -> Program:
    """Return the program whose loops have their number of iterations in the attr `trips`.

    It is the greatest possible number if a part of the condition, or one operand of a minimum, is
    unknown. Loops without such a bound have no `trips`.
    """
    counts: dict[str, int] = {}
    for name, node in program.nodes.items():
        if node.row.control_flow == "loop":
            count = _Loop(node, program, counts).trips()
            if count is not None:
                counts[name] = count
    if not counts:
        return program
    nodes = {
        name: node.but(attrs={**node.attrs, TRIPS: counts[name]}) if name in counts else node
        for name, node in program.nodes.items()
    }
    return program.but(nodes=nodes)


def _nothing(*_: object) -> None:
    return None


class _Scalars:
    """Values of integer scalars of a program; None for those that are not known.

    `feed(name, at_most)` is the value of a feed, `last(loop, index)` that of an output of a loop.
    With `at_most` the known operand of a minimum is enough.
    """

    def __init__(
        self,
        program: Program,
        feed: Callable[[str, bool], Affine | None] = _nothing,
        last: Callable[[Node, int], Affine | None] = _nothing,
    ) -> None:
        self.program, self.feed, self.last = program, feed, last

    def value(self, ref: Ref, at_most: bool = False) -> Affine | None:
        """The value of an output of a node."""
        node = self.program.nodes[ref.node]
        if node.row.source == "feed":
            return self.feed(node.name, at_most)
        if node.row.source == "constant":
            return _constant(node.attrs["value"])
        if node.row.control_flow:
            return self.last(node, ref.index)
        if node.row.identity:
            return self.value(node.inputs[0], at_most)
        if node.type == "Minimum" and at_most:
            values = [self.value(each, at_most) for each in node.inputs]
            return min((v for v in values if v is not None and not v.step), default=None)
        if node.type not in ("Add", "Sub", "Mul"):
            return None
        a, b = map(self.value, node.inputs)
        if a is None or b is None:
            return None
        return a.times(b) if node.type == "Mul" else a.plus(b, 1 if node.type == "Add" else -1)

    def iterations(self, ref: Ref) -> int | None:
        """In how many iterations, from the first on, a condition holds."""
        node = self.program.nodes[ref.node]
        if node.row.identity:
            return self.iterations(node.inputs[0])
        if node.type == "LogicalAnd":
            return min(
                (n for n in map(self.iterations, node.inputs) if n is not None), default=None
            )
        if node.type not in COMPARISONS:
            return None
        swaps, least = COMPARISONS[node.type]
        lower, upper = reversed(node.inputs) if swaps else node.inputs
        a, b = self.value(lower), self.value(upper, at_most=True)
        if a is None or b is None:
            return None
        gap = b.plus(a, -1)
        if gap.start < least:
            return 0
        return (gap.start - least) // -gap.step + 1 if gap.step < 0 else None


class _Loop:
    """The variables and captures of a loop, its slots, as values by iteration."""

    def __init__(self, node: Node, program: Program, counts: Mapping[str, int]) -> None:
        self.node, self.program, self.counts = node, program, counts
        self.body: Program = node.attrs["body"]
        self.fed = dict(zip(self.body.feeds, node.attrs["body_feeds"], strict=True))

    def trips(self) -> int | None:
        """How often the condition holds."""
        cond: Program = self.node.attrs["cond"]
        fed = dict(zip(cond.feeds, self.node.attrs["cond_feeds"], strict=True))
        scalars = _Scalars(cond, lambda name, at_most: self.slot(fed[name], at_most))
        return scalars.iterations(cond.fetches[0])

    def slot(self, slot: int, at_most: bool = False) -> Affine | None:
        """The value of a slot: a loop variable that changes by a constant, or a capture."""
        variables, empty = len(self.node.specs), self.node.attrs["empty"]
        if variables - empty <= slot < variables:
            return None  # a list
        outside = _Scalars(self.program, last=self._last)
        if slot >= variables:
            return outside.value(self.node.inputs[slot - empty], at_most)
        start = outside.value(self.node.inputs[slot])
        scalars = _Scalars(
            self.body, lambda name, _: Affine(0, 1) if self.fed[name] == slot else None
        )
        following = scalars.value(self.body.fetches[slot])
        if start is None or following is None or following.step != 1:
            return None
        return Affine(start.start, following.start)

    def _last(self, loop: Node, index: int) -> Affine | None:
        """The value of a variable of another loop when it has ended."""
        if loop.row.control_flow != "loop" or loop.name not in self.counts:
            return None
        value = _Loop(loop, self.program, self.counts).slot(index)
        return None if value is None else Affine(value.start + value.step * self.counts[loop.name])


def _constant(value: Any) -> Affine | None:
    array = np.asarray(value)
    return Affine(int(array)) if array.dtype.kind in "iu" and not array.shape else None
