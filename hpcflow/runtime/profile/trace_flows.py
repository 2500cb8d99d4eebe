"""Flows of a merged trace: arrows from Send to Recv, and among the members of a sum.

A flow is a pair of events "s" and "f" with one id. It begins and ends in the slices that enclose
its two moments on their threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from hpcflow.runtime.dynamic_types import Json

SEGMENTS, RECEIVES, SUMS = 0, 1, 2  # thread numbers; further sums that overlap have 3, 4, ...
MESSAGE, SUM = "message", "sum"  # names and categories of flows
Moment = tuple[int, int, int]  # rank, thread, nanoseconds since the start of the trace
MessageKey = tuple[int, int, int, int]  # sender, receiver, tag, step
SumKey = tuple[int, int, int, str]  # ranks that sum, recovery, number since then, operation


def event(ph: str, rank: int, thread: int, name: str, ns: int) -> Json:
    """An event at a time in nanoseconds since the start of the trace."""
    return {"ph": ph, "pid": rank, "tid": thread, "ts": ns / 1e3, "name": name}


def flow(kind: str, number: int, begin: Moment, end: Moment) -> Iterator[Json]:
    """An arrow between two moments. Perfetto reads only numbers as ids of flows."""
    both = {"cat": kind, "id": number}
    for ph, (rank, thread, ns), more in (("s", begin, {}), ("f", end, {"bp": "e"})):
        yield event(ph, rank, thread, kind, ns) | both | more


class Messages:
    """The messages of all ranks: the k-th that was sent is the k-th that was received.

    That holds for messages of one sender, receiver and tag, as MPI keeps their order. The tag
    names the edge of the plan and the plan's instance. The step is a part of the key, so that a
    message whose other end was not recorded has no arrow, and not a wrong one.
    """

    def __init__(self) -> None:
        self._times: dict[MessageKey, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))

    def sent(self, key: MessageKey, time: int) -> None:
        """A message was sent."""
        self._times[key][0].append(time)

    def received(self, key: MessageKey, time: int) -> None:
        """A message was received."""
        self._times[key][1].append(time)

    def _pairs(self) -> Iterator[tuple[int, int, int, int]]:
        """Sender, receiver, and both times of each message that has both ends."""
        for (source, rank, _, _), (sent, received) in self._times.items():
            for begin, end in zip(sent, received, strict=False):
                yield source, rank, begin, end

    @property
    def arrows(self) -> int:
        """Messages with both ends."""
        return sum(1 for _ in self._pairs())

    @property
    def without_arrow(self) -> int:
        """Messages of which one end was not recorded."""
        return sum(abs(len(sent) - len(received)) for sent, received in self._times.values())

    @property
    def backward(self) -> int:
        """Messages received before they were sent: the clocks are not aligned well enough."""
        return sum(end < begin for _, _, begin, end in self._pairs())

    def flows(self, start: int) -> Iterator[Json]:
        """The arrows, from the segment that sends to the receive."""
        for number, (source, rank, begin, end) in enumerate(self._pairs()):
            ends = (source, SEGMENTS, begin - start), (rank, RECEIVES, end - start)
            yield from flow(MESSAGE, number, *ends)


class Sums:
    """The sums of all ranks: all members start them in one order, so numbers identify them."""

    def __init__(self) -> None:
        self._members: dict[SumKey, list[tuple[int, int, int]]] = defaultdict(list)

    def member(self, key: SumKey, rank: int, thread: int, time: int) -> None:
        """A rank started a sum."""
        self._members[key].append((time, rank, thread))

    @property
    def number(self) -> int:
        """The number of sums."""
        return len(self._members)

    def flows(self, start: int, number: int) -> Iterator[Json]:
        """The arrows, from the start of each member to the start of the last: all wait for that.

        Their ids count from `number`.
        """
        for members in self._members.values():
            *others, (last, rank, thread) = sorted(members)
            for time, member, lane in others:
                ends = (member, lane, time - start), (rank, thread, last - start)
                yield from flow(SUM, number, *ends)
                number += 1
