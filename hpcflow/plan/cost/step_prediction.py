"""Step prediction: the time of a plan's step on a network, by replays of the plan.

The median and the 90th percentile come from replays in which each task takes the median of its
time. The interval is that of the median. It is a factor either way if the error of predictions is
known from a run. Else its ends come from two replays: all tasks take the low ends of their times,
or all take the high ends. Errors of the network are not in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.graph.device_names import parse_device
from hpcflow.placement.job_replay import JobReplay, JobSettings, JobTimes, ReplicaClass
from hpcflow.placement.network import Network
from hpcflow.placement.rank_mapping import RankMapping
from hpcflow.placement.step_copies import SharedStorage
from hpcflow.placement.step_template import StepTemplate
from hpcflow.plan.cost.memory_estimate import MemoryEstimate
from hpcflow.plan.cost.replay_of_plan import (
    NodeSeconds,
    input_bytes_of,
    model_seconds,
    one_rank_seconds,
    samples_of,
    template_of,
)
from hpcflow.plan.ir.program import Plan
from hpcflow.plan.serialization.graph_fingerprint import plan_digest

FORMAT = "hpcflow-prediction-1"


@dataclasses.dataclass(frozen=True)
class Storage:
    """A file system whose `bandwidth`, in bytes per second, all ranks share.

    A checkpoint is saved in each `save_every` steps; 0: never.
    """

    bandwidth: float
    save_every: int = 0


@dataclasses.dataclass(frozen=True)
class StepPrediction:
    """A prediction; times in seconds.

    `low` and `high` are the interval of the median. `samples` are those of one replica's step, 0 if
    unknown. `memory` has bytes by task. `busy` is the share of the time in which each resource is
    busy. `efficiency` is the rate of a rank by that of one rank alone that has the batch of a
    replica.
    """

    plan: Plan
    network: Network | RankMapping
    storage: Storage | None
    settings: JobSettings
    repeats: int
    median: float
    p90: float
    low: float
    high: float
    steps_per_second: float
    samples: int
    one_rank: float
    memory: Mapping[str, int]
    busy: Mapping[str, float]

    @property
    def ranks(self) -> int:
        """The number of ranks, servers included."""
        return self.plan.cluster.workers + self.plan.cluster.servers

    @property
    def samples_per_second(self) -> float:
        """Samples of all replicas in a second; 0 if unknown."""
        return self.samples * self.steps_per_second

    @property
    def efficiency(self) -> float:
        """The rate of a rank, relative to one rank that works alone."""
        return self.steps_per_second * self.one_rank / self.ranks

    @property
    def limit(self) -> str:
        """The resource that is busy for the largest share of the time."""
        return max(self.busy, key=self.busy.__getitem__, default="")

    def as_data(self) -> dict[str, Any]:
        """Return the prediction as JSON data."""
        cluster = self.plan.cluster
        times = {name: getattr(self, name) for name in ("median", "p90", "low", "high")}
        return {
            "format": FORMAT,
            "plan": plan_digest(self.plan),
            "mode": cluster.mode,
            "ranks": self.ranks,
            "servers": cluster.servers,
            "replicas": cluster.replicas,
            "sync": str(cluster.sync) if cluster.mode == "ps" else "",
            "network": self.network.as_data(),
            "storage": dataclasses.asdict(self.storage) if self.storage is not None else None,
            "replay": {**dataclasses.asdict(self.settings), "repeats": self.repeats},
            "step_seconds": times,
            "samples_per_step": self.samples or None,
            "samples_per_second": self.samples_per_second or None,
            "steps_per_second": self.steps_per_second,
            "one_rank_step_seconds": self.one_rank,
            "efficiency": self.efficiency,
            "memory": dict(self.memory),
            "busy": dict(self.busy),
            "limit": self.limit,
        }


def predict_step(
    plan: Plan,
    network: Network | RankMapping,
    memory: Mapping[str, MemoryEstimate],
    settings: JobSettings,
    classes: Sequence[ReplicaClass] = (),
    seconds: NodeSeconds = model_seconds,
    repeats: int = 1,
    storage: Storage | None = None,
    error: float | None = None,
) -> StepPrediction:
    """Predict the step of a plan; `repeats` replays with different draws give the quantiles.

    `classes` are the replicas by their speeds, by default equal ones; on a topology its classes are
    used instead. `error` is the known relative error of the median, a factor of 1 + `error` either
    way; without it the interval needs two more replays.
    Errors: PlacementError if the classes do not have as many replicas as the plan.
    """
    template = template_of(plan, network, seconds)
    classes = _classes_on(network, template, classes)
    shared = SharedStorage(storage.bandwidth, input_bytes_of(plan)) if storage else None
    job = JobReplay(template, network, classes, settings, shared)

    def replayed(bound: str, seed: int) -> JobTimes:
        times = job.run(bound, seed)
        if storage is None or not storage.save_every:
            return times
        held, written = _save_seconds(plan, network, memory, storage.bandwidth)
        return times.with_saves(storage.save_every, held, written)

    runs = [replayed("median", settings.seed + i) for i in range(repeats)]
    pooled = dataclasses.replace(runs[0], steps=np.hstack([run.steps for run in runs]))
    median = pooled.quantile(0.5)
    ends = _interval(median, error, lambda bound: replayed(bound, settings.seed).quantile(0.5))
    return StepPrediction(
        plan,
        network,
        storage,
        settings,
        repeats,
        median,
        pooled.quantile(0.9),
        *ends,
        float(np.mean([run.steps_per_second for run in runs])),
        samples_of(plan),
        one_rank_seconds(plan, seconds).median,
        {task: estimate.total for task, estimate in memory.items()},
        _shown(pooled.busy),
    )


def _classes_on(
    network: Network | RankMapping, template: StepTemplate, classes: Sequence[ReplicaClass]
) -> Sequence[ReplicaClass]:
    """The classes of replicas: on a topology its own, else `classes`, by default one class."""
    if isinstance(network, RankMapping):
        return [ReplicaClass(len(one.replicas)) for one in network.classes.replicas]
    return classes or [ReplicaClass(template.replicas)]


def _interval(
    median: float, error: float | None, replayed: Callable[[str], float]
) -> tuple[float, float]:
    """The interval of a median: by its relative error, else by replays with each bound."""
    if error is not None:
        return median / (1 + error), median * (1 + error)
    return min(replayed("low"), median), max(replayed("high"), median)


def _save_seconds(
    plan: Plan,
    network: Network | RankMapping,
    memory: Mapping[str, MemoryEstimate],
    bandwidth: float,
) -> tuple[float, float]:
    """The seconds by which a save makes a step longer, and those in which it is written.

    The step after a save copies the variables that a rank writes, because its updates go to second
    buffers. Each variable is written once; replicas share the variables of workers.
    """
    replicas = plan.cluster.replicas
    local = max(1, network.ranks_per_node // plan.cluster.tasks_per_replica)
    copied = 0.0
    for task, estimate in memory.items():
        is_server = parse_device(task).job == "ps"
        share = 1.0 if is_server else min(local, replicas) / replicas
        copied = max(copied, estimate.variables * share)
    written = sum(estimate.variables for estimate in memory.values())
    return copied / network.memory_bandwidth, written / bandwidth


def _shown(busy: Mapping[str, float]) -> dict[str, float]:
    """The resources that are busy at all, the busiest first."""
    return dict(sorted(((k, v) for k, v in busy.items() if v > 0), key=lambda pair: -pair[1]))
