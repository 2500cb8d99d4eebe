"""Specification of a sweep: from a TOML file, or from the options of `hpcflow sweep`.

A file has `script`, `search`, `metric`, `mode`, `runs`, `seed`, `budget`, `args`, and the tables
`[settings]` and `[arguments]`. In a table, a list is an axis, a table with `low` and `high` is a
range, and any other value is that of all runs.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import MissingPackageError
from hpcflow.platform.record_files import read_text
from hpcflow.settings import PREFIX, Settings
from hpcflow.sweep.run_ledger import LedgerRun
from hpcflow.sweep.search_space import (
    ARGUMENT,
    GRID,
    HALVING,
    RANDOM,
    SETTING,
    Axis,
    Budget,
    Configuration,
    SweepError,
    Value,
    drawn,
    grid,
    range_axis,
    words_of,
)

RANKS = "ranks"  # among the settings of a sweep, but no field of Settings
KEYS = ("script", "search", "metric", "mode", "runs", "seed", "budget", "args", SETTING, ARGUMENT)
FIELDS = {field.name for field in dataclasses.fields(Settings)} - {"run_dir"}
NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)


@dataclasses.dataclass(frozen=True)
class SweepSpec:
    """What a sweep runs, and how it searches."""

    script: Path
    words: tuple[str, ...]  # arguments of all runs
    settings: Mapping[str, Value]  # of all runs
    axes: tuple[Axis, ...]
    search: str = GRID
    runs: int = 0  # of random search and of the first rung
    seed: int = 0
    metric: str = ""
    mode: str = ""
    budget: Budget | None = None

    def check(self) -> SweepSpec:
        """Itself. Errors: SweepError for what does not fit together."""
        if self.search not in (GRID, RANDOM, HALVING):
            raise SweepError(f"search {self.search!r}: give grid, random or halving")
        if not self.script.is_file():
            raise SweepError(f"there is no script {self.script}")
        if self.metric and self.mode not in ("min", "max"):
            raise SweepError(f"the metric {self.metric} needs a direction: mode min or max")
        if self.mode and not self.metric:
            raise SweepError(f"mode {self.mode} is the direction of a metric; none is given")
        if self.search == HALVING and not (self.metric and self.budget):
            raise SweepError(
                "successive halving needs a metric, its mode and a budget",
                hint="give --metric loss --mode min --budget epochs=1:27",
            )
        if self.search != HALVING and self.budget:
            raise SweepError(f"a budget is for successive halving, not for {self.search}")
        if self.search == RANDOM and self.runs < 1:
            raise SweepError("random search needs a number of runs", hint="give --runs 20")
        if self.search == GRID and self.runs:
            raise SweepError("a grid has as many runs as combinations; leave out the number")
        self._check_axes()
        check_texts(*self.words, *map(str, self.settings.values()))
        for point in self.configurations():
            self.ledger_run(0, point)
        return self

    def _check_axes(self) -> None:
        names = [*(axis.name for axis in self.axes), *self.settings]
        names += [self.budget.argument] if self.budget else []
        if len(set(names)) < len(names):
            raise SweepError(f"{max(names, key=names.count)} is given twice")
        for axis in self.axes:
            if not NAME.fullmatch(axis.name):
                raise SweepError(f"{axis.name!r} is no name of an option")
            if len(set(axis.values)) < len(axis.values):
                raise SweepError(f"{axis.name} has a value twice")
            check_texts(*map(str, axis.values))

    def as_data(self) -> dict[str, Any]:
        """As JSON."""
        data = dataclasses.asdict(self)
        return {**data, "script": str(self.script), "budget": self.budget and [*self.budget]}

    def configurations(self) -> list[Configuration]:
        """The configurations to begin with."""
        if self.search == RANDOM or (self.search == HALVING and self.runs):
            found = drawn(self.axes, self.runs, self.seed)
        else:
            found = grid(self.axes)
        return found

    def ledger_run(self, number: int, point: Configuration, rung: int = 0) -> LedgerRun:
        """Run `number` of the ledger, of a configuration, in a rung of successive halving.

        Errors: SweepError for a setting that does not exist, or cannot have its value.
        """
        settings = {**self.settings, **point.settings}
        check_settings(settings)
        arguments = dict(point.arguments)
        if self.budget is not None:
            arguments[self.budget.argument] = str(self.budget.rungs[rung])
        return LedgerRun(
            name=f"{number:04}",
            ranks=int(settings.pop(RANKS, 1)),
            settings={name: as_setting(value) for name, value in settings.items()},
            words=[*self.words, *words_of(arguments)],
            values={**point.settings, **arguments},
            group=rung,
        )


def check_settings(settings: Mapping[str, Value]) -> None:
    """Errors: SweepError, HpcflowError for an unknown setting, or a value that it cannot have."""
    unknown = sorted(settings.keys() - FIELDS - {RANKS})
    if unknown:
        raise SweepError(f"there is no setting {unknown[0]}", hint="hpcflow help environment")
    ranks = str(settings.get(RANKS, 1))
    if not re.fullmatch(r"[1-9]\d{0,6}", ranks, re.ASCII):
        raise SweepError(f"ranks {ranks}: give a whole number from 1 on")
    fields = {n: as_setting(v) for n, v in settings.items() if n != RANKS}
    found = Settings.from_environ({PREFIX + n.upper(): v for n, v in fields.items()})
    if found.ps >= int(ranks):
        raise SweepError(f"{ranks} ranks with ps={found.ps} leave no worker", hint="more ranks")


def check_texts(*texts: str) -> None:
    """Errors: SweepError for what no command line can hold."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SweepError(f"{text!a} is no UTF-8") from None
        if "\0" in text:
            raise SweepError(f"{text!r} holds a zero byte")


def as_setting(value: Value) -> str:
    """A value as the text of a setting."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def of_file(path: Path) -> SweepSpec:
    """The specification in a TOML file. Errors: SweepError, HpcflowError."""
    try:
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise MissingPackageError(
            f"{path}: Python 3.10 reads TOML by the package tomli, which is not installed",
            hint="pip install tomli",
        ) from None
    text = read_text(path)
    if text is None:
        raise SweepError(f"there is no file {path}")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SweepError(f"{path} is no TOML: {error}") from None
    unknown = sorted(data.keys() - set(KEYS))
    if unknown:
        raise SweepError(f"{path}: {unknown[0]!r} is unknown", hint=f"it has {', '.join(KEYS)}")
    script = data.get("script")
    if not isinstance(script, str):
        raise SweepError(f"{path}: script is missing", hint='write script = "train.py"')
    axes, fixed = _tables(path, data)
    words = [str(word) for word in _typed(path, data, "args", list, [])]
    budget = _typed(path, data, "budget", str, "")
    return SweepSpec(
        script=(path.parent / script).resolve(),
        words=(*words, *words_of(fixed[ARGUMENT])),
        settings=fixed[SETTING],
        axes=tuple(axes),
        search=_typed(path, data, "search", str, GRID),
        runs=_typed(path, data, "runs", int, 0),
        seed=_typed(path, data, "seed", int, 0),
        metric=_typed(path, data, "metric", str, ""),
        mode=_typed(path, data, "mode", str, ""),
        budget=budget_of(budget) if budget else None,
    ).check()


def _typed(path: Path, data: Mapping[str, Any], name: str, kind: type, other: Any) -> Any:
    value = data.get(name, other)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SweepError(f"{path}: {name} = {value!r} is no {kind.__name__}")
    return value


def _tables(path: Path, data: Mapping[str, Any]) -> tuple[list[Axis], dict[str, dict[str, Value]]]:
    """The axes, and the values of all runs by kind."""
    axes: list[Axis] = []
    fixed: dict[str, dict[str, Value]] = {SETTING: {}, ARGUMENT: {}}
    for kind in (SETTING, ARGUMENT):
        for name, value in _typed(path, data, kind, dict, {}).items():
            if isinstance(value, list):
                if not value:
                    raise SweepError(f"{path}: {name} has no values")
                axes.append(Axis(kind, name, tuple(_value(path, name, one) for one in value)))
            elif isinstance(value, dict):
                unknown = sorted(value.keys() - {"low", "high", "scale"})
                if unknown:
                    raise SweepError(f"{path}: {name}: {unknown[0]!r} is unknown")
                low, high = value.get("low"), value.get("high")
                axes.append(range_axis(kind, name, low, high, value.get("scale", "linear")))
            else:
                fixed[kind][name] = _value(path, name, value)
    return axes, fixed


def _value(path: Path, name: str, value: Any) -> Value:
    if isinstance(value, float) and not math.isfinite(value):
        raise SweepError(f"{path}: {name} = {value} is no number")
    if not isinstance(value, (bool, int, float, str)) or not NAME.fullmatch(name):
        raise SweepError(f"{path}: {name!r} = {value!r}: give a name and a number, a text or true")
    return value if isinstance(value, bool) else str(value)


def budget_of(text: str) -> Budget:
    """The budget `NAME=LEAST:MOST[:FACTOR]`. Errors: SweepError."""
    match = re.fullmatch(r"-*([\w-]+)=(\d+):(\d+)(?::(\d+))?", text)
    if match is None:
        raise SweepError(f"budget {text!r}", hint="write NAME=LEAST:MOST, such as epochs=1:27")
    budget = Budget(match[1], int(match[2]), int(match[3]), int(match[4] or 3))
    if not 0 < budget.least < budget.most or budget.factor < 2:
        raise SweepError(f"budget {text!r}: it grows from above 0, by a factor of 2 or more")
    return budget


def axes_of_options(
    values: Sequence[str], ranges: Sequence[str], script: Path
) -> tuple[list[Axis], list[str]]:
    """The axes of `--grid NAME=VALUE` and `--random NAME=LOW:HIGH[:SCALE]`, and remarks.

    A name is a setting if hpcflow has one and the script has no option of that name; `--NAME` is
    always the script's.
    """
    text = read_text(script) or ""
    by_name: dict[str, list[Value]] = {}
    for word in values:
        name, equals, value = word.partition("=")
        if not equals or not name.strip("-"):
            raise SweepError(f"--grid {word}", hint="write --grid NAME=VALUE, once for each value")
        by_name.setdefault(name, []).append(value)
    axes = [_axis_of(name, text, tuple(found)) for name, found in by_name.items()]
    for word in ranges:
        name, _, limits = word.partition("=")
        low, _, high = limits.partition(":")
        high, _, scale = high.partition(":")
        if not (name.strip("-") and low and high):
            raise SweepError(
                f"--random {word}", hint="write --random NAME=LOW:HIGH, :log or :int behind it"
            )
        axis = _axis_of(name, text, ())
        axes.append(range_axis(axis.kind, axis.name, low, high, scale or "linear"))
    remarks = [
        f"{axis.name} has the one value {axis.values[0]}; for several values write --grid "
        f"{axis.name}=... once for each"
        for axis in axes
        if len(axis.values) == 1 and "," in str(axis.values[0])
    ]
    return axes, remarks


def _axis_of(name: str, script: str, values: tuple[Value, ...]) -> Axis:
    plain = name.lstrip("-")
    if name != plain or plain.replace("-", "_") not in {*FIELDS, RANKS}:
        return Axis(ARGUMENT, plain, values)
    if re.search(rf"[\"']--{re.escape(plain)}[\"']", script):
        raise SweepError(
            f"{plain} is a setting of hpcflow, and the script has an option --{plain}",
            hint=f"write --grid=--{plain}=VALUE for the script's; settings go into a TOML file",
        )
    return Axis(SETTING, plain.replace("-", "_"), values)
