"""Merging the parts of a trace into one file for all ranks, in the Trace Event Format.

Format: Google's document "Trace Event Format", the object form with `traceEvents`. Times of all
ranks are on the clock of rank 0's host, in microseconds since the first event. A rank is a process,
with a thread each for segments, for receives and for sums that overlap. The parts are read twice,
so that memory holds only messages and sums.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpcflow.errors import DataError
from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.profile import trace_part
from hpcflow.runtime.profile.clock_offset import SAME_CLOCK, ClockLine, ClockReading
from hpcflow.runtime.profile.trace_events import RankEvents, metadata
from hpcflow.runtime.profile.trace_flows import Messages, Sums
from hpcflow.runtime.profile.trace_part import PartFacts, Row

FORMAT = "hpcflow-trace-1"


@dataclasses.dataclass(frozen=True)
class MergedTrace:
    """What has been written: to `path`, of the `ranks` of a job of `size`, with so many arrows."""

    path: Path
    job: str
    ranks: tuple[int, ...]
    size: int
    messages: int
    sums: int


def merge_parts(paths: Sequence[Path], out: Path, job: str = "") -> MergedTrace:
    """Write the parts of one job, as `parts_of_job` chooses it, as one trace.

    Errors: DataError if there is no part, or one is damaged; OSError if it cannot be written.
    """
    parts = trace_part.parts_of_job(list(paths), job)
    if not parts:
        raise DataError("there is no part of a trace")
    clocks = _Clocks(parts)
    messages, sums = Messages(), Sums()
    ranks = {
        rank: _scanned(path, RankEvents(facts, clocks, messages, sums))
        for rank, (path, facts) in sorted(parts.items())
    }
    start = min((one.first for one in ranks.values() if one.first is not None), default=0)
    facts = next(iter(parts.values()))[1]
    size = facts.size
    about: Json = {
        "format": FORMAT,
        "start_ns": start,  # on the monotonic clock of rank 0's host
        "ranks": size,
        "missing_ranks": sorted(set(range(size)) - set(ranks)),
        "full_ranks": [rank for rank, one in ranks.items() if one.is_full],
        "clocks": clocks.facts(),
        "messages": messages.arrows,
        "messages_without_arrow": messages.without_arrow,
        "messages_received_before_sent": messages.backward,
        "sums": sums.number,
    }
    _write(out, about, _events(ranks, parts, messages, sums, start))
    return MergedTrace(out, facts.job, tuple(ranks), size, messages.arrows, sums.number)


def _scanned(path: Path, events: RankEvents) -> RankEvents:
    for row in _checked(path, events):
        events.scan(row)
    events.scanned()
    return events


def _checked(path: Path, events: RankEvents) -> Iterator[Row]:
    """The rows of a part. Errors: DataError where one has other fields than its kind."""
    for row in trace_part.rows(path):
        if not events.is_valid(row):
            raise DataError(f"{path} is damaged: {str(row)[:80]} is no row of a trace")
        yield row


def _events(
    ranks: Mapping[int, RankEvents],
    parts: Mapping[int, tuple[Path, PartFacts]],
    messages: Messages,
    sums: Sums,
    start: int,
) -> Iterator[Json]:
    """All events. An arrow comes after the slices that it joins, which viewers need."""
    for rank, events in ranks.items():
        path, facts = parts[rank]
        yield from metadata(facts, events.sum_lanes)
        for row in _checked(path, events):
            yield from events.of(row, start)
    yield from messages.flows(start)
    yield from sums.flows(start, messages.arrows)


def _write(path: Path, about: Json, events: Iterator[Json]) -> None:
    """Write the trace event by event under a temporary name, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "w", encoding="utf-8") as out:
            head = json.dumps({"displayTimeUnit": "ms", "otherData": about})
            out.write(head[:-1] + ', "traceEvents": [')
            for number, event in enumerate(events):
                out.write((",\n" if number else "\n") + json.dumps(event))
            out.write("\n]}\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class _Clocks:
    """The clocks of the machines, against the clock of the machine of rank 0.

    The chief has read the others' clocks. If rank 0's machine is another one, the lines are
    composed: to the chief's clock, and from there to rank 0's.
    """

    def __init__(self, parts: Mapping[int, tuple[Path, PartFacts]]) -> None:
        self._facts = {rank: facts for rank, (_, facts) in sorted(parts.items())}
        readings: dict[str, list[ClockReading]] = defaultdict(list)
        self._chief = ""
        for path, facts in parts.values():
            if facts.is_chief:
                self._chief = facts.machine
                for row in trace_part.rows(path):
                    if row[0] == trace_part.CLOCK:
                        readings[row[1]].append(ClockReading(*row[2:]))
        self._lines = {m: ClockLine(some[0], some[-1]) for m, some in readings.items()}
        self._lines[self._chief] = ClockLine(SAME_CLOCK, SAME_CLOCK)
        first = self._facts.get(0) or next(iter(self._facts.values()))
        self._reference = first.machine

    def aligned(self, machine: str, time: int) -> int:
        """A time of a machine's clock on the clock of rank 0's machine."""
        if machine == self._reference or not self._is_known(machine):
            return time
        by_chief = self._lines[machine].to_reference(time)
        return by_chief + self._lines[self._reference].offset_at(by_chief)

    def _is_known(self, machine: str) -> bool:
        return machine in self._lines and self._reference in self._lines

    def facts(self) -> list[Json]:
        """Of each rank: how its clock was aligned, its offset at both ends, and the error."""
        return [self._fact(rank, facts) for rank, facts in self._facts.items()]

    def _fact(self, rank: int, facts: PartFacts) -> Json:
        about: Json = {"rank": rank, "host": facts.host}
        if facts.machine == self._reference:
            same = {"how": "the same clock as rank 0", "drift_ppm": 0.0}
            return about | same | {"offset_ns": [0, 0], "error_ns": 0}
        if not self._is_known(facts.machine):
            return about | {"how": "unknown: the part of the chief is missing"}
        line, base = self._lines[facts.machine], self._lines[self._reference]
        ends = line if facts.machine != self._chief else base
        times = ends.first.time, ends.last.time
        offsets = [line.offset_at(time) - base.offset_at(time) for time in times]
        ppm = round((line.drift - base.drift) * 1e6, 4)
        return about | {
            "how": "measured by ping-pong",
            "offset_ns": offsets,
            "error_ns": line.error + base.error,
            "drift_ppm": ppm,
        }
