"""Oracle of `hpcflow.placement.job_replay`: one task object for each copy of a task.

Equal replicas are grouped: a *group* is replayed as one replica, and its messages weigh as many as
it has members. Within a synchronous step the groups are ranges of the sorted noise of all replicas,
and each is as slow as its slowest member, so the largest noise and the order statistics of the
slowest replicas are exact (`draw_order_statistics`). In an asynchronous job the noise of a group is
that of one replica, drawn anew for each step; its members' messages come in one burst, which
delays a step by at most 1 / groups of the time in which a server serves all replicas once.

A replica has one noise from one meeting of all replicas, a collective or an update, to the next.
What it computes behind the collectives of a step has the noise of the next step, so that a group
that is slow before a meeting is not slow behind it, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hpcflow.errors import PlacementError
from hpcflow.placement.durations import Seconds
from hpcflow.placement.network import Network
from hpcflow.placement.noise_statistics import draw_order_statistics, group_sizes, noise_factor
from hpcflow.placement.step_template import StepTemplate, TemplateTask
from tests.placement.replay_by_tasks import Task, replay

WARM_UP = 3  # steps before the steady state, which are not counted
LEAST_STEPS = 5  # that are counted, if as many are wanted
MOST_TASKS = 30_000  # of a replay with more steps than these: it bounds the time of a replay


@dataclasses.dataclass(frozen=True)
class ReplicaClass:
    """`count` replicas that take `factor` times as long as the template says."""

    count: int
    factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class JobTimes:
    """Results of a replay: seconds of each counted step of each group, and how busy things were.

    `weights[i]` is how many replicas the steps in row i of `steps` stand for. `steps_per_second`
    counts the steps of all replicas. `busy` has the share of the time for each resource.
    """

    steps: np.ndarray
    weights: np.ndarray
    steps_per_second: float
    busy: dict[str, float]

    def quantile(self, share: float) -> float:
        """Return the quantile of the times of steps over all replicas."""
        values = self.steps.ravel()
        order = np.argsort(values)
        sums = np.cumsum(np.repeat(self.weights, self.steps.shape[1])[order])
        place = int(np.searchsorted(sums, share * sums[-1] * (1 - 1e-12)))
        return float(values[order[min(place, len(order) - 1)]])


@dataclasses.dataclass(frozen=True)
class JobSettings:
    """How a job is replayed: `bound` is the field of `Seconds` that tasks take.

    `steps` are counted at most: of a job with many groups and tasks only `LEAST_STEPS`.
    """

    sigma: float = 0.05
    groups: int = 64
    steps: int = 200
    seed: int = 0
    bound: str = "median"


def replay_job(
    template: StepTemplate,
    network: Network,
    classes: Sequence[ReplicaClass],
    settings: JobSettings,
) -> JobTimes:
    """Replay the steps of a job; the classes together are its replicas.

    Errors: PlacementError if they are not, or if the template cannot end.
    """
    if sum(one.count for one in classes) != template.replicas:
        raise PlacementError(
            f"{sum(one.count for one in classes)} replicas in classes of {template.replicas}"
        )
    return _JobReplay(template, network, classes, settings).run()


@dataclasses.dataclass
class _Group:
    """Replicas that are replayed as one."""

    members: int
    factor: float
    last: int = -1  # the task with which its last step ended
    ends: list[int] = dataclasses.field(default_factory=list)


class _JobReplay:
    """Copies of a template as tasks of `replay.py`."""

    def __init__(
        self,
        template: StepTemplate,
        network: Network,
        classes: Sequence[ReplicaClass],
        settings: JobSettings,
    ) -> None:
        self.template, self.network, self.settings = template, network, settings
        self.rng = np.random.default_rng(settings.seed)
        self.classes = classes
        share = max(1, settings.groups // len(classes))
        self.sizes = [group_sizes(one.count, share) for one in classes]
        self.groups = [
            _Group(members, one.factor)
            for one, sizes in zip(classes, self.sizes, strict=True)
            for members in sizes
        ]
        size = len(template.tasks) * len(self.groups) + len(template.update)
        affordable = max(LEAST_STEPS, MOST_TASKS // size - WARM_UP)
        self.steps = WARM_UP + min(settings.steps, affordable)
        self.tasks: list[Task] = []
        self.resources: dict[tuple[str, int], int] = {}  # by kind or rank, and group
        self.ports: dict[tuple[str, int], int] = {}
        self.bandwidths: list[float] = []
        self.connections: dict[tuple[int, str, str], int] = {}  # by group, sender and receiver
        self.ticked: list[int] = []  # by step: when all groups have made it
        self.updated: list[int] = []  # by step: the end of its update
        self.workers = template.ranks
        size = template.replicas * len(self.workers) + sum(template.servers.values())
        self.is_one_node = network.nodes_of(size) == 1
        self.is_behind = _behind_meetings(template.tasks)
        self.next_noise = self._noise()
        self.firsts = np.cumsum([0, *(group.members for group in self.groups)]).tolist()

    def run(self) -> JobTimes:
        """Replay all steps."""
        spread = 0.0 if self.template.is_synchronous else self._least_step()
        starts = [spread * i / len(self.groups) for i in range(len(self.groups))]
        for group, start in zip(self.groups, starts, strict=True):
            group.last = self._add(Task(seconds=start))
        for _ in range(self.steps):
            self._add_step()
        times = replay(self.tasks, len(self.resources), self.bandwidths)
        ends = np.array([[times.ends[i] for i in group.ends] for group in self.groups])
        steps = np.diff(ends[:, WARM_UP - 1 :], axis=1)
        weights = np.array([group.members for group in self.groups], float)
        rates = weights * steps.shape[1] / steps.sum(axis=1)
        end = float(times.ends.max())
        busy = self._shares(times.resource_busy / end, times.port_busy / end)
        return JobTimes(steps, weights, float(rates.sum()), busy)

    def _least_step(self) -> float:
        """A bound of the time of an asynchronous step, over which its workers are spread.

        It is the work of a replica, or the time in which a server computes, sends or receives what
        all replicas need in a step.
        """
        own, loads = 0.0, dict.fromkeys(self.template.servers, np.zeros(3))
        for task in self.template.tasks:
            seconds = self._seconds(task.seconds) * self.network.slowdown
            moved = task.nbytes / self.network.bandwidth
            own += seconds
            if task.rank in loads:
                loads[task.rank] = loads[task.rank] + np.array([seconds, moved, 0.0])
            if task.to in loads:
                loads[task.to] = loads[task.to] + np.array([0.0, 0.0, moved])
        served = max((float(load.max()) for load in loads.values()), default=0.0)
        return max(own, served * self.template.replicas)

    def _shares(self, resources: np.ndarray, ports: np.ndarray) -> dict[str, float]:
        """The busiest of each kind of resource."""
        shares: dict[str, float] = {}
        for keys, values in ((self.resources, resources), (self.ports, ports)):
            for (name, _), number in keys.items():
                shares[name] = max(shares.get(name, 0.0), float(values[number]))
        return shares

    # -- tasks

    def _add(self, task: Task) -> int:
        self.tasks.append(task)
        return len(self.tasks) - 1

    def _add_step(self) -> None:
        """Add a step of all groups, and the update after it."""
        template, step = self.template, len(self.updated)
        this_noise, self.next_noise = self.next_noise, self._noise()
        own_update = -1
        if template.update:  # its number is needed before its tasks are known
            own_update = self._add(Task())
        numbers: list[list[int]] = [[] for _ in self.groups]
        for task, is_behind in zip(template.tasks, self.is_behind, strict=True):
            if task.is_collective:
                common = self._add_collective(task, numbers)
                for own in numbers:
                    own.append(common)
                continue
            noise = self.next_noise if is_behind else this_noise
            for which, own in enumerate(numbers):
                before = [own[k] for k in task.after] or [self.groups[which].last]
                before += self._gate(task, step, own_update)
                own.append(self._add_task(task, which, before, noise[which]))
        if template.ahead is not None:
            ticks = tuple(own[i] for own in numbers for i in template.ticks)
            self.ticked.append(self._add(Task(ticks)))
        for which, group in enumerate(self.groups):
            group.last = self._add(Task(tuple(numbers[which][i] for i in template.ends)))
            group.ends.append(group.last)
        if template.update:
            last = self._add_update(numbers)
            self.tasks[own_update] = Task((last,))
        self.updated.append(own_update)

    def _gate(self, task: TemplateTask, step: int, own_update: int) -> list[int]:
        """What a task waits for beside the tasks of its own step."""
        if task.gate == "update" and step and self.template.update:
            return [self.updated[step - 1]]
        if task.gate == "own update":
            return [own_update]
        if task.gate == "clock" and self.template.ahead is not None:
            behind = step - self.template.ahead - 1
            return [self.ticked[behind]] if behind >= 0 else []
        return []

    def _noise(self) -> list[float]:
        """The factor of each group in this step."""
        sigma, factors = self.settings.sigma, [group.factor for group in self.groups]
        if not sigma:
            return factors
        if not self.template.is_synchronous:
            draws = np.exp(sigma * self.rng.standard_normal(len(factors)))
            return [f * float(d) for f, d in zip(factors, draws, strict=True)]
        noise: list[float] = []
        for sizes in self.sizes:
            quantiles = draw_order_statistics(np.cumsum(sizes).tolist(), self.rng)
            if max(sizes) == 1:  # each group is one replica, which is slow now and fast then
                self.rng.shuffle(quantiles)
            noise += [noise_factor(sigma, float(q)) for q in quantiles]
        return [f * d for f, d in zip(factors, noise, strict=True)]

    def _seconds(self, seconds: Seconds) -> float:
        return float(getattr(seconds, self.settings.bound))

    def _add_task(self, task: TemplateTask, which: int, before: Sequence[int], noise: float) -> int:
        """Add one task of a group's step."""
        if task.to:
            return self._add_message(task, which, before)
        seconds = self._seconds(task.seconds) * self.network.slowdown
        is_server = task.rank in self.template.servers
        seconds *= self.groups[which].members if is_server else noise
        resource = -1
        if task.device and seconds:
            name = f"{task.rank}/{task.device}"
            resource = self._resource(name, 0 if is_server else which)
        return self._add(Task(tuple(before), resource, seconds))

    def _add_message(self, task: TemplateTask, which: int, before: Sequence[int]) -> int:
        """Add the messages of the members of a group; group -1: a message of an update."""
        network, servers = self.network, self.template.servers
        ends, members = (task.rank, task.to), self.groups[which].members if which >= 0 else 1
        is_inside = servers.keys().isdisjoint(ends) and len(self.workers) <= network.ranks_per_node
        if is_inside or self.is_one_node:
            node, weight = self._node(which, task.rank)
            port = self._port("memory of a node", 0 if self.is_one_node else node, False)
            weight = members * float(servers.get(task.rank, 1)) if self.is_one_node else weight
            ports, delay = [(port, weight)], network.memory_latency
        else:
            ports, delay = [], network.latency
            for side, rank, other in (("send", *ends), ("receive", *reversed(ends))):
                node, on_node = self._node(which, rank)
                of = rank if rank in servers else "a worker's node"
                weight = members if rank in servers else on_node
                port = self._port(f"network port of {of} ({side})", node)
                ports.append((port, float(weight * servers.get(other, 1))))
        pair = (which, *ends)
        connection = self.connections.setdefault(pair, len(self.connections))
        return self._add(
            Task(
                tuple(before),
                nbytes=task.nbytes,
                ports=tuple(ports),
                delay=delay * task.messages,
                connection=connection,
            )
        )

    def _node(self, which: int, rank: str) -> tuple[int, float]:
        """The number of a node of a rank of a group, and how many members of the group are on it.

        A group that fills nodes is replayed as one of them.
        """
        if rank in self.template.servers or which < 0:
            return 0, 1.0
        per_replica, per_node = len(self.workers), self.network.ranks_per_node
        place, members = self.workers.index(rank), self.groups[which].members
        if members * per_replica < per_node or members == 1:
            return (self.firsts[which] * per_replica + place) // per_node, float(members)
        return -1 - which * per_replica - place // per_node, float(max(1, per_node // per_replica))

    def _add_collective(self, task: TemplateTask, numbers: list[list[int]]) -> int:
        """Add a collective, which begins when all groups have come to it."""
        before = [group[k] for group in numbers for k in task.after]
        before = before or [group.last for group in self.groups]
        port = self.ports.setdefault(("collectives", 0), len(self.bandwidths))
        if port == len(self.bandwidths):
            self.bandwidths.append(1.0)
        own = Task(
            tuple(before),
            nbytes=task.seconds.median,
            ports=((port, 1.0),),
            delay=task.delay,
            connection=0 if task.in_order else -1,
            in_order=task.in_order,
            least=task.least,
        )
        return self._add(own)

    def _add_update(self, numbers: list[list[int]]) -> int:
        """Add the update of the servers; returns its last task."""
        template = self.template
        ready = [self._add(Task(tuple(group[i] for i in template.ready))) for group in numbers]
        weights = tuple(float(group.members) for group in self.groups)
        needed = float(template.needed)
        begin = [self._add(Task(tuple(ready), needed=needed, weights=weights))]
        begin += self.updated[-1:]
        made: list[int] = []
        for task in template.update:
            before = [made[k] for k in task.after] or begin
            if task.to:
                made.append(self._add_message(task, -1, before))
                continue
            resource = self._resource(f"{task.rank}/{task.device}", 0) if task.device else -1
            seconds = self._seconds(task.seconds) * self.network.slowdown
            made.append(self._add(Task(tuple(before), resource, seconds)))
        return self._add(Task(tuple(made)))

    def _resource(self, name: str, number: int) -> int:
        return self.resources.setdefault((name, number), len(self.resources))

    def _port(self, name: str, number: int, is_network: bool = True) -> int:
        if (name, number) not in self.ports:
            self.ports[name, number] = len(self.bandwidths)
            network = self.network
            rate = network.bandwidth if is_network else network.memory_bandwidth
            self.bandwidths.append(rate)
        return self.ports[name, number]


def _behind_meetings(tasks: Sequence[TemplateTask]) -> list[bool]:
    """For each task, whether it comes after a collective or the update of its own step."""
    behind: list[bool] = []
    for task in tasks:
        before = any(behind[k] or tasks[k].is_collective for k in task.after)
        behind.append(before or task.gate == "own update")
    return behind
