"""Clock offsets between hosts, by the algorithm of Cristian (1989): ping-pong over MPI.

The reference rank asks a peer for its time. The answer belongs to the middle of the round trip,
with an error of at most half of it. The round trip that took the least time counts. Two readings,
at the start and at the end of a trace, give the drift, which is taken as constant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hpcflow.comm.communicator import Communicator
from hpcflow.comm.polling_backoff import wait_for_requests

CLOCK_TAG = 4
PINGS = 32
LABEL = "the clock of another host"


class ClockReading(NamedTuple):
    """At `time` of the reference, the peer's clock was ahead by `offset`, +- `round_trip` / 2."""

    time: int
    offset: int
    round_trip: int


def measure_offset(comm: Communicator, peer: int, clock: Callable[[], int]) -> ClockReading:
    """The reading with the least round trip; `peer` calls `answer_pings` at the same time."""
    best: ClockReading | None = None
    ping, pong = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for _ in range(PINGS):
        start = clock()
        requests = comm.recv(pong, peer, CLOCK_TAG), comm.send(ping, peer, CLOCK_TAG)
        wait_for_requests(*requests, label=LABEL, peer=peer)
        took = clock() - start
        middle = start + took // 2
        if best is None or took < best.round_trip:
            best = ClockReading(middle, int(pong[0]) - middle, took)
    assert best is not None
    return best


def answer_pings(comm: Communicator, peer: int, clock: Callable[[], int]) -> None:
    """Answer the pings of the reference rank `peer`."""
    ping, pong = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for _ in range(PINGS):
        wait_for_requests(comm.recv(ping, peer, CLOCK_TAG), label=LABEL, peer=peer)
        pong[0] = clock()
        wait_for_requests(comm.send(pong, peer, CLOCK_TAG), label=LABEL, peer=peer)


SAME_CLOCK = ClockReading(0, 0, 0)


@dataclasses.dataclass(frozen=True)
class ClockLine:
    """The clock of a machine against the reference clock: a line through two readings."""

    first: ClockReading
    last: ClockReading

    def offset_at(self, time: int) -> int:
        """How far the clock is ahead at `time` of the reference."""
        span = self.last.time - self.first.time
        if not span:
            return self.first.offset
        change = self.last.offset - self.first.offset
        return self.first.offset + change * (time - self.first.time) // span

    def to_reference(self, time: int) -> int:
        """`time` of the clock as time of the reference."""
        begin = self.first.time + self.first.offset
        span = self.last.time + self.last.offset - begin
        if not span:
            return time - self.first.offset
        change = self.last.offset - self.first.offset
        return time - self.first.offset - change * (time - begin) // span

    @property
    def error(self) -> int:
        """The largest error of its two readings, in nanoseconds."""
        return -(-max(self.first.round_trip, self.last.round_trip) // 2)

    @property
    def drift(self) -> float:
        """Seconds that the clock gains in a second of the reference."""
        span = self.last.time - self.first.time
        return (self.last.offset - self.first.offset) / span if span else 0.0
