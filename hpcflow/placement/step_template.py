"""Step template: the tasks of one replica's step, and of the update that servers make after it.

A task is a node of a directed acyclic graph: work on a device, a message or a collective. All
replicas run the same tasks. A template is plain data: `plan/cost/replay_of_plan.py` makes it of a
plan, and `step_copies.py` copies it for the replicas and steps of a replay.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from hpcflow.placement.durations import NOTHING, Seconds

Gate = Literal["", "update", "own update", "clock"]


@dataclasses.dataclass(frozen=True)
class TemplateTask:
    """Work on a device of a rank, a message, or a collective of all replicas.

    It begins after the tasks `after`, which are earlier in the same list, and after its `gate`:
    "update", the servers' update before this step; "own update", the update of this step; "clock",
    the bound on how far replicas run ahead.

    Work takes `seconds`. A message takes the time of its bytes. It may stand for several messages
    one after the other: `messages` is their number, `nbytes` their bytes together. A collective
    occupies the network for the median of its `seconds`, and ends `delay` seconds later, but not
    before `least` seconds after its start. Collectives with `in_order` occupy the network one after
    the other; the others share it with them.
    """

    rank: str  # the rank that computes or sends, named as a task: `/job:worker/task:0`
    after: tuple[int, ...] = ()
    seconds: Seconds = NOTHING
    device: str = ""  # such as `cpu:0`; "": it occupies none
    to: str = ""  # of a message: the rank that receives
    nbytes: float = 0.0  # of a message
    messages: float = 1.0
    is_collective: bool = False
    delay: float = 0.0  # of a collective: latencies of its messages
    least: float = 0.0  # of a collective
    in_order: bool = True
    gate: Gate = ""


@dataclasses.dataclass(frozen=True)
class StepTemplate:
    """The step of one replica, and how the steps of `replicas` replicas wait for each other.

    `ends`, `ready` and `ticks` are numbers of `tasks`. The next step of a replica begins after its
    tasks `ends`.

    `servers` has the ranks that all replicas share, each with the number of equal servers that it
    stands for; the other ranks belong to one replica. With synchronous servers, `update` has the
    tasks of an update. It begins when `needed` replicas have ended their tasks `ready`, which hand
    over gradients. With bounded staleness, a replica has completed a step when its tasks `ticks`
    have ended. Tasks with the gate "clock" begin when no replica is more than `ahead` steps behind.
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
        """The ranks of one replica, in the order of their first tasks."""
        names = [name for task in self.tasks for name in (task.rank, task.to) if name]
        return [name for name in dict.fromkeys(names) if name not in self.servers]

    @property
    def is_synchronous(self) -> bool:
        """Whether all replicas begin each step together."""
        return bool(self.update) or any(task.is_collective for task in self.tasks)
