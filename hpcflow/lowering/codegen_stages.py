"""Stages of code generation before the code itself: segments, tiled updates, buffers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from hpcflow.lowering.buffer_assignment import BufferAssignment, assign_buffers
from hpcflow.lowering.fusion.update_fusion import UpdateLoopFactory
from hpcflow.lowering.kernel_metadata import KernelInfo
from hpcflow.lowering.segments_between_waits import Segment, split_segments
from hpcflow.lowering.update_tiling import TileGroup, tile_updates
from hpcflow.plan.ir.program import Node, Partition
from hpcflow.plan.pass_row import Form, Pass, Watch


@dataclasses.dataclass(frozen=True)
class Generation:
    """The arguments of code generation; see `hpcflow.lowering.python_codegen.generate`."""

    info: Callable[[Node], KernelInfo]
    seconds: Callable[[Node], float]
    check_numerics: bool
    owned_feeds: frozenset[str]
    writes: UpdateLoopFactory | None
    watch: Watch | None = None
    subject: str = ""
    verify: bool = False


@dataclasses.dataclass(frozen=True)
class Segmented:
    """A partition in segments; `groups` maps a node to the loop that computes it with others."""

    part: Partition
    segments: list[Segment]
    groups: Mapping[str, TileGroup] = dataclasses.field(default_factory=dict)
    store: BufferAssignment | None = None


def _segments(part: Partition, generation: Generation) -> Segmented:
    return Segmented(part, split_segments(part))


def _tiled(segmented: Segmented, generation: Generation) -> Segmented:
    return Segmented(
        *tile_updates(segmented.part, segmented.segments, generation.info, generation.writes)
    )


def _buffers(segmented: Segmented, generation: Generation) -> Segmented:
    store = assign_buffers(segmented.part, segmented.segments, generation.info, segmented.groups)
    return dataclasses.replace(segmented, store=store)


STAGES = (
    Pass(
        *("segments_between_waits", "code", Form.PARTITION, Form.SEGMENTS),
        "Code between waits is straight, and no node is delayed by a wait that it does not need.",
        "Nodes are in one segment if they depend on the same waits.",
        _segments,
    ),
    Pass(
        *("update_tiling", "code", Form.SEGMENTS, Form.SEGMENTS),
        "The temporaries of a large update stay in the cache.",
        "The nodes of an update that is one loop stand together in their segment.",
        _tiled,
        "no check_numerics",
        lambda generation: not generation.check_numerics,
    ),
    Pass(
        *("buffer_assignment", "code", Form.SEGMENTS, Form.BUFFERS),
        "A step of known sizes allocates only its results.",
        "Each value has memory; values that may be in use together do not overlap.",
        _buffers,
    ),
)
