"""Profile events: the recorded window of steps, and the code places that events refer to."""

from __future__ import annotations

import dataclasses

from hpcflow.runtime.dynamic_types import KernelFunction
from hpcflow.runtime.step.step_instance import CompiledPartition


@dataclasses.dataclass(frozen=True)
class CodePlace:
    """What an event refers to: a line of a partition's generated code, or a segment.

    For a segment `strand` is its index and `kind` is "strand", or "turn" for its turns after the
    first.
    """

    compiled: CompiledPartition
    kind: str
    node: str = ""
    segment: int = -1


@dataclasses.dataclass
class ProfileWindow:
    """The events recorded between the beginnings of two steps, in nanoseconds of one clock.

    `label` and `trains` describe the plan whose steps are counted.
    """

    label: str
    trains: bool
    start: int
    end: int = 0
    steps: int = -1  # number of ended steps; -1: the last warm-up step, which runs the timed code
    offset: int = 0  # time.time_ns minus the clock of the window
    places: list[CodePlace] = dataclasses.field(default_factory=list)
    timed_code: dict[CompiledPartition, tuple[KernelFunction, list[int]]] = dataclasses.field(
        default_factory=dict
    )
    events: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    steps_seen: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    idle: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    waits: list[tuple[str, str, str, int, int, int]] = dataclasses.field(default_factory=list)
    is_full: bool = False

    def restart(self, now: int) -> None:
        """Discard the events so far: the window starts now."""
        self.start, self.steps, self.is_full = now, 0, False
        for buffer in (self.events, self.steps_seen, self.idle, self.waits):
            buffer.clear()

    def count_step(self) -> None:
        """Count a step that has ended."""
        self.steps += 1

    def cut_short(self) -> None:
        """Its events no longer fit: steps from now on are not recorded completely."""
        self.is_full = True

    def end_at(self, end: int) -> None:
        """The last recorded step ended at `end`."""
        self.end = end
