"""Whose kernel serves each node of a part, why not a better provider's, and of what form it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from hpcflow.plan.code import KernelInfo
from hpcflow.plan.cost import given_specs
from hpcflow.plan.ir import Node, Part
from hpcflow.plan.memory import Infos
from hpcflow.plan.nested import FRAMES, inner
from hpcflow.plan.storage import has_kernel
from hpcflow.runtime.device import Device


class Served(NamedTuple):
    """One node: who provides its kernel, and each better provider with the reason against it."""

    node: str
    type: str
    provider: str  # numpy, cupy, the kind of another device, or a provider of faster kernels
    refused: tuple[tuple[str, str], ...]


def served(part: Part, devices: Mapping[str, Device]) -> Iterator[Served]:
    """The nodes of `part` that a kernel computes, loops and branches included, in their order.

    `devices` are those of the task, as `Context.devices`: the choice is made as if it ran here.
    """
    for node in part.nodes.values():
        if node.type in FRAMES:
            for _, inside in inner(node):
                assert isinstance(inside, Part)
                yield from served(inside, devices)
        elif has_kernel(node):
            yield _served(node, part, devices[node.device.removeprefix(part.task + "/")])


def infos_of(devices: Mapping[str, Device]) -> Infos:
    """What tells the forms of the kernels of a part, as if it ran on these devices of a task."""

    def infos(part: Part) -> Callable[[Node], KernelInfo]:
        known: dict[str, KernelInfo] = {}

        def info(node: Node) -> KernelInfo:
            if node.name not in known:
                device = devices[node.device.removeprefix(part.task + "/")]
                known[node.name] = device.info(node, given_specs(node, part))
            return known[node.name]

        return info

    return infos


def _served(node: Node, part: Part, device: Device) -> Served:
    choice = device.choose(node, given_specs(node, part))
    return Served(node.name, node.type, device.provider(choice), choice.refused)
