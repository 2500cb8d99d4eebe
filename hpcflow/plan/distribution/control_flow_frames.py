"""Control-flow frames: partitions loops and branches, one frame per task.

The frames of one loop run without a barrier: each runs its own iterations, messages keep them in
order, and every frame receives the predicate. A loop variable is on the task where the body
computes it. A captured value is an input once on each task that uses it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hpcflow.errors import PlacementError
from hpcflow.graph.dtypes import OPAQUE
from hpcflow.plan.communication.message_coalescing import coalesce_frame_messages
from hpcflow.plan.communication.send_recv_insertion import Partitioner, task_of
from hpcflow.plan.communication.step_order import order_step
from hpcflow.plan.ir.control_flow_nodes import TRIPS, nested_nodes, nested_programs
from hpcflow.plan.ir.program import Cluster, Edge, Node, Partition, Program, Ref
from hpcflow.plan.ir.program_rewriting import sorted_program, substitute_values
from hpcflow.plan.verification.effect_verifier import Reachability, acts, in_conflict


def partition_frames(program: Program, cluster: Cluster) -> tuple[Program, list[Edge]]:
    """Return `program` with one frame per task for each loop or branch, and the inner edges."""
    edges: list[Edge] = []
    return _partition_frames(program, cluster, edges), edges


def _partition_frames(program: Program, cluster: Cluster, edges: list[Edge]) -> Program:
    values: dict[Ref, Ref] = {}
    followers: dict[str, tuple[str, ...]] = {}
    nodes: dict[str, Node] = {}
    for node in program.nodes.values():
        if not node.row.control_flow:
            nodes[node.name] = node
            continue
        frames, moved = _FramePartitioner(node, program, cluster, edges).make()
        nodes.update({frame.name: frame for frame in frames})
        values.update({old: new for old, new in moved.items() if old != new})
        if len(frames) > 1:
            followers[node.name] = tuple(frame.name for frame in frames)
    rewired = substitute_values(program.but(nodes=nodes), values)
    if not followers:
        return rewired
    nodes = {
        n.name: n.but(control=_with_followers(n.control, followers)) for n in rewired.nodes.values()
    }
    ends = [name for names in followers.values() for name in names]  # the step waits for all frames
    targets = dict.fromkeys((*_with_followers(rewired.targets, followers), *ends))
    cut = rewired.but(nodes=nodes, targets=tuple(targets))
    cut = _with_order_of_effects(program, cut, followers)
    return sorted_program(_with_order_through_frames(program, cut))


def _with_order_of_effects(
    whole: Program, cut: Program, frames: Mapping[str, tuple[str, ...]]
) -> Program:
    """Return the program `cut` with the order of effects that `whole` has.

    Who uses a result of a loop or branch follows all of its effects, but in `cut` only those of
    the frame with the result. Likewise only the frame that uses an input follows its producer.
    """
    before, after = (
        Reachability(p.nodes, [n.name for n in p.nodes.values() if acts(n)]) for p in (whole, cut)
    )
    added: dict[str, list[str]] = {}
    for name, other in itertools.product(frames.keys() & before.bit.keys(), before.bit):
        if not (before(name, other) or before(other, name)):
            continue
        for part, end in itertools.product(frames[name], frames.get(other, (other,))):
            first, second = (part, end) if before(name, other) else (end, part)
            conflict = in_conflict(cut.nodes[first], cut.nodes[second])
            if conflict and not after(first, second):
                added.setdefault(second, []).append(first)
    nodes = dict(cut.nodes)
    for name, firsts in added.items():
        control = dict.fromkeys((*nodes[name].control, *firsts))
        nodes[name] = nodes[name].but(control=tuple(control))
    return cut.but(nodes=nodes)


def _with_order_through_frames(whole: Program, cut: Program) -> Program:
    """Return `cut` with the order of effects that only a loop or branch between them gives.

    One is behind an input of a frame, the other behind a result of another frame.
    """
    effects = [n.name for n in whole.nodes.values() if n.name in cut.nodes and acts(n)]
    before, after = Reachability(whole.nodes, effects), Reachability(cut.nodes, effects)
    nodes = dict(cut.nodes)
    for name in effects:
        lost = before.masks[name] & ~after.masks[name]
        firsts = (b for b in effects if lost & before.bit[b])
        conflicts = [b for b in firsts if in_conflict(cut.nodes[b], cut.nodes[name])]
        if conflicts:
            control = dict.fromkeys((*nodes[name].control, *conflicts))
            nodes[name] = nodes[name].but(control=tuple(control))
    return cut.but(nodes=nodes)


def _with_followers(
    names: Sequence[str], followers: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f for name in names for f in followers.get(name, (name,))))


class _FramePartitioner:
    """Builds the frames of one loop or branch."""

    def __init__(self, node: Node, program: Program, cluster: Cluster, edges: list[Edge]) -> None:
        self.node, self.program, self.cluster, self.edges = node, program, cluster, edges
        self.programs = {k: _partition_frames(p, cluster, edges) for k, p in nested_programs(node)}  # type: ignore[arg-type]
        self.loop = node.row.control_flow == "loop"
        self.result_specs = node.attrs["made"]
        self.homes = self._homes()
        self.tasks = self._tasks()
        self.device = {task: self._device(task) for task in self.tasks}

    def _homes(self) -> list[str]:
        """Return the task of each output.

        A tensor list has its task in the attr `homes`; other outputs are on the task that computes
        them.
        """
        fetched = [p.fetches for k, p in self.programs.items() if k != "cond"]
        lists: dict[int, str] = self.node.attrs.get("homes", {})
        homes: list[str | None] = []
        for i in range(len(self.result_specs)):
            makers = (self._maker(f[i]) for f in fetched)
            homes.append(lists.get(i) or next(filter(None, makers), None))
        return [home or self.cluster.tasks()[0] for home in homes]

    def _maker(self, ref: Ref) -> str | None:
        for key, program in self.programs.items():
            node = program.nodes.get(ref.node)
            if key != "cond" and node is not None and node.row.source != "feed":
                return task_of(node.device)
        return None

    def _tasks(self) -> list[str]:
        tasks = dict.fromkeys(self.homes)
        for program in self.programs.values():
            nodes = (n for n in program.nodes.values() if n.row.source != "feed")
            tasks.update(dict.fromkeys(task_of(n.device) for n in nodes))
        node_task = task_of(self.node.device)
        return list(tasks) or [node_task]

    def _device(self, task: str) -> str:
        """Return the device of most nodes of the frame on a task; inputs are copied to it."""
        devices = Counter(
            n.device
            for p in self.programs.values()
            for n in p.nodes.values()
            if n.row.source not in ("feed", "constant") and task_of(n.device) == task
        )
        if devices:
            return devices.most_common(1)[0][0]
        names = self.cluster.server_devices if "/job:ps" in task else self.cluster.devices
        return f"{task}/{names[0]}"

    # -- building frames

    def make(self) -> tuple[list[Node], dict[Ref, Ref]]:
        """Return the frames, and the map from outputs of the node to outputs of frames."""
        parts = {key: self._partition_body(key, program) for key, program in self.programs.items()}
        values: dict[Ref, Ref] = {}
        frames = []
        for task in self.tasks:
            name = (
                self.node.name
                if len(self.tasks) == 1
                else f"{self.node.name}/on{_task_label(task)}"
            )
            outputs = [i for i, home in enumerate(self.homes) if home == task]
            values.update({Ref(self.node.name, i): Ref(name, k) for k, i in enumerate(outputs)})
            frames.append(self._frame(task, name, outputs, parts))
        return frames, values

    def _partition_body(self, key: str, program: Program) -> dict[str, Partition]:
        feeds, variables = {}, len(self.result_specs) if self.loop else 0
        for name, slot in zip(program.feeds, self.node.attrs[f"{key}_feeds"], strict=True):
            feeds[name] = self.homes[slot] if slot < variables else None
        if key == "cond":
            results = [(task, program.fetches[0]) for task in self.tasks]
        else:
            results = list(zip(self.homes, program.fetches, strict=True))
        program, results = coalesce_frame_messages(program, results, feeds)
        cutter = Partitioner(
            order_step(program),
            self.cluster,
            feeds=feeds,
            devices=self.device,
            results=results,
            first=len(self.edges),
            frame=self.node.name,
        )
        parts = cutter.parts_of_frame()
        for edge in cutter.edges.values():
            if edge.spec.dtype in OPAQUE:
                raise PlacementError(
                    f"a list of tensors would leave {edge.source} for {edge.dest}",
                    op=self.node.name,
                    line=self.node.line,
                    hint="put what writes and what reads it on one device with hf.device",
                )
        self.edges.extend(cutter.edges.values())
        return parts

    def _frame(
        self, task: str, name: str, outputs: list[int], parts: dict[str, dict[str, Partition]]
    ) -> Node:
        node, variables = self.node, len(self.result_specs) if self.loop else 0
        empty = node.attrs.get("empty", 0)
        bodies = {key: by_task.get(task, Partition(task, {})) for key, by_task in parts.items()}
        slots = {i: k for k, i in enumerate(outputs)} if self.loop else {}
        outside: dict[int, int] = {}
        attrs: dict[str, Any] = {TRIPS: node.attrs[TRIPS]} if TRIPS in node.attrs else {}
        for key, part in bodies.items():
            by_name = dict(zip(self.programs[key].feeds, node.attrs[f"{key}_feeds"], strict=True))
            places = []
            for feed in part.feeds:
                slot = by_name[feed]
                if slot < variables:
                    places.append(slots[slot])
                else:
                    places.append(outside.setdefault(slot, len(slots) + len(outside)))
            attrs[key], attrs[f"{key}_feeds"] = part, tuple(places)
        begin = variables - empty
        inputs = [node.inputs[i] for i in outputs if i < begin] if self.loop else [node.inputs[0]]
        first = 0 if self.loop else 1
        inputs += [node.inputs[first + slot - (empty if self.loop else 0)] for slot in outside]
        attrs["empty"] = sum(i >= begin for i in outputs) if self.loop else 0
        attrs["made"] = tuple(self.result_specs[i] for i in outputs)
        across = len(self.tasks) > 1 or any(_waits(part) for part in bodies.values())
        kind = node.type + ("Across" if across else "")
        specs = tuple(node.specs[i] for i in outputs)
        return dataclasses.replace(
            node,
            name=name,
            type=kind,
            inputs=tuple(inputs),
            attrs=attrs,
            specs=specs,
            device=self.device[task],
            colocate=(),
        )


def _waits(part: Partition) -> bool:
    nodes = (*part.nodes.values(), *nested_nodes(part.nodes))
    return any(n.row.waits or n.row.message == "send" for n in nodes)


def whole_name(name: str, task: str) -> str:
    """Return the name of the loop or branch of which `name` is the frame on a task."""
    return name.removesuffix(f"/on{_task_label(task)}")


def _task_label(task: str) -> str:
    return task.replace("/job:", "_").replace("/task:", "_")
