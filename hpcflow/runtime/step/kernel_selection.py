"""Kernel selection: the provider of each node's kernel, reasons against others, kernel metadata."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from hpcflow.codegen.llvm_cpu_compiler import absent
from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.buffer_assignment import has_kernel
from hpcflow.lowering.fusion import fused_node_label
from hpcflow.lowering.fusion.update_fusion import UpdateLoopFactory
from hpcflow.lowering.kernel_metadata import KernelInfo
from hpcflow.lowering.lowering_target import LoweringTarget
from hpcflow.lowering.segments_between_waits import split_segments
from hpcflow.lowering.update_tiling import tile_updates
from hpcflow.plan.cost.cost_model import input_specs
from hpcflow.plan.cost.memory_estimate import PartitionLowering
from hpcflow.plan.ir.control_flow_nodes import nested_programs
from hpcflow.plan.ir.program import Node, Partition, Plan
from hpcflow.plan.listing.plan_text import MAX_LISTED, format_table
from hpcflow.plan.pass_list import fused
from hpcflow.platform import cpu_threads
from hpcflow.runtime.device.device import Device, device_of
from hpcflow.runtime.dynamic_types import Json


class SelectedKernel(NamedTuple):
    """The provider of a node's kernel, and each better provider with the reason against it."""

    node: str
    type: str
    provider: str  # numpy, cupy, the kind of another device, or a provider of faster kernels
    refused: tuple[tuple[str, str], ...]
    uncaptured: str = ""  # why a CUDA graph cannot hold it, for kernels on a GPU


def selected_kernels(part: Partition, devices: Mapping[str, Device]) -> Iterator[SelectedKernel]:
    """The nodes of `part` that have kernels, loops and branches included, in order.

    `devices` are those of the task, as in `RankContext.devices`; the selection is the same as on
    them.
    """
    part = lower_for_devices(part, devices)
    updates = _update_loop_nodes(part, devices)
    for node in part.nodes.values():
        if node.row.control_flow:
            for _, inside in nested_programs(node):
                assert isinstance(inside, Partition)
                yield from selected_kernels(inside, devices)
        elif has_kernel(node):
            in_update_loop = (
                SelectedKernel(node.name, node.type, "llvm", ()) if node.name in updates else None
            )
            yield in_update_loop or _selected_kernel(
                node, part, device_of(node, part.task, devices)
            )


def _update_loop_nodes(part: Partition, devices: Mapping[str, Device]) -> frozenset[str]:
    """The nodes that generated update loops compute."""
    groups = tile_updates(
        part, split_segments(part), kernel_infos(devices)(part), target_of(devices).writer()
    )[2]
    return frozenset(name for name, group in groups.items() if group.loop is not None)


def lower_for_devices(part: Partition, devices: Mapping[str, Device]) -> Partition:
    """The partition as it is compiled for these devices: operations of one kernel are one node."""
    return fused(part, target_of(devices))


def target_of(devices: Mapping[str, Device]) -> LoweringTarget:
    """The target of lowering that these devices of a task are."""

    def is_fast(part: Partition) -> Callable[[Node, list[Spec]], bool]:
        return lambda node, specs: device_of(node, part.task, devices).is_fast(node, specs)

    wish = next(iter(devices.values())).preferences
    generates = "llvm" in wish.providers and not absent()
    kinds = loop_device_kinds(devices) if generates else ()
    threads = cpu_threads.chosen_threads().threads
    return LoweringTarget(wish.exact, generates, kinds, threads, is_fast, kernel_infos(devices))


def loop_device_kinds(devices: Mapping[str, Device]) -> tuple[str, ...]:
    """The kinds of devices for which loops are generated."""
    return tuple(device.kind for device in devices.values() if device.makes_loops())


def fused_loops_data(plan: Plan, devices: Mapping[str, Device]) -> list[Json]:
    """One object for each fused loop of the plan and of its synchronous updates (`round`)."""
    rounds = [] if plan.round is None else fused_loops_data(plan.round, devices)
    loops = []
    for outer in plan.parts.values():
        for part in _nested_partitions(outer, devices):
            for node in part.nodes.values():
                if node.type == "Fused":
                    contents = {
                        "types": list(fused_node_label.fused_types(node)),
                        "holds": list(fused_node_label.fused_names(node)),
                    }
                    row = {
                        "task": outer.task,
                        "node": node.name,
                        "elements": fused_node_label.element_count(node),
                    }
                    loops.append(row | contents | {"title": fused_node_label.node_label(node)})
    return [*loops, *rounds]


def fused_loops_text(plan: Plan, devices: Mapping[str, Device]) -> str:
    """A table of the fused loops, the largest first; "" if there are none."""
    data = fused_loops_data(plan, devices)
    order = sorted(data, key=lambda loop: -(loop["elements"] or 0) * len(loop["holds"]))
    rows = [
        (
            loop["title"],
            fused_node_label.common_scope(loop["holds"]),
            str(len(loop["holds"])),
            f"{loop['elements']:,}",
        )
        for loop in order[:MAX_LISTED]
    ]
    remaining = f"\n... and {len(order) - MAX_LISTED} more" if len(order) > MAX_LISTED else ""
    header = ("one loop", "of", "ops", "elements")
    return format_table(header, rows) + remaining if rows else ""


def _nested_partitions(part: Partition, devices: Mapping[str, Device]) -> Iterator[Partition]:
    part = lower_for_devices(part, devices)
    yield part
    for node in part.nodes.values():
        if node.row.control_flow:
            for _, inside in nested_programs(node):
                assert isinstance(inside, Partition)
                yield from _nested_partitions(inside, devices)


def kernels_data(plan: Plan, devices: Mapping[str, Device]) -> list[Json]:
    """One object for each node with a kernel, of all tasks and of synchronous updates (`round`)."""
    rounds = [] if plan.round is None else kernels_data(plan.round, devices)
    kernels = [
        {
            "task": part.task,
            "node": kernel.node,
            "type": kernel.type,
            "provider": kernel.provider,
            "instead_of": [{"provider": name, "reason": why} for name, why in kernel.refused],
            **({"uncaptured": kernel.uncaptured} if kernel.uncaptured else {}),
        }
        for part in plan.parts.values()
        for kernel in selected_kernels(part, devices)
    ]
    return [*kernels, *rounds]


def kernels_text(plan: Plan, devices: Mapping[str, Device]) -> str:
    """Tables of the provider and reasons for each op type, and of the provider of each node."""
    data = kernels_data(plan, devices)
    types: dict[tuple[str, str, str], int] = {}
    for kernel in data:
        key = kernel["type"], kernel["provider"], _reasons(kernel)
        types[key] = types.get(key, 0) + 1
    by_type = [(kind, str(n), by, why) for (kind, by, why), n in sorted(types.items())]
    by_node = [
        (kernel["task"], kernel["node"], kernel["type"], kernel["provider"]) for kernel in data
    ]
    if len({kernel["task"] for kernel in data}) == 1:
        nodes = format_table(("node", "type", "by"), [row[1:] for row in by_node])
    else:
        nodes = format_table(("task", "node", "type", "by"), by_node)
    tables = [format_table(("type", "ops", "kernel by", "why no better one"), by_type), nodes]
    uncaptured = collections.Counter(
        (kernel["type"], kernel.get("uncaptured", "")) for kernel in data
    )
    left_out = [(kind, str(n), why) for (kind, why), n in sorted(uncaptured.items()) if why]
    if left_out:
        tables.insert(1, format_table(("in no CUDA graph", "ops", "why"), left_out))
    return "\n\n".join(tables)


def _reasons(kernel: Json) -> str:
    return "; ".join(f"{rival['provider']}: {rival['reason']}" for rival in kernel["instead_of"])


def kernel_infos(
    devices: Mapping[str, Device],
) -> Callable[[Partition], Callable[[Node], KernelInfo]]:
    """A function from a partition to its kernel metadata by node, for a task's devices."""

    def infos(part: Partition) -> Callable[[Node], KernelInfo]:
        cached: dict[str, KernelInfo] = {}

        def info(node: Node) -> KernelInfo:
            if node.name not in cached:
                device = device_of(node, part.task, devices)
                cached[node.name] = device.info(node, input_specs(node, part))
            return cached[node.name]

        return info

    return infos


def memory_lowering(devices: Mapping[str, Device]) -> PartitionLowering:
    """A function that lowers a partition and returns its kernel metadata and update writer.

    It does so as on the devices of a task.
    """

    def made(
        part: Partition,
    ) -> tuple[Partition, Callable[[Node], KernelInfo], UpdateLoopFactory | None]:
        target = target_of(devices)
        part = fused(part, target)
        return part, target.infos(part), target.writer()

    return made


def _selected_kernel(node: Node, part: Partition, device: Device) -> SelectedKernel:
    choice = device.choose(node, specs := input_specs(node, part))
    why = device.uncaptured(node, specs) if device.captures else ""
    return SelectedKernel(node.name, node.type, device.provider(choice), choice.refused, why)
