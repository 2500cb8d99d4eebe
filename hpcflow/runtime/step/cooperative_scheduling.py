"""Strands that stop between the tiles of large updates, and who is put off until they are over.

Such a strand keeps its variables to itself: those it updates are used by no other, those it only
reads are updated by no other. What would clash is put off, and all that would clash with what is
put off: so strands that use one variable run in the order in which they came. A strand holds its
variables from its first tile to its end and waits for nothing in between: nobody waits in a circle.
"""

from __future__ import annotations

import collections
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

SLICE_S = 250e-6  # how long tiles are computed before others are looked after


class Touched(NamedTuple):
    """The variables that a strand reads, and those that it updates."""

    reads: frozenset[Any]
    writes: frozenset[Any]

    def clashes(self, other: Touched) -> bool:
        """Whether the two must not run at one time."""
        mine, its = self.writes, other.writes
        return not (mine.isdisjoint(other.reads | its) and its.isdisjoint(self.reads))


class Going(NamedTuple):
    """A strand that has begun and yields between tiles."""

    instance: Any
    strand: int
    tiles: Iterator[None]
    touched: Touched


class Slices:
    """The strands that are on their way; they take turns of about `SLICE_S` seconds."""

    def __init__(self) -> None:
        self.going: collections.deque[Going] = collections.deque()
        self.put_off: list[tuple[Touched, tuple]] = []
        self.ended = 0.0  # when the last slice ended
        self.interrupt = Interrupt()

    def clash(self, touched: Touched) -> bool:
        """Whether a strand that is on its way keeps one that uses these variables from running."""
        return any(going.touched.clashes(touched) for going in self.going)

    def puts_off(self, touched: Touched, strand: tuple) -> bool:
        """Put `strand`, arguments of `run_strand`, off if it must not run yet."""
        late = self.clash(touched) or any(t.clashes(touched) for t, _ in self.put_off)
        if late:
            self.put_off.append((touched, strand))
        return late

    def due(self) -> bool:
        """Whether others had their share of the time."""
        return time.perf_counter() - self.ended > SLICE_S

    def advance(self) -> bool:
        """Tiles of the first strand for the time of a slice; True at its end, else it goes last."""
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
        """A strand is over: those that were put off, in their order."""
        self.going.remove(going)
        late, self.put_off = [strand for _, strand in self.put_off], []
        return late


class Interrupt:
    """Ctrl-C waits for the end of a tile's turn: no update is left half done."""

    def __init__(self) -> None:
        self._handler: Any = None
        self._seen: list[tuple[int, Any]] = []

    def hold(self) -> None:
        """From now on it waits; nothing happens in another thread than the main one."""
        if threading.current_thread() is threading.main_thread() and self._handler is None:
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, lambda *seen: self._seen.append(seen))

    def let_go(self) -> None:
        """It is handled now, if it came."""
        handler, seen = self._handler, self._seen
        if handler is None or threading.current_thread() is not threading.main_thread():
            return
        signal.signal(signal.SIGINT, handler)
        self._handler, self._seen = None, []
        if seen:
            handler(*seen[0])
