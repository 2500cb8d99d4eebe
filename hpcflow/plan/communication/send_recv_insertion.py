"""Send/Recv insertion: partitions the ordered program by task.

Send and Recv carry values between tasks; tokens carry order only.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import LISTS
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.distribution.device_placement import device_label, host_device
from hpcflow.plan.ir.program import Cluster, Edge, Node, Partition, Plan, Program, Ref
from hpcflow.plan.ir.program_rewriting import new_name

MESSAGES = "cpu:0"  # MPI sends host memory: few builds accept GPU pointers
TOKEN = Spec(np.dtype("uint8"), (0,))


@functools.lru_cache(maxsize=4096)
def task_of(device: str) -> str:
    """Return the task of a device: `/job:ps/task:0` of `/job:ps/task:0/cpu:0`."""
    return parse_device(device).host


def tasks(program: Program, feed_tasks: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return the task of each node.

    `feed_tasks` maps feeds to tasks; a feed of None, which exists on every task, is left out.
    """
    node_task: dict[str, str | None] = {n.name: task_of(n.device) for n in program.nodes.values()}
    node_task.update(feed_tasks or {})
    return {name: task for name, task in node_task.items() if task is not None}


def partition(
    program: Program, cluster: Cluster, reasons: Mapping[str, str], inside: Sequence[Edge] = ()
) -> Plan:
    """Return the plan of an ordered, placed program.

    `inside` are the edges in its loops and branches. A value crosses to a task once: it is sent as
    soon as it exists and received right before its first use. Messages begin and end in host
    memory. Between devices of one task a value is copied once. A control edge to another task is a
    token unless a value of the same node crosses anyway. The driver receives the fetches and a
    token from every target on another task, so the step is over when all nodes of the driver's
    partition have run.
    """
    return Partitioner(program, cluster, first=len(inside)).plan(dict(reasons), inside)


@dataclasses.dataclass(frozen=True)
class Crossing:
    """Output `index` of `node` (None: its end) must reach the task `dest`."""

    node: str
    index: int | None
    dest: str


def crossings(
    program: Program,
    task: Mapping[str, str],
    results: Iterable[tuple[str, Ref]],
    ends: Iterable[tuple[str, str]] = (),
) -> dict[str, list[Crossing]]:
    """Return the crossings of each node: values, and its end to tasks that no value of it reaches.

    `task` maps nodes to tasks; a node that it lacks exists on every task. `results` are (task,
    value) pairs that tasks take in addition, `ends` (task, node) pairs that they wait for in
    addition. Values come first.
    """
    values: dict[Crossing, None] = {}
    tokens: dict[Crossing, None] = {}
    needs = [(task[n.name], n.inputs, n.control) for n in program.nodes.values() if n.name in task]
    needs += [(dest, (ref,), ()) for dest, ref in results]
    needs += [(dest, (), (node,)) for dest, node in ends]
    for dest, data, control in needs:
        for ref in data:
            if task.get(ref.node, dest) != dest:
                values[Crossing(ref.node, ref.index, dest)] = None
        for before in control:
            if task.get(before, dest) != dest:
                tokens[Crossing(before, None, dest)] = None
    implied = {(c.node, c.dest) for c in values}
    by_node: dict[str, list[Crossing]] = {}
    for crossing in [*values, *(c for c in tokens if (c.node, c.dest) not in implied)]:
        by_node.setdefault(crossing.node, []).append(crossing)
    return by_node


class Partitioner:
    """Partitions one program: that of a step, or that of a loop or branch.

    In a step the driver has the feeds and results. In a frame, `feeds` maps each feed to one task
    or to all (None), `results` are (task, value) pairs, `devices` maps a task to the device of the
    frame, and `frame` names the loop or branch. Channels are numbered from `first`.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        *,
        feeds: Mapping[str, str | None] | None = None,
        devices: Mapping[str, str] | None = None,
        results: Sequence[tuple[str, Ref]] | None = None,
        first: int = 0,
        frame: str = "",
    ) -> None:
        self.program, self.cluster, self.frame = program, cluster, frame
        self.driver = cluster.tasks()[0]
        self.devices = devices or {self.driver: host_device(cluster)}
        self.feed_tasks = dict(feeds or {})
        self.results = results or [(self.driver, ref) for ref in program.fetches]
        self.task = tasks(program, self.feed_tasks)
        self.parts: dict[str, dict[str, Node]] = {task: {} for task in self.devices}
        self.used_names = set(program.nodes)
        self.first = first
        self.edges: dict[Crossing, Edge] = {}
        self.arrived: dict[Crossing, Ref] = {}
        self.copies: dict[tuple[Ref, str], Ref] = {}
        ends = [] if frame else [(self.driver, target) for target in program.targets]
        self.crossings = crossings(program, self.task, self.results, ends)

    def plan(self, reasons: dict[str, str], inside: Sequence[Edge]) -> Plan:
        """Return the plan of a step."""
        fetches = self._emit_all()[self.driver]
        for target in self.program.targets:
            if self.task[target] != self.driver:
                self._end_of(target, self.driver)
        parts = {
            task: Partition(task, self.parts[task])
            for task in [self.driver, *sorted(set(self.parts) - {self.driver}, key=parse_device)]
        }
        driver_part = parts[self.driver]
        parts[self.driver] = dataclasses.replace(
            driver_part, feeds=self.program.feeds, fetches=tuple(fetches)
        )
        edges = (*inside, *self.edges.values())
        return Plan(parts, edges, self.driver, self.cluster, reasons)

    def parts_of_frame(self) -> dict[str, Partition]:
        """Return the partitions of a program in a frame, by task."""
        fetches = self._emit_all()
        return {
            task: Partition(
                task,
                nodes,
                tuple(name for name in self.program.feeds if name in nodes),
                tuple(fetches.get(task, ())),
            )
            for task, nodes in self.parts.items()
        }

    def _emit_all(self) -> dict[str, list[Ref]]:
        """Emit all nodes and return the results of each task."""
        for node in self.program.nodes.values():
            if node.name not in self.task:
                continue
            task = self.task[node.name]
            if node.name in self.feed_tasks:
                node = node.but(device=self.devices[task])
            inputs = tuple(self._value(ref, node.device) for ref in node.inputs)
            control = self._control(node, task, inputs)
            self._emit(
                task, node.but(inputs=inputs, control=control, specs=_without_values(node.specs))
            )
            for crossing in self.crossings.get(node.name, ()):
                self._send(node, crossing)
        fetches: dict[str, list[Ref]] = {task: [] for task in self.devices}
        for task, ref in self.results:
            fetches[task].append(self._value(ref, self.devices[task]))
        return fetches

    # -- values and ends of nodes on a task

    def _value(self, ref: Ref, device: str) -> Ref:
        """Return the value on `device`: local, received or copied."""
        task, local = task_of(device), ref
        if ref.node not in self.task:
            self._add_feed(ref.node, task)
        elif self.task[ref.node] != task:
            local = self._receive(Crossing(ref.node, ref.index, task))
        have = self.parts[task][local.node].device
        if have == device or self.program.spec(ref).dtype in LISTS:
            return local  # a list is an object of the task, whatever device its elements are on
        if (local, device) not in self.copies:
            spec = _without_values((self.program.spec(ref),))
            name = f"{local.node}/copy_{local.index}_to_{device_label(device)}"
            name = new_name(name, self.used_names)
            attrs = {"source": have}
            line = self.program.nodes[ref.node].line
            self._emit(task, Node(name, "Copy", (local,), (), attrs, spec, device, (), line))
            self.copies[local, device] = Ref(name)
        return self.copies[local, device]

    def _add_feed(self, name: str, task: str) -> None:
        """Add a feed that exists on every task to the partition of this task."""
        if name not in self.parts[task]:
            node = self.program.nodes[name]
            device = self.devices[task]
            self._emit(task, node.but(device=device, specs=_without_values(node.specs)))

    def _control(self, node: Node, task: str, inputs: tuple[Ref, ...]) -> tuple[str, ...]:
        control: dict[str, None] = {}
        for before in node.control:
            here = self.task[before] == task
            control[before if here else self._end_of(before, task)] = None
        for ref in inputs:
            control.pop(ref.node, None)
        return tuple(control)

    def _end_of(self, before: str, task: str) -> str:
        """Return the Recv in `task` that follows the end of the node `before`."""
        crossing = next(c for c in self.crossings[before] if c.dest == task)
        return self._receive(crossing).node

    # -- making nodes

    def _send(self, node: Node, crossing: Crossing) -> None:
        token = crossing.index is None
        spec = TOKEN if token else _without_values(node.specs)[crossing.index or 0]
        ref = Ref(node.name, crossing.index or 0)
        channel = self.first + len(self.edges)
        source = self.task[node.name]
        self.edges[crossing] = Edge(channel, source, crossing.dest, ref, spec, token, self.frame)
        label = "end" if token else str(crossing.index)
        name = f"{node.name}/send_{label}_to_{device_label(crossing.dest)}"
        name = new_name(name, self.used_names)
        device = f"{source}/{MESSAGES}"
        value = () if token else (self._value(ref, device),)
        control = (node.name,) if token else ()
        attrs = {"channel": channel, "dest": crossing.dest, "token": token}
        self._emit(source, Node(name, "Send", value, control, attrs, (), device, (), node.line))

    def _receive(self, crossing: Crossing) -> Ref:
        if crossing not in self.arrived:
            edge = self.edges[crossing]
            label = "end" if edge.token else str(crossing.index)
            name = f"{crossing.node}/recv_{label}_on_{device_label(crossing.dest)}"
            name = new_name(name, self.used_names)
            attrs = {
                "channel": edge.channel,
                "source": edge.source,
                "dtype": edge.spec.dtype,
                "shape": edge.spec.shape,
                "token": edge.token,
            }
            line = self.program.nodes[crossing.node].line
            device = f"{crossing.dest}/{MESSAGES}"
            node = Node(name, "Recv", (), (), attrs, (edge.spec,), device, (), line)
            self._emit(crossing.dest, node)
            self.arrived[crossing] = Ref(name)
        return self.arrived[crossing]

    def _emit(self, task: str, node: Node) -> None:
        self.parts.setdefault(task, {})[node.name] = node


def _without_values(specs: tuple[Spec, ...]) -> tuple[Spec, ...]:
    return tuple(Spec(s.dtype, s.shape) for s in specs)
