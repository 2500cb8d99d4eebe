"""Who may begin a step, whose gradients count: the rules as a state machine that never blocks.

Each server has `Rounds`. On server 0 it is the coordinator too, the one place that decides, so that
all servers and variables take the gradients of the same workers. Whoever has to wait leaves a
function that is called when the time has come.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.consistency import Rule, Stale

Go = Callable[[], None]


@dataclasses.dataclass
class Contribution:
    """What one worker hands over for one sum: its arrays stay its own until they are released."""

    version: int
    arrays: tuple[Any, ...]
    release: Go


class Channel:
    """Updates that are made together, and the gradients for them.

    `version` counts how often they have been made. Gradients are of the version that their worker
    had; those of an older one than this are late.
    """

    def __init__(self, workers: int) -> None:
        self.version = 0
        self.contributed = [-1] * workers  # the newest version with gradients of each worker
        self.ready: list[tuple[int, float]] = []  # (worker, share) of this version, as they came
        self.picked = False  # the round of this version is under way
        self.closing = False  # nobody else will give gradients of this version
        self.picker: Callable[[np.ndarray], None] | None = None  # waits for enough of them
        self.held: dict[str, dict[int, Contribution]] = {}  # sum -> worker -> what it gave
        self.sums: dict[str, np.ndarray] = {}  # memory of the sums
        self.wanted: dict[str, list[Callable[..., None]]] = {}  # sum -> who else wants its value
        self.ends: list[tuple[int, Go]] = []  # (version, who waits until it is over)


class Rounds:
    """The rounds of one server, and on server 0 the clocks of all workers."""

    def __init__(self, rule: Rule, workers: int) -> None:
        self.rule, self.workers = rule, workers
        self.channels: dict[str, Channel] = {}
        self.used, self.late, self.dropped = [0] * workers, [0] * workers, [0] * workers
        self.clocks = [0] * workers  # steps done since all were together
        self.lead = 0  # the most steps that a worker was ahead of the slowest when it began one
        self.ranks = [-1] * workers  # of the workers that have begun a step
        self.repeated: set[str] = set()  # names of the updates whose rounds the servers have
        self._gates: list[tuple[int, str, Callable[[int], None]]] = []
        self._asides = [0] * workers  # how often each has gone to a meeting
        self._leaving: list[tuple[int, Go]] = []

    def channel(self, name: str) -> Channel:
        """The updates of this name."""
        if name not in self.channels:
            self.channels[name] = Channel(self.workers)
        return self.channels[name]

    # -- the coordinator

    def begin(self, worker: int, channel: str, go: Callable[[int], None]) -> None:
        """Call `go(version)` when the worker may begin a step."""
        self._gates.append((worker, channel, go))
        self._move()

    def withdraw(self, go: Callable[..., None]) -> None:
        """The step that waited with `go` will not be."""
        self._gates = [gate for gate in self._gates if gate[2] != go]

    def ready(self, worker: int, channel: str, version: int, share: float) -> None:
        """All gradients of a worker's step are on the servers; `share` of the joined batch."""
        found = self.channel(channel)
        found.contributed[worker] = version
        if version < found.version or found.picked:
            self.late[worker] += 1
            self.dropped[worker] += 1
        else:
            found.ready.append((worker, share))
        self._move()

    def pick(self, channel: str, go: Callable[[np.ndarray], None]) -> None:
        """Call `go(factors)` when a round may be made; a factor for each worker, 0: not used."""
        self.channel(channel).picker = go
        self._move()

    def tick(self, worker: int) -> None:
        """A step of a worker is applied."""
        self.clocks[worker] += 1
        self._move()

    def step_aside(self, worker: int, go: Go) -> None:
        """A worker goes where all meet: nobody waits for it until they all have come.

        `go` is called when all that it gave is in the variables, or dropped.
        """
        self._go_aside(worker, self._asides[worker] + 1)
        self._leaving.append((worker, go))
        self._move()

    def _go_aside(self, worker: int, times: int) -> None:
        together = min(self._asides)
        self._asides[worker] = times
        if min(self._asides) > together:  # the last one: nobody is left to wait for
            self.clocks = [0] * self.workers
            for channel in self.channels.values():
                channel.closing = bool(channel.ready)

    def lose(self, worker: int) -> None:
        """A worker has died: as one that has gone to a meeting, and to all that will ever be.

        What it gave, complete on all servers, counts; the rest is never picked.
        """
        self._gates = [gate for gate in self._gates if gate[0] != worker]
        self._leaving = [one for one in self._leaving if one[0] != worker]
        self._go_aside(worker, sys.maxsize)
        self._move()

    def missing(self) -> tuple[str, int] | None:
        """What workers wait for here, and the rank of the first who is to bring it."""
        slow = self._slowest() if isinstance(self.rule, Stale) else self._owing()
        if not slow:
            return None
        names = ", ".join(map(str, slow[:3])) + (", ..." if len(slow) > 3 else "")
        return f"what worker {names} is to bring", self.ranks[slow[0]]

    def _slowest(self) -> list[int]:
        """For whom those wait who may not begin a step."""
        if not self._gates:
            return []
        least = min(self.clocks[w] for w in self._active())
        return sorted(w for w in self._active() if self.clocks[w] == least)

    def _owing(self) -> list[int]:
        """Who has not given its gradient to a round that has some."""
        found: set[int] = set()
        for channel in self.channels.values():
            if channel.ready and not channel.picked:
                found |= self._active() - {worker for worker, _ in channel.ready}
        return sorted(found)

    def _active(self) -> set[int]:
        least = min(self._asides)
        return {w for w, count in enumerate(self._asides) if count == least}

    def _move(self) -> None:
        """Let go of all whose time has come."""
        for channel in self.channels.values():
            self._pick(channel)
        waiting, self._gates = self._gates, []
        for gate in waiting:
            worker, name, go = gate
            if self._may_begin(worker):
                go(self.channel(name).version)
            else:
                self._gates.append(gate)
        leaving, self._leaving = self._leaving, []
        for worker, leave in leaving:
            if self._settled(worker):
                leave()
            else:
                self._leaving.append((worker, leave))

    def _settled(self, worker: int) -> bool:
        """Whether what a worker gave has had its round, and none is under way."""
        return all(
            c.contributed[worker] < c.version and not c.picked for c in self.channels.values()
        )

    def _may_begin(self, worker: int) -> bool:
        if not isinstance(self.rule, Stale):
            return self._settled(worker)
        ahead = self.clocks[worker] - min(self.clocks[w] for w in self._active() | {worker})
        if ahead > self.rule.bound:
            return False
        self.lead = max(self.lead, ahead)
        return True

    def _pick(self, channel: Channel) -> None:
        """Begin a round if enough gradients are there, or those of all who are not elsewhere."""
        if channel.picker is None or channel.picked or not channel.ready:
            return
        there = {worker for worker, _ in channel.ready}
        needed = self.rule.needed(self.workers)  # type: ignore[attr-defined]
        if len(there) < needed and not self._active() <= there and not channel.closing:
            return
        chosen = channel.ready[:needed]
        for worker, _ in chosen:
            self.used[worker] += 1
        for worker, _ in channel.ready[needed:]:
            self.dropped[worker] += 1
        total = sum(share for _, share in chosen)
        factor = 1.0 if len(chosen) == self.workers or not total else 1 / total
        factors = np.zeros(self.workers)
        factors[[worker for worker, _ in chosen]] = factor
        channel.picked, channel.closing, channel.ready = True, False, []
        picker, channel.picker = channel.picker, None
        picker(factors)

    # -- every server

    def add(self, channel: str, name: str, worker: int, given: Contribution) -> None:
        """Hold what a worker gives for a sum until its round; what is late is let go at once."""
        found = self.channel(channel)
        if given.version < found.version:
            given.release()
            return
        held = found.held.setdefault(name, {})
        before, held[worker] = held.get(worker), given
        if before is not None:  # its step had failed before all gradients had come
            before.release()

    def total(self, channel: str, name: str, how: str, factors: np.ndarray) -> tuple[Any, ...]:
        """The sum of what the picked workers gave, in their order; theirs is let go."""
        found = self.channel(channel)
        held = found.held[name]
        given = [held.pop(int(worker)) for worker in np.flatnonzero(factors)]
        values = JOIN[how](found, name, [g.arrays for g in given], float(factors.max()))
        for contribution in given:
            contribution.release()
        for tell in found.wanted.pop(name, ()):
            tell(*(np.array(value) for value in values))
        return values

    def want(self, channel: str, name: str, tell: Callable[..., None]) -> None:
        """Call `tell(*values)` with the next sum."""
        self.channel(channel).wanted.setdefault(name, []).append(tell)

    def after(self, channel: str, version: int, go: Go) -> None:
        """Call `go` when the round of a version is over here."""
        found = self.channel(channel)
        if version < found.version:
            go()
        else:
            found.ends.append((version, go))

    def end(self, channel: str) -> None:
        """All updates of a round are made: the next version begins."""
        found = self.channel(channel)
        found.version += 1
        found.picked = False
        for held in found.held.values():
            for worker in [w for w, g in held.items() if g.version < found.version]:
                held.pop(worker).release()
        over = [go for version, go in found.ends if version < found.version]
        found.ends = [end for end in found.ends if end[0] >= found.version]
        for go in over:
            go()
        self._move()

    def report(self) -> dict[str, Any]:
        """What the coordinator has counted, by worker."""
        found: dict[str, Any] = {"rule": str(self.rule)}
        if isinstance(self.rule, Stale):
            return {**found, "lead": self.lead}
        return {**found, "used": self.used, "late": self.late, "dropped": self.dropped}


def _sum(
    channel: Channel, name: str, given: Sequence[tuple[np.ndarray, ...]], factor: float
) -> tuple[np.ndarray, ...]:
    """Their sum, from left to right, times the factor."""
    first = given[0][0]
    out = channel.sums.get(name)
    if out is None or out.shape != first.shape:
        out = channel.sums[name] = np.empty_like(first)
    if len(given) == 1:
        out[...] = first
    else:
        np.add(first, given[1][0], out=out)
    for (more,) in given[2:]:
        np.add(out, more, out=out)
    if factor != 1:
        np.multiply(out, out.dtype.type(factor), out=out)
    return (out,)


def _rows(
    channel: Channel, name: str, given: Sequence[tuple[np.ndarray, ...]], factor: float
) -> tuple[np.ndarray, ...]:
    """The rows of all, one after the other, times the factor; and their indices."""
    values = np.concatenate([rows for rows, _ in given])
    if factor != 1:
        np.multiply(values, values.dtype.type(factor), out=values)
    return values, np.concatenate([indices for _, indices in given])


def _first(
    channel: Channel, name: str, given: Sequence[tuple[np.ndarray, ...]], factor: float
) -> tuple[np.ndarray, ...]:
    """The value of the first worker that is picked."""
    return (np.array(given[0][0]),)


JOIN = {"sum": _sum, "rows": _rows, "first": _first}
