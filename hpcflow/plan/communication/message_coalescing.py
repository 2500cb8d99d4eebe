"""Message coalescing: small values from one segment to one task share a message (parcel).

A `Parcel` node concatenates the bytes of the values, which cross to the other task as one value.
There, a `FromParcel` node makes each value a view of the received bytes. A large value keeps its
own message, from and into its final buffers. Both types are ordinary nodes, so partitioning and all
invariants of messages apply to them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from itertools import chain

from hpcflow.graph.dtypes import OPAQUE
from hpcflow.ops.replicas.replica_ops import parcel_layout
from hpcflow.plan.communication.send_recv_insertion import (
    MESSAGES,
    TOKEN,
    Crossing,
    crossings,
    tasks,
)
from hpcflow.plan.cost import cost_model
from hpcflow.plan.distribution.device_placement import device_label
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import new_name

SMALL_BYTES = 64 << 10  # a larger value gets its own message
PARCEL_BYTES = 1 << 20  # capacity of a parcel
WORTH_S = cost_model.MESSAGE_OVERHEAD_S  # at most this much work is delayed to save a message
UNKNOWN_S = 1.0  # assumed seconds of a loop, branch or wait

FedTasks = Mapping[str, "str | None"]
Results = list[tuple[str, Ref]]


def coalesce_messages(program: Program, driver: str) -> Program:
    """Return the program of a step with parcels in place of small values that cross together."""
    results = [(driver, ref) for ref in program.fetches]
    packer = _Packer(program, results, {}, driver)
    program, results = packer.run()
    return program.but(fetches=tuple(ref for _, ref in results))


def coalesce_frame_messages(
    program: Program, results: Results, feed_tasks: FedTasks
) -> tuple[Program, Results]:
    """Coalesce the messages of a program in a loop or branch.

    `feed_tasks` maps feeds to tasks as in `send_recv_insertion.tasks`.
    """
    return _Packer(program, results, feed_tasks).run()


@dataclasses.dataclass
class _Parcel:
    """Values, and ends of nodes (tokens), that cross together."""

    source: str
    dest: str
    bit: int  # the bit of its arrival in sets of waits
    leaves: float = math.inf  # latest time to send it, in predicted seconds of its segment
    items: list[Crossing] = dataclasses.field(default_factory=list)
    nbytes: int = 0


class _Packer:
    """Visits the nodes in order and adds each small crossing to a parcel.

    Values can share a parcel if they depend on the same waits of their task; nodes share a segment
    by the same rule (see `segments_between_waits`). No value then waits for a message that it does
    not need, and no cycle of messages can arise. A parcel is sent with the last of its values.
    Until then a value waits only if little work lies between, or if little work depends on it, such
    as the update of a bias.
    """

    def __init__(
        self, program: Program, results: Results, feed_tasks: FedTasks, driver: str | None = None
    ) -> None:
        self.program, self.results, self.driver = program, results, driver
        self.task = tasks(program, feed_tasks)
        ends = [(driver, target) for target in program.targets] if driver else []
        self.crossings = crossings(program, self.task, results, ends)
        self.users: dict[str, dict[str, list[Node]]] = {}  # node -> task -> nodes that need it
        for node in program.nodes.values():
            for before in dict.fromkeys(node.before()):
                there = self.users.setdefault(before, {})
                there.setdefault(self.task[node.name], []).append(node)
        self.first = {  # (node, task) -> its first crossing to the task
            (c.node, c.dest): c for group in self.crossings.values() for c in reversed(group)
        }
        self.seconds: dict[str, float] = {}
        self.over: dict[str, int] = {}  # node -> the waits of its task that its values depend on
        self.arrival: dict[Crossing, int] = {}  # crossing -> the bit of its wait at `dest`
        self.bits: dict[str, int] = {}  # task -> number of its last wait
        self.clock: dict[tuple[str, int], float] = {}  # segment -> predicted seconds so far
        self.open: dict[tuple[str, str, int], _Parcel] = {}
        self.parcels: list[_Parcel] = []

    def run(self) -> tuple[Program, Results]:
        for node in self.program.nodes.values():
            if node.name in self.task:
                self._visit(node)
        self.parcels = [parcel for parcel in self.parcels if len(parcel.items) > 1]
        return _Rewriter(self).run() if self.parcels else (self.program, self.results)

    # -- which crossings can share a parcel

    def _visit(self, node: Node) -> None:
        task = self.task[node.name]
        waits = 0
        for before in self._before(node, task):
            waits |= before
        if node.row.waits:
            waits |= self._new_bit(task)
        self.over[node.name] = waits
        now = self.clock[task, waits] = self.clock.get((task, waits), 0.0) + self._seconds(node)
        for crossing in self.crossings.get(node.name, ()):
            self._take(crossing, node, waits, now)

    def _before(self, node: Node, task: str) -> Iterator[int]:
        """Yield the set of waits behind each input and control input of a node."""
        for ref in node.inputs:
            if self.task.get(ref.node, task) != task:
                yield self.arrival[Crossing(ref.node, ref.index, task)]
            else:
                yield self.over.get(ref.node, 0)
        for before in node.control:
            if self.task.get(before, task) != task:
                yield self.arrival[self.first[before, task]]
            else:
                yield self.over.get(before, 0)

    def _new_bit(self, task: str) -> int:
        number = self.bits[task] = self.bits.get(task, -1) + 1
        return 1 << number

    def _seconds(self, node: Node) -> float:
        seconds = self.seconds.get(node.name)
        if seconds is None:
            input_specs = [self.program.spec(ref) for ref in node.inputs]
            unknown = node.row.control_flow or node.row.waits
            seconds = self.seconds[node.name] = (
                UNKNOWN_S if unknown else cost_model.predicted_seconds(node, input_specs)
            )
        return seconds

    def _take(self, crossing: Crossing, node: Node, waits: int, now: float) -> None:
        spec = TOKEN if crossing.index is None else node.specs[crossing.index]
        source, dest = self.task[node.name], crossing.dest
        if not spec.sized or spec.dtype in OPAQUE or spec.nbytes > SMALL_BYTES:
            self.arrival[crossing] = self._new_bit(dest)
            return
        key = (source, dest, waits)
        parcel = self.open.get(key)
        if parcel is None or now > parcel.leaves or parcel.nbytes + spec.nbytes > PARCEL_BYTES:
            parcel = self.open[key] = _Parcel(source, dest, self._new_bit(dest))
            self.parcels.append(parcel)
        if not self._is_patient(crossing):
            parcel.leaves = min(parcel.leaves, now + WORTH_S)
        parcel.items.append(crossing)
        parcel.nbytes += spec.nbytes
        self.arrival[crossing] = parcel.bit

    def _is_patient(self, crossing: Crossing) -> bool:
        """Return whether all work that depends on the arrival costs less than a message."""
        stack = self.takers(crossing)
        visited, budget = {node.name for node in stack}, WORTH_S
        while stack and budget >= 0:
            node = stack.pop()
            budget -= self._seconds(node)
            for user in chain.from_iterable(self.users.get(node.name, {}).values()):
                if user.name not in visited:
                    visited.add(user.name)
                    stack.append(user)
        return budget >= 0

    def takers(self, crossing: Crossing) -> list[Node]:
        """Return the nodes of the other task that take a value or follow an end."""
        users = self.users.get(crossing.node, {}).get(crossing.dest, [])
        if crossing.index is None:
            return list(users)
        return [n for n in users if Ref(crossing.node, crossing.index) in n.inputs]


class _Rewriter:
    """Inserts the Parcel nodes behind their last values, and the FromParcel nodes."""

    def __init__(self, packer: _Packer) -> None:
        self.packer, self.program, self.task = packer, packer.program, packer.task
        self.values: dict[tuple[Ref, str], Ref] = {}  # (value, task) -> its replacement on the task
        self.ends: dict[tuple[str, str], str] = {}  # (node, task) -> the node after its end
        self.used_names = set(self.program.nodes)
        self.inserted_after: dict[str, list[Node]] = {}  # node -> nodes inserted behind it
        for parcel in packer.parcels:
            self.inserted_after.setdefault(parcel.items[-1].node, []).extend(self._nodes(parcel))

    def run(self) -> tuple[Program, Results]:
        nodes: dict[str, Node] = {}
        for node in self.program.nodes.values():
            for new_node in (self._renamed(node), *self.inserted_after.get(node.name, ())):
                nodes[new_node.name] = new_node
        driver = self.packer.driver or ""
        targets = dict.fromkeys(self.ends.get((t, driver), t) for t in self.program.targets)
        results = [(task, self.values.get((ref, task), ref)) for task, ref in self.packer.results]
        return self.program.but(nodes=nodes, targets=tuple(targets)), results

    def _nodes(self, parcel: _Parcel) -> list[Node]:
        first = self.program.nodes[parcel.items[0].node]
        values = [item for item in parcel.items if item.index is not None]
        tokens = [item.node for item in parcel.items if item.index is None]
        name = new_name(f"{first.name}/parcel_to_{device_label(parcel.dest)}", self.used_names)
        device = f"{parcel.source}/{MESSAGES}"
        if not values:  # only tokens: a NoOp joins them, and its end is sent
            joined = Node(name, "NoOp", (), tuple(tokens), {}, (), device)
            self.ends.update({(token, parcel.dest): joined.name for token in tokens})
            return [joined.but(line=first.line)]
        refs = tuple(Ref(item.node, item.index) for item in values if item.index is not None)
        specs = [self.program.spec(ref) for ref in refs]
        packed = Node(name, "Parcel", refs, tuple(tokens), {}, (), device)
        packed = packed.but(specs=tuple(packed.row.infer(specs, {})), line=first.line)
        new_nodes = [packed]
        for item, ref, start in zip(values, refs, parcel_layout(specs)[0], strict=True):
            new_nodes.append(self._out(item, ref, start, packed))
            self.values[ref, parcel.dest] = Ref(new_nodes[-1].name)
            self.ends.setdefault((ref.node, parcel.dest), new_nodes[-1].name)
        self.ends.update({(token, parcel.dest): new_nodes[-1].name for token in tokens})
        return new_nodes

    def _out(self, item: Crossing, ref: Ref, start: int, packed: Node) -> Node:
        """Return the FromParcel node of a value, on the device of its first use."""
        spec, takers = self.program.spec(ref), self.packer.takers(item)
        device = takers[0].device if takers else f"{item.dest}/{MESSAGES}"
        name = new_name(f"{ref.node}/{ref.index}_on_{device_label(item.dest)}", self.used_names)
        attrs = {"dtype": spec.dtype, "shape": spec.shape, "start": start}
        unpacked = Node(name, "FromParcel", (Ref(packed.name),), (), attrs, (), device)
        line = self.program.nodes[ref.node].line
        return unpacked.but(specs=tuple(unpacked.row.infer(packed.specs, attrs)), line=line)

    def _renamed(self, node: Node) -> Node:
        if node.name not in self.task:
            return node
        task = self.task[node.name]
        inputs = tuple(self.values.get((ref, task), ref) for ref in node.inputs)
        control = dict.fromkeys(self.ends.get((before, task), before) for before in node.control)
        for ref in inputs:
            control.pop(ref.node, None)
        return node.but(inputs=inputs, control=tuple(control))
