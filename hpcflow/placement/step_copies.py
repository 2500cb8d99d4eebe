"""Step copies: a step template, copied for each group of replicas, as the tasks of a replay.

All steps have the same tasks, so one step is described, with what a task of it waits for in this
step and in earlier ones (its *lag*).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.placement.network_routes import NetworkRoutes, PortWeights
from hpcflow.placement.replay import Route, StepTasks
from hpcflow.placement.step_template import StepTemplate, TemplateTask
from hpcflow.placement.topology_routes import TopologyRoutes

READ_AHEAD = 2  # batches that a rank's reading thread holds at most (the usual depth of hf.data)

Numbers = Sequence[int]


class SharedStorage(NamedTuple):
    """A file system: bytes per second of all ranks, and what a replica reads for a step."""

    bandwidth: float
    input_bytes: float = 0.0


class StepCopies:
    """A step of all groups: `tasks`, how they wait, and how long they take.

    `members` are the replicas of each group. `lasts[g]` is the task with which group g ends a step.
    `resource_names[i]` is the name of resource i. Task i takes `seconds[i]`, times the factor
    `noise_columns[i]` of a row that `seconds_of` gets: those of the groups in this step, in the
    next one, and 1.
    """

    def __init__(
        self,
        template: StepTemplate,
        members: Sequence[int],
        routes: NetworkRoutes | TopologyRoutes,
        bound: str,
        storage: SharedStorage | None = None,
    ) -> None:
        self.template, self.members, self.routes, self.bound = template, members, routes, bound
        self._found_ports: dict[tuple[int, str, str], tuple[PortWeights, float]] = {}
        self.resource_names: list[str] = []
        self._resources: dict[tuple[str, int], int] = {}
        self.seconds: list[float] = []
        self.noise_columns: list[int] = []
        self._weights: list[float] = []
        self._resource_of: list[int] = []
        self._routes: list[Route | None] = []
        self._missing: list[float] = []  # beside the tasks that are waited for
        self._edges: list[tuple[np.ndarray, np.ndarray, int]] = []
        self._no_noise = 2 * len(members)
        self.lasts: list[int] = []
        self._add_step(storage)

    def tasks(self, steps: int) -> StepTasks:
        """Return the tasks of a step of which there are `steps`."""
        size = len(self.seconds)
        edges = [edge for edge in self._edges if edge[2] < steps]
        before = np.concatenate([edge[0] for edge in edges])
        users = np.concatenate([edge[1] + edge[2] * size for edge in edges])
        order = np.lexsort((users, before))
        counts = np.bincount(before, minlength=size)
        steps_of = np.split((users - before)[order], np.cumsum(counts)[:-1])
        return StepTasks(
            [one.tolist() for one in steps_of], self._weights, self._resource_of, self._routes
        )

    def missing(self, steps: int) -> np.ndarray:
        """Return what is missing for each task of each step, an array (steps, tasks).

        Nothing but the ends of the step before the first comes before the first step.
        """
        size = len(self.seconds)
        found = np.zeros((steps, size))
        lasts = np.zeros(size, bool)
        lasts[self.lasts] = True
        for before, users, lag in self._edges:
            found[lag:] += np.bincount(users, minlength=size)
            from_start = users[lasts[before]] if lag == 1 else users[:0]
            found[0] += np.bincount(from_start, minlength=size)
        needed = np.array(self._missing)
        return np.where(needed > 0, needed, found)

    def seconds_of(self, noise: np.ndarray) -> np.ndarray:
        """Return the seconds of each task; `noise` has a row of factors for each step."""
        return np.asarray(np.array(self.seconds) * noise[:, self.noise_columns])

    def _add(
        self, count: int = 1, resource: int = -1, seconds: float = 0.0, needed: float = 0.0
    ) -> list[int]:
        """Add tasks, by default one point in time; returns their numbers."""
        first = len(self.seconds)
        self.seconds += [seconds] * count
        self.noise_columns += [self._no_noise] * count
        self._weights += [1.0] * count
        self._resource_of += [resource] * count
        self._routes += [None] * count
        self._missing += [needed] * count
        return list(range(first, first + count))

    def _wait(self, before: Numbers, users: Numbers, lag: int = 0) -> None:
        """Let each user wait for a task; one task or user may stand for all."""
        pair = np.broadcast_arrays(np.array(before, int), np.array(users, int))
        self._edges.append((pair[0], pair[1], lag))

    def _add_step(self, storage: SharedStorage | None) -> None:
        """Add a step of all groups, and the update after it."""
        template = self.template
        own_update = self._add() if template.update else []
        reads = self._add_reads(storage) if storage is not None and storage.input_bytes else []
        made: list[list[int]] = []
        firsts: list[list[int]] = []
        behind = _behind_meetings(template.tasks)
        for task, is_behind in zip(template.tasks, behind, strict=True):
            own = self._add_copies(task, is_behind)
            made.append(own)
            if not task.after:
                firsts.append(own)
            for k in task.after:
                self._wait(made[k], own)
            self._gate(task, own, own_update)
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
            if reads:
                self._wait(reads, own)
        if reads:
            self._wait(self.lasts, reads, READ_AHEAD + 1)
        if template.update:
            self._add_update(made, own_update)

    def _add_reads(self, storage: SharedStorage) -> list[int]:
        """Add the reading of each group: one batch after the other, and `READ_AHEAD` in advance."""
        port = self.routes.ports.number("storage", 0, storage.bandwidth)
        reads = self._add(len(self.members))
        for number, members in zip(reads, self.members, strict=True):
            self._routes[number] = Route(storage.input_bytes, ((port, float(members)),), 0.0)
        self._wait(reads, reads, 1)
        return reads

    def _gate(self, task: TemplateTask, own: list[int], own_update: list[int]) -> None:
        """Let a task wait for an update."""
        if own_update and task.gate in ("update", "own update"):
            self._wait(own_update, own, int(task.gate == "update"))

    def _add_copies(self, task: TemplateTask, is_behind: bool) -> list[int]:
        """Add a task of each group, or one that all have in common."""
        seconds = float(getattr(task.seconds, self.bound))
        if task.is_collective:
            return self._add(1, self._resource(self.routes.collectives, 0), seconds)
        own = self._add(len(self.members))
        for which, number in enumerate(own):
            if task.to:
                self._routes[number] = self._route(task, which)
                continue
            is_server = task.rank in self.template.servers
            time = seconds * self.routes.factor(which, task.rank)
            if is_server:
                time *= self.members[which]
            else:
                self.noise_columns[number] = which + is_behind * len(self.members)
            self.seconds[number] = time
            if task.device and time:
                name = f"{task.rank}/{task.device}"
                self._resource_of[number] = self._resource(name, 0 if is_server else which)
        return own

    def _route(self, task: TemplateTask, which: int) -> Route:
        """The route of a message of a group; group -1: of an update."""
        key = which, task.rank, task.to
        if key not in self._found_ports:
            ports, delay = self.routes.route(*key)
            rates = self.routes.ports.bandwidths
            ports.sort(key=lambda port: -port[1] / rates[port[0]])
            self._found_ports[key] = ports, delay
        ports, delay = self._found_ports[key]
        return Route(task.nbytes, tuple(ports), delay)

    def _add_update(self, made: list[list[int]], own_update: list[int]) -> None:
        """Add the update of the servers."""
        template = self.template
        ready = self._add(len(self.members))
        for i in template.ready:
            self._wait(made[i], ready)
        begin = self._add(needed=float(template.needed))
        self._wait(ready, begin)
        for number, members in zip(ready, self.members, strict=True):
            self._weights[number] = float(members)
        ends: list[list[int]] = []
        for task in template.update:
            if task.to:
                own = self._add()
                self._routes[own[0]] = self._route(task, -1)
            else:
                name = f"{task.rank}/{task.device}"
                resource = self._resource(name, 0) if task.device else -1
                seconds = float(getattr(task.seconds, self.bound))
                own = self._add(1, resource, seconds * self.routes.factor(-1, task.rank))
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


def _behind_meetings(tasks: Sequence[TemplateTask]) -> list[bool]:
    """For each task, whether it comes after a collective or the update of its own step."""
    behind: list[bool] = []
    for task in tasks:
        before = any(behind[k] or tasks[k].is_collective for k in task.after)
        behind.append(before or task.gate == "own update")
    return behind
