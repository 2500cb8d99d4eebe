"""Stages of code generation before the code itself: segments, tiled updates, buffers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from hpcflow.lowering.buffer_assignment import Storage, assign
from hpcflow.lowering.fusion.update_fusion import Writer
from hpcflow.lowering.kernel_metadata import KernelInfo
from hpcflow.lowering.segments_between_waits import Strand, cut
from hpcflow.lowering.update_tiling import Group, arranged
from hpcflow.plan.ir.program import Node, Part
from hpcflow.plan.pass_row import Form, Pass, Watch


@dataclasses.dataclass(frozen=True)
class Generation:
    """The arguments of code generation; see `hpcflow.lowering.python_codegen.generate`."""

    info: Callable[[Node], KernelInfo]
    seconds: Callable[[Node], float]
    check_numerics: bool
    kept: frozenset[str]
    writes: Writer | None
    watch: Watch | None = None
    what: str = ""
    verify: bool = False


@dataclasses.dataclass(frozen=True)
class Segmented:
    """A partition in segments; `groups` maps a node to the loop that computes it with others."""

    part: Part
    strands: list[Strand]
    groups: Mapping[str, Group] = dataclasses.field(default_factory=dict)
    store: Storage | None = None


def _segments(part: Part, of: Generation) -> Segmented:
    return Segmented(part, cut(part))


def _tiled(segmented: Segmented, of: Generation) -> Segmented:
    return Segmented(*arranged(segmented.part, segmented.strands, of.info, of.writes))


def _buffers(segmented: Segmented, of: Generation) -> Segmented:
    store = assign(segmented.part, segmented.strands, of.info, segmented.groups)
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
        lambda of: not of.check_numerics,
    ),
    Pass(
        *("buffer_assignment", "code", Form.SEGMENTS, Form.BUFFERS),
        "A step of known sizes allocates only its results.",
        "Each value has memory; values that may be in use together do not overlap.",
        _buffers,
    ),
)
