"""Advice on allreduces: what defaults of `bucket_bytes` and `overlap` would have gained.

`plan.json` has the gradients and their buckets. The model is that of `hpcflow predict` for equal
ranks: a rank computes in the order of the plan, for as long as was measured; allreduces begin when
their gradients are there, and their bytes pass the network one allreduce after the other, while
their latencies overlap; updates follow the last one. The network is the
topology of the run, else the fast one that `hpcflow predict` assumes, with which a setting costs
less than on a slower one.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpcflow.placement.network import Network
from hpcflow.plan.communication.gradient_bucketing import BUCKET_BYTES
from hpcflow.plan.listing.picture_groups import Picture
from hpcflow.report.advised_run import DEFAULTS, Advice, AdvisedRun
from hpcflow.report.measured_steps import MeasuredSteps

SUM, OTHER_COLLECTIVES = "AllReduce", {"AllGather", "Broadcast"}


def allreduce_advice(run: AdvisedRun) -> list[Advice]:
    """What the defaults of `bucket_bytes` and `overlap` would have gained, of those set by hand.

    Errors: HpcflowError if the topology of the run is not readable.
    """
    own = DEFAULTS | run.settings
    if not own["bucket_bytes"].isdecimal():
        return []
    sums, median = _sums_of(run), run.steps.median
    if sums is None:
        return []
    found = []
    for name in run.by_hand:
        if name not in ("bucket_bytes", "overlap"):
            continue
        own_size, default = int(own["bucket_bytes"]), "1"
        if name == "bucket_bytes":
            own_size, default = 0, sums.size_text
        overlaps = name == "overlap" or own["overlap"] == DEFAULTS["overlap"]
        gain = _gain(sums, run.steps, (own_size or sums.size) if overlaps else math.inf)
        given = own[name] if name == "bucket_bytes" else "0"
        found.append(Advice(name, given, default, median, median - gain))
    return found


class Gradient(NamedTuple):
    """A gradient: the share of the work of a step after which it is there, and its bytes."""

    ready: float
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Sums:
    """The allreduces of a step: `buckets` has the gradients of each.

    `before` is the share of the own work that waits for no allreduce. `size` are the bytes of a
    bucket by default, `size_text` is its text for advice.
    """

    buckets: list[list[Gradient]]
    before: float
    network: Network
    replicas: int
    size: int
    size_text: str

    def seconds(self, work: float, buckets: Iterable[Sequence[Gradient]]) -> float:
        """The time of a step with `work` seconds of own work of a rank."""
        end = passed = 0.0
        for bucket in buckets:
            nbytes = sum(gradient.nbytes for gradient in bucket)
            begin = work * max(gradient.ready for gradient in bucket)
            local = self.network.ranks_per_node
            times = self.network.allreduce_times(nbytes, self.replicas, local)
            passed = max(passed, begin) + times.occupied
            end = max(end, passed + times.delay, begin + times.least)
        return max(end, work * self.before) + work * (1 - self.before)

    def buckets_of(self, size: float) -> list[list[Gradient]]:
        """The gradients in buckets that are closed when they have `size` bytes."""
        buckets: list[list[Gradient]] = [[]]
        for gradient in sorted(one for bucket in self.buckets for one in bucket):
            if sum(one.nbytes for one in buckets[-1]) >= size:
                buckets.append([])
            buckets[-1].append(gradient)
        return buckets


def _gain(sums: Sums, steps: MeasuredSteps, size: float) -> float:
    """Seconds of a step that buckets of `size` bytes save: the least by three values of own work.

    If the model waits longer for allreduces than the ranks did, the gain is scaled down to that.
    """
    works = [work for rows in steps.work.values() for work in rows]
    wait = statistics.median(s - w for s, w in zip(steps.steps, works, strict=True))
    cut, works = len(works) // 20, sorted(works)
    other, gains = sums.buckets_of(size), []
    for work in (works[cut], statistics.median(works), works[-1 - cut]):
        run = sums.seconds(work, sums.buckets)
        share = min(1.0, max(0.0, wait) / (run - work)) if run > work else 1.0
        gains.append(share * (run - sums.seconds(work, other)))
    return min(gains)


def _sums_of(run: AdvisedRun) -> Sums | None:
    """The allreduces by the run's plan.json; None if it does not tell enough."""
    operations = run.plan.picture.operations
    is_reduced = any(op.count != 1 for op in operations)
    if run.plan.workers < 2 or is_reduced or any(op.type in OTHER_COLLECTIVES for op in operations):
        return None
    buckets, before = _buckets(run.plan.picture)
    if not buckets:
        return None
    total = sum(one.nbytes for bucket in buckets for one in bucket)
    return Sums(buckets, before, run.network, run.plan.workers, *_default_size(run, total))


def _buckets(picture: Picture) -> tuple[list[list[Gradient]], float]:
    """The gradients of each allreduce, and the share of the work that waits for none.

    [] if an allreduce waits for another one, or has gradients of unknown size.
    """
    sources: dict[int, list[tuple[int, int]]] = {}
    for value in picture.values:
        for user in value.users:
            sources.setdefault(user, []).append((value.source, value.nbytes))
    after_sums, ready, work = set[int](), list[float](), 0.0
    found: list[list[tuple[int, int]]] = []
    for number, op in enumerate(picture.operations):
        own = sources.get(number, [])
        is_after_sum = any(source in after_sums for source, _ in own)
        if op.type == SUM:
            if is_after_sum or not own or not all(nbytes for _, nbytes in own):
                return [], 0.0
            found.append(own)
        elif not is_after_sum:
            work += op.seconds
        if is_after_sum or op.type == SUM:
            after_sums.add(number)
        ready.append(work)
    whole = sum(op.seconds for op in picture.operations if op.type != SUM)
    if not whole:
        return [], 0.0
    buckets = [[Gradient(ready[source] / whole, nbytes) for source, nbytes in own] for own in found]
    return sorted(buckets, key=max), work / whole


def _default_size(run: AdvisedRun, total: int) -> tuple[int, str]:
    """The bytes of a bucket by default, if gradients have `total` bytes, also as a text."""
    if run.topology is None:
        return BUCKET_BYTES, str(BUCKET_BYTES)
    from hpcflow.placement.bucket_size import best_bucket_bytes

    network, workers = run.network, run.plan.workers
    size = best_bucket_bytes(network, workers, network.ranks_per_node, total)
    return size, f"{size} by the topology"
