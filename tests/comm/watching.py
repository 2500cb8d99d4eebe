"""Watchdogs over stalls that look when the test says so, by a clock of the test."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from hpcflow.monitoring.stall_watchdog import StallWatchdog

BEHIND_S = 10_000.0  # the clock begins so long ago: what is written to a file is always new


class Clock:
    """The time of day, which goes on only while watchdogs look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.time() - BEHIND_S
        monkeypatch.setattr(time, "time", lambda: self.now)

    def run(self, dogs: Sequence[Watchdog], seconds: float) -> None:
        """Let so many seconds pass, in which each of `dogs` looks as often as its thread would."""
        tick_s = dogs[0]._times.tick_s
        for _ in range(round(seconds / tick_s)):
            self.now += tick_s
            for dog in dogs:
                dog.look()


class Watchdog(StallWatchdog):
    """One whose thread does nothing."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._stop.set()  # no pause waits

    def _watch(self) -> None:
        pass

    def look(self) -> None:
        """What the thread does in one turn."""
        self._pause()
        self.tick()
