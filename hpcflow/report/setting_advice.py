"""Setting advice: what the default of a setting would have gained, from the files of a run.

Only settings of allreduces in collective mode are judged, because `plan.json` has the gradients and
their buckets; other settings need another plan, which needs the script (`hpcflow predict
--compare`). The model is that of `hpcflow predict` for equal ranks: a rank computes in the order of
the plan, for as long as was measured; allreduces begin when their gradients are there, one after
the other; updates follow the last one. The network is the topology of the run, else the fast one
that `hpcflow predict` assumes, with which a setting costs less than on a slower one.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcflow.errors import HpcflowError
from hpcflow.monitoring.failure_json import NAME as FAILURE
from hpcflow.placement.network import Network
from hpcflow.plan.communication.gradient_bucketing import BUCKET_BYTES
from hpcflow.plan.listing.picture_groups import Picture
from hpcflow.report import plan_file, run_outcome
from hpcflow.report.measured_steps import MeasuredSteps, measured_steps
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.settings import Settings
from hpcflow.train.run_records import MANIFEST

LEAST_GAIN = 0.1  # of a step
FEW_ROWS = 5  # of a worker in paces.csv: a shorter run has only begun
MOST_PLAN_BYTES = 4 << 20  # of plan.json, which is read in a fraction of a second
JUDGED = ("bucket_bytes", "overlap")
SUM, OTHER_COLLECTIVES = "AllReduce", {"AllGather", "Broadcast"}


class Advice(NamedTuple):
    """A setting that was set by hand, and the seconds of a step with it and with its default."""

    setting: str
    given: str
    default: str
    measured: float
    predicted: float

    def text(self, folder: str) -> str:
        """The advice on one line."""
        return (
            f"{self.setting}={self.given} was set by hand: the model predicts "
            f"{1e3 * self.predicted:.3g} ms instead of {1e3 * self.measured:.3g} ms a step with "
            f"the default {self.default} (hpcflow predict --compare {folder})"
        )


def advice_of(folder: Path, is_over: bool | None = None) -> Advice | None:
    """The advice with the largest gain; None without a setting that costs `LEAST_GAIN` for sure.

    None also of runs that go on, failed or were short, and without a plan that can be judged.
    `is_over` as in `run_outcome`. Errors: HpcflowError if a file of the run is not readable.
    """
    manifest = FileFacts(folder / MANIFEST, [])
    settings = {k: str(v) for k, v in manifest.get("settings", {}, {}).items()}
    usual = {name: str(getattr(Settings(), name)) for name in JUDGED}
    own = {name: settings.get(name, usual[name]) for name in JUDGED}
    by_hand = [name for name in JUDGED if own[name] != usual[name]]
    if not by_hand or not own["bucket_bytes"].isdecimal():
        return None
    if not _is_judged(folder, manifest, is_over):
        return None
    sums, steps = _sums_of(folder, manifest), measured_steps(folder)
    if sums is None or min(map(len, steps.work.values())) < FEW_ROWS:
        return None
    found = []
    for name in by_hand:
        own_size, default = int(own["bucket_bytes"]), "1"
        if name == "bucket_bytes":
            own_size, default = 0, sums.size_text
        overlaps = name == "overlap" or own["overlap"] == usual["overlap"]
        gain = _gain(sums, steps, (own_size or sums.size) if overlaps else math.inf)
        given = own[name] if name == "bucket_bytes" else "0"
        found.append(Advice(name, given, default, steps.median, steps.median - gain))
    best = min(found, key=lambda one: one.predicted)
    return best if best.predicted <= (1 - LEAST_GAIN) * best.measured else None


def _is_judged(folder: Path, manifest: FileFacts, is_over: bool | None) -> bool:
    """Whether a run has ended well, in collective mode with one rank for each replica."""
    failure = FileFacts(folder / FAILURE, [])
    outcome, _ = run_outcome.outcome_of(folder, manifest, failure, FileFacts.none(), is_over)
    spans = str(manifest.get("settings", {}, {}).get("tasks_per_replica", "1"))
    has_ended = outcome in (run_outcome.FINISHED, run_outcome.ENDED)
    return has_ended and manifest.get("mode", str, "") == "collective" and spans == "1"


# -- the plan


class Gradient(NamedTuple):
    """A gradient: the share of the work of a step after which it is there, and its bytes."""

    ready: float
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Sums:
    """The allreduces of a step: the gradients of each, and the share of the work before updates.

    `size` is that of the buckets by default, `size_text` says why.
    """

    buckets: list[list[Gradient]]
    before: float
    network: Network
    replicas: int
    size: int
    size_text: str

    def seconds(self, work: float, buckets: Iterable[Sequence[Gradient]]) -> float:
        """The time of a step with `work` seconds of own work of a rank."""
        end = 0.0
        for bucket in buckets:
            nbytes = sum(gradient.nbytes for gradient in bucket)
            begin = max(end, work * max(gradient.ready for gradient in bucket))
            local = self.network.ranks_per_node
            end = begin + self.network.allreduce_seconds(nbytes, self.replicas, local)
        return max(end, work * self.before) + work * (1 - self.before)

    def divided(self, size: float) -> list[list[Gradient]]:
        """The gradients in buckets that are closed when they have `size` bytes."""
        buckets: list[list[Gradient]] = [[]]
        for gradient in sorted(one for bucket in self.buckets for one in bucket):
            if sum(one.nbytes for one in buckets[-1]) >= size:
                buckets.append([])
            buckets[-1].append(gradient)
        return buckets


def _gain(sums: Sums, steps: MeasuredSteps, size: float) -> float:
    """Seconds of a step that buckets of `size` bytes save: the smallest over the measured work.

    If the model waits longer for allreduces than the ranks did, its times of them are scaled down.
    """
    works = [work for rows in steps.work.values() for work in rows]
    wait = statistics.median(s - w for s, w in zip(steps.steps, works, strict=True))
    cut, works = len(works) // 20, sorted(works)
    other, gains = sums.divided(size), []
    for work in (works[cut], statistics.median(works), works[-1 - cut]):
        run = sums.seconds(work, sums.buckets)
        share = min(1.0, max(0.0, wait) / (run - work)) if run > work else 1.0
        gains.append(share * (run - sums.seconds(work, other)))
    return min(gains)


def _sums_of(folder: Path, manifest: FileFacts) -> Sums | None:
    """The allreduces by the run's plan.json; None if they cannot be judged by it."""
    path = folder / plan_file.NAME
    if not path.is_file() or path.stat().st_size > MOST_PLAN_BYTES:
        return None
    plan = plan_file.read_plan(path)
    if plan is None or plan.workers < 2:
        return None
    operations = plan.picture.operations
    is_cpu = all("/gpu:" not in op.device and op.count == 1 for op in operations)
    if not is_cpu or any(op.type in OTHER_COLLECTIVES for op in operations):
        return None
    buckets, before = _buckets(plan.picture)
    if not buckets:
        return None
    total = sum(one.nbytes for bucket in buckets for one in bucket)
    return Sums(buckets, before, *_network(manifest, plan.workers, total))


def _buckets(picture: Picture) -> tuple[list[list[Gradient]], float]:
    """The gradients of each allreduce, and the share of the work that waits for none.

    [] if an allreduce waits for another one, or has gradients of unknown size.
    """
    sources: dict[int, list[tuple[int, int]]] = {}
    for value in picture.values:
        for user in value.users:
            sources.setdefault(user, []).append((value.source, value.nbytes))
    behind, ready, work = set[int](), list[float](), 0.0
    found: list[list[tuple[int, int]]] = []
    for number, op in enumerate(picture.operations):
        own = sources.get(number, [])
        is_behind = any(source in behind for source, _ in own)
        if op.type == SUM:
            if is_behind or not own or not all(nbytes for _, nbytes in own):
                return [], 0.0
            found.append(own)
        elif not is_behind:
            work += op.seconds
        if is_behind or op.type == SUM:
            behind.add(number)
        ready.append(work)
    whole = sum(op.seconds for op in picture.operations if op.type != SUM)
    if not whole:
        return [], 0.0
    buckets = [[Gradient(ready[source] / whole, nbytes) for source, nbytes in own] for own in found]
    return sorted(buckets, key=max), work / whole


def _network(manifest: FileFacts, workers: int, total: int) -> tuple[Network, int, int, str]:
    """The network of a run, its workers, and the bytes of a bucket by default, also as a text.

    Errors: HpcflowError if the topology cannot be read, or is one of another job.
    """
    name = str(manifest.get("settings", {}, {}).get("topology", ""))
    if not name:
        nodes = manifest.get("nodes", {}, {})
        most = max((len(on) for on in nodes.values() if isinstance(on, list)), default=1)
        network = Network(ranks_per_node=max(1, most))
        return network, workers, BUCKET_BYTES, str(BUCKET_BYTES)
    from hpcflow.placement.bucket_size import best_bucket_bytes
    from hpcflow.placement.topology import read_topology

    topology = read_topology(Path(manifest.get("folder", str, "")) / name)
    if topology.size != workers:
        raise HpcflowError(f"{name} describes {topology.size} ranks, the run has {workers}")
    network = Network.between(topology, range(workers))
    size = best_bucket_bytes(network, workers, network.ranks_per_node, total)
    return network, workers, size, f"{size} by the topology"
