"""Lowered partitions: a partition and its generated code, the form that the plan cache stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcflow.lowering.kernel_metadata import LoweredPartition
from hpcflow.lowering.python_codegen import generate_code
from hpcflow.plan.cost import cost_model
from hpcflow.plan.ir.control_flow_nodes import nested_programs
from hpcflow.plan.ir.program import Node, Partition
from hpcflow.plan.pass_list import fused
from hpcflow.plan.pass_row import Watch
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.step.kernel_selection import target_of
from hpcflow.settings import Settings


def lower_partition(
    part: Partition,
    devices: Mapping[str, Device],
    settings: Settings,
    owned_feeds: frozenset[str] = frozenset(),
    inside: bool = False,
    watch: Watch | None = None,
    subject: str = "",
) -> LoweredPartition:
    """The code of a partition and of its loops and branches, for the devices of its task.

    Feeds in `owned_feeds` are in memory of their own: results and kept values are no copies of
    them. With `check_numerics` or poisoned values (`one_by_one`) no operations are fused. `watch`
    is called after each pass.
    """
    target, writes, subject = target_of(devices), None, subject or part.task
    if not settings.one_by_one:
        part = fused(part, target, settings.verify_passes, watch, subject, owned_feeds)
        writes = target.writer()
    seconds = (
        cost_model.predicted_seconds_in(part) if inside or _has_messages(part) else _zero_seconds
    )
    code = generate_code(
        part,
        target.infos(part),
        seconds,
        settings.check_numerics,
        owned_feeds,
        writes,
        watch,
        subject,
    )
    frames = [node for node in part.nodes.values() if node.row.control_flow]
    return LoweredPartition(
        part,
        code,
        {
            node.name: {
                key: lower_partition(
                    body, devices, settings, owned, True, watch, f"{subject}, {key} of {node.name}"
                )
                for key, body, owned in _frame_partitions(node)
            }
            for node in frames
        },
    )


def _has_messages(part: Partition) -> bool:
    """Whether a partition has messages or collectives, which long kernels would delay."""
    rows = (node.row for node in part.nodes.values())
    return any(row.message in ("send", "receive") or row.collective for row in rows)


def _zero_seconds(node: Node) -> float:
    return 0.0


def _frame_partitions(node: Node) -> Iterator[tuple[str, Partition, frozenset[str]]]:
    """The partitions of a loop or branch, each with the feeds that it may return without a copy."""
    for key, inside in nested_programs(node):
        assert isinstance(inside, Partition)
        slots = zip(inside.feeds, node.attrs[f"{key}_feeds"], strict=True)
        variables = len(node.specs) if key == "body" else 0
        yield key, inside, frozenset(name for name, slot in slots if slot < variables)
