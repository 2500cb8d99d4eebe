"""Task assignment: which rank is which task; servers spread over nodes, workers in rank order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hpcflow.errors import LaunchError
from hpcflow.plan.ir.program import Cluster


@dataclasses.dataclass(frozen=True)
class TaskAssignment:
    """The roles of all ranks: `servers[s]` and `workers[w]` are ranks."""

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    tasks_per_replica: int

    @property
    def replicas(self) -> int:
        """The number of drivers."""
        return len(self.workers) // self.tasks_per_replica

    @property
    def drivers(self) -> tuple[int, ...]:
        """The ranks that run the script."""
        return self.workers[:: self.tasks_per_replica]

    def ranks_of(self, replica: int) -> dict[str, int]:
        """Return the rank of each task in the plans of one replica."""
        first = replica * self.tasks_per_replica
        workers = self.workers[first : first + self.tasks_per_replica]
        ranks = {f"/job:worker/task:{k}": rank for k, rank in enumerate(workers)}
        ranks.update({f"/job:ps/task:{s}": rank for s, rank in enumerate(self.servers)})
        return ranks

    def task_of(self, rank: int) -> tuple[str, int]:
        """Return (task, replica) of a rank; worker tasks are numbered within their replica."""
        if rank in self.servers:
            return f"/job:ps/task:{self.servers.index(rank)}", 0
        replica, k = divmod(self.workers.index(rank), self.tasks_per_replica)
        return f"/job:worker/task:{k}", replica

    def peers_of(self, k: int) -> tuple[int, ...]:
        """Return the ranks that run task k of each replica; they allreduce gradients."""
        return self.workers[k :: self.tasks_per_replica]

    def cluster(self, devices: Sequence[str] = ("cpu:0",)) -> Cluster:
        """Return these roles as a Cluster."""
        return Cluster(len(self.workers), len(self.servers), self.tasks_per_replica, tuple(devices))


def assign_tasks(
    hosts: Sequence[str], ps: int, tasks_per_replica: int = 1, chosen: Sequence[int] = ()
) -> TaskAssignment:
    """Return roles for ranks on `hosts`, with the `chosen` ranks or `ps` ranks as servers.

    The `ps` ranks are the last ranks of as many different nodes as possible.
    Errors: LaunchError if no worker is left, replicas would be uneven or `ps` differs from
    `chosen`.
    """
    size = len(hosts)
    if chosen and ps not in (0, len(chosen)):
        raise LaunchError(
            f"--ps {ps}, but {len(chosen)} of {size} ranks were started with --serve",
            hint="leave --ps out: --serve alone says which ranks are servers",
        )
    ps = len(chosen) or ps
    if ps >= size:
        raise LaunchError(
            f"{ps} parameter servers leave no worker among {size} ranks",
            hint=f"start more ranks: hpcflow run -n {ps + 1} --ps {ps} SCRIPT",
        )
    if (size - ps) % tasks_per_replica:
        raise LaunchError(
            f"{size - ps} workers cannot be divided into replicas of {tasks_per_replica} tasks",
            hint=f"use {ps} + a multiple of {tasks_per_replica} ranks",
        )
    serving = set(chosen or _spread_servers(hosts, ps))
    workers = tuple(rank for rank in range(size) if rank not in serving)
    return TaskAssignment(tuple(sorted(serving)), workers, tasks_per_replica)


def _spread_servers(hosts: Sequence[str], ps: int) -> list[int]:
    """Return `ps` ranks, the last of their nodes, spread over the nodes; never rank 0."""
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host, []).append(rank)
    servers: list[int] = []
    while len(servers) < ps:
        available = [ranks for ranks in nodes.values() if ranks and ranks != [0]]
        step = max(1, len(available) // (ps - len(servers)))
        for ranks in available[::step][: ps - len(servers)]:
            servers.append(ranks.pop())
    return servers
