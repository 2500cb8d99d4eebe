"""Task offers: the GPUs, memory and nodes of tasks, as the topology or else the settings tell."""

from __future__ import annotations

import math

from hpcflow.graph.device_names import Requirement
from hpcflow.graph.requirement_text import size_text
from hpcflow.plan.ir.program import Cluster
from hpcflow.settings import Settings, as_bytes


class TaskOffers:
    """What the tasks of a replica and the servers offer; task k is worker k, then the servers."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self.workers, self.cluster = cluster.tasks_per_replica, cluster
        self.count = self.workers + cluster.servers
        self.limit = as_bytes(settings.memory_limit) or math.inf
        topology = cluster.topology
        memory = topology.memory if topology is not None else (math.inf,) * self.count
        self.memory = [min(size, self.limit) for size in memory]
        self.nodes = topology.nodes if topology is not None else (0,) * self.count

    def name(self, task: int) -> str:
        """Return the name of a task."""
        if task < self.workers:
            return f"/job:worker/task:{task}"
        return f"/job:ps/task:{task - self.workers}"

    def number(self, job: str, task: int) -> int | None:
        """Return the number of a task, None if there is none of this name."""
        first, count = (0, self.workers) if job == "worker" else (self.workers, self.count)
        known = job in ("worker", "ps") and first + task < count
        return first + task if known else None

    def has_gpu(self, task: int) -> bool:
        """Return whether a task has a GPU."""
        if self.cluster.topology is not None:
            return self.cluster.topology.gpus[task] > 0
        is_worker = task < self.workers
        devices = self.cluster.devices if is_worker else self.cluster.server_devices
        return any(device.startswith("gpu") for device in devices)

    def lacks(self, task: int, needs: Requirement) -> str:
        """Return what a task lacks, as the end of a sentence about it; "" if it has all."""
        if needs.gpu and not self.has_gpu(task):
            return "has no GPU"
        if needs.nbytes > self.memory[task]:
            return f"has {size_text(self.memory[task])}"
        for job, other in needs.near:
            mate = self.number(job, other)
            if mate is not None and self.nodes[mate] != self.nodes[task]:
                return f"is on another node than {self.name(mate)}"
        return ""

    def best_first(self, needs: Requirement) -> list[int]:
        """Return all worker tasks in order, those of `near` first."""
        return list(dict.fromkeys([*self.mates(needs), *range(self.workers)]))

    def mates(self, needs: Requirement) -> list[int]:
        """Return the worker tasks that a requirement names."""
        mates = [self.number(*task) for task in needs.near]
        return [task for task in mates if task is not None and task < self.workers]
