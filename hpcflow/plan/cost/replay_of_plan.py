"""Replay of a plan: the plan of a step as a step template of `hpcflow.placement`.

A task computes its segments (`split_segments`). A segment is cut where it sends a value or starts a
wait, so that messages and collectives begin in the middle of it and go on beside the rest. A loop
or a branch counts as one pass through each of its programs, because values decide how often it
runs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence

from hpcflow.graph.device_names import parse_device
from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.segments_between_waits import split_segments
from hpcflow.placement.durations import NOTHING, Seconds, total
from hpcflow.placement.job_places import JobPlaces
from hpcflow.placement.network import Network
from hpcflow.placement.step_template import Gate, StepTemplate, TemplateTask
from hpcflow.plan.cost.cost_model import HEADER_BYTES, predicted_seconds
from hpcflow.plan.cost.op_flops_and_bytes import cost_input_specs
from hpcflow.plan.ir.control_flow_nodes import nested_programs
from hpcflow.plan.ir.program import Node, Partition, Plan

NodeSeconds = Callable[[Node, Sequence[Spec]], Seconds]  # of a node and the specs of its inputs
SPREAD = 3.0  # the cost model knows no machine: FLOPS per core differ by this factor either way
PASSED_ON = ("RoundAdd", "RoundReady", "RoundPick", "RoundEnd", "ClockTick")  # no copy, no sum
GATES: dict[str, Gate] = {"RoundTotal": "own update", "RoundOver": "own update"}


def model_seconds(node: Node, inputs: Sequence[Spec]) -> Seconds:
    """Return the time of a node by the cost model, within a factor of `SPREAD`."""
    seconds = predicted_seconds(node, inputs)
    return Seconds(seconds, seconds / SPREAD, seconds * SPREAD)


def template_of(
    plan: Plan, network: Network | JobPlaces, seconds: NodeSeconds = model_seconds
) -> StepTemplate:
    """Return the step template of a plan; `seconds(node, inputs)` is the time of a node."""
    cluster, groups = plan.cluster, _server_groups(plan, network.most_servers)
    dropped = {task for task in _servers(plan) if task not in groups}
    step = _Tasks(plan, network, seconds, dropped)
    update = _Tasks(plan.round, network, seconds, dropped) if plan.round is not None else None
    rule = cluster.sync
    return StepTemplate(
        tuple(step.tasks),
        tuple(step.of_rank(plan.driver)),
        cluster.replicas,
        groups,
        tuple(update.tasks) if update is not None else (),
        tuple(step.starts_of("RoundReady")),
        rule.needed(cluster.replicas) or cluster.replicas,
        rule.max_steps_ahead if cluster.mode == "ps" else None,
        tuple(step.starts_of("ClockTick")),
    )


def one_rank_seconds(plan: Plan, seconds: NodeSeconds = model_seconds) -> Seconds:
    """Return the time of one rank that alone computes a replica's step and its updates.

    It neither sends, receives nor waits.
    """
    plans = [plan] if plan.round is None else [plan, plan.round]
    nodes = [(node, part) for p in plans for part in p.parts.values() for node in _own(part)]
    return total(_node_seconds(node, part, seconds, 1) for node, part in nodes)


def own_seconds(plan: Plan, seconds: NodeSeconds = model_seconds) -> Seconds:
    """Return the time that the driver of a replica computes in a step, copies included."""
    part = plan.parts[plan.driver]
    nodes = [
        node
        for node in part.nodes.values()
        if node.row.message not in ("send", "receive") and not node.row.collective
    ]
    return total(_node_seconds(node, part, seconds, 1) for node in nodes)


def servers_seconds(plan: Plan, seconds: NodeSeconds = model_seconds) -> float:
    """Return the time that all servers together compute in a step of all replicas."""
    gradients = plan.cluster.sync.needed(plan.cluster.replicas) or 1
    sums = 0.0
    for part_of, times in ((plan, plan.cluster.replicas), (plan.round, 1)):
        for task, part in part_of.parts.items() if part_of is not None else ():
            if parse_device(task).job == "ps":
                nodes = [n for n in part.nodes.values() if not n.row.waits or n.type == "RoundSum"]
                each = total(_node_seconds(node, part, seconds, gradients) for node in nodes)
                sums += times * each.median
    return sums


def samples_of(plan: Plan) -> int:
    """Return the samples of one replica's step: the largest first dimension of a fed array.

    0 if no array is fed, or if its size is unknown.
    """
    part = plan.parts[plan.driver]
    shapes = [part.nodes[name].specs[0].shape for name in part.feeds]
    return max((shape[0] or 0 for shape in shapes if shape), default=0)


def input_bytes_of(plan: Plan) -> int:
    """Return the bytes of the arrays that a replica's step is fed with; unknown sizes have none."""
    part = plan.parts[plan.driver]
    specs = [part.nodes[name].specs[0] for name in part.feeds]
    return sum(spec.nbytes for spec in specs if spec.sized)


def _own(part: Partition) -> Iterable[Node]:
    """The nodes of a partition that a single rank would also have."""
    return (node for node in part.nodes.values() if not node.row.waits and not node.row.message)


def _servers(plan: Plan) -> list[str]:
    """The servers of a plan and of its update."""
    tasks = [*plan.parts, *(plan.round.parts if plan.round is not None else ())]
    return [task for task in dict.fromkeys(tasks) if parse_device(task).job == "ps"]


def _server_groups(plan: Plan, most: int) -> dict[str, int]:
    """The servers that are replayed, at most `most`, and how many each stands for.

    Server 0 coordinates and stands for itself. The others are sorted by the bytes of their messages
    and cut into equal groups; the busiest of a group stands for it.
    """
    first, *others = _servers(plan) or [""]
    if not first:
        return {}
    moved = dict.fromkeys(others, 0)
    for edge in plan.edges:
        for task in {edge.source, edge.dest} & moved.keys():
            moved[task] += edge.spec.nbytes if edge.spec.sized else 0
    others.sort(key=moved.__getitem__)
    count = min(most - 1, len(others))
    cuts = [len(others) * i // count for i in range(count + 1)] if count else []
    sizes = {others[b - 1]: b - a for a, b in itertools.pairwise(cuts)}
    return {first: 1, **sizes}


def _node_seconds(node: Node, part: Partition, seconds: NodeSeconds, gradients: int) -> Seconds:
    """The time of a node, with one pass through its programs."""
    if node.type == "RoundSum":  # its inputs are in the coordinator: a gradient of each replica
        return total([seconds(node, [*node.specs] * gradients)])
    insides = [inside for _, inside in nested_programs(node)]
    nested = [
        _node_seconds(n, inside, seconds, gradients)
        for inside in insides
        if isinstance(inside, Partition)
        for n in inside.nodes.values()
    ]
    return total([*nested, *([] if nested else [seconds(node, cost_input_specs(node, part))])])


class _Tasks:
    """The tasks of a plan: `tasks`, with the numbers by which they refer to each other."""

    def __init__(
        self,
        plan: Plan,
        network: Network | JobPlaces,
        seconds: NodeSeconds,
        dropped: set[str],
    ) -> None:
        self.plan, self.network, self.seconds = plan, network, seconds
        self.parts = [part for task, part in plan.parts.items() if task not in dropped]
        self.gradients = plan.cluster.sync.needed(plan.cluster.replicas) or 1
        self.tasks: list[TemplateTask] = []
        self.sent: dict[int, int] = {}  # channel -> the message
        self.waits: dict[str, int] = {}  # wait node, with its task -> the end of its wait
        self.types: dict[str, list[int]] = {}
        self._last: dict[tuple[str, int], list[int]] = {}  # the last tasks of a segment
        headers = {
            part.task: self._add(
                TemplateTask(plan.driver, to=part.task, nbytes=float(HEADER_BYTES))
            )
            for part in self.parts
            if part.task != plan.driver
        }
        self._add_parts(headers)

    def of_rank(self, rank: str) -> list[int]:
        """The tasks that compute on a rank, and the waits that end there."""
        own = [i for i, task in enumerate(self.tasks) if task.rank == rank and not task.to]
        return own + [i for i, task in enumerate(self.tasks) if task.to == rank]

    def starts_of(self, op: str) -> list[int]:
        """The tasks of the nodes of a type."""
        return self.types.get(op, [])

    def _add(self, task: TemplateTask) -> int:
        self.tasks.append(task)
        return len(self.tasks) - 1

    def _add_parts(self, headers: dict[str, int]) -> None:
        """Add the segments of all partitions, each when those that it waits for have been added.

        Errors: those of `split_segments`; a verified plan has no cycle.
        """
        left = [
            (part, number, segment)
            for part in self.parts
            for number, segment in enumerate(split_segments(part))
        ]
        here = {part.task for part in self.parts}
        while left:
            later = []
            for part, number, segment in left:
                waits = [self._wait(part, name, here) for name in segment.waits]
                before = [self._last.get((part.task, i)) for i in segment.after]
                if None in waits or None in before:
                    later.append((part, number, segment))
                    continue
                after = [wait for wait in waits if wait is not None and wait >= 0]
                after += [i for numbers in before for i in numbers or []]
                if not after and part.task in headers:
                    after = [headers[part.task]]
                self._add_segment(part, number, segment.nodes, after)
            if len(later) == len(left):
                raise AssertionError(f"the segments of {self.plan.driver} wait for each other")
            left = later

    def _wait(self, part: Partition, name: str, here: set[str]) -> int | None:
        """The task with which a wait ends; None if it is not there yet, -1 if it never will be."""
        node = part.nodes[name]
        if node.row.message == "receive":
            if node.attrs["source"] not in here:
                return -1
            return self.sent.get(node.attrs["channel"])
        return self.waits.get(f"{part.task} {name}")

    def _add_segment(
        self, part: Partition, number: int, names: Sequence[str], after: list[int]
    ) -> None:
        """Add a segment, cut at its sends and at the starts of its waits."""
        times: list[Seconds] = []
        device = ""
        for name in names:
            node = part.nodes[name]
            cuts = node.row.waits or node.row.message == "send"
            on = device if cuts else node.device.removeprefix(f"{part.task}/") or device
            if times and (cuts or on != device):
                after = [self._compute(part, times, device, after)]
                times = []
            device = on
            if cuts:
                self._add_cut(part, node, after)
            else:
                times.append(_node_seconds(node, part, self.seconds, self.gradients))
        if times:
            after = [self._compute(part, times, device, after)]
        self._last[part.task, number] = after

    def _compute(self, part: Partition, times: list[Seconds], device: str, after: list[int]) -> int:
        return self._add(TemplateTask(part.task, tuple(after), total(times), device))

    def _add_cut(self, part: Partition, node: Node, after: list[int]) -> None:
        """Add a message, a collective or another wait."""
        if node.row.message == "send":
            self._add_message(part, node, after)
            return
        task = TemplateTask(part.task, tuple(after))
        if node.row.collective and self.plan.cluster.replicas > 1:
            time = self._collective_seconds(node)
            task = dataclasses.replace(task, seconds=time, is_collective=True)
        elif node.type == "RoundBegin":
            gate: Gate = "clock" if node.attrs["channel"] == "clock" else "update"
            task = dataclasses.replace(task, gate=gate)
        elif node.type in GATES:
            task = dataclasses.replace(task, gate=GATES[node.type])
        elif node.type not in PASSED_ON:
            time = _node_seconds(node, part, self.seconds, self.gradients)
            device = node.device.removeprefix(f"{part.task}/")
            task = dataclasses.replace(task, seconds=time, device=device)
        number = self._add(task)
        self.waits[f"{part.task} {node.name}"] = number
        self.types.setdefault(node.type, []).append(number)

    def _add_message(self, part: Partition, node: Node, after: list[int]) -> None:
        """Add the message of a Send; none if the receiver is not replayed."""
        dest, nbytes = node.attrs["dest"], 0
        if dest not in {part.task for part in self.parts}:
            return
        if node.inputs and not node.attrs["token"]:
            spec = part.spec(node.inputs[0])
            nbytes = spec.nbytes if spec.sized else 0
        message = TemplateTask(part.task, tuple(after), to=dest, nbytes=float(nbytes))
        self.sent[node.attrs["channel"]] = self._add(message)

    def _collective_seconds(self, node: Node) -> Seconds:
        """The time of a collective of all replicas."""
        cluster = self.plan.cluster
        local = max(1, self.network.ranks_per_node // cluster.tasks_per_replica)
        nbytes = sum(spec.nbytes for spec in node.specs if spec.sized)
        if node.row.combines == "rows":
            time = self.network.gather_seconds(nbytes, cluster.replicas, local)
        else:
            time = self.network.allreduce_seconds(nbytes, cluster.replicas, local)
        return Seconds(time, time, time) if time else NOTHING
