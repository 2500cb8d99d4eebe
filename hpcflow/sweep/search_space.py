"""Search space of a sweep: the axes, and the configurations that grid and random search make.

A configuration gives each axis one value: a setting of hpcflow, or an argument of the script.
Successive halving (Jamieson and Talwalkar, 2016) starts all configurations with a small budget and
gives `factor` times as much to the best 1 / `factor` of them, until the budget is the largest.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from hpcflow.errors import HpcflowError

SETTING, ARGUMENT = "settings", "arguments"  # kinds of axes, as the tables of a file of a sweep
GRID, RANDOM, HALVING = "grid", "random", "halving"
SCALES = ("linear", "log", "int")
MOST_RUNS = 10_000
TRIES = 50  # draws for each random configuration, as small spaces repeat themselves
Value: TypeAlias = str | bool  # a bool: the option is given without a value, or left out


class SweepError(HpcflowError):
    """A sweep cannot be made from what was given."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """A setting or an argument that varies: its values, or a range to draw from."""

    kind: str
    name: str
    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    scale: str = ""  # of the range; "": it has values

    def draw(self, generator: random.Random) -> Value:
        """A random value; numbers of a range have six digits."""
        if not self.scale:
            return generator.choice(self.values)
        if self.scale == "int":
            return str(generator.randint(int(self.low), int(self.high)))
        if self.scale == "log":
            return f"{math.exp(generator.uniform(math.log(self.low), math.log(self.high))):.6g}"
        return f"{generator.uniform(self.low, self.high):.6g}"


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The values of one point of the space, by the names of the axes."""

    settings: Mapping[str, Value]
    arguments: Mapping[str, Value]

    @property
    def values(self) -> dict[str, Value]:
        """All of them, for tables."""
        return {**self.settings, **self.arguments}


class Budget(NamedTuple):
    """The argument of the script that successive halving raises, such as its epochs."""

    argument: str
    least: int
    most: int
    factor: int

    @property
    def rungs(self) -> list[int]:
        """The budget of each rung, the largest last."""
        found = [self.least]
        while found[-1] * self.factor < self.most:
            found.append(found[-1] * self.factor)
        return [*found, self.most] if found[-1] < self.most else found


def range_axis(kind: str, name: str, low: Any, high: Any, scale: Any = "linear") -> Axis:
    """An axis with a range. Errors: SweepError that names what is wrong with it."""
    what = f"the range of {name}"
    if scale not in SCALES:
        raise SweepError(f"{what}: scale {scale!r}", hint=f"give one of {', '.join(SCALES)}")
    try:
        bottom, top = float(low), float(high)
    except (TypeError, ValueError):
        raise SweepError(f"{what}: {low} to {high} are no numbers") from None
    if not (math.isfinite(bottom) and math.isfinite(top) and bottom < top):
        raise SweepError(f"{what}: {low} is not below {high}")
    if scale == "log" and bottom <= 0:
        raise SweepError(f"{what}: a logarithmic range begins above 0, not at {low}")
    if scale == "int" and not (bottom.is_integer() and top.is_integer()):
        raise SweepError(f"{what}: {low} and {high} must be whole numbers")
    return Axis(kind, name, (), bottom, top, scale)


def grid(axes: Sequence[Axis]) -> list[Configuration]:
    """All combinations; the values of the last axis vary fastest.

    Errors: SweepError for an axis with a range.
    """
    for axis in axes:
        if axis.scale:
            raise SweepError(
                f"{axis.name} has a range, which a grid cannot enumerate",
                hint="give its values, or search by random",
            )
    check_count(math.prod(len(axis.values) for axis in axes))
    return [_configuration(axes, values) for values in itertools.product(*(a.values for a in axes))]


def check_count(runs: int) -> None:
    """Errors: SweepError for too many runs."""
    if runs > MOST_RUNS:
        raise SweepError(f"these are {runs:,} runs, more than {MOST_RUNS:,}")


def drawn(axes: Sequence[Axis], runs: int, seed: int) -> list[Configuration]:
    """At most `runs` different random configurations; the same for the same seed."""
    check_count(runs)
    generator = random.Random(seed)
    found: dict[tuple[Value, ...], None] = {}
    for _ in range(runs * TRIES):
        found[tuple(axis.draw(generator) for axis in axes)] = None
        if len(found) == runs:
            break
    return [_configuration(axes, values) for values in found]


def _configuration(axes: Sequence[Axis], values: Sequence[Value]) -> Configuration:
    tables: dict[str, dict[str, Value]] = {SETTING: {}, ARGUMENT: {}}
    for axis, value in zip(axes, values, strict=True):
        tables[axis.kind][axis.name] = value
    return Configuration(tables[SETTING], tables[ARGUMENT])


def best(values: Mapping[int, float | None], mode: str, count: int) -> list[int]:
    """The keys of the `count` best values, best first; those without a finite value are out."""
    sign = 1.0 if mode == "min" else -1.0
    finite = {key: v for key, v in values.items() if v is not None and math.isfinite(v)}
    return sorted(finite, key=lambda key: (sign * finite[key], key))[:count]


def words_of(arguments: Mapping[str, Value]) -> list[str]:
    """Arguments as words of a command line."""
    words = []
    for name, value in arguments.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False:
            words.append(f"--{name}={value}")
    return words
