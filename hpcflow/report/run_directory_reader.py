"""The files of a run directory, which may be damaged, cut short or another's: what they say is used
as far as it is of the kind that a run writes, and what is not is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError
from hpcflow.platform.record_files import read_table
from hpcflow.platform.terminal_escaping import one_line
from hpcflow.train.run_records import COLUMNS, read_rows

MOST = 10**18  # of counts, seconds and rates: above, a file is damaged
SHORTEST_S = 0.01  # a rate over less is noise: the last step of a run may follow at once


class Facts:
    """What a JSON file says, by names; `faults` has a line about what it should not say."""

    def __init__(self, path: Path | None, faults: list[str]) -> None:
        self._path, self._faults = path, faults
        found: Mapping[str, Any] | None = None
        try:
            found = None if path is None else read_table(path)
        except HpcflowError as error:
            faults.append(error.message)
        self.is_there = found is not None
        self.said: Mapping[str, Any] = found or {}

    @classmethod
    def none(cls) -> Facts:
        """Of no file: it says nothing."""
        return cls(None, [])

    def get(self, name: str, shape: Any, other: Any) -> Any:
        """What it says of `name`; `other` if that is nothing, or not of this shape."""
        value = self.said.get(name)
        if value is None:
            return other
        if not fits(value, shape):
            self._faults.append(f"{self._path}: {name!r} is not what a run writes there")
            return other
        return value

    def count(self, name: str) -> int:
        """A number of things, 0 if it is not said."""
        return int(self.get(name, int, 0))

    def number(self, name: str) -> float:
        """A measure, 0 if it is not said."""
        return float(self.get(name, float, 0.0))

    def text(self, name: str) -> str:
        """A text on one line, "" if it is not said."""
        return one_line(self.get(name, str, ""))


def fits(value: Any, shape: Any) -> bool:
    """Whether a value is of a shape: `int`, `float` (both from 0 on), `str`, `[shape]`, or of a
    table `{name: shape}`, which may have more names."""
    if shape in (int, float):
        return type(value) in (int, shape) and 0 <= value <= MOST
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(one, shape[0]) for one in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(fits(value.get(n), s) for n, s in shape.items())
    return isinstance(value, shape)


def rows_of(path: Path, faults: list[str]) -> list[dict[str, float]]:
    """The rows of metrics.csv as numbers, none if there is no such file.

    Steps that a resumed run did again are those of the last time. The names of what was measured
    are on one line.
    """
    try:
        found = read_rows(path)
    except HpcflowError as error:
        faults.append(error.message)
        return []
    if found and "step" not in found[0]:
        faults.append(f"{path}: it has no column 'step'")
        return []
    kept: list[dict[str, float]] = []
    bad = 0
    for words in found:
        row = _numbers(words)
        if row is None:
            bad += 1
            continue
        while kept and kept[-1]["step"] >= row["step"]:
            kept.pop()
        if kept and 0 <= row.get("seconds", 0) - kept[-1].get("seconds", 0) < SHORTEST_S:
            row.pop("samples_per_second", None)
        kept.append(row)
    if bad > 1:  # one is the last, cut short when the run was killed
        faults.append(f"{path}: {bad:,} of {len(found):,} rows are no numbers")
    return kept


def _numbers(words: Mapping[str, str]) -> dict[str, float] | None:
    """A row as numbers; None if one is none, or no time or count where there must be one."""
    try:
        row = {one_line(name): float(text) for name, text in words.items() if text != ""}
    except ValueError:
        return None
    whole = "step" in row and all(fits(row.get(name, 0.0), float) for name in COLUMNS)
    return row if whole else None


def mean(values: list[float]) -> float | None:
    """The mean of what was measured; None of nothing."""
    return math.fsum(values) / len(values) if values else None
