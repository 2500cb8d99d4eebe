"""What a profile saw of some steps: events, and what they are about."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from hpcflow.runtime.step.step_instance import Compiled


@dataclasses.dataclass(frozen=True)
class Place:
    """What an event is about: a line of a part's code, or with no kind but "strand" a strand."""

    compiled: Compiled
    kind: str
    node: str = ""
    strand: int = -1


@dataclasses.dataclass
class Window:
    """What was seen between two beginnings of steps, in nanoseconds of one clock."""

    label: str
    trains: bool
    start: int
    end: int = 0
    steps: int = -1  # that have ended; -1: the last one to warm up runs, timed for practice
    offset: int = 0  # what the host's clock, time.time_ns, is ahead of it
    places: list[Place] = dataclasses.field(default_factory=list)
    made: dict[Compiled, tuple[Callable[..., Any], list[int]]] = dataclasses.field(
        default_factory=dict
    )
    events: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    steps_seen: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    idle: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    waits: list[tuple[str, str, str, int, int, int]] = dataclasses.field(default_factory=list)
    is_full: bool = False

    def restart(self, now: int) -> None:
        """What has been seen does not count."""
        self.start, self.steps, self.is_full = now, 0, False
        for seen in (self.events, self.steps_seen, self.idle, self.waits):
            seen.clear()
