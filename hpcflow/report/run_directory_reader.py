"""Run directory reader: validates files that may be damaged, truncated or of another program.

Values of the type that a run writes are used; others are reported as faults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError
from hpcflow.platform.record_files import read_json_object
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.train.run_records import COLUMNS, read_rows

MAX_NUMBER = 10**18  # limit of counts, seconds and rates: larger ones mean a damaged file
SHORTEST_S = 0.01  # a rate over a shorter time is noise: a run's last step may follow at once


class FileFacts:
    """The values of a JSON file, by name; a line is appended to `faults` for each invalid one."""

    def __init__(self, path: Path | None, faults: list[str]) -> None:
        self._path, self._faults = path, faults
        content: Mapping[str, Any] | None = None
        try:
            content = None if path is None else read_json_object(path)
        except HpcflowError as error:
            faults.append(error.message)
        self.is_there = content is not None
        self.said: Mapping[str, Any] = content or {}

    @classmethod
    def none(cls) -> FileFacts:
        """Facts without a file; all values are missing."""
        return cls(None, [])

    def get(self, name: str, shape: Any, other: Any) -> Any:
        """The value of `name`; `other` if it is missing or does not fit `shape`."""
        value = self.said.get(name)
        if value is None:
            return other
        if not has_type(value, shape):
            self._faults.append(f"{self._path}: {name!r} is not what a run writes there")
            return other
        return value

    def count(self, name: str) -> int:
        """A count, 0 if missing."""
        return int(self.get(name, int, 0))

    def number(self, name: str) -> float:
        """A measured number, 0 if missing."""
        return float(self.get(name, float, 0.0))

    def text(self, name: str) -> str:
        """A text on one line, "" if missing."""
        return escape_line(self.get(name, str, ""))


def has_type(value: Any, shape: Any) -> bool:
    """Whether a value fits `shape`: `int`, `float` (both from 0 on), `str`, `[shape]`, or a table
    `{name: shape}`, which may have more names."""
    if shape in (int, float):
        return type(value) in (int, shape) and 0 <= value <= MAX_NUMBER
    if isinstance(shape, list):
        return isinstance(value, list) and all(has_type(element, shape[0]) for element in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(has_type(value.get(n), s) for n, s in shape.items())
    return isinstance(value, shape)


def rows_of(path: Path, faults: list[str]) -> list[dict[str, float]]:
    """The rows of metrics.csv as numbers; [] if there is no such file.

    If a resumed run repeated steps, the last repetition counts. The values of a validation are in
    the row of its step. The names of metrics are converted to one line.
    """
    try:
        text_rows = read_rows(path)
    except HpcflowError as error:
        faults.append(error.message)
        return []
    if text_rows and "step" not in text_rows[0]:
        faults.append(f"{path}: it has no column 'step'")
        return []
    rows: list[dict[str, float]] = []
    bad = 0
    for words in text_rows:
        row = _numbers(words)
        if row is None:
            bad += 1
            continue
        if rows and rows[-1]["step"] == row["step"] and not _metrics(row) & _metrics(rows[-1]):
            rows[-1] = row | rows[-1]  # a validation after the step
            continue
        while rows and rows[-1]["step"] >= row["step"]:
            rows.pop()
        if rows and 0 <= row.get("seconds", 0) - rows[-1].get("seconds", 0) < SHORTEST_S:
            row.pop("samples_per_second", None)
        rows.append(row)
    if bad > 1:  # one may be the last row, truncated when the run was killed
        faults.append(f"{path}: {bad:,} of {len(text_rows):,} rows are no numbers")
    return rows


def _metrics(row: Mapping[str, float]) -> set[str]:
    return set(row) - set(COLUMNS)


def _numbers(words: Mapping[str, str]) -> dict[str, float] | None:
    """A row as numbers; None if a value is no number or not a valid time or count."""
    try:
        row = {escape_line(name): float(text) for name, text in words.items() if text != ""}
    except ValueError:
        return None
    is_valid = "step" in row and all(has_type(row.get(name, 0.0), float) for name in COLUMNS)
    return row if is_valid else None


def mean(values: list[float]) -> float | None:
    """The mean of the values; None if there are none."""
    return math.fsum(values) / len(values) if values else None


def seconds_left(rows: Sequence[Mapping[str, float]], steps_in_all: int) -> float | None:
    """Seconds until the last step, by the pace of these rows of metrics.csv; None if unknown."""
    if not steps_in_all or len(rows) < 2:
        return None
    first, last = rows[0], rows[-1]
    steps = last["step"] - first["step"]
    took = last.get("seconds", 0.0) - first.get("seconds", 0.0)
    return max(0.0, steps_in_all - last["step"]) * took / steps if steps > 0 < took else None
