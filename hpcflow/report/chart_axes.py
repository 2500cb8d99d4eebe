"""Axes of the charts of a sweep: linear, logarithmic, or the names of values, chosen from these."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.report.page_charts import number, ticks

LINEAR, LOG, NAMES = "linear", "log", "names"
LOG_RATIO = 10.0  # of the largest to the least value, from which an axis may be logarithmic
MOST_NUMBER = 1e100  # larger ones are names, or no value
MOST_MARKED = 8  # values that have marks of their own
PAD = 0.04  # of the span, before the least and behind the largest number


class Axis(NamedTuple):
    """An axis: the ends of its numbers (of a logarithmic one, exponents of 10), or its names.

    `values` are the numbers to mark if they are few.
    """

    kind: str
    low: float = 0.0
    high: float = 0.0
    names: tuple[str, ...] = ()
    values: tuple[float, ...] = ()

    def place(self, value: str | float) -> float:
        """The place of a value of the axis, from 0 at its start to 1 at its end."""
        if self.kind == NAMES:
            return (self.names.index(str(value)) + 0.5) / len(self.names)
        amount = float(value)
        at = math.log10(amount) if self.kind == LOG else amount
        return (at - self.low) / (self.high - self.low)

    def marks(self, most: int) -> list[tuple[float, str]]:
        """About `most` places with their texts, in their order; all if it has names."""
        if self.kind == NAMES:
            return [(self.place(name), name) for name in self.names]
        if self.values:
            return _apart([(self.place(v), number(v)) for v in self.values], 1 / (2 * most))
        if self.kind == LINEAR:
            return [(self.place(v), number(v)) for v in ticks(self.low, self.high, most)]
        values = _log_ticks(self.low, self.high, most)
        if len(values) < 2:
            values = [10**self.low, 10**self.high]
        return [(self.place(value), number(value)) for value in values]


def _apart(marks: Sequence[tuple[float, str]], least: float) -> list[tuple[float, str]]:
    """The marks without those that are too close to the one before."""
    kept: list[tuple[float, str]] = []
    for mark in marks:
        if not kept or mark[0] - kept[-1][0] >= least:
            kept.append(mark)
    return kept


def axis_of(values: Sequence[str | float], marked: bool = False) -> Axis:
    """The axis of some values: of names if one is no number. `marked`: their places are, if few.

    It is logarithmic if the values are positive, span a factor of LOG_RATIO and lie more evenly on
    it: the largest gap between neighbours is a smaller share of the whole.
    """
    numbers = [number_of(value) for value in values]
    known = sorted({n for n in numbers if n is not None})
    if None in numbers or not known:
        return Axis(NAMES, names=tuple(dict.fromkeys(map(str, values))))
    few = tuple(known) if marked and len(known) <= MOST_MARKED else ()
    if known[0] > 0 and known[-1] >= LOG_RATIO * known[0] * (1 - 1e-9):
        logs = [math.log10(n) for n in known]
        if _largest_gap(logs) <= _largest_gap(known):
            return Axis(LOG, *_padded(logs[0], logs[-1]), values=few)
    return Axis(LINEAR, *_padded(known[0], known[-1]), values=few)


def number_of(value: str | float | None) -> float | None:
    """A value as a finite number; None if it is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if abs(found) < MOST_NUMBER else None


def _largest_gap(values: Sequence[float]) -> float:
    """The largest gap between neighbours as a share of the span."""
    gaps = (b - a for a, b in itertools.pairwise(values))
    return max(gaps) / (values[-1] - values[0])


def _padded(low: float, high: float) -> tuple[float, float]:
    pad = (high - low) * PAD or abs(high) * 0.1 or 1.0
    return low - pad, high + pad


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten between two exponents; with 2 and 5 times them if these are few."""
    decades = range(math.floor(low), math.ceil(high) + 1)
    for factors in ((1, 2, 5), (1,)):
        values = [f * 10.0**d for d in decades for f in factors]
        values = [value for value in values if low <= math.log10(value) <= high]
        if len(values) <= most:
            return values
    return values[:: math.ceil(len(values) / most)]
