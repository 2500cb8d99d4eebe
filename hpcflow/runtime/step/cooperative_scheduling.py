"""Cooperative scheduling: large updates yield between tiles; conflicting segments are deferred.

A segment with tiled updates holds its variables: no other segment uses those that it updates, or
updates those that it reads. A conflicting segment is deferred, and so is every segment that
conflicts with a deferred one. Thus segments that use the same variable run in their order of
arrival.

A segment holds its variables from its first tile to its end and waits for nothing in between, so no
deadlock can occur.
"""

from __future__ import annotations

import collections
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from hpcflow.runtime.dynamic_types import State

SLICE_S = 250e-6  # seconds of tiles before other work is polled


class Touched(NamedTuple):
    """The variables that a segment reads, and those that it updates."""

    reads: frozenset[State]
    writes: frozenset[State]

    def clashes(self, other: Touched) -> bool:
        """Whether the two segments must not run concurrently."""
        mine, its = self.writes, other.writes
        return not (mine.isdisjoint(other.reads | its) and its.isdisjoint(self.reads))


class Going(NamedTuple):
    """A segment that has begun and yields between tiles."""

    instance: Any
    strand: int
    tiles: Iterator[None]
    touched: Touched


class Slices:
    """Tiled segments in progress, scheduled round-robin in slices of about `SLICE_S` seconds."""

    def __init__(self) -> None:
        self.going: collections.deque[Going] = collections.deque()
        self.put_off: list[tuple[Touched, tuple]] = []
        self.ended = 0.0  # when the last slice ended
        self.interrupt = Interrupt()

    def clash(self, touched: Touched) -> bool:
        """Whether a segment in progress conflicts with one that uses these variables."""
        return any(going.touched.clashes(touched) for going in self.going)

    def puts_off(self, touched: Touched, strand: tuple) -> bool:
        """Defer `strand`, arguments of `run_strand`, on a conflict; whether it was deferred."""
        late = self.clash(touched) or any(t.clashes(touched) for t, _ in self.put_off)
        if late:
            self.put_off.append((touched, strand))
        return late

    def due(self) -> bool:
        """Whether other work has had its share of the time."""
        return time.perf_counter() - self.ended > SLICE_S

    def advance(self) -> bool:
        """Run tiles of the first segment for one slice; True at its end, else rotate it back."""
        tiles, until = self.going[0].tiles, time.perf_counter() + SLICE_S
        try:
            for _ in tiles:
                if time.perf_counter() > until:
                    self.going.rotate(-1)
                    return False
            return True
        finally:
            self.ended = time.perf_counter()

    def end(self, going: Going) -> list[tuple]:
        """A segment is over; the deferred segments, in their order."""
        self.going.remove(going)
        late, self.put_off = [strand for _, strand in self.put_off], []
        return late


class Interrupt:
    """Defers SIGINT (Ctrl-C) to the end of a slice, so that no update is left incomplete."""

    def __init__(self) -> None:
        self._handler: Any = None
        self._seen: list[tuple[int, Any]] = []

    def hold(self) -> None:
        """Defer SIGINT from now on; does nothing outside the main thread."""
        if threading.current_thread() is threading.main_thread() and self._handler is None:
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, lambda *seen: self._seen.append(seen))

    def let_go(self) -> None:
        """Restore the handler, and call it if SIGINT came."""
        handler, seen = self._handler, self._seen
        if handler is None or threading.current_thread() is not threading.main_thread():
            return
        signal.signal(signal.SIGINT, handler)
        self._handler, self._seen = None, []
        if seen:
            handler(*seen[0])
