"""Cut the ordered program by task: Send and Recv where values cross, tokens where order does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from hpcflow.graph.device import parse
from hpcflow.graph.shape import Spec
from hpcflow.plan.ir import Cluster, Edge, Node, Part, Plan, Program, Ref
from hpcflow.plan.place import host_device, short

MESSAGES = "cpu:0"  # MPI is given host memory: few builds take GPU pointers
TOKEN = Spec(np.dtype("uint8"), (0,))


def task_of(device: str) -> str:
    """`/job:ps/task:0` of `/job:ps/task:0/cpu:0`."""
    return parse(device).host


def partition(program: Program, cluster: Cluster, why: Mapping[str, str]) -> Plan:
    """The plan of an ordered, placed program.

    A value crosses a border once, sent as soon as it exists and received right before its first
    use; messages begin and end in host memory. Between devices of one task it is copied once. A
    control edge that crosses is a token unless a value of the same node crosses anyway. The driver
    receives what is fetched, and a token from every target elsewhere: the step is over when all
    nodes of the driver's part have run.
    """
    return _Cutter(program, cluster).cut(dict(why))


@dataclasses.dataclass(frozen=True)
class _Crossing:
    """Output `index` of `node` (None: its end) must reach the task `dest`."""

    node: str
    index: int | None
    dest: str


class _Cutter:
    def __init__(self, program: Program, cluster: Cluster) -> None:
        self.program, self.cluster = program, cluster
        self.driver = cluster.tasks()[0]
        self.host = host_device(cluster)
        self.task = {name: task_of(n.device) for name, n in program.nodes.items()}
        self.parts: dict[str, dict[str, Node]] = {self.driver: {}}
        self.taken = set(program.nodes)
        self.edges: dict[_Crossing, Edge] = {}
        self.arrived: dict[_Crossing, Ref] = {}
        self.copies: dict[tuple[Ref, str], Ref] = {}
        self.crossings = self._collect()
        self.first: dict[tuple[str, str], _Crossing] = {}  # of a node's, to a task
        for crossing in (c for found in self.crossings.values() for c in found):
            self.first.setdefault((crossing.node, crossing.dest), crossing)

    def cut(self, why: dict[str, str]) -> Plan:
        for node in self.program.nodes.values():
            task = self.task[node.name]
            inputs = tuple(self._value(ref, node.device) for ref in node.inputs)
            control = self._control(node, task, inputs)
            self._emit(task, node.but(inputs=inputs, control=control, specs=_bare(node.specs)))
            for crossing in self.crossings.get(node.name, ()):
                self._send(node, crossing)
        fetches = tuple(self._value(ref, self.host) for ref in self.program.fetches)
        for target in self.program.targets:
            if self.task[target] != self.driver:
                self._end_of(target, self.driver)
        return self._plan(fetches, why)

    def _plan(self, fetches: tuple[Ref, ...], why: dict[str, str]) -> Plan:
        parts = {
            task: Part(task, self.parts[task])
            for task in [self.driver, *sorted(set(self.parts) - {self.driver}, key=parse)]
        }
        mine = parts[self.driver]
        parts[self.driver] = dataclasses.replace(mine, feeds=self.program.feeds, fetches=fetches)
        return Plan(parts, tuple(self.edges.values()), self.driver, self.cluster, why)

    # -- what crosses

    def _collect(self) -> dict[str, list[_Crossing]]:
        values: dict[_Crossing, None] = {}
        ends: dict[_Crossing, None] = {}
        for task, data, control in self._needs():
            for ref in data:
                if self.task[ref.node] != task:
                    values[_Crossing(ref.node, ref.index, task)] = None
            for before in control:
                if self.task[before] != task:
                    ends[_Crossing(before, None, task)] = None
        implied = {(c.node, c.dest) for c in values}
        found: dict[str, list[_Crossing]] = {}
        for crossing in [*values, *(c for c in ends if (c.node, c.dest) not in implied)]:
            found.setdefault(crossing.node, []).append(crossing)
        return found

    def _needs(self) -> Iterator[tuple[str, tuple[Ref, ...], tuple[str, ...]]]:
        for node in self.program.nodes.values():
            yield self.task[node.name], node.inputs, node.control
        yield self.driver, self.program.fetches, self.program.targets

    # -- where a value or an end is to be had

    def _value(self, ref: Ref, device: str) -> Ref:
        """The value on `device`: itself, received, or copied."""
        task, local = task_of(device), ref
        if self.task[ref.node] != task:
            local = self._receive(_Crossing(ref.node, ref.index, task))
        have = self.parts[task][local.node].device
        if have == device:
            return local
        if (local, device) not in self.copies:
            spec = _bare((self.program.spec(ref),))
            name = self._name(f"{local.node}/copy_{local.index}_to_{short(device)}")
            attrs = {"source": have}
            line = self.program.nodes[ref.node].line
            self._emit(task, Node(name, "Copy", (local,), (), attrs, spec, device, (), line))
            self.copies[local, device] = Ref(name)
        return self.copies[local, device]

    def _control(self, node: Node, task: str, inputs: tuple[Ref, ...]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for before in node.control:
            here = self.task[before] == task
            found[before if here else self._end_of(before, task)] = None
        for ref in inputs:
            found.pop(ref.node, None)
        return tuple(found)

    def _end_of(self, before: str, task: str) -> str:
        """The receive in `task` that comes after the node `before` has run."""
        crossing = next(c for c in self.crossings[before] if c.dest == task)
        return self._receive(crossing).node

    # -- making nodes

    def _send(self, node: Node, crossing: _Crossing) -> None:
        token = crossing.index is None
        spec = TOKEN if token else _bare(node.specs)[crossing.index or 0]
        ref = Ref(node.name, crossing.index or 0)
        channel = len(self.edges)
        source = self.task[node.name]
        self.edges[crossing] = Edge(channel, source, crossing.dest, ref, spec, token)
        what = "end" if token else str(crossing.index)
        name = self._name(f"{node.name}/send_{what}_to_{short(crossing.dest)}")
        device = f"{source}/{MESSAGES}"
        value = () if token else (self._value(ref, device),)
        control = (node.name,) if token else ()
        attrs = {"channel": channel, "dest": crossing.dest, "token": token}
        self._emit(source, Node(name, "Send", value, control, attrs, (), device, (), node.line))

    def _receive(self, crossing: _Crossing) -> Ref:
        if crossing not in self.arrived:
            edge = self.edges[crossing]
            what = "end" if edge.token else str(crossing.index)
            name = self._name(f"{crossing.node}/recv_{what}_on_{short(crossing.dest)}")
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

    def _name(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name


def _bare(specs: tuple[Spec, ...]) -> tuple[Spec, ...]:
    return tuple(Spec(s.dtype, s.shape) for s in specs)
