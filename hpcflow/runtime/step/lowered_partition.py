"""Lowered partitions: a partition and its generated code, the form that the plan cache stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcflow.lowering.kernel_metadata import Generated
from hpcflow.lowering.python_codegen import generate
from hpcflow.plan.cost import cost_model
from hpcflow.plan.ir.control_flow_nodes import inner
from hpcflow.plan.ir.program import Node, Part
from hpcflow.plan.pass_list import fused
from hpcflow.plan.pass_row import Watch
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.step.kernel_selection import target_of
from hpcflow.settings import Settings


def generated(
    part: Part,
    devices: Mapping[str, Device],
    settings: Settings,
    kept: frozenset[str] = frozenset(),
    inside: bool = False,
    watch: Watch | None = None,
    what: str = "",
) -> Generated:
    """The code of a partition and of its loops and branches, for the devices of its task.

    Feeds in `kept` are not copied when they are results. With `check_numerics` or poisoned values
    (`one_by_one`) no operations are fused. `watch` is called after each pass.
    """
    target, writes, what = target_of(devices), None, what or part.task
    if not settings.one_by_one:
        part = fused(part, target, settings.verify_passes, watch, what)
        writes = target.writer()
    seconds = cost_model.seconds_in(part) if inside or _messages(part) else _no_time
    code = generate(
        part, target.infos(part), seconds, settings.check_numerics, kept, writes, watch, what
    )
    frames = [node for node in part.nodes.values() if node.row.control_flow]
    return Generated(
        part,
        code,
        {
            node.name: {
                key: generated(
                    body, devices, settings, owned, True, watch, f"{what}, {key} of {node.name}"
                )
                for key, body, owned in _parts(node)
            }
            for node in frames
        },
    )


def _messages(part: Part) -> bool:
    """Whether a partition has messages or collectives, which long kernels would delay."""
    rows = (node.row for node in part.nodes.values())
    return any(row.message in ("send", "receive") or row.collective for row in rows)


def _no_time(node: Node) -> float:
    return 0.0


def _parts(node: Node) -> Iterator[tuple[str, Part, frozenset[str]]]:
    """The partitions of a loop or branch, each with the feeds that it may return without a copy."""
    for key, inside in inner(node):
        assert isinstance(inside, Part)
        slots = zip(inside.feeds, node.attrs[f"{key}_feeds"], strict=True)
        variables = len(node.specs) if key == "body" else 0
        yield key, inside, frozenset(name for name, slot in slots if slot < variables)
