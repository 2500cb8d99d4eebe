"""Automatic placement: worker tasks for what neither the script nor state places.

With `placement=auto`, the search of `placement/placement_search.py` chooses them, by predicted
times of operations and messages. The setting `memory_limit` is a hard limit on the variables and
values of a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hpcflow.graph.graph import Graph
from hpcflow.placement.placement_search import ScoredPlacement, score, search
from hpcflow.placement.start_placements import DRIVER, default_placement
from hpcflow.placement.step_problem import StepProblem
from hpcflow.plan.distribution.colocation_groups import ChosenTask, device_constraints
from hpcflow.plan.distribution.device_placement import colocate_equal_row_sums
from hpcflow.plan.distribution.open_sizes import ASSUMED_ROWS, OpenSizes, open_sizes
from hpcflow.plan.distribution.step_problem_builder import (
    ProgramGroups,
    StepProblemBuilder,
    collective_devices,
    fed_specs,
    static_specs,
    stays,
)
from hpcflow.plan.distribution.task_requirements import required_tasks
from hpcflow.plan.distribution.variable_placement import VariablePlacement
from hpcflow.plan.distribution.variable_tasks import (
    SEED,
    check_fit,
    memory_of_task,
    resident_bytes,
    searched_tasks,
    variable_tasks,
)
from hpcflow.plan.ir.program import Cluster, Program
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.settings import Settings

LEAST_REASONS = 4  # layers whose saving is predicted, also in a large graph
OPERATIONS = 200_000  # that these predictions schedule at most, in sum


class AutomaticChoice(NamedTuple):
    """The tasks of nodes that are not on the driver, and a sentence with the predicted times.

    `task_seconds` is the predicted own work of each task in a step, 0 where it is not known.
    """

    tasks: dict[str, ChosenTask]
    forecast: str
    task_seconds: tuple[float, ...]


def choose_tasks(
    program: Program,
    graph: Graph,
    cluster: Cluster,
    settings: Settings,
    placements: Mapping[str, VariablePlacement],
) -> AutomaticChoice:
    """Return the worker tasks of the nodes of a step.

    Errors: PlacementError if no placement fits `memory_limit`.
    """
    program = colocate_equal_row_sums(program, placements)
    return _StepPlacement(program, graph, cluster, settings, placements).run()


def automatic_facts(
    graph: Graph, cluster: Cluster, settings: Settings, placements: Mapping[str, VariablePlacement]
) -> list[Any]:
    """Return what an automatic placement depends on besides the program of a step."""
    tasks = variable_tasks(graph, cluster, settings, placements)
    started = searched_tasks(graph, cluster, settings)
    resident = resident_bytes(graph, cluster, tasks, placements, ())
    sizes = open_sizes(graph, cluster)
    return [sorted(tasks.items()), sorted(started.items()), resident, sizes]


class _StepPlacement:
    """The placement of one step, with the variables where `variable_tasks` has them."""

    def __init__(
        self,
        program: Program,
        graph: Graph,
        cluster: Cluster,
        settings: Settings,
        placements: Mapping[str, VariablePlacement],
    ) -> None:
        self.program, self.graph, self.cluster = program, graph, cluster
        self.settings, self.placements = settings, placements
        self.variable_tasks = variable_tasks(graph, cluster, settings, placements)
        self.required = required_tasks(graph, cluster, settings, placements)
        self.groups = ProgramGroups(program, graph)
        self.sizes = open_sizes(graph, cluster)
        rows = ASSUMED_ROWS if self.sizes is None else self.sizes.rows
        specs = static_specs(program, graph, rows) if cluster.joins else fed_specs
        self.builder = StepProblemBuilder(program, self.groups, specs)
        self.layers = self.builder.layers
        self.bound, self.kept = self._fixed_groups()
        self.problem = self._problem()

    def run(self) -> AutomaticChoice:
        """Return the choice."""
        arguments = list(self.builder.layer_groups().values()), self.builder.scope_groups(), SEED
        best = search(self.problem, *arguments, self._start())
        if not any(node.attrs.get("initial") for node in self.program.nodes.values()):
            check_fit(self.problem, best, arguments, "variables and values", self.settings)
        reasons = dict(self._reasons(best))
        tasks = {
            name: ChosenTask(best.devices[g], reasons[g])
            for g in reasons
            for name in self.groups.members[g]
        }
        for name in self.variable_tasks.keys() & self.groups.number.keys():
            if self.groups.number[name] in self.bound:  # since the graph has grown: an error
                why = "placement=auto: its task in other steps"
                tasks[name] = ChosenTask(self.variable_tasks[name], why)
        return AutomaticChoice(tasks, self._forecast(best), self._task_seconds(best))

    def _start(self) -> list[int]:
        """Return the placement of all updates, as far as it has the groups of this step."""
        known = searched_tasks(self.graph, self.cluster, self.settings)
        start = default_placement(self.problem)
        for g, names in enumerate(self.groups.members):
            task = next((known[name] for name in names if name in known), None)
            if task is None or self.problem.fixed[g] is not None:
                continue
            if task in self.problem.candidates_of(g):
                start[g] = task
        return start

    def _fixed_groups(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the devices of the groups that the search does not place, in two dictionaries.

        The first has the groups that the script or a server places. The second has the others:
        groups with variables, which have one task in all steps, groups that stay on their default
        task (`stays`), and groups with collectives.
        """
        tasks = {task: i for i, task in enumerate(self.cluster.tasks())}
        bound: dict[int, int] = {}
        kept = {
            self.groups.number[name]: task
            for name, task in self.variable_tasks.items()
            if name in self.groups.number
        }
        for g, names in enumerate(self.groups.members):
            for name in names:
                node = self.program.nodes.get(name)
                for constraint in device_constraints(
                    name, self.program, self.graph, self.placements, {}
                ):
                    requested = constraint.requested
                    if requested.job is not None or requested.task is not None:
                        task = f"/job:{requested.job or 'worker'}/task:{requested.task or 0}"
                        bound.setdefault(g, tasks.get(task, DRIVER))
                if node is not None and (stays(self.program, node) or node.is_state):
                    kept.setdefault(g, self.required.default_task(names))
        kept = {g: device for g, device in kept.items() if g not in bound}
        fixed = {**bound, **kept}
        sums = collective_devices(self.program, self.groups, fixed, self.cluster.tasks_per_replica)
        for g in sums:
            allowed = [self.required.allowed.get(name, ()) for name in self.groups.members[g]]
            if any(tasks and sums[g] not in tasks for tasks in allowed):
                sums[g] = self.required.default_task(self.groups.members[g])
        return bound, kept | sums

    def _problem(self) -> StepProblem:
        known = {**self.bound, **self.kept}
        fixed = [known.get(g) for g in range(len(self.groups.members))]
        names = [name for members in self.groups.members for name in members]
        left_out = {*names, *self.required.reserved()}
        base = resident_bytes(
            self.graph, self.cluster, self.variable_tasks, self.placements, left_out
        )
        base = self.required.add_absent(base, self.variable_tasks, names)
        memory = memory_of_task(self.settings)
        state_bytes = self.groups.state_bytes(self.program, self.graph)
        problem = self.builder.problem(self.cluster, fixed, state_bytes, base, memory)
        return self.required.constrain(problem, self.groups.members)

    def _default(self, g: int) -> int:
        """Return the task of a group without a search."""
        return self.problem.allowed.get(g, (DRIVER,))[0]

    def _on_driver(self, best: ScoredPlacement, layer: tuple[str, ...] | None = None) -> list[int]:
        """Return the placement with all groups, or those of a layer, back on the driver.

        Groups with a requirement are on the first task that satisfies it.
        """
        devices = list(best.devices)
        for g, name in enumerate(self.layers):
            if g not in self.bound and layer in (None, name):
                devices[g] = self._default(g)
        return devices

    def _reasons(self, best: ScoredPlacement) -> Iterator[tuple[int, str]]:
        """Yield each group that is not on the driver by choice or has a requirement: the reason."""
        texts: dict[tuple[tuple[str, ...], int], str] = {}
        count = max(LEAST_REASONS, OPERATIONS // max(1, len(self.problem.seconds)))
        for g, layer in enumerate(self.layers):
            device = best.devices[g]
            if g in self.bound or (device == DRIVER and g not in self.problem.allowed):
                continue
            if (layer, device) not in texts:
                saving = self._saving(best, layer) if len(texts) < count else ""
                where = f"with layer {'/'.join(layer)} on task {device}"
                texts[layer, device] = f"placement=auto: {where}{saving}"
            yield g, texts[layer, device]

    def _saving(self, best: ScoredPlacement, layer: tuple[str, ...]) -> str:
        """Return what it saves that a layer is not on the driver."""
        back = score(self.problem, self._on_driver(best, layer))
        if back.overflow > best.overflow:
            first = next(self._default(g) for g, name in enumerate(self.layers) if name == layer)
            return f": task {first} has no memory for it"
        saved = back.seconds - best.seconds
        return f": saves {format_seconds(saved)} of a step" if saved > 0 else ""

    def _forecast(self, best: ScoredPlacement) -> str:
        default = score(self.problem, self._on_driver(best))
        above = " and more than its memory_limit" if default.overflow else ""
        times = "cost model" if self.cluster.times is None else self.cluster.times
        return (
            f"placement=auto: predicted step {format_seconds(best.seconds)}; "
            f"{format_seconds(default.seconds)}{above} if all were on the driver"
            f"; times: {times}{_speeds_text(self.cluster)}{_sizes_text(self.sizes, self.cluster)}"
        )

    def _task_seconds(self, best: ScoredPlacement) -> tuple[float, ...]:
        """Return the predicted own work of each task.

        What a loop, a branch or a function of the script takes is not known.
        """
        totals, devices = [0.0] * self.problem.candidate_count, best.devices
        unknown: set[int] = set()
        for node, seconds in zip(self.builder.nodes, self.problem.seconds, strict=False):
            device = devices[self.groups.number[node.name]]
            if device < self.problem.candidate_count:
                totals[device] += seconds * self.problem.devices[device].slowdown
            if node.row.control_flow or node.row.script:
                unknown.add(device)
        return tuple(0.0 if k in unknown else total for k, total in enumerate(totals))


def _speeds_text(cluster: Cluster) -> str:
    speeds = [f"task {k} {speed:.2g}" for k, speed in enumerate(cluster.speeds) if speed != 1.0]
    return f"; by the measured speeds of {', '.join(speeds)}" if speeds else ""


def _sizes_text(sizes: OpenSizes | None, cluster: Cluster) -> str:
    """What sizes were assumed: by all, or only by the placement of variables before any feed."""
    if sizes is None:
        return ""
    return f"; {sizes.text()}" if cluster.joins else f"; tasks of variables: {sizes.text()}"
