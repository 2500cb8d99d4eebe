"""What sides make of one program, compared."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from . import sides
from .lines import Program
from .sides import Outcome

REFUSED = "cannot be fed: the graph was built on its value"  # an error that is right for any feed
ITSELF = "TensorFlow, which contradicts itself"
HUGE = 1e5  # values of this size: what rounds differently may differ by anything


@dataclasses.dataclass(frozen=True)
class Difference:
    """Two sides that disagree on a program, where, and how."""

    one: str
    other: str
    kind: str  # "values", or the error of the first
    text: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What a shorter program must have in common to show the same."""
        return self.one, self.other, self.kind


def difference(
    program: Program, special: bool = False, beside: Sequence[str] = sides.ALL[1:]
) -> Difference | None:
    """The first difference between hpcflow and the sides `beside`, of which TensorFlow is one.

    An error of hpcflow's own is one only beside TensorFlow, which says whether it is deserved.
    """
    made = sides.with_hpcflow(program, ["hpcflow", *(s for s in beside if s in sides.ALL)])
    mine = made["hpcflow"]
    if mine.error.startswith("raw "):
        return Difference("hpcflow", "no raw error", _shape_of(mine.error), mine.error)
    if REFUSED in mine.error:
        return None
    for name in beside:
        if name == "TensorFlow" and not special and not program.reads_first:
            made[name] = sides.with_tensorflow(program)
        found = _of(("hpcflow", mine), (name, made[name]), special) if name in made else None
        if found and name == "TensorFlow" and _contradicts_itself(program, made[name]):
            return dataclasses.replace(found, other=ITSELF)
        if found:
            return found
    return None


def _contradicts_itself(program: Program, told: Outcome) -> bool:
    """Whether TensorFlow gives something else, or fails, if values that it needs are fetched too.

    It does where a loop of control flow 1 ends early and its results are dead, as the error says.
    """
    again = sides.with_tensorflow(program, all_values=True)
    return bool(again.error) or _of((ITSELF, told), (ITSELF, again), False) is not None


def _of(one: tuple[str, Outcome], other: tuple[str, Outcome], exact: bool) -> Difference | None:
    (a, mine), (b, theirs) = one, other
    if theirs.error and b == "TensorFlow":
        return None  # what TensorFlow refuses says nothing of what it means
    if mine.error or theirs.error:
        kind = mine.error or f"{b}: {theirs.error}"
        return None if mine.error and theirs.error else Difference(a, b, _shape_of(kind), kind)
    for step, (x, y) in enumerate(zip(mine.steps, theirs.steps, strict=True)):
        for i, (p, q) in enumerate(zip(x, y, strict=True)):
            if p is None or q is None or p.dtype == bool:
                same = p is None or q is None or bool(np.array_equal(p, q))
            else:
                same = alike(p, q, exact)
            if not same:
                told = f"step {step}, value {i}: {a} gives {p.tolist()}, {b} gives {q.tolist()}"
                return Difference(a, b, "values", told)
            if p is not None and p.dtype.kind == "f" and not exact and _wild(q):
                return None  # from here on nothing is certain
    return None


def _shape_of(error: str) -> str:
    """An error without names and numbers."""
    return re.sub(r"'[^']*'|\d+", "_", error)[:80]


def _wild(x: np.ndarray) -> bool:
    return bool(x.size) and not bool((np.abs(x) < HUGE).all())


def alike(x: np.ndarray, y: np.ndarray, special: bool = False) -> bool:
    """Whether two arrays are equal but for rounding, with NaN and infinities in the same places."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if x.dtype.kind != "f":
        return bool(np.array_equal(x, y))
    if not special and (_wild(x) or _wild(y)):
        return True
    finite = np.isfinite(x)
    if not np.array_equal(np.where(finite, 0, x), np.where(np.isfinite(y), 0, y), equal_nan=True):
        return False
    scale = max(1.0, float(np.abs(x[finite]).max(initial=0)))
    return bool(np.allclose(x[finite], y[finite], rtol=1e-3, atol=2e-4 * scale))
