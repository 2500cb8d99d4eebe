"""Step problem builder: a program as the operations, values and groups of a `StepProblem`.

Constants and other free nodes are left out: every task that uses them has a copy. A loop or branch
counts as one operation with the time of what it runs. Elementwise operations work in place.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hpcflow.graph.dtypes import OPAQUE, resource
from hpcflow.graph.graph import Graph, Operation
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.placement.device_links import Links
from hpcflow.placement.step_problem import Device, StepProblem, Value
from hpcflow.plan.cost.cost_model import (
    MESSAGE_BYTES_PER_S,
    MESSAGE_OVERHEAD_S,
    MESSAGE_S,
    predicted_seconds,
    without_idle_rows,
)
from hpcflow.plan.distribution.colocation_groups import ColocationGroups
from hpcflow.plan.distribution.device_placement import is_free
from hpcflow.plan.distribution.open_sizes import ASSUMED_ROWS
from hpcflow.plan.distribution.variable_cost import variable_nbytes
from hpcflow.plan.ir.layer_names import BACKWARD, FORWARD, LayerNames
from hpcflow.plan.ir.node_effects import has_effect
from hpcflow.plan.ir.program import Cluster, Node, Program, Ref

if TYPE_CHECKING:
    from hpcflow.plan.cost.measured_rows import MeasuredRows

Specs = Callable[[Node], tuple[Spec, ...]]


def assumed(spec: Spec, rows: int = ASSUMED_ROWS) -> Spec:
    """Return the spec with `rows` for each unknown size."""
    if spec.known or spec.shape is None:
        return spec
    return Spec(spec.dtype, tuple(rows if d is None else d for d in spec.shape))


def stays(program: Program, node: Node) -> bool:
    """Return whether only the default device is known to be right for a node.

    These are feeds, loops and branches, functions of the script, strings, lists of tensors, state
    that is no variable, and effects other than updates and collectives.
    """
    row = node.row
    if row.source == "feed" or row.control_flow or row.script:
        return True
    if node.is_state and row.variable != "handle":
        return True
    specs = (*node.specs, *(program.spec(ref) for ref in node.inputs))
    if any(s.dtype != resource and (s.dtype in OPAQUE or s.dtype.kind in "OSU") for s in specs):
        return True
    return has_effect(program, node) and not (row.writes or row.collective)


class ProgramGroups:
    """The colocation groups of a program, by number, and what they hold."""

    def __init__(
        self, program: Program, graph: Graph, joined: Iterable[Sequence[str]] = ()
    ) -> None:
        """`joined`: names that share a group, where the program has them."""
        sets = ColocationGroups(program, graph)
        for names in joined:
            known = [name for name in names if name in sets]
            for name in known[1:]:
                sets.join(name, known[0])
        numbers: dict[str, int] = {}
        self.members: list[list[str]] = []
        self.number: dict[str, int] = {}
        for name in sets.members():
            g = numbers.setdefault(sets.find(name), len(numbers))
            if g == len(self.members):
                self.members.append([])
            self.members[g].append(name)
            self.number[name] = g

    def state_bytes(self, program: Program, graph: Graph) -> list[float]:
        """Return the bytes of the variables in each group.

        A variable that the program reads and updates counts twice: while its value is used, the
        update writes to a second buffer.
        """
        read, updated = set[str](), set[str]()
        for node in program.nodes.values():
            if node.row.variable == "read":
                read.add(node.inputs[0].node)
            if not node.attrs.get("initial"):
                updated.update(node.inputs[i].node for i in node.row.writes)
        return [
            float(
                sum(
                    variable_nbytes(op) * (1 + (op.name in read & updated))
                    for op in graph_variables(graph, names)
                )
            )
            for names in self.members
        ]


def graph_variables(graph: Graph, names: Iterable[str]) -> list[Operation]:
    """Return the variables of a graph among `names`."""
    ops = (graph.get_operation_by_name(name) for name in names if name in graph)
    return [op for op in ops if lookup_op(op.type).variable == "handle"]


def _devices(cluster: Cluster, links: Links, memory: float) -> Iterator[Device]:
    """Yield the devices of the tasks of a cluster; `memory` limits the workers of a replica."""
    topology = cluster.topology
    for k in range(len(cluster.tasks())):
        start = links.routes[0, k].latency if k else 0.0
        end = links.routes[k, 0].latency if k else 0.0
        limit = memory if k < cluster.tasks_per_replica else math.inf
        speed = cluster.speeds[k] if k < len(cluster.speeds) else 1.0
        if topology is not None:
            limit, speed = min(limit, topology.memory[k]), speed * topology.speeds[k]
        yield Device(limit, 1.0 / speed, start, end)


class StepProblemBuilder:
    """Builds the step problem of a program; `specs(node)` has no unknown sizes."""

    def __init__(self, program: Program, groups: ProgramGroups, specs: Specs) -> None:
        self.program, self.groups = program, groups
        self.nodes = [node for node in program.nodes.values() if not is_free(node)]
        self.specs = {node.name: specs(node) for node in program.nodes.values()}
        self.number = {node.name: i for i, node in enumerate(self.nodes)}

    def problem(
        self,
        cluster: Cluster,
        fixed: Sequence[int | None],
        state_bytes: Sequence[float],
        base: Sequence[float],
        memory: float,
    ) -> StepProblem:
        """Return the problem for the tasks of a cluster.

        `base` are the bytes on each task besides the groups. One operation more, on the driver,
        takes the fetches.
        """
        count, tasks = len(self.groups.members), cluster.tasks()
        if cluster.topology is None:
            links = Links.equal(len(tasks), MESSAGE_S, MESSAGE_BYTES_PER_S, MESSAGE_OVERHEAD_S)
        else:
            links = Links.of_topology(cluster.topology, MESSAGE_S, MESSAGE_OVERHEAD_S)
        group = [self.groups.number[node.name] for node in self.nodes]
        return StepProblem(
            (*self._seconds(cluster.times), 0.0),
            tuple(self._values()),
            tuple(_devices(cluster, links, memory)),
            (*group, count),
            (*fixed, 0, *range(len(tasks))),
            (*state_bytes, 0.0, *base),
            links,
            cluster.tasks_per_replica,
        )

    def _seconds(self, measured: MeasuredRows | None) -> Iterator[float]:
        """Yield the time of each operation: measured, or else by the cost model."""
        if measured is not None:
            # only a rank with placement=auto and measured times needs it
            from hpcflow.plan.cost.unfused_times import unfused_times

            times = unfused_times(measured).seconds(self.program, self.specs)
            yield from (times[node.name] for node in self.nodes)
            return
        for node in self.nodes:
            inputs = without_idle_rows(node, [self._input_spec(ref) for ref in node.inputs])
            yield predicted_seconds(node.but(specs=self.specs[node.name]), inputs)

    def _input_spec(self, ref: Ref) -> Spec:
        """Return the spec of an input; for a handle, that of its variable."""
        source = self.program.nodes[ref.node]
        if source.row.variable == "handle":
            return assumed(Spec(source.attrs["dtype"], tuple(source.attrs["shape"])))
        return self.specs[ref.node][ref.index]

    def _values(self) -> list[Value]:
        users: dict[Ref, list[int]] = {}
        after: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for ref in dict.fromkeys(node.inputs):
                users.setdefault(ref, []).append(i)
            for name in node.control:
                after.setdefault(name, []).append(i)
        for ref in dict.fromkeys(self.program.fetches):
            users.setdefault(ref, []).append(len(self.nodes))
        values = []
        for ref, those in users.items():
            if ref.node in self.number:
                spec = self.specs[ref.node][ref.index]
                size = 0 if spec.dtype in OPAQUE else spec.nbytes
                values.append(
                    Value(self.number[ref.node], size, tuple(those), self._has_buffer(ref, those))
                )
        for name, those in after.items():
            if name in self.number:
                values.append(Value(self.number[name], 0, tuple(those)))
        return values

    def _has_buffer(self, ref: Ref, users: Sequence[int]) -> bool:
        """Return whether a value has memory of its own that its user does not take over."""
        row = self.program.nodes[ref.node].row
        if row.source == "feed" or row.variable == "read" or row.view or row.identity:
            return False
        if len(users) == 1 and users[0] < len(self.nodes):
            user = self.nodes[users[0]]
            outputs = self.specs[user.name]
            mine = self.specs[ref.node][ref.index]
            in_place = user.row.elementwise or user.row.lowers_to
            return not (in_place and outputs and outputs[0].nbytes == mine.nbytes)
        return True

    @functools.cached_property
    def layers(self) -> list[tuple[str, ...]]:
        """The layer of each group: its scope, or a name if it has none; () without an operation."""
        names, found = LayerNames(self.program), dict[int, tuple[str, ...]]()
        forward: set[int] = set()
        for node in self.program.nodes.values():
            phase, layer, inside, name = names.of(node)
            if not layer:
                layer = (inside[0].removesuffix("_grad") if phase == BACKWARD and inside else name,)
            g = self.groups.number[node.name]
            if is_free(node) or (phase != FORWARD and g in found) or g in forward:
                continue
            found[g] = layer
            if phase == FORWARD:
                forward.add(g)
        return [found.get(g, ()) for g in range(len(self.groups.members))]

    def layer_groups(self) -> dict[tuple[str, ...], list[int]]:
        """Return the groups of each layer, in the order of the program."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for node in self.nodes:
            g = self.groups.number[node.name]
            groups.setdefault(self.layers[g], []).append(g)
        return {layer: list(dict.fromkeys(members)) for layer, members in groups.items()}

    def scope_groups(self) -> list[list[int]]:
        """Return the groups of each scope, inner scopes included."""
        scopes: dict[tuple[str, ...], list[int]] = {}
        for layer, members in self.layer_groups().items():
            for end in range(1, len(layer) + 1):
                scopes.setdefault(layer[:end], []).extend(members)
        return list({tuple(members): members for members in scopes.values()}.values())


def fed_specs(node: Node) -> tuple[Spec, ...]:
    """Return the specs of a node, as far as the feeds tell them."""
    return tuple(map(assumed, node.specs))


def static_specs(program: Program, graph: Graph, rows: int = ASSUMED_ROWS) -> Specs:
    """Return specs of nodes that do not depend on the feeds, so that replicas agree on them.

    Unknown sizes are `rows`.
    """
    known: dict[str, tuple[Spec, ...]] = {}
    for node in program.nodes.values():
        op = graph.get_operation_by_name(node.name) if node.name in graph else None
        if op is not None and len(op.outputs) == len(node.specs):
            specs: Sequence[Spec] = [Spec(t.dtype, t.shape) for t in op.outputs]
        elif node.inputs and len(node.specs) == 1:
            near = known[node.inputs[0].node][node.inputs[0].index]
            specs = [Spec(node.specs[0].dtype, near.shape)]
        else:
            specs = node.specs
        known[node.name] = tuple(assumed(spec, rows) for spec in specs)
    return lambda node: known[node.name]


def with_devices(problem: StepProblem, more: int) -> StepProblem:
    """Return the problem with more worker tasks."""
    first = problem.candidate_count
    worker = problem.devices[min(1, first - 1)]
    added = [dataclasses.replace(worker, start=MESSAGE_S, end=MESSAGE_S)] * more
    devices = (*problem.devices[:first], *added, *problem.devices[first:])
    fixed = tuple(d if d is None or d < first else d + more for d in problem.fixed)
    links = Links.equal(len(devices), MESSAGE_S, MESSAGE_BYTES_PER_S, MESSAGE_OVERHEAD_S)
    new = tuple(range(first, first + more))  # each is like `worker`
    allowed = {
        g: (*those, *(new if min(1, first - 1) in those else ()))
        for g, those in problem.allowed.items()
    }
    return dataclasses.replace(
        problem,
        devices=devices,
        fixed=fixed,
        candidate_count=first + more,
        links=links,
        allowed=allowed,
    )


def collective_devices(
    program: Program, groups: ProgramGroups, fixed: Mapping[int, int], workers: int
) -> dict[int, int]:
    """Return the device of each group with a collective that is not in `fixed`.

    It is the device of the first fixed group that follows by values, that of the updated variable;
    without one, the driver. So replicas whose feeds differ in shape agree on it.
    """
    users: dict[str, list[str]] = {}
    for node in program.nodes.values():
        for ref in node.inputs:
            users.setdefault(ref.node, []).append(node.name)
    devices: dict[int, int] = {}
    for node in program.nodes.values():
        g = groups.number[node.name]
        if not node.row.collective or g in fixed or g in devices:
            continue
        devices[g] = 0
        stack, visited = [node.name], {node.name}
        while stack:
            name = stack.pop(0)
            near = fixed.get(groups.number[name])
            if near is not None and near < workers:
                devices[g] = near
                break
            new = [user for user in users.get(name, ()) if user not in visited]
            visited.update(new)
            stack += new
    return devices
