"""Step template: the tasks of one replica's step, and of the update that servers make after it.

All replicas run the same tasks. A template is plain data; `job_replay.py` copies it for the
replicas and for several steps.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from hpcflow.placement.durations import NOTHING, Seconds

Gate = Literal["", "update", "own update", "clock"]


@dataclasses.dataclass(frozen=True)
class TemplateTask:
    """Computing on a device of a rank, a message, or a collective of all replicas.

    `after` are numbers of tasks of the same list. It also waits for its `gate`: "update", the
    update before this step; "own update", that of this step; "clock", the bound on how far
    replicas run ahead.
    """

    rank: str  # the task of the cluster that computes, or sends
    after: tuple[int, ...] = ()
    seconds: Seconds = NOTHING
    device: str = ""  # "" if it occupies none
    to: str = ""  # of a message: the task that receives
    nbytes: float = 0.0
    is_collective: bool = False
    gate: Gate = ""


@dataclasses.dataclass(frozen=True)
class StepTemplate:
    """The step of one replica and how `replicas` of them go together.

    `servers` has the ranks that all replicas share, with how many equal servers each stands for;
    the other ranks belong to a replica. `ends` are the tasks after which the replica's next step
    begins. With `update` (the tasks of an update) `ready` are the tasks that hand over a gradient,
    and an update waits for `needed` replicas. A replica begins a step with a gate "clock" when no
    replica is more than `ahead` steps behind; `ticks` count its steps.
    """

    tasks: tuple[TemplateTask, ...]
    ends: tuple[int, ...]
    replicas: int = 1
    servers: dict[str, int] = dataclasses.field(default_factory=dict)
    update: tuple[TemplateTask, ...] = ()
    ready: tuple[int, ...] = ()
    needed: int = 0
    ahead: int | None = None
    ticks: tuple[int, ...] = ()

    @property
    def ranks(self) -> list[str]:
        """The ranks of a replica."""
        names = [name for task in self.tasks for name in (task.rank, task.to) if name]
        return [name for name in dict.fromkeys(names) if name not in self.servers]

    @property
    def is_synchronous(self) -> bool:
        """Whether all replicas begin each step together."""
        return bool(self.update) or any(task.is_collective for task in self.tasks)
