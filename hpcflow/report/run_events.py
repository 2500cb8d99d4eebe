"""Events of a run with their times: starts, ends, resumes, saves, warnings, stalls, the failure."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcflow.errors import HpcflowError
from hpcflow.platform.record_files import open_plain
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.train import run_records
from hpcflow.train.run_records import EVENTS, read_rows

START, END, STALL, FAILURE = "start", "end", "stall", "failure"
KINDS = (START, run_records.RESUME, run_records.SAVE, run_records.SAVE_FAILED, run_records.WARNING,
         STALL, FAILURE, END)  # fmt: skip
LATEST = 4e9  # seconds since 1970: later is damage
MOST_STALLS, STALL_BYTES = 20, 64 << 10  # files, and of each
MOST_STEPS = 1e15
_TOLD = re.compile(r"^  told by rank \d+ on .* at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)$", re.MULTILINE)


class Event(NamedTuple):
    """What happened, at a time in seconds since 1970, and in which step if that is known."""

    time: float
    kind: str
    text: str
    step: int | None = None


def events_of(folder: Path, manifest: FileFacts, failure: FileFacts) -> list[Event]:
    """The events of a run, oldest first; those without a valid time are left out."""
    found = [*_starts(manifest), *_recorded(folder / EVENTS), *_stalls(folder)]
    if failure.is_there:
        step = failure.get("step", int, None)
        found.append(Event(time_of(failure.text("time")), FAILURE, failure.text("cause"), step))
    return sorted((one for one in found if 0 < one.time < LATEST), key=lambda one: one.time)


def time_of(text: Any) -> float:
    """Seconds since 1970 of a time in ISO format; NaN if it is none."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return math.nan


def clock_text(seconds: float) -> str:
    """A time as `2026-11-29 13:12:16`, of this machine's time zone."""
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _starts(manifest: FileFacts) -> list[Event]:
    """Starts and ends of this run and of the earlier ones in its folder."""
    starts: Sequence[Mapping[str, Any]] = [*manifest.get("earlier", [{}], []), manifest.said]
    found = []
    for number, one in enumerate(starts):
        text = "training starts" if number == 0 else f"start {number + 1} in this folder"
        found.append(Event(time_of(one.get("start")), START, text))
        how = "training has ended" if one.get("finished") is True else "the script has ended"
        found.append(Event(time_of(one.get("end")), END, how))
    return found


def _recorded(path: Path) -> list[Event]:
    """The rows of events.csv; damaged ones are left out."""
    try:
        rows = read_rows(path)
    except HpcflowError:
        return []
    return [event for row in rows if (event := event_of_row(row)) is not None]


def event_of_row(row: Mapping[str, str]) -> Event | None:
    """A row of events.csv; None if it is none."""
    try:
        step = float(row["step"]) if row.get("step") else -1.0
        time, kind, text = float(row["time"]), row["event"], row["text"]
    except (KeyError, ValueError):
        return None
    if kind not in KINDS or not (-1 <= step < MOST_STEPS):
        return None
    return Event(time, kind, escape_line(text), int(step) if step >= 0 else None)


def _stalls(folder: Path) -> list[Event]:
    """The reports of the stall watchdog, `stall-STEP.txt`."""
    found = []
    try:
        paths = sorted(folder.glob("stall-*.txt"))[-MOST_STALLS:]
    except OSError:
        return []
    for path in paths:
        try:
            with open(open_plain(path), "rb") as file:
                text = file.read(STALL_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        told = _TOLD.search(text)
        step = path.stem.partition("-")[2]
        if told is not None:
            number = int(step) if step.isdigit() and len(step) < 16 else None
            first = text.partition("\n")[0].removeprefix("StallError: ")
            found.append(Event(time_of(told[1]), STALL, escape_line(first), number))
    return found
