"""Variable tasks: on which worker task of a replica automatic placement puts each variable.

All steps of a session must find a variable on one task, also those that only initialize or save,
and a random operation must count its draws on one. So their tasks follow from the graph and its
static shapes, not from a step or its feeds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hpcflow.errors import PlacementError
from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import OPAQUE, resource
from hpcflow.graph.function_body import (
    FunctionBody,
    all_operations,
    bodies,
    variable_operation,
)
from hpcflow.graph.graph import Graph, Operation
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.placement.placement_search import ScoredPlacement, score, search
from hpcflow.placement.start_placements import default_placement
from hpcflow.placement.step_problem import StepProblem
from hpcflow.plan.distribution.kept_tasks import keep_tasks
from hpcflow.plan.distribution.open_sizes import ASSUMED_ROWS, OTHER_ROWS, open_sizes
from hpcflow.plan.distribution.replica_lowering import lower_replicas
from hpcflow.plan.distribution.step_problem_builder import (
    ProgramGroups,
    StepProblemBuilder,
    static_specs,
    stays,
    with_devices,
)
from hpcflow.plan.distribution.task_requirements import RequiredTasks, required_tasks
from hpcflow.plan.distribution.variable_cost import variable_nbytes
from hpcflow.plan.distribution.variable_placement import VariablePlacement
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.ir.program import Cluster, Program
from hpcflow.platform.union_find import DisjointSets
from hpcflow.settings import Settings, as_bytes

SEED = 0  # of the search
MORE_TASKS = (1, 2, 4)  # how many more tasks an error tries
_lock = threading.Lock()


class _Choice(NamedTuple):
    """The tasks of the operations that need one task in all steps, and those of all operations."""

    kept: dict[str, int]
    every: dict[str, int]


_choices_by_graph: weakref.WeakKeyDictionary[Graph, dict[Any, _Choice]] = (
    weakref.WeakKeyDictionary()
)


def variable_tasks(
    graph: Graph, cluster: Cluster, settings: Settings, placements: Mapping[str, VariablePlacement]
) -> dict[str, int]:
    """Return the worker task of each variable and random operation that may be on any.

    These are those that neither a device scope nor a server has, and that no loop, branch or
    function of the script uses. They keep their tasks when the graph grows.
    Errors: PlacementError if the variables do not fit the memory of the tasks.
    """
    root = graph.root
    with _lock:
        choice = _choice_of(root, cluster, settings)
        known = choice.kept
        sets = _movable_sets(root, placements)
        kept = {op.name for names in sets for op in _kept_operations(root, names)}
        if not kept <= known.keys():
            found = _VariableTaskSearch(root, cluster, settings, placements, known, sets).run()
            known.update(found.kept)
            choice.every.update(found.every)
            keep_tasks(root, cluster, known)
        return {name: task for name, task in known.items() if name not in placements}


def searched_tasks(graph: Graph, cluster: Cluster, settings: Settings) -> dict[str, int]:
    """Return the task of each operation in the placement that `variable_tasks` has found last.

    The search for a step starts there.
    """
    with _lock:
        return dict(_choice_of(graph.root, cluster, settings).every)


def _choice_of(root: Graph, cluster: Cluster, settings: Settings) -> _Choice:
    """Return what has been chosen for a graph on these ranks, which may be nothing so far."""
    ranks = cluster.tasks_per_replica, cluster.servers, cluster.topology, cluster.speeds
    key = *ranks, settings.memory_limit, cluster.times
    return _choices_by_graph.setdefault(root, {}).setdefault(key, _Choice({}, {}))


def memory_of_task(settings: Settings) -> float:
    """Return the bytes that the device of a task may hold."""
    return as_bytes(settings.memory_limit) or math.inf


def resident_bytes(
    graph: Graph,
    cluster: Cluster,
    tasks: Mapping[str, int],
    placements: Mapping[str, VariablePlacement],
    without: Iterable[str],
) -> list[float]:
    """Return the bytes of variables on each task of a cluster, but of those in `without`."""
    counted, left_out = [0.0] * len(cluster.tasks()), set(without)
    for op in graph.root.get_operations():
        if lookup_op(op.type).variable == "handle" and op.name not in left_out | {*placements}:
            requested = parse_device(op.device)
            task = tasks.get(op.name, requested.task or 0)
            if requested.job in (None, "worker") and task < cluster.tasks_per_replica:
                counted[task] += variable_nbytes(op)
    return counted


def check_fit(
    problem: StepProblem,
    best: ScoredPlacement,
    arguments: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]], int],
    what: str,
    settings: Settings,
) -> None:
    """Errors: PlacementError with the cheapest remedies if the best placement does not fit."""
    if not best.overflow:
        return
    if problem.reservations:
        what += ", with the memory that hf.device(requires=...) reserves,"
    peaks = problem.peaks(best.devices)
    task = max(range(problem.candidate_count), key=lambda k: peaks[k] - problem.devices[k].memory)
    need, limit = int(peaks[task]), int(problem.devices[task].memory)
    if limit == as_bytes(settings.memory_limit):
        source = f"memory_limit={settings.memory_limit}"
        remedies = [f"raise memory_limit by {need - limit:,} bytes, to {need:,}"]
    else:
        source = "its memory_bytes in the file of the setting topology"
        remedies = [f"give it a rank with {need:,} bytes"]
    for more in MORE_TASKS:
        if not search(with_devices(problem, more), *arguments).overflow:
            remedies.insert(0, f"start with --tasks-per-replica {problem.candidate_count + more}")
            break
    raise PlacementError(
        f"placement=auto: {what} do not fit {problem.candidate_count} tasks: "
        f"/job:worker/task:{task} would hold {need:,} of {limit:,} bytes ({source})",
        hint=", or ".join(remedies),
    )


def _movable_sets(graph: Graph, placements: Mapping[str, VariablePlacement]) -> list[list[str]]:
    """Return sets of names of operations that share a device, if any task will do for them.

    Each has a variable or a random operation. They are colocated or use handles of the same
    variables.
    """
    sets: DisjointSets[str] = DisjointSets()
    bound: set[str] = set()
    kept: list[str] = []
    initial = _initial_operations(graph)
    for op in all_operations(graph):
        handles = [variable_operation(t).name for t in op.inputs if t.dtype == resource]
        inside = isinstance(op.graph, FunctionBody)
        row = lookup_op(op.type)
        names = handles if inside else [op.name, *handles, *op.colocate]
        for name in names:
            sets.add(name)
            sets.join(name, names[0])
        if names and (inside or row.owner or _is_bound(op) or op.name in placements):
            bound.add(names[0])
        if _is_kept(op) and not inside and op not in initial:
            kept.append(op.name)
    roots = {sets.find(name) for name in bound}
    groups: dict[str, list[str]] = {sets.find(name): [] for name in kept}
    for name in sets.members():
        if (root := sets.find(name)) in groups and root not in roots:
            groups[root].append(name)
    return [names for names in groups.values() if names]


def _is_kept(op: Operation) -> bool:
    """Return whether an operation needs one task in all steps.

    A task holds the values of its variables, and counts the draws of its random operations.
    """
    row = lookup_op(op.type)
    return row.variable == "handle" or row.draws_rows


def _kept_operations(graph: Graph, names: Iterable[str]) -> list[Operation]:
    """Return the operations of a graph among `names` that need one task in all steps."""
    ops = (graph.get_operation_by_name(name) for name in names if name in graph)
    return [op for op in ops if _is_kept(op)]


def _initial_operations(graph: Graph) -> set[Operation]:
    """Return the operations that draw initial values: they run where the variable is."""
    stack = [op for op in graph.get_operations() if op.attrs.get("initial")]
    found: set[Operation] = set()
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack += [t.op for t in op.inputs]
    return {op for op in found if lookup_op(op.type).draws_rows}


def _is_bound(op: Operation) -> bool:
    """Return whether an operation keeps what shares its device where it is by default."""
    requested, row = parse_device(op.device), lookup_op(op.type)
    specs = [t.dtype for t in (*op.inputs, *op.outputs)]
    is_state = bool(op.outputs) and op.outputs[0].dtype == resource and row.variable != "handle"
    values = any(d != resource and (d in OPAQUE or d.kind in "OSU") for d in specs)
    return (
        requested.job is not None or requested.task is not None or row.script or is_state or values
    )


@dataclasses.dataclass
class _VariableTaskSearch:
    """The search for the tasks of the variables in `sets`; those in `known` have one."""

    graph: Graph
    cluster: Cluster
    settings: Settings
    placements: Mapping[str, VariablePlacement]
    known: Mapping[str, int]
    sets: list[list[str]]

    @functools.cached_property
    def required(self) -> RequiredTasks:
        """The tasks that satisfy requirements."""
        return required_tasks(self.graph, self.cluster, self.settings, self.placements)

    def run(self) -> _Choice:
        """Return the task of each variable, and those of the operations of all updates."""
        program = _trained_program(self.graph)
        if self.cluster.mode == "single":  # sums over replicas take no time
            program = lower_replicas(program, self.graph, self.cluster)
        groups = ProgramGroups(program, self.graph, self.sets)
        free = {name for names in self.sets for name in names}
        fixed = [self._fixed(program, names, free) for names in groups.members]
        memory = memory_of_task(self.settings)
        here = [name for names in groups.members for name in names]
        left_out = {*here, *free, *self.required.reserved()}
        base = resident_bytes(self.graph, self.cluster, self.known, self.placements, left_out)
        base = self.required.add_absent(base, self.known, here)
        state_bytes = groups.state_bytes(program, self.graph)

        def problem_of(rows: int) -> tuple[StepProblem, StepProblemBuilder]:
            specs = static_specs(program, self.graph, rows)
            builder = StepProblemBuilder(program, groups, specs)
            made = builder.problem(self.cluster, fixed, state_bytes, base, memory)
            return self.required.constrain(made, groups.members), builder

        sizes = open_sizes(self.graph, self.cluster)
        problem, builder = problem_of(ASSUMED_ROWS if sizes is None else sizes.rows)
        arguments = list(builder.layer_groups().values()), builder.scope_groups(), SEED
        best = search(problem, *arguments)
        if sizes is not None and not sizes.is_known:
            others = (problem_of(rows)[0] for rows in OTHER_ROWS)
            best = _never_worse(best, problem, others)
        if best.overflow:  # other steps may have smaller values, but variables must fit
            empty = tuple(dataclasses.replace(value, nbytes=0) for value in problem.values)
            state_only = search(dataclasses.replace(problem, values=empty), *arguments)
            if state_only.overflow:
                check_fit(problem, best, arguments, "variables and values", self.settings)
            best = state_only
        for g, size in enumerate(state_bytes):
            base[best.devices[g]] += size
        tasks: dict[str, int] = {}
        for names in self.sets:
            kept = _kept_operations(self.graph, names)
            task = next((best.devices[groups.number[n]] for n in names if n in groups.number), None)
            if task is None:
                task = self._roomiest(kept, base, problem)
            for op in kept:
                tasks[op.name] = self.known.get(op.name, task)
        return _Choice(tasks, {name: best.devices[g] for name, g in groups.number.items()})

    def _fixed(self, program: Program, names: list[str], free: set[str]) -> int | None:
        """Return the task of a group, None if the search decides."""
        known = next((self.known[name] for name in names if name in self.known), None)
        if known is not None:
            return known
        if not free.isdisjoint(names):
            return None
        for name in names:
            op = self.graph.get_operation_by_name(name) if name in self.graph else None
            requested = parse_device(op.device) if op is not None else None
            if requested is not None and (requested.job is not None or requested.task is not None):
                workers = self.cluster.tasks_per_replica
                if requested.job == "ps":
                    return min(workers + (requested.task or 0), len(self.cluster.tasks()) - 1)
                return min(requested.task or 0, workers - 1)
            if name in self.placements:
                return self.cluster.tasks_per_replica + self.placements[name].pieces[0].server
            node = program.nodes.get(name)
            if node is not None and (stays(program, node) or node.is_state):
                return self.required.default_task(names)
        return None

    def _roomiest(self, kept: list[Operation], base: list[float], problem: StepProblem) -> int:
        """Return a task for what no update reaches: the driver if its variables fit there."""
        known = [self.known[op.name] for op in kept if op.name in self.known]
        if known:
            return known[0]
        names = [op.name for op in kept]
        if not self.required.allowed.keys().isdisjoint(names):
            return self.required.default_task(names)
        size = sum(variable_nbytes(op) for op in kept if lookup_op(op.type).variable == "handle")
        workers = range(self.cluster.tasks_per_replica)
        task = next((k for k in workers if base[k] + size <= problem.devices[k].memory), 0)
        base[task] += size
        return task


def _never_worse(
    best: ScoredPlacement, problem: StepProblem, others: Iterable[StepProblem]
) -> ScoredPlacement:
    """Return the best placement of a problem, or the default if that is better in another one.

    Memory comes first: a default that does not fit is no choice.
    """
    default = score(problem, default_placement(problem))
    if default.overflow or best.devices == default.devices:
        return best
    for other in others:
        if score(other, best.devices).seconds > score(other, default.devices).seconds:
            return default
    return best


def _trained_program(graph: Graph) -> Program:
    """Return the program of all updates of a graph; without one, of all that nobody uses."""
    ops = graph.get_operations()
    updates = [op for op in ops if _updates_variables(op)]
    if not updates:
        used = {t.op for op in ops for t in op.inputs} | {
            c for op in ops for c in op.control_inputs
        }
        updates = [op for op in ops if op not in used and not op.attrs.get("initial")]
    fed = [op.outputs[0] for op in ops if lookup_op(op.type).stands_for_feed]
    return prune_to_fetches(graph, updates, {t: Spec(t.dtype, t.shape) for t in fed})


def _updates_variables(op: Operation) -> bool:
    """Whether an operation, or one in its loops and branches, updates a variable."""
    inside = (inner for function in bodies(op) for inner in all_operations(function.body))
    return any(lookup_op(o.type).writes and not o.attrs.get("initial") for o in (op, *inside))
