"""Events of one rank of a merged trace: slices, waits and counters, and the names of its tracks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.profile import trace_part
from hpcflow.runtime.profile.trace_flows import (
    RECEIVES,
    SEGMENTS,
    SUMS,
    Messages,
    SumKey,
    Sums,
    event,
)
from hpcflow.runtime.profile.trace_part import PartFacts, Row

RECEIVE_NS = 1_000  # longest slice of a receive: it marks a moment
FIELDS = {  # kind of a row -> the types of its fields after the kind
    trace_part.SEGMENT: (str, str, int, int, int),
    trace_part.WAIT: (int, str, int, int),
    trace_part.SUM: (int, str, int, int, int, int),
    trace_part.END: (int, int),
    trace_part.SEND: (str, int, int, int, int),
    trace_part.RECEIVE: (str, int, int, int, int),
    trace_part.COUNTER: (str, int, int),
    trace_part.CLOCK: (str, int, int, int),
    trace_part.FULL: (int,),
}
TIME = {  # kind of a row -> the index of its last time
    trace_part.SEGMENT: 5,
    trace_part.WAIT: 4,
    trace_part.SUM: 4,
    trace_part.END: 2,
    trace_part.SEND: 5,
    trace_part.RECEIVE: 5,
    trace_part.COUNTER: 2,
    trace_part.FULL: 1,
}


class Clocks(Protocol):
    """The clocks of all machines on one time axis."""

    def aligned(self, machine: str, time: int) -> int:
        """A time of a machine's clock on the common axis."""
        ...


class RankEvents:
    """The events of one rank. `scan` takes all rows first, then `of` takes them again."""

    def __init__(self, facts: PartFacts, clocks: Clocks, messages: Messages, sums: Sums) -> None:
        self.facts, self.rank = facts, facts.rank
        self._clocks, self._messages, self._sums = clocks, messages, sums
        self.first: int | None = None  # the first time
        self._last = 0
        self.is_full = False
        self._ends: dict[int, int] = {}  # number of a wait or sum -> its end
        self._begun: list[tuple[int, int, SumKey]] = []  # of the sums: start, number, key
        self._lanes: dict[int, int] = {}  # number of a sum -> its thread
        self._received: list[int] = []  # times
        self._receive = 0  # index of the next one
        self.sum_lanes = 0

    def is_valid(self, row: Row) -> bool:
        """Whether a row has the fields of its kind."""
        types = FIELDS.get(row[0]) if isinstance(row[0], str) else None
        return types is not None and tuple(map(type, row[1:])) == types

    def _at(self, time: int) -> int:
        return self._clocks.aligned(self.facts.machine, time)

    def scan(self, row: Row) -> None:
        """Take messages, sums and the ends of waits of a row."""
        kind = row[0]
        if kind == trace_part.CLOCK:
            return
        time = self._at(row[TIME[kind]])
        begin = self._at(row[4]) if kind == trace_part.SEGMENT else time
        self.first = begin if self.first is None else min(self.first, begin)
        self._last = max(self._last, time)
        if kind == trace_part.SEND:
            _, _, destination, tag, step, _ = row
            self._messages.sent((self.rank, destination, tag, step), time)
        elif kind == trace_part.RECEIVE:
            _, _, source, tag, step, _ = row
            self._messages.received((source, self.rank, tag, step), time)
            self._received.append(time)
        elif kind == trace_part.SUM:
            _, number, name, _, _, recovery, ordinal = row
            self._begun.append((time, number, (self.facts.group, recovery, ordinal, name)))
        elif kind == trace_part.END:
            self._ends[row[1]] = time
        elif kind == trace_part.FULL:
            self.is_full = True

    def scanned(self) -> None:
        """All rows are scanned: place the sums, so that those of one thread do not overlap."""
        ends: list[int] = []
        for start, number, key in sorted(self._begun):
            end = self._ends.get(number, self._last)
            lane = next((i for i, busy in enumerate(ends) if busy <= start), len(ends))
            ends[lane : lane + 1] = [end]
            self._lanes[number] = SUMS + lane
            self._sums.member(key, self.rank, SUMS + lane, start)
        self.sum_lanes = len(ends)

    def of(self, row: Row, start: int) -> Iterator[Json]:
        """The events of a row; times count from `start`."""
        kind = row[0]
        if kind == trace_part.SEGMENT:
            _, name, plan, step, begin, end = row
            args = {"plan": plan, "step": step} if plan else {}
            yield self._slice(
                SEGMENTS, "segment", name, self._at(begin), self._at(end), start, args
            )
        elif kind == trace_part.RECEIVE:
            yield self._receive_slice(row, start)
        elif kind == trace_part.SUM:
            yield self._sum_slice(row, start)
        elif kind == trace_part.WAIT:
            yield from self._wait(row, start)
        elif kind == trace_part.COUNTER:
            _, name, time, value = row
            about = event("C", self.rank, SEGMENTS, name, self._at(time) - start)
            yield about | {"args": {"value": value}}
        elif kind == trace_part.FULL:
            about = event("i", self.rank, SEGMENTS, "the trace is full", self._at(row[1]) - start)
            yield about | {"s": "p"}

    def _slice(
        self, thread: int, cat: str, name: str, begin: int, end: int, start: int, args: Json
    ) -> Json:
        about = event("X", self.rank, thread, name, begin - start)
        return about | {"cat": cat, "dur": (end - begin) / 1e3, "args": args}

    def _receive_slice(self, row: Row, start: int) -> Json:
        _, name, source, tag, step, _ = row
        begin = self._received[self._receive]
        self._receive += 1
        after = self._received[self._receive : self._receive + 1] or [begin + RECEIVE_NS]
        args = {"from rank": source, "tag": tag, "step": step}
        end = min(begin + RECEIVE_NS, max(after[0], begin))
        return self._slice(RECEIVES, "receive", name, begin, end, start, args)

    def _sum_slice(self, row: Row, start: int) -> Json:
        _, number, name, step, begin, _, ordinal = row
        lane, time = self._lanes[number], self._at(begin)
        args = {"step": step, "number": ordinal}
        if number not in self._ends:
            args["unfinished"] = True
        return self._slice(lane, "sum", name, time, self._ends.get(number, self._last), start, args)

    def _wait(self, row: Row, start: int) -> Iterator[Json]:
        """The begin and the end of a wait: one that is not over ends with the trace."""
        _, number, name, step, begin = row
        ends = number in self._ends
        args = {"step": step} if ends else {"step": step, "unfinished": True}
        both = {"cat": "wait", "id": f"{self.rank}.{number}"}
        time, end = self._at(begin), self._ends.get(number, self._last)
        yield event("b", self.rank, SEGMENTS, name, time - start) | both | {"args": args}
        yield event("e", self.rank, SEGMENTS, name, end - start) | both


def metadata(facts: PartFacts, lanes: int) -> Iterator[Json]:
    """The names and the order of the tracks of a rank; `lanes` threads have sums."""

    def named(kind: str, thread: int, **args: object) -> Json:
        return {"ph": "M", "pid": facts.rank, "tid": thread, "name": kind, "args": args}

    title = f"rank {facts.rank} {facts.task} {facts.host}"
    yield named("process_name", SEGMENTS, name=title)
    yield named("process_sort_index", SEGMENTS, sort_index=facts.rank)
    names = {SEGMENTS: "segments", RECEIVES: "receives"}
    names |= {SUMS + i: f"sums {i + 1}" if i else "sums" for i in range(lanes)}
    for thread, name in names.items():
        yield named("thread_name", thread, name=name)
        yield named("thread_sort_index", thread, sort_index=thread)
