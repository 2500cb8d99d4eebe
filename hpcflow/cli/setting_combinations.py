"""Setting combinations: values of several settings of a job, and which of them a search may try.

All combinations of a space have the results of the given job, except for rounding: as many
replicas, and one rule by which their gradients become updates. Only `may_change_workers` allows
other numbers of replicas.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from hpcflow.cli.setting_comparison import BUCKETS, NOT_IN_PLANS, SHARDS, TASKS
from hpcflow.cli.thread_numbers import ThreadNumbers
from hpcflow.plan.ir.program import Cluster, Plan
from hpcflow.settings import AUTOMATIC, Settings

ALL = "all"  # the rule of servers with the results of replicas that sum their gradients
FEW = 8  # so many numbers of servers are all tried at first; of more, powers of two
SCRIPTS_CHOICES = (
    "the script chooses them: hf.train.CompressedOptimizer, hf.train.AccumulatingOptimizer, "
    "hf.recompute; predict the script with them"
)


@dataclasses.dataclass(frozen=True)
class Combination:
    """Values of settings; `replicas` is the number of copies of the model.

    `threads` is that of each rank; 0: as the ranks of a measured run had them.
    """

    replicas: int
    tasks_per_replica: int
    ps: int
    dense: str
    shard_bytes: int
    bucket_bytes: int
    overlap: bool
    threads: int

    @property
    def workers(self) -> int:
        """The number of worker ranks."""
        return self.replicas * self.tasks_per_replica

    @property
    def ranks(self) -> int:
        """The number of ranks, servers included."""
        return self.workers + self.ps

    def changed(self, given: Combination) -> list[str]:
        """The names of the values that differ from those of `given`."""
        names = [field.name for field in dataclasses.fields(self)]
        return [name for name in names if getattr(self, name) != getattr(given, name)]


def rule_of(cluster: Cluster) -> str:
    """How gradients become updates: clusters of equal rules and replicas have equal results."""
    if cluster.replicas == 1:
        return "one replica"
    return ALL if cluster.mode == "collective" else str(cluster.sync)


class CombinationSpace:
    """The combinations that a search of one job may try, and why others are left out."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        threads: ThreadNumbers,
        most_ranks: int,
        may_change_workers: bool = False,
        is_fixed: bool = False,
    ) -> None:
        """`settings` are those of the job of `plan`. With `is_fixed` it has exactly these ranks.

        A space with `may_change_workers` has as many workers as `most_ranks` leaves.
        """
        cluster = plan.cluster
        self.settings, self.most_ranks, self.rule = settings, most_ranks, rule_of(cluster)
        self.may_change_workers, self.is_fixed = may_change_workers, is_fixed
        self.given = Combination(
            cluster.replicas,
            cluster.tasks_per_replica,
            cluster.servers,
            settings.dense,
            settings.shard_bytes,
            settings.bucket_bytes,
            settings.overlap,
            threads.given,
        )
        self._threads = threads
        self.left_out = {
            **NOT_IN_PLANS,
            **threads.left_out,
            "compression of gradients, accumulation, recomputation": SCRIPTS_CHOICES,
        }
        self._tasks = self._tasks_to_try()
        self._leave_out()

    def _tasks_to_try(self) -> list[int]:
        """The numbers of tasks of a replica."""
        own = self.given.tasks_per_replica
        is_by_hand = self.settings.placement not in ("", AUTOMATIC) or (
            own > 1 and not self.settings.automatic
        )
        if is_by_hand:
            self.left_out["tasks_per_replica"] = "the job is not placed by placement=auto"
        return [own] if is_by_hand else sorted({own, *TASKS})

    def _leave_out(self) -> None:
        """Tell what is not tried, with the reason."""
        given, left_out = self.given, self.left_out
        if not self.may_change_workers:
            left_out["workers"] = "their number changes results: --may-change workers"
            if not given.ps and self.most_ranks == given.ranks:
                left_out["ps"] = "no rank is left for servers: --max-ranks, --may-change workers"
        if given.ps and given.replicas > 1:
            left_out["sync"] = "the rule changes results"
            if self.rule != ALL:
                why = f"sync={self.rule} has other results than replicas that sum gradients"
                left_out["ps=0"], left_out["dense"] = why, why
        if self.is_fixed:
            left_out["ranks"] = "the file of the topology describes each rank"

    # -- what is allowed

    def normalized(self, one: Combination) -> Combination:
        """The combination with given values where they have no effect on the plan."""
        given = self.given
        if one.ps == 0 or one.replicas == 1 or self.rule not in (ALL, "one replica"):
            one = dataclasses.replace(one, dense=given.dense)
        if one.ps < 2:
            one = dataclasses.replace(one, shard_bytes=given.shard_bytes)
        if one.replicas == 1 or (one.ps and one.dense == "servers"):
            return dataclasses.replace(one, bucket_bytes=given.bucket_bytes, overlap=given.overlap)
        if not one.overlap:
            return dataclasses.replace(one, bucket_bytes=given.bucket_bytes)
        return one

    def refusal(self, one: Combination, most_ranks: float | None = None) -> str:
        """Why a combination is not allowed on so many ranks; "" if it is."""
        if one.ranks > (self.most_ranks if most_ranks is None else most_ranks):
            return f"it needs {one.ranks} ranks of {self.most_ranks}"
        if self.is_fixed and one.ranks != self.most_ranks:
            return f"it needs {one.ranks} ranks, and the topology has {self.most_ranks}"
        if one.ps == 0 and self.given.ps and self.rule not in (ALL, "one replica"):
            return self.left_out["ps=0"]
        is_spread = one.tasks_per_replica > 1 or (one.ps > 0 and one.dense == "replicas")
        if self.settings.survive and is_spread:
            return "no rank of such a job can be spared, which survive=1 needs"
        return ""

    def refusal_of_plan(self, plan: Plan, one: Combination) -> str:
        """Why a combination with this plan has other results than the given job; "" if none."""
        rule = rule_of(plan.cluster)
        if rule != self.rule and one.replicas == self.given.replicas:
            return f"the script chooses sync={rule}, which has other results than {self.rule}"
        if plan.cluster.replicas != one.replicas or plan.cluster.servers != one.ps:
            return "the script has chosen other numbers of ranks"
        return ""

    # -- what to try

    def layouts(self) -> Iterator[Combination]:
        """Numbers of servers, tasks and replicas, with both places of dense variables."""
        for tasks in self._tasks:
            for ps in self._server_counts(tasks):
                for replicas in self._replica_counts(tasks, ps):
                    for dense in ("servers", "replicas"):
                        yield dataclasses.replace(
                            self.given,
                            replicas=replicas,
                            tasks_per_replica=tasks,
                            ps=ps,
                            dense=dense,
                        )

    def neighbors(self, one: Combination) -> Iterator[Combination]:
        """One server more and one less."""
        for ps in (one.ps - 1, one.ps + 1):
            if ps >= 0:
                for replicas in self._replica_counts(one.tasks_per_replica, ps):
                    yield dataclasses.replace(one, ps=ps, replicas=replicas)

    def larger(self) -> Iterator[Combination]:
        """More servers or more tasks of a replica than `most_ranks` allows."""
        given = self.given
        most = self.most_ranks - given.workers
        servers = {most + 1, 2 * most, 4 * most} if given.ps or self.rule == ALL else set()
        pairs = [(given.tasks_per_replica, ps) for ps in servers]
        pairs += [(tasks, given.ps) for tasks in self._tasks]
        for tasks, ps in pairs:
            for dense in ("servers", "replicas"):
                one = dataclasses.replace(given, tasks_per_replica=tasks, ps=ps, dense=dense)
                if one.ranks > self.most_ranks and not self.refusal(one, math.inf):
                    yield one

    def alternatives(self, one: Combination) -> Iterator[list[Combination]]:
        """For each setting that the script does not depend on, the combinations with its values."""
        values: dict[str, list[object]] = {
            "shard_bytes": [*SHARDS, self.given.shard_bytes],
            "overlap": [True, False],
            "bucket_bytes": [*BUCKETS, self.given.bucket_bytes],
            "dense": ["servers", "replicas"],
            "threads": [self.given.threads, *self._threads.others],
        }
        for name, choices in values.items():
            yield [dataclasses.replace(one, **{name: value}) for value in choices]  # type: ignore[arg-type]

    def _server_counts(self, tasks: int) -> list[int]:
        least = 1 if self.may_change_workers else self.given.replicas
        most = self.most_ranks - least * tasks
        if most <= FEW:
            return list(range(most + 1))
        own = self.given.ps
        powers = {1 << k for k in range(most.bit_length())}
        return sorted(n for n in {0, own - 1, own, own + 1, most, *powers} if 0 <= n <= most)

    def _replica_counts(self, tasks: int, ps: int) -> list[int]:
        """The given number, and where it may change that of all ranks."""
        counts = {self.given.replicas}
        if self.may_change_workers:
            counts.add((self.most_ranks - ps) // tasks)
        return sorted(n for n in counts if n >= 1)

    # -- as settings

    def fields(self, one: Combination) -> dict[str, str]:
        """The fields of `Settings` as texts."""
        tasks, given = one.tasks_per_replica, self.settings
        sync = given.sync if self.given.ps else (ALL if one.replicas > 1 else "")
        placement = given.placement if len(self._tasks) == 1 else (AUTOMATIC if tasks > 1 else "")
        fields = {
            "ps": str(one.ps),
            "sync": sync if one.ps else "",
            "tasks_per_replica": str(tasks),
            "placement": placement,
            "dense": one.dense,
            "shard_bytes": str(one.shard_bytes),
            "bucket_bytes": str(one.bucket_bytes),
            "overlap": str(int(one.overlap)),
        }
        # The ranks of a run would choose their threads by the cores that they have.
        return fields | ({"threads": str(one.threads)} if self._threads.others else {})
