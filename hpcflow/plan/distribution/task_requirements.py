"""Task requirements: the worker tasks that may run what `hf.device(requires=, near=)` constrains.

The tasks follow from the whole graph, not from a step, so that all steps of a session find a
variable on one task. Operations that share a device are one set. A set takes the first task that
satisfies it, in the order of their creation. Memory that a device scope requires counts once on
each task that has operations of the scope.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from hpcflow.errors import PlacementError
from hpcflow.graph.device_names import NOTHING, Requirement, Reservation
from hpcflow.graph.graph import Graph
from hpcflow.graph.requirement_text import requirement_text, size_text
from hpcflow.placement.step_problem import MemoryReservation, StepProblem
from hpcflow.plan.distribution.colocation_groups import ChosenTask
from hpcflow.plan.distribution.kept_tasks import KeptTasks, kept_tasks
from hpcflow.plan.distribution.operation_sets import (
    SERVED,
    FixedTask,
    OperationSet,
    RequirementOf,
    operation_sets,
)
from hpcflow.plan.distribution.task_offers import TaskOffers
from hpcflow.plan.distribution.variable_placement import VariablePlacement
from hpcflow.plan.ir.program import Cluster
from hpcflow.settings import Settings

HINT = "remove the requirement or the other constraint"
ON_SERVER = "make the variable outside of the scope, or inside `with hf.device(None):`"
_lock = threading.Lock()
_cache: weakref.WeakKeyDictionary[Graph, tuple[Any, RequiredTasks]] = weakref.WeakKeyDictionary()


class RequiredTasks(NamedTuple):
    """The worker tasks that satisfy the requirements of operations.

    `allowed` has them for each operation that shares a device with one that has a requirement,
    unless a server or the script names its task. The first of them is that without a search.
    """

    allowed: dict[str, tuple[int, ...]]
    needs: dict[str, Requirement]  # of the set of an operation
    asking: dict[str, str]  # operation -> itself, or the first of its set that has a requirement

    def constrain(self, problem: StepProblem, members: Sequence[Sequence[str]]) -> StepProblem:
        """Return the problem with what its groups require; `members` are their operations.

        A group in a set that several tasks satisfy is on the tasks that all of its sets allow.
        """
        allowed: dict[int, tuple[int, ...]] = {}
        scopes: dict[Reservation, set[int]] = {}
        for g, names in enumerate(members):
            several = [self.allowed[name] for name in names if name in self.allowed]
            for tasks in several:
                both = tuple(k for k in allowed.get(g, tasks) if k in tasks)
                allowed[g] = both or tasks  # none: the placement pass names the conflict
            for name in names:
                for reservation in self.needs.get(name, NOTHING).memory:
                    scopes.setdefault(reservation, set()).add(g)
        reservations = tuple(
            MemoryReservation(float(reservation.nbytes), frozenset(groups))
            for reservation, groups in scopes.items()
        )
        return dataclasses.replace(problem, allowed=allowed, reservations=reservations)

    def default_task(self, names: Iterable[str]) -> int:
        """Return the task, without a search, of operations that share a device."""
        return next((self.allowed[name][0] for name in names if name in self.allowed), 0)

    def add_absent(
        self, base: list[float], tasks: Mapping[str, int], present: Iterable[str]
    ) -> list[float]:
        """Return the bytes on each task, with what scopes reserve for variables on it.

        `tasks` are those of variables. Scopes of operations in `present` do not count.
        """
        counted = {r for name in present for r in self.needs.get(name, NOTHING).memory}
        absent = {
            (reservation, task)
            for name, task in tasks.items()
            for reservation in self.needs.get(name, NOTHING).memory
            if reservation not in counted
        }
        added = list(base)
        for reservation, task in absent:
            added[task] += reservation.nbytes
        return added

    def reserved(self) -> list[str]:
        """Return the operations whose bytes a reservation covers."""
        return [name for name, needs in self.needs.items() if needs.memory]

    def chosen(self) -> dict[str, ChosenTask]:
        """Return the tasks of operations without a search, with the reasons."""
        own, chosen = "on the first task that has it", dict[str, ChosenTask]()
        for name, tasks in self.allowed.items():
            first = self.asking[name]
            mate = f"with {first}, which requires {requirement_text(self.needs[name])}"
            chosen[name] = ChosenTask(tasks[0], own if name == first else mate)
        return chosen


def required_tasks(
    graph: Graph, cluster: Cluster, settings: Settings, placements: Mapping[str, VariablePlacement]
) -> RequiredTasks:
    """Return the tasks that satisfy the requirements of a graph.

    Errors: PlacementError naming the requirement that no task satisfies, or that contradicts
    another constraint, and the lines of both.
    """
    root = graph.root
    key = root.version, cluster, settings.memory_limit, sorted(placements.items())
    with _lock:
        kept = kept_tasks(root, cluster, settings.automatic)
        known = _cache.get(root)
        if not root.has_requirements:
            known = key, RequiredTasks({}, {}, {})
        elif known is None or known[0] != key:
            offers = TaskOffers(cluster, settings)
            known = key, _Assignment(root, offers, placements, kept).run()
            _cache[root] = known
        kept.keep(root.get_operations(), known[1].allowed, settings.automatic)
        return known[1]


class _Assignment:
    """Gives each set with a requirement the first task that satisfies it."""

    def __init__(
        self,
        graph: Graph,
        offers: TaskOffers,
        placements: Mapping[str, VariablePlacement],
        kept: KeptTasks,
    ) -> None:
        self.graph, self.offers, self.placements, self.kept = graph, offers, placements, kept
        self.reserved: list[dict[Reservation, RequirementOf]] = [{} for _ in range(offers.count)]

    def run(self) -> RequiredTasks:
        """Return the tasks."""
        found = RequiredTasks({}, {}, {})
        for operations in operation_sets(self.graph, self.offers, self.placements):
            for one in operations.requirements:
                _check_alone(one, self.offers)
            needs = operations.needs
            if operations.fixed:
                for fixed in operations.fixed:
                    self._check_fixed(operations, fixed)
                    self._reserve(operations, fixed.task)
                tasks: tuple[int, ...] = ()
            else:
                tasks = self._tasks(operations, needs)
            for name in operations.names:
                found.needs[name] = needs
                found.asking[name] = operations.requirements[0].name
                if tasks:
                    found.allowed[name] = tasks
            found.asking.update({one.name: one.name for one in operations.requirements})
        return found

    def _tasks(self, operations: OperationSet, needs: Requirement) -> tuple[int, ...]:
        """Return the tasks that satisfy a set; the first has the memory that is left, too."""
        able = [k for k in self.offers.best_first(needs) if not self.offers.lacks(k, needs)]
        if not able:
            self._raise_none(operations)
        for name in operations.names:
            task = self.kept.tasks.get(name)
            if task is not None:
                if task not in able:
                    self._raise_kept(operations, name, task)
                able = [task]
        able.sort(key=lambda k: not needs.near and not set(needs.memory) <= self.reserved[k].keys())
        first = next((k for k in able if self._left(k, needs) >= 0), None)
        if first is None:
            self._raise_full(operations.requirements[0], able, needs)
        self._reserve(operations, first)
        if first in self.offers.mates(needs):
            return (first,)
        return first, *(k for k in able if k != first)

    def _left(self, task: int, needs: Requirement) -> float:
        """Return the bytes of a task that are left if it also has `needs`."""
        every = {*self.reserved[task], *needs.memory}
        return self.offers.memory[task] - sum(size for _, size in every)

    def _reserve(self, operations: OperationSet, task: int) -> None:
        for one in operations.requirements:
            for reservation in one.needs.memory:
                self.reserved[task].setdefault(reservation, one)

    def _check_fixed(self, operations: OperationSet, fixed: FixedTask) -> None:
        """Errors: PlacementError if the task of a set does not satisfy it."""
        where = self.offers.name(fixed.task)
        for one in operations.requirements:
            lack = self.offers.lacks(fixed.task, one.needs)
            if lack:
                mate = f"shares a device with {fixed.name!r} (made at {fixed.line}), which "
                mate = "" if fixed.name == one.name else mate
                raise PlacementError(
                    f"{one}, but {mate}is on {where} ({fixed.why}), which {lack}",
                    op=one.name,
                    line=one.line,
                    hint=ON_SERVER if fixed.why == SERVED else HINT,
                )
        if self._left(fixed.task, operations.needs) < 0:
            self._raise_full(operations.requirements[0], [fixed.task], operations.needs)

    def _raise_none(self, operations: OperationSet) -> NoReturn:
        """Raise the error for requirements of which no task satisfies all."""
        requirements, first = operations.requirements, operations.requirements[0]
        parts = [
            (one, part) for one in requirements for part in _parts(one.needs)
        ]  # of each operation with its lines
        offers = self.offers
        for i, (one, part) in enumerate(parts):
            for other, second in parts[:i]:
                both = part.both(second)
                if all(offers.lacks(k, both) for k in range(offers.workers)):
                    joint = f"{requirement_text(part)} and {requirement_text(second)}"
                    if other.name != one.name:
                        joint = (
                            f"{requirement_text(part)}, and shares a device with {other.name!r}, "
                            f"made at {other.line}, which requires {requirement_text(second)}"
                        )
                    raise PlacementError(
                        f"{one.name!r} requires {joint}: no task has both; {self._listing()}",
                        op=one.name,
                        line=one.line,
                        hint=HINT,
                    )
        raise PlacementError(
            f"{first.name!r} requires {requirement_text(operations.needs)}: no task has all; "
            f"{self._listing()}",
            op=first.name,
            line=first.line,
            hint=HINT,
        )

    def _raise_kept(self, operations: OperationSet, name: str, task: int) -> NoReturn:
        """Raise the error for state whose task other steps know, and that would have to move."""
        one = operations.requirements[0]
        raise PlacementError(
            f"{one}, but shares a device with {name!r}, which is on {self.offers.name(task)} "
            "since an earlier step",
            op=one.name,
            line=one.line,
            hint="make all operations before the first step, or another requirement",
        )

    def _raise_full(self, one: RequirementOf, able: Sequence[int], needs: Requirement) -> NoReturn:
        """Raise the error for memory that other requirements have reserved."""
        task = max(able, key=lambda k: (self._left(k, needs), -k))
        missing = -self._left(task, needs)
        others = [(r, a) for r, a in self.reserved[task].items() if r not in needs.memory]
        texts = [f"{size_text(r.nbytes)} for {a.name!r}, made at {a.line}" for r, a in others]
        remedy = "require less"
        if self.offers.memory[task] == self.offers.limit:
            more = self.offers.limit + missing
            remedy = f"raise memory_limit to {size_text(math.ceil(more))}, or require less"
        remedy += ", or name the task of each with hf.device('/job:worker/task:K')"
        raise PlacementError(
            f"{one}, but {self.offers.name(task)} has {size_text(self.offers.memory[task])}, of "
            f"which others require {', '.join(texts)}",
            op=one.name,
            line=one.line,
            hint=remedy,
        )

    def _listing(self) -> str:
        """Return what the first tasks have, as `/job:worker/task:0 has no GPU and 8 GB`."""
        texts = []
        for k in range(self.offers.workers)[:4]:
            gpu = "a GPU" if self.offers.has_gpu(k) else "no GPU"
            size = self.offers.memory[k]
            more = "" if math.isinf(size) else f" and {size_text(size)}"
            texts.append(f"{self.offers.name(k)} has {gpu}{more}")
        return ", ".join(texts)


def _parts(needs: Requirement) -> Iterator[Requirement]:
    """Yield the parts of a requirement that a task may have or lack."""
    if needs.gpu:
        yield Requirement(gpu=True)
    if needs.memory:
        yield Requirement(memory=needs.memory)
    for task in needs.near:
        yield Requirement(near=(task,))


def _check_alone(one: RequirementOf, offers: TaskOffers) -> None:
    """Errors: PlacementError if no task satisfies one part of a requirement."""
    facts: dict[str, Any] = {"op": one.name, "line": one.line}
    for job, task in one.needs.near:
        if offers.number(job, task) is None:
            servers = offers.count - offers.workers
            raise PlacementError(
                f"{one}, but there is no /job:{job}/task:{task}",
                **facts,
                hint=f"a replica has {offers.workers} worker task(s), the job {servers} server(s); "
                "both are numbered from 0",
            )
    tasks = range(offers.count)
    if one.needs.gpu and not any(map(offers.has_gpu, tasks)):
        hint = "start on nodes with GPUs, with CuPy installed (`hpcflow help gpu`)"
        if offers.cluster.topology is not None:
            hint = 'say "gpus" of the nodes that have them in the file of the topology'
        raise PlacementError(f"{one}, but no task has a GPU", **facts, hint=hint)
    if not one.needs.memory:
        return
    if all(math.isinf(size) for size in offers.memory):
        raise PlacementError(
            f"{one}, but nothing tells how much memory the tasks have",
            **facts,
            hint="say it with --set memory_limit=64GB, or with memory_bytes in --set topology=FILE",
        )
    most = max(tasks, key=lambda k: (offers.memory[k], -k))
    if one.needs.nbytes > offers.memory[most]:
        raise PlacementError(
            f"{one}, but the most that a task has is {size_text(offers.memory[most])} "
            f"({offers.name(most)})",
            **facts,
            hint="require less, or start on nodes with more memory",
        )
