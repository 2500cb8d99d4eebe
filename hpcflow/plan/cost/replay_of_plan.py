"""Replay of a plan: the plan of a step as a step template of `hpcflow.placement`.

A task computes its segments (`split_segments`). A segment is cut where it sends a value or starts a
wait, so that messages and collectives begin in the middle of it and go on beside the rest. A loop
runs as often as its plan knows, else once, and a branch the program that takes longer, because
values decide it. Those that span tasks are replayed pass by pass, with their messages.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from hpcflow.graph.device_names import parse_device
from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.segments_between_waits import split_segments
from hpcflow.placement.durations import NOTHING, Seconds, total
from hpcflow.placement.network import Network
from hpcflow.placement.rank_mapping import RankMapping
from hpcflow.placement.step_template import Gate, StepTemplate, TemplateTask
from hpcflow.plan.cost.cost_model import HEADER_BYTES, predicted_seconds, without_idle_rows
from hpcflow.plan.cost.estimated_rows import EstimatedRows
from hpcflow.plan.cost.op_flops_and_bytes import cost_input_specs
from hpcflow.plan.distribution.control_flow_frames import whole_name
from hpcflow.plan.ir.control_flow_nodes import nested_nodes, nested_programs, passes_of, runs_of
from hpcflow.plan.ir.program import Node, Partition, Plan

NodeSeconds = Callable[[Node, Sequence[Spec]], Seconds]  # of a node and the specs of its inputs
SPREAD = 3.0  # the cost model knows no machine: FLOPS per core differ by this factor either way
PASSED_ON = ("RoundAdd", "RoundReady", "RoundPick", "RoundEnd", "ClockTick")  # no copy, no sum
MOST_PASSES = 16  # of a loop with messages that are replayed one by one
GATES: dict[str, Gate] = {"RoundTotal": "own update", "RoundOver": "own update"}


def model_seconds(node: Node, inputs: Sequence[Spec]) -> Seconds:
    """Return the time of a node by the cost model, within a factor of `SPREAD`."""
    seconds = predicted_seconds(node, without_idle_rows(node, inputs))
    return Seconds(seconds, seconds / SPREAD, seconds * SPREAD)


def template_of(
    plan: Plan, network: Network | RankMapping, seconds: NodeSeconds = model_seconds
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
    """The time of a node; that of a loop or branch is of the nodes that it runs."""
    if node.type == "RoundSum":  # its inputs are in the coordinator: a gradient of each replica
        return seconds(node, [_stacked(spec, gradients) for spec in node.specs])
    if not node.row.control_flow:
        return seconds(node, cost_input_specs(node, part))
    sums = {
        key: total(_node_seconds(n, inside, seconds, gradients) for n in inside.nodes.values())
        for key, inside in nested_programs(node)
        if isinstance(inside, Partition)
    }
    runs = runs_of(node, {key: each.median for key, each in sums.items()})
    return total(sums[key].scaled(times) for key, times in runs.items())


def _stacked(spec: Spec, count: int) -> Spec:
    """The spec of `count` arrays as one; unknown if that of an array is."""
    return Spec(spec.dtype, None if spec.shape is None else (count, *spec.shape))


@dataclasses.dataclass
class _Instance:
    """A partition of the step, or that of one pass of a loop or branch in it.

    It follows the tasks `first`. Its times and bytes are those of `passes` passes. `lasts` are the
    last tasks of each segment, `waits` those with which a wait ends.
    """

    part: Partition
    first: list[int]
    iterations: tuple[int, ...] = ()  # the passes of the loops around it; () for the step
    passes: float = 1.0
    lasts: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    waits: dict[str, list[int]] = dataclasses.field(default_factory=dict)

    def ends(self) -> list[int]:
        """The tasks with which it ends."""
        lists = (*self.lasts.values(), *self.waits.values())
        return list(dict.fromkeys(i for numbers in lists for i in numbers))


class _Tasks:
    """The tasks of a plan: `tasks`, with the numbers by which they refer to each other."""

    def __init__(
        self,
        plan: Plan,
        network: Network | RankMapping,
        seconds: NodeSeconds,
        dropped: set[str],
    ) -> None:
        self.plan, self.network, self.seconds = plan, network, seconds
        self.parts = [part for task, part in plan.parts.items() if task not in dropped]
        self.gradients = plan.cluster.sync.needed(plan.cluster.replicas) or 1
        self.tasks: list[TemplateTask] = []
        self.sent: dict[tuple[int, tuple[int, ...]], int] = {}  # channel, iterations -> message
        self.types: dict[str, list[int]] = {}
        self.rows = EstimatedRows(plan.parts.values())
        self._running: list[Iterator[None]] = []
        headers = {
            part.task: self._add(
                TemplateTask(plan.driver, to=part.task, nbytes=float(HEADER_BYTES))
            )
            for part in self.parts
            if part.task != plan.driver
        }
        for part in self.parts:
            first = [headers[part.task]] if part.task in headers else []
            self._running.append(self._segments_of(_Instance(part, first)))
        self._add_running()

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

    def _add_running(self) -> None:
        """Add what is in `_running`, in turns, because messages of some are waited for by others.

        Errors: AssertionError if they wait for each other; a verified plan has no cycle.
        """
        while self._running:
            turn, self._running, before = self._running, [], len(self.tasks)
            left = [one for one in turn if next(one, True) is None]
            if len(self.tasks) == before and len(left) == len(turn) and not self._running:
                raise AssertionError(f"the segments of {self.plan.driver} wait for each other")
            self._running = left + self._running

    def _segments_of(self, one: _Instance) -> Iterator[None]:
        """Add the segments of a partition, each when those that it waits for have been added.

        Yields after each look at all of them.
        """
        left = list(enumerate(split_segments(one.part)))
        while left:
            later = []
            for number, segment in left:
                waits = [self._wait(one, name) for name in segment.waits]
                before = [one.lasts.get(i) for i in segment.after]
                if None in waits or None in before:
                    later.append((number, segment))
                    continue
                after = [i for numbers in (*waits, *before) for i in numbers or []]
                if one.iterations or not after:
                    after = [*one.first, *after]
                one.lasts[number] = self._add_segment(one, segment.nodes, after)
            left = later
            if left:
                yield

    def _wait(self, one: _Instance, name: str) -> list[int] | None:
        """The tasks with which a wait ends, [] if it never will; None if they are not added yet."""
        node = one.part.nodes[name]
        if node.row.message != "receive":
            return one.waits.get(name)
        if node.attrs["source"] not in {part.task for part in self.parts}:
            return []
        message = self.sent.get((node.attrs["channel"], one.iterations))
        return None if message is None else [message]

    def _add_segment(self, one: _Instance, names: Sequence[str], after: list[int]) -> list[int]:
        """Add a segment, cut at its sends and the starts of its waits; returns its last tasks."""
        times: list[Seconds] = []
        part, device = one.part, ""
        for name in names:
            node = part.nodes[name]
            cuts = node.row.waits or node.row.message == "send"
            on = device if cuts else node.device.removeprefix(f"{part.task}/") or device
            if times and (cuts or on != device):
                after = [self._compute(one, times, device, after)]
                times = []
            device = on
            if cuts:
                self._add_cut(one, node, after)
            else:
                times.append(_node_seconds(node, part, self.seconds, self.gradients))
        if times:
            after = [self._compute(one, times, device, after)]
        return after

    def _compute(self, one: _Instance, times: list[Seconds], device: str, after: list[int]) -> int:
        seconds = total(times).scaled(one.passes)
        return self._add(TemplateTask(one.part.task, tuple(after), seconds, device))

    def _add_cut(self, one: _Instance, node: Node, after: list[int]) -> None:
        """Add a message, a collective, a loop or branch with messages, or another wait."""
        part = one.part
        if node.row.message == "send":
            self._add_message(one, node, after)
            return
        if node.row.control_flow:
            self._running.append(self._passes_of(one, node, after))
            return
        task = TemplateTask(part.task, tuple(after))
        if node.row.collective and self.plan.cluster.replicas > 1:
            task = self._collective(task, node, part)
        elif node.type == "RoundBegin":
            gate: Gate = "clock" if node.attrs["channel"] == "clock" else "update"
            task = dataclasses.replace(task, gate=gate)
        elif node.type in GATES:
            task = dataclasses.replace(task, gate=GATES[node.type])
        elif node.type not in PASSED_ON:
            time = _node_seconds(node, part, self.seconds, self.gradients).scaled(one.passes)
            device = node.device.removeprefix(f"{part.task}/")
            task = dataclasses.replace(task, seconds=time, device=device)
        number = self._add(task)
        one.waits[node.name] = [number]
        self.types.setdefault(node.type, []).append(number)

    def _passes_of(self, outer: _Instance, node: Node, after: list[int]) -> Iterator[None]:
        """Add the passes of the part of a loop or branch on a task, one after the other.

        A loop of more than `MOST_PASSES` iterations has as many passes, each with the times, the
        bytes and the latencies of several. Messages keep the passes of its parts in step.
        """
        if node.row.control_flow == "branch":
            runs = [(self._longest(node, outer.part.task), 1.0)]
        else:
            trips = passes_of(node, "body")
            count = min(trips, MOST_PASSES)
            runs = [("cond", trips / count), ("body", trips / count)] * count + [("cond", 1.0)]
        for i, (key, passes) in enumerate(runs):
            part = node.attrs[key]
            inside = _Instance(part, after, (*outer.iterations, i), passes * outer.passes)
            yield from self._segments_of(inside)
            after = inside.ends() or after
        outer.waits[node.name] = after

    def _longest(self, node: Node, task: str) -> str:
        """The program of a branch that takes longest, on all of its tasks together."""
        name, sums = whole_name(node.name, task), collections.defaultdict[str, float](float)
        for part in self.parts:
            for other in (*part.nodes.values(), *nested_nodes(part.nodes)):
                if whole_name(other.name, part.task) == name:
                    for key, inside in nested_programs(other):
                        assert isinstance(inside, Partition)
                        times = (
                            _node_seconds(n, inside, self.seconds, self.gradients)
                            for n in inside.nodes.values()
                        )
                        sums[key] += total(times).median
        return max(sums, key=sums.__getitem__)

    def _add_message(self, one: _Instance, node: Node, after: list[int]) -> None:
        """Add the message of a Send; none if the receiver is not replayed."""
        dest, nbytes = node.attrs["dest"], 0.0
        if dest not in {part.task for part in self.parts}:
            return
        if node.inputs and not node.attrs["token"]:
            nbytes = self.rows.nbytes(one.part, node.inputs[0])
        task = one.part.task
        message = TemplateTask(
            task, tuple(after), to=dest, nbytes=nbytes * one.passes, messages=one.passes
        )
        self.sent[node.attrs["channel"], one.iterations] = self._add(message)

    def _collective(self, task: TemplateTask, node: Node, part: Partition) -> TemplateTask:
        """The task of a collective of all replicas.

        Bytes of sums pass the network one sum after the other, in the order in which they start,
        and gathered rows share it with them. Latencies delay no other collective, but GPUs sum one
        array after the other, in a stream (`comm/nccl_allreduce.py`). A plan knows the rows that a
        replica contributes, but not those of all replicas.
        """
        cluster = self.plan.cluster
        local = max(1, self.network.ranks_per_node // cluster.tasks_per_replica)
        is_gather = node.row.combines == "rows"
        specs = [part.spec(ref) for ref in node.inputs] if is_gather else node.specs
        nbytes = sum(spec.nbytes for spec in specs if spec.sized)
        if is_gather:
            delay, whole = (
                self.network.gather_seconds(size, cluster.replicas, local) for size in (0, nbytes)
            )
            moved, least = whole - delay, 0.0
        else:
            times = self.network.allreduce_times(nbytes, cluster.replicas, local)
            is_on_gpu = parse_device(node.device).kind == "gpu"
            moved, delay, least = (times.alone, 0.0, 0.0) if is_on_gpu else times
        return dataclasses.replace(
            task,
            seconds=Seconds(moved, moved, moved) if moved else NOTHING,
            is_collective=True,
            delay=delay,
            least=least,
            in_order=not is_gather,
        )
