"""Step copies: a step template, copied for each group of replicas, as the tasks of a replay.

All steps have the same tasks, so one step is described. An edge from a task to one that waits for
it has a *lag*: 0 within a step, k if the user is in the k-th step after.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.placement.durations import NOTHING, Seconds
from hpcflow.placement.network_routes import NetworkRoutes, PortWeights
from hpcflow.placement.replay import Message, StepTasks
from hpcflow.placement.step_template import StepTemplate, TemplateTask
from hpcflow.placement.topology_routes import TopologyRoutes

READ_AHEAD = 2  # batches that a rank's reading thread holds at most (the usual depth of hf.data)


class SharedStorage(NamedTuple):
    """A file system: bytes per second of all ranks together, and what a replica's step reads.

    `input_bytes` are the bytes of one step of one replica.
    """

    bandwidth: float
    input_bytes: float = 0.0


class StepCopies:
    """A step of all groups: `tasks`, what they wait for, and `seconds_of` them.

    `members[g]` is the number of replicas of group g. `lasts[g]` is the task with which group g
    ends a step. `resource_names[i]` is the name of resource i. The copies are the same for all
    bounds of times (fields of `Seconds`).
    """

    def __init__(
        self,
        template: StepTemplate,
        members: Sequence[int],
        routes: NetworkRoutes | TopologyRoutes,
        storage: SharedStorage | None = None,
    ) -> None:
        self.template, self.members, self.routes = template, members, routes
        self._found_ports: dict[tuple[int, str, str], tuple[PortWeights, float, int]] = {}
        self.resource_names: list[str] = []
        self._resources: dict[tuple[str, int], int] = {}
        self._size = 0
        # for each call of `_add`: seconds, and for each task a factor and a column of the noise
        self._times: list[tuple[Seconds, np.ndarray, np.ndarray]] = []
        self._weights: list[int] = []
        self._resource_of: list[int] = []
        self._messages: list[Message | None] = []
        self._missing: list[int] = []  # 0: as many as a task has predecessors
        self._edges: list[tuple[np.ndarray, np.ndarray, int]] = []  # tasks, users, lag
        self._factors: dict[str, np.ndarray] = {}  # of the groups, by rank
        self._groups = np.arange(len(members))
        self.lasts = np.arange(0)
        self._add_step(storage)

    def tasks(self, steps: int) -> StepTasks:
        """Return the tasks of a step, for a replay of `steps` steps."""
        edges = [edge for edge in self._edges if edge[2] < steps]
        before = np.concatenate([edge[0] for edge in edges])
        users = np.concatenate([edge[1] + edge[2] * self._size for edge in edges])
        order = np.lexsort((users, before))
        steps_to = (users - before)[order].tolist()
        ends = np.cumsum(np.bincount(before, minlength=self._size)).tolist()
        users_of = [steps_to[a:b] for a, b in itertools.pairwise([0, *ends])]
        return StepTasks(users_of, self._weights, self._resource_of, self._messages)

    def missing(self, steps: int) -> np.ndarray:
        """Return how many predecessors each task of each step has, an array (steps, tasks).

        Of the steps before the first, only the ends of the last one (`lasts`) count. A task that
        needs some of its predecessors (`needed` of `_add`) has that number instead.
        """
        found = np.zeros((steps, self._size), int)
        lasts = np.zeros(self._size, bool)
        lasts[self.lasts] = True
        for lag in {edge[2] for edge in self._edges if edge[2] < steps}:
            edges = [edge for edge in self._edges if edge[2] == lag]
            before, users = (np.concatenate([edge[i] for edge in edges]) for i in (0, 1))
            found[lag:] += np.bincount(users, minlength=self._size)
            if lag == 1:
                found[0] += np.bincount(users[lasts[before]], minlength=self._size)
        needed = np.array(self._missing)
        return np.where(needed > 0, needed, found)

    def seconds_of(self, noise: np.ndarray, bound: str) -> np.ndarray:
        """Return the seconds of each task in each step, an array (steps, tasks).

        `bound` is a field of `Seconds`. `noise` has a row for each step: the factors of the groups
        in this step, their factors in the next step, and 1.
        """
        seconds = [float(getattr(of, bound)) * factors for of, factors, _ in self._times]
        columns = np.concatenate([columns for _, _, columns in self._times])
        return np.asarray(np.concatenate(seconds) * noise[:, columns])

    def _add(
        self,
        count: int = 1,
        resource: int = -1,
        seconds: Seconds = NOTHING,
        needed: int = 0,
        factors: np.ndarray | float = 1.0,
        columns: np.ndarray | int = -1,
    ) -> np.ndarray:
        """Add `count` tasks, by default one point in time; return their numbers.

        They take `seconds` times `factors` times the `columns` of the noise, by default 1.
        """
        self._times.append((seconds, np.full(count, factors), np.full(count, columns)))
        self._weights += [1] * count
        self._resource_of += [resource] * count
        self._messages += [None] * count
        self._missing += [needed] * count
        self._size += count
        return np.arange(self._size - count, self._size)

    def _wait(self, before: np.ndarray, users: np.ndarray, lag: int = 0) -> None:
        """Add edges from tasks to users, element by element; a single task or user is broadcast."""
        pair = np.broadcast_arrays(before, users)
        self._edges.append((pair[0], pair[1], lag))

    def _add_step(self, storage: SharedStorage | None) -> None:
        """Add a step of all groups, and the update after it."""
        template = self.template
        own_update = self._add() if template.update else None
        reads = self._add_reads(storage) if storage is not None and storage.input_bytes else None
        made: list[np.ndarray] = []
        firsts: list[np.ndarray] = []
        is_after_sync = _after_synchronization(template.tasks)
        for task, is_after in zip(template.tasks, is_after_sync, strict=True):
            own = self._add_copies(task, is_after)
            made.append(own)
            if not task.after:
                firsts.append(own)
            for k in task.after:
                self._wait(made[k], own)
            if own_update is not None and task.gate in ("update", "own update"):
                self._wait(own_update, own, int(task.gate == "update"))
        if template.ahead is not None:
            ticks = self._add()
            for i in template.ticks:
                self._wait(made[i], ticks)
            lag = template.ahead + 1
            for task, own in zip(template.tasks, made, strict=True):
                if task.gate == "clock":
                    self._wait(ticks, own, lag)
        self.lasts = self._add(len(self.members))
        for i in template.ends:
            self._wait(made[i], self.lasts)
        for own in firsts:
            self._wait(self.lasts, own, 1)
            if reads is not None:
                self._wait(reads, own)
        if reads is not None:
            self._wait(self.lasts, reads, READ_AHEAD + 1)
        if own_update is not None:
            self._add_update(made, own_update)

    def _add_reads(self, storage: SharedStorage) -> np.ndarray:
        """Add the reading of each group: one batch after the other, and `READ_AHEAD` in advance."""
        port = self.routes.ports.number("storage", 0, storage.bandwidth)
        reads = self._add(len(self.members))
        for number, members in zip(reads.tolist(), self.members, strict=True):
            self._messages[number] = Message(storage.input_bytes, ((port, float(members)),), 0.0)
        self._wait(reads, reads, 1)
        return reads

    def _add_copies(self, task: TemplateTask, is_after_sync: bool) -> np.ndarray:
        """Add a copy of a task for each group, or one for all groups; return their numbers."""
        if task.is_collective:
            return self._add_collective(task)
        groups = len(self.members)
        if task.to:
            own = self._add(groups)
            for which, number in enumerate(own.tolist()):
                self._messages[number] = self._message(task, which)
            return own
        factors = self._factors_of(task.rank)
        if task.rank in self.template.servers:
            own = self._add(groups, -1, task.seconds, 0, factors * self.members)
        else:
            columns = self._groups + is_after_sync * groups  # noise of this step, or of the next
            own = self._add(groups, -1, task.seconds, 0, factors, columns)
        if task.device and any(task.seconds):
            for which, number in enumerate(own.tolist()):
                self._resource_of[number] = self._device(task, which)
        return own

    def _add_collective(self, task: TemplateTask) -> np.ndarray:
        """Add a collective of all groups: its seconds pass a port of one second per second."""
        port = self.routes.ports.number(self.routes.collectives, 0, 1.0)
        connection = 0 if task.in_order else -1
        own = self._add()
        self._messages[own[0]] = Message(
            task.seconds.median, ((port, 1.0),), task.delay, connection, task.in_order, task.least
        )
        return own

    def _factors_of(self, rank: str) -> np.ndarray:
        """The factors on the times of a rank of each group."""
        if rank not in self._factors:
            groups = range(len(self.members))
            self._factors[rank] = np.array([self.routes.factor(which, rank) for which in groups])
        return self._factors[rank]

    def _device(self, task: TemplateTask, which: int) -> int:
        """The device of a task of a group; all groups have the devices of servers in common."""
        is_server = task.rank in self.template.servers
        return self._resource(f"{task.rank}/{task.device}", 0 if is_server else which)

    def _message(self, task: TemplateTask, which: int) -> Message:
        """The message of a task and a group; group -1: of an update.

        The messages of a group from one rank to another have one connection.
        """
        key = which, task.rank, task.to
        if key not in self._found_ports:
            ports, delay = self.routes.route(*key)
            rates = self.routes.ports.bandwidths
            ports.sort(key=lambda port: -port[1] / rates[port[0]])
            self._found_ports[key] = ports, delay, len(self._found_ports)
        ports, delay, connection = self._found_ports[key]
        return Message(task.nbytes, tuple(ports), delay * task.messages, connection)

    def _add_update(self, made: list[np.ndarray], own_update: np.ndarray) -> None:
        """Add the update of the servers."""
        template = self.template
        ready = self._add(len(self.members))
        for i in template.ready:
            self._wait(made[i], ready)
        begin = self._add(needed=template.needed)
        self._wait(ready, begin)
        for number, members in zip(ready.tolist(), self.members, strict=True):
            self._weights[number] = members
        ends: list[np.ndarray] = []
        for task in template.update:
            if task.to:
                own = self._add()
                self._messages[own[0]] = self._message(task, -1)
            else:
                name = f"{task.rank}/{task.device}"
                resource = self._resource(name, 0) if task.device else -1
                factor = self.routes.factor(-1, task.rank)
                own = self._add(1, resource, task.seconds, factors=factor)
            for k in task.after:
                self._wait(ends[k], own)
            if not task.after:
                self._wait(begin, own)
                self._wait(own_update, own, 1)
            ends.append(own)
        last = self._add()
        for end in ends:
            self._wait(end, last)
        self._wait(last, own_update)

    def _resource(self, name: str, number: int) -> int:
        found = self._resources.setdefault((name, number), len(self.resource_names))
        if found == len(self.resource_names):
            self.resource_names.append(name)
        return found


def _after_synchronization(tasks: Sequence[TemplateTask]) -> list[bool]:
    """For each task, whether it comes after a collective or the update of its own step."""
    found: list[bool] = []
    for task in tasks:
        is_after = any(found[k] or tasks[k].is_collective for k in task.after)
        found.append(is_after or task.gate == "own update")
    return found
