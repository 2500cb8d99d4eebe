"""Comparison of settings: the same job predicted with other values that do not change its results.

Each value changes one setting of the job that was predicted. The plan by it is replayed with the
same draws of noise and the same bounds of times, so errors of the times of operations are the same
on both sides of a gain.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from hpcflow.cli.memory_excess import Excess, memory_excess
from hpcflow.cli.thread_numbers import ThreadNumbers
from hpcflow.errors import HpcflowError
from hpcflow.graph.graph import Graph
from hpcflow.plan.cost.step_prediction import StepPrediction
from hpcflow.plan.ir.program import Cluster, Plan
from hpcflow.plan.listing.plan_text import format_table
from hpcflow.platform.quantity_text import format_bytes, format_ratio, format_seconds
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.settings import AUTOMATIC, Settings, as_bytes

MIB = 1 << 20
BUCKETS = (MIB // 4, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
SHARDS = (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
TASKS = (1, 2, 4)
LEAST_GAIN = 0.01  # smaller ones are within the accuracy of a replay
NOT_IN_PLANS = {  # settings that change no plan
    "prefetch": "the plan is the same; the replay does not see that variables arrive earlier",
}
Predict = Callable[[argparse.Namespace], StepPrediction | None]


class Candidate(NamedTuple):
    """A value of a setting: `fields` of `Settings` as texts, and the number of ranks."""

    setting: str
    value: str
    fields: Mapping[str, str]
    ranks: int


@dataclasses.dataclass(frozen=True)
class ComparedValue:
    """A value with its prediction; gains are shares of the step that `given` takes.

    `limit` is `memory_limit` in bytes, 0 for none.
    """

    candidate: Candidate
    prediction: StepPrediction
    given: StepPrediction
    limit: int = 0

    @property
    def excess(self) -> list[Excess]:
        """The tasks that need more memory than their ranks have."""
        return memory_excess(self.prediction.memory, self.prediction.network, self.limit)

    @property
    def gains(self) -> tuple[float, float, float]:
        """The gain of the median, the least and the largest with both ends of the interval."""
        pairs = [(getattr(self.prediction, bound), getattr(self.given, bound))
                 for bound in ("median", "low", "high")]  # fmt: skip
        found = [1 - new / old if old else 0.0 for new, old in pairs]
        return found[0], min(found), max(found)

    @property
    def is_equal(self) -> bool:
        """Whether the gain is smaller than its interval, or than `LEAST_GAIN`."""
        gain, low, high = self.gains
        return low <= 0 <= high or abs(gain) < LEAST_GAIN

    def as_data(self) -> dict[str, Any]:
        """Return the value as JSON data."""
        gain, low, high = self.gains
        times = {name: getattr(self.prediction, name) for name in ("median", "p90", "low", "high")}
        return {
            "setting": self.candidate.setting,
            "value": self.candidate.value,
            "ranks": self.prediction.ranks,
            "step_seconds": times,
            "rank_seconds": self.prediction.median * self.prediction.ranks,
            "gain": {"median": gain, "low": low, "high": high},
            "equal": self.is_equal,
            "memory": dict(self.prediction.memory),
            "exceeds_memory": [one._asdict() for one in self.excess],
        }


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The values, best first, and why others were not predicted, by setting or value."""

    given: StepPrediction
    values: list[ComparedValue]
    left_out: dict[str, str]

    def as_data(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return {"values": [one.as_data() for one in self.values], "left_out": self.left_out}

    def as_text(self) -> str:
        """Return the comparison as a table, with what was left out."""
        head = ("setting", "value", "step", "gain", "ranks", "rank-seconds", *_memory_head())
        rows = [("as given", "", *_cells(self.given, ""))]
        rows += [
            (one.candidate.setting, one.candidate.value, *_cells(one.prediction, _gain(one)))
            for one in self.values
        ]
        lines = [f"not compared: {name}: {why}" for name, why in self.left_out.items()]
        title = "settings that do not change results, each alone, best first"
        return "\n".join([title, format_table(head, rows), *lines])


def compare(
    args: argparse.Namespace,
    settings: Settings,
    given: StepPrediction,
    threads: ThreadNumbers,
    predict: Predict,
) -> Comparison:
    """Predict the job of `args`, whose prediction is `given`, with other values of its settings.

    `settings` are those of the job. `predict(args)` is None if the script failed.
    """
    values, left_out = [], {**NOT_IN_PLANS, **threads.left_out}
    candidates = list(_candidates(given.plan, settings, left_out))
    candidates += [
        Candidate("threads", str(number), {"threads": str(number)}, given.ranks)
        for number in threads.others
    ]
    for one in candidates:
        words = [f"{name}={value}" for name, value in one.fields.items()]
        changed = argparse.Namespace(
            **{**vars(args), "ranks": one.ranks, "set": [*args.set, *words]}
        )
        said = io.StringIO()  # of the script, which has said it once
        try:
            with contextlib.redirect_stderr(said), Graph().as_default():
                prediction = predict(changed)
        except HpcflowError as error:
            left_out[f"{one.setting}={one.value}"] = escape_line(error.message)
            continue
        if prediction is None:
            left_out[f"{one.setting}={one.value}"] = "the script fails with it"
        else:
            limit = as_bytes(settings.memory_limit)
            values.append(ComparedValue(one, prediction, given, limit))
    values.sort(key=_order)
    return Comparison(given, values, left_out)


def _order(one: ComparedValue) -> tuple[int, float]:
    """Faster values first, then equal ones, slower ones, and those that do not fit the memory."""
    slower = 1 if one.is_equal else 0
    group = 3 if one.excess else slower if one.gains[0] > 0 else 2
    return group, one.prediction.median


def _candidates(plan: Plan, settings: Settings, left_out: dict[str, str]) -> Iterator[Candidate]:
    """The values that are predicted; reasons for settings without any go to `left_out`."""
    yield from _of_sums(plan, settings, left_out)
    yield from _of_servers(plan.cluster, settings, left_out)
    yield from _of_tasks(plan.cluster, settings, left_out)


def _of_sums(plan: Plan, settings: Settings, left_out: dict[str, str]) -> Iterator[Candidate]:
    """Buckets of gradients, and whether their sums overlap."""
    cluster, ranks = plan.cluster, plan.cluster.workers + plan.cluster.servers
    nodes = [node for part in plan.parts.values() for node in part.nodes.values()]
    if cluster.replicas < 2 or not any(node.row.combines == "sum" for node in nodes):
        left_out["bucket_bytes, overlap"] = "the replicas sum no gradients by allreduce"
        return
    other = str(int(not settings.overlap))
    yield Candidate("overlap", other, {"overlap": other}, ranks)
    if not settings.overlap:
        left_out["bucket_bytes"] = "without overlap one allreduce sums all gradients"
        return
    for size in BUCKETS:
        if size != settings.bucket_bytes:
            yield Candidate("bucket_bytes", str(size), {"bucket_bytes": str(size)}, ranks)


def _of_servers(
    cluster: Cluster, settings: Settings, left_out: dict[str, str]
) -> Iterator[Candidate]:
    """Number of servers, at the same number of workers, and what is where on them."""
    servers, ranks = cluster.servers, cluster.workers + cluster.servers
    if not servers:
        left_out["ps, shard_bytes, dense"] = "the job has no parameter servers"
        return
    if settings.topology:
        left_out["ps"] = "the file of the topology describes each rank"
    else:
        for count in sorted({servers // 2, servers - 1, servers + 1, 2 * servers} - {0, servers}):
            yield Candidate("ps", str(count), {"ps": str(count)}, cluster.workers + count)
    for size in SHARDS:
        if size != settings.shard_bytes:
            yield Candidate("shard_bytes", str(size), {"shard_bytes": str(size)}, ranks)
    if cluster.in_step and cluster.replicas > 1:
        other = "servers" if settings.dense == "replicas" else "replicas"
        yield Candidate("dense", other, {"dense": other}, ranks)
    else:
        left_out["dense"] = "it changes results unless each update has all gradients (sync=all)"


def _of_tasks(
    cluster: Cluster, settings: Settings, left_out: dict[str, str]
) -> Iterator[Candidate]:
    """Number of tasks over which a replica is placed automatically."""
    own = cluster.tasks_per_replica
    if settings.topology:
        left_out["tasks_per_replica"] = "the file of the topology describes each rank"
    elif settings.placement not in ("", AUTOMATIC) or (own > 1 and not settings.automatic):
        left_out["tasks_per_replica"] = "the job is not placed by placement=auto"
    else:
        for count in TASKS:
            placement = AUTOMATIC if count > 1 else ""
            fields = {"tasks_per_replica": str(count), "placement": placement}
            ranks = cluster.replicas * count + cluster.servers
            if count != own:
                yield Candidate("tasks_per_replica", str(count), fields, ranks)


# -- text


def _memory_head() -> tuple[str, str]:
    return "memory of a worker", "of a server"


def _cells(prediction: StepPrediction, gain: str) -> tuple[str, ...]:
    """Step, gain, ranks, the work of all ranks in a step, and memory of each job's largest task."""
    memory = []
    for job in ("/job:worker/", "/job:ps/"):
        sizes = [size for task, size in prediction.memory.items() if task.startswith(job)]
        memory.append(format_bytes(max(sizes)) if sizes else "-")
    cost = prediction.median * prediction.ranks
    return format_seconds(prediction.median), gain, str(prediction.ranks), f"{cost:.3g}", *memory


def _gain(one: ComparedValue) -> str:
    """The gain as shares of the given step; as ratios if a step takes more than twice as long."""
    if one.excess:
        return f"does not fit: {one.excess[0].task} lacks memory"
    if one.is_equal:
        return "equal"
    gain, low, high = one.gains
    if low >= -1:
        return f"{gain:.0%} ({low:.0%} to {high:.0%})"
    return f"{format_ratio(1 - gain)} as long ({1 - high:.3g} to {1 - low:.3g})"
