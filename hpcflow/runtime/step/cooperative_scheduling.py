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


class VariableUses(NamedTuple):
    """The variables that a segment reads, and those that it updates."""

    reads: frozenset[State]
    writes: frozenset[State]

    def conflicts_with(self, other: VariableUses) -> bool:
        """Whether the two segments must not run concurrently."""
        writes_a, writes_b = self.writes, other.writes
        return not (writes_a.isdisjoint(other.reads | writes_b) and writes_b.isdisjoint(self.reads))


class RunningSegment(NamedTuple):
    """A segment that has begun and yields between tiles."""

    instance: Any
    segment: int
    tiles: Iterator[None]
    uses: VariableUses


class SliceScheduler:
    """Tiled segments in progress, scheduled round-robin in slices of about `SLICE_S` seconds."""

    def __init__(self) -> None:
        self.running: collections.deque[RunningSegment] = collections.deque()
        self.deferred: list[tuple[VariableUses, tuple]] = []
        self.ended = 0.0  # when the last slice ended
        self.interrupt = DeferredInterrupt()

    def conflicts(self, touched: VariableUses) -> bool:
        """Whether a segment in progress conflicts with one that uses these variables."""
        return any(going.uses.conflicts_with(touched) for going in self.running)

    def defer_on_conflict(self, touched: VariableUses, segment: tuple) -> bool:
        """Defer `segment`, arguments of `run_segment`, on a conflict; whether it was deferred."""
        late = self.conflicts(touched) or any(t.conflicts_with(touched) for t, _ in self.deferred)
        if late:
            self.deferred.append((touched, segment))
        return late

    def is_due(self) -> bool:
        """Whether other work has had its share of the time."""
        return time.perf_counter() - self.ended > SLICE_S

    def run_slice_of_first(self) -> bool:
        """Run tiles of the first segment for one slice; True at its end, else rotate it back."""
        tiles, until = self.running[0].tiles, time.perf_counter() + SLICE_S
        try:
            for _ in tiles:
                if time.perf_counter() > until:
                    self.running.rotate(-1)
                    return False
            return True
        finally:
            self.ended = time.perf_counter()

    def end(self, running_segment: RunningSegment) -> list[tuple]:
        """A segment is over; the deferred segments, in their order."""
        self.running.remove(running_segment)
        late, self.deferred = [segment for _, segment in self.deferred], []
        return late


class DeferredInterrupt:
    """Defers SIGINT (Ctrl-C) to the end of a slice, so that no update is left incomplete."""

    def __init__(self) -> None:
        self._handler: Any = None
        self._signals: list[tuple[int, Any]] = []

    def hold(self) -> None:
        """Defer SIGINT from now on; does nothing outside the main thread."""
        if threading.current_thread() is threading.main_thread() and self._handler is None:
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, lambda *seen: self._signals.append(seen))

    def let_go(self) -> None:
        """Restore the handler, and call it if SIGINT came."""
        handler, pending = self._handler, self._signals
        if handler is None or threading.current_thread() is not threading.main_thread():
            return
        signal.signal(signal.SIGINT, handler)
        self._handler, self._signals = None, []
        if pending:
            handler(*pending[0])
