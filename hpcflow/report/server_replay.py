"""Replay of a job with parameter servers by their measured work, without its graph.

A step of a worker: each server sends its values; the worker computes; it sends a gradient to each
server, which adds it (synchronous rules) or updates its variables. The update of a synchronous rule
comes before the values of the next step.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.placement.durations import Seconds
from hpcflow.placement.job_replay import JobSettings, ReplicaClass, replay_job
from hpcflow.placement.network import Network
from hpcflow.placement.step_template import StepTemplate, TemplateTask
from hpcflow.plan.cost.cost_model import HEADER_BYTES
from hpcflow.ps.sync_rule import SyncRule

WORKER, SERVER, DEVICE = "/job:worker/task:0", "/job:ps/task:{}", "cpu:0"
REPLAY = JobSettings(sigma=0.0, groups=16, steps=12)


class ServerLoad(NamedTuple):
    """What a server does while each worker makes one step.

    `seconds` of own work, for all workers together. `received` and `sent` are the bytes that it
    receives from each worker and sends to each.
    """

    seconds: float
    received: float
    sent: float


class ServerPhases(NamedTuple):
    """Shares of the own work of servers: sending values, taking gradients, synchronous updates."""

    sending: float
    taking: float
    update: float


@dataclasses.dataclass(frozen=True)
class ServerJob:
    """The workers of a job, its network, its rule, and the phases of its servers."""

    workers: Sequence[ReplicaClass]
    network: Network
    rule: SyncRule
    phases: ServerPhases

    @property
    def replicas(self) -> int:
        """The number of workers."""
        return sum(one.count for one in self.workers)

    def step_seconds(
        self, servers: Sequence[ServerLoad], work: float, after_gradients: float, delay: float = 0.0
    ) -> float:
        """Return the median time of a step of a worker.

        `work` are the seconds of the own work of a worker of factor 1. The share `after_gradients`
        of it comes after the gradients are sent. Before its work, a worker waits `delay` seconds.
        """
        template = self._template(_grouped(servers), work, after_gradients, delay)
        return replay_job(template, self.network, self.workers, REPLAY).quantile(0.5)

    def _template(
        self,
        servers: Sequence[tuple[ServerLoad, int]],
        work: float,
        after_gradients: float,
        delay: float,
    ) -> StepTemplate:
        count, joins = self.replicas, self.rule.joins
        ahead = None if joins else self.rule.max_steps_ahead
        tasks: list[TemplateTask] = []

        def add(rank: str, *after: int, seconds: float = 0.0, **more: object) -> int:
            device = DEVICE if seconds else ""
            time = Seconds(seconds, seconds, seconds)
            tasks.append(TemplateTask(rank, after, time, **{"device": device, **more}))  # type: ignore[arg-type]
            return len(tasks) - 1

        values, taken, told = [], [], []
        for i, (load, _) in enumerate(servers):
            name = SERVER.format(i)
            begun = add(WORKER, to=name, nbytes=float(HEADER_BYTES))
            gate = "update" if joins else "clock" if ahead is not None else ""
            begun = add(name, begun, gate=gate)
            read = add(name, begun, seconds=load.seconds * self.phases.sending / count)
            values.append(add(name, read, to=WORKER, nbytes=load.sent))
        waited = add(WORKER, *values, seconds=delay, device="")
        computed = add(WORKER, waited, seconds=work * (1 - after_gradients))
        rest = add(WORKER, computed, seconds=work * after_gradients)
        for i, (load, _) in enumerate(servers):
            name = SERVER.format(i)
            sent = add(WORKER, computed, to=name, nbytes=load.received)
            taken.append(add(name, sent, seconds=load.seconds * self.phases.taking / count))
            told.append(add(name, taken[-1], to=WORKER))
        update = []
        for i, (load, _) in enumerate(servers if joins else ()):
            seconds = load.seconds * self.phases.update
            update.append(TemplateTask(SERVER.format(i), (), Seconds(*[seconds] * 3), DEVICE))
        return StepTemplate(
            tuple(tasks),
            (waited, computed, rest, *told),
            count,
            {SERVER.format(i): like for i, (_, like) in enumerate(servers)},
            tuple(update),
            tuple(taken) if joins else (),
            self.rule.needed(count) or count,
            ahead,
            tuple(taken) if ahead is not None else (),
        )


def _grouped(loads: Sequence[ServerLoad]) -> list[tuple[ServerLoad, int]]:
    """The servers that are replayed, each with the number of servers that it stands for.

    Server 0 stands for itself, each other one for a group of servers, of which it is the busiest.
    """
    first, *others = loads
    others.sort()
    count = min(Network.most_servers - 1, len(others))
    cuts = [len(others) * i // count for i in range(count + 1)] if count else []
    return [(first, 1), *((others[b - 1], b - a) for a, b in itertools.pairwise(cuts))]
