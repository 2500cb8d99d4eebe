"""Kernel selection: the provider of each node's kernel, reasons against others, kernel metadata."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from hpcflow.codegen.llvm_cpu_compiler import absent
from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.buffer_assignment import has_kernel
from hpcflow.lowering.fusion import fused_node_label
from hpcflow.lowering.fusion.update_fusion import Writer
from hpcflow.lowering.kernel_metadata import KernelInfo
from hpcflow.lowering.lowering_target import LoweringTarget
from hpcflow.lowering.segments_between_waits import cut
from hpcflow.lowering.update_tiling import arranged
from hpcflow.plan.cost.cost_model import given_specs
from hpcflow.plan.cost.memory_estimate import Made
from hpcflow.plan.ir.control_flow_nodes import inner
from hpcflow.plan.ir.program import Node, Part, Plan
from hpcflow.plan.listing.plan_text import LISTED, as_table
from hpcflow.plan.pass_list import fused
from hpcflow.platform import cpu_threads
from hpcflow.runtime.device.device import Device, device_of
from hpcflow.runtime.dynamic_types import Json


class Served(NamedTuple):
    """The provider of a node's kernel, and each better provider with the reason against it."""

    node: str
    type: str
    provider: str  # numpy, cupy, the kind of another device, or a provider of faster kernels
    refused: tuple[tuple[str, str], ...]
    uncaptured: str = ""  # why a CUDA graph cannot hold it, for kernels on a GPU


def served(part: Part, devices: Mapping[str, Device]) -> Iterator[Served]:
    """The nodes of `part` that have kernels, loops and branches included, in order.

    `devices` are those of the task, as in `Context.devices`; the selection is the same as on them.
    """
    part = as_run(part, devices)
    updates = _generated(part, devices)
    for node in part.nodes.values():
        if node.row.control_flow:
            for _, inside in inner(node):
                assert isinstance(inside, Part)
                yield from served(inside, devices)
        elif has_kernel(node):
            made = Served(node.name, node.type, "llvm", ()) if node.name in updates else None
            yield made or _served(node, part, device_of(node, part.task, devices))


def _generated(part: Part, devices: Mapping[str, Device]) -> frozenset[str]:
    """The nodes that generated update loops compute."""
    groups = arranged(part, cut(part), infos_of(devices)(part), target_of(devices).writer())[2]
    return frozenset(name for name, group in groups.items() if group.loop is not None)


def as_run(part: Part, devices: Mapping[str, Device]) -> Part:
    """The partition as it is compiled for these devices: operations of one kernel are one node."""
    return fused(part, target_of(devices))


def target_of(devices: Mapping[str, Device]) -> LoweringTarget:
    """The target of lowering that these devices of a task are."""

    def is_fast(part: Part) -> Callable[[Node, list[Spec]], bool]:
        return lambda node, specs: device_of(node, part.task, devices).is_fast(node, specs)

    wish = next(iter(devices.values())).wish
    generates = "llvm" in wish.providers and not absent()
    kinds = generating(devices) if generates else ()
    threads = cpu_threads.chosen().threads
    return LoweringTarget(wish.exact, generates, kinds, threads, is_fast, infos_of(devices))


def generating(devices: Mapping[str, Device]) -> tuple[str, ...]:
    """The kinds of devices for which loops are generated."""
    return tuple(device.kind for device in devices.values() if device.makes_loops())


def groups_data(plan: Plan, devices: Mapping[str, Device]) -> list[Json]:
    """One object for each fused loop of the plan and of its synchronous updates (`round`)."""
    rounds = [] if plan.round is None else groups_data(plan.round, devices)
    found = []
    for outer in plan.parts.values():
        for part in _nested(outer, devices):
            for node in part.nodes.values():
                if node.type == "Fused":
                    held = {
                        "types": list(fused_node_label.types(node)),
                        "holds": list(fused_node_label.names(node)),
                    }
                    row = {
                        "task": outer.task,
                        "node": node.name,
                        "elements": fused_node_label.elements(node),
                    }
                    found.append(row | held | {"title": fused_node_label.label(node)})
    return [*found, *rounds]


def groups_text(plan: Plan, devices: Mapping[str, Device]) -> str:
    """A table of the fused loops, the largest first; "" if there are none."""
    data = groups_data(plan, devices)
    order = sorted(data, key=lambda one: -(one["elements"] or 0) * len(one["holds"]))
    rows = [
        (
            one["title"],
            fused_node_label.scope(one["holds"]),
            str(len(one["holds"])),
            f"{one['elements']:,}",
        )
        for one in order[:LISTED]
    ]
    more = f"\n... and {len(order) - LISTED} more" if len(order) > LISTED else ""
    header = ("one loop", "of", "ops", "elements")
    return as_table(header, rows) + more if rows else ""


def _nested(part: Part, devices: Mapping[str, Device]) -> Iterator[Part]:
    part = as_run(part, devices)
    yield part
    for node in part.nodes.values():
        if node.row.control_flow:
            for _, inside in inner(node):
                assert isinstance(inside, Part)
                yield from _nested(inside, devices)


def kernels_data(plan: Plan, devices: Mapping[str, Device]) -> list[Json]:
    """One object for each node with a kernel, of all tasks and of synchronous updates (`round`)."""
    rounds = [] if plan.round is None else kernels_data(plan.round, devices)
    found = [
        {
            "task": part.task,
            "node": one.node,
            "type": one.type,
            "provider": one.provider,
            "instead_of": [{"provider": name, "reason": why} for name, why in one.refused],
            **({"uncaptured": one.uncaptured} if one.uncaptured else {}),
        }
        for part in plan.parts.values()
        for one in served(part, devices)
    ]
    return [*found, *rounds]


def kernels_text(plan: Plan, devices: Mapping[str, Device]) -> str:
    """Tables of the provider and reasons for each op type, and of the provider of each node."""
    data = kernels_data(plan, devices)
    types: dict[tuple[str, str, str], int] = {}
    for one in data:
        key = one["type"], one["provider"], _reasons(one)
        types[key] = types.get(key, 0) + 1
    by_type = [(kind, str(n), by, why) for (kind, by, why), n in sorted(types.items())]
    by_node = [(one["task"], one["node"], one["type"], one["provider"]) for one in data]
    if len({one["task"] for one in data}) == 1:
        nodes = as_table(("node", "type", "by"), [row[1:] for row in by_node])
    else:
        nodes = as_table(("task", "node", "type", "by"), by_node)
    tables = [as_table(("type", "ops", "kernel by", "why no better one"), by_type), nodes]
    left = collections.Counter((one["type"], one.get("uncaptured", "")) for one in data)
    left_out = [(kind, str(n), why) for (kind, why), n in sorted(left.items()) if why]
    if left_out:
        tables.insert(1, as_table(("in no CUDA graph", "ops", "why"), left_out))
    return "\n\n".join(tables)


def _reasons(one: Json) -> str:
    return "; ".join(f"{other['provider']}: {other['reason']}" for other in one["instead_of"])


def infos_of(
    devices: Mapping[str, Device],
) -> Callable[[Part], Callable[[Node], KernelInfo]]:
    """A function from a partition to its kernel metadata by node, for a task's devices."""

    def infos(part: Part) -> Callable[[Node], KernelInfo]:
        known: dict[str, KernelInfo] = {}

        def info(node: Node) -> KernelInfo:
            if node.name not in known:
                device = device_of(node, part.task, devices)
                known[node.name] = device.info(node, given_specs(node, part))
            return known[node.name]

        return info

    return infos


def made_for(devices: Mapping[str, Device]) -> Made:
    """A function that lowers a partition and returns its kernel metadata and update writer.

    It does so as on the devices of a task.
    """

    def made(part: Part) -> tuple[Part, Callable[[Node], KernelInfo], Writer | None]:
        target = target_of(devices)
        part = fused(part, target)
        return part, target.infos(part), target.writer()

    return made


def _served(node: Node, part: Part, device: Device) -> Served:
    choice = device.choose(node, specs := given_specs(node, part))
    why = device.uncaptured(node, specs) if device.captures else ""
    return Served(node.name, node.type, device.provider(choice), choice.refused, why)
