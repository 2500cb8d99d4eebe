"""What the generator is told and what it makes: facts of kernels and sends, the generated text."""

from __future__ import annotations

import dataclasses

from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.arena_allocation import Block
from hpcflow.lowering.segments_between_waits import Strand
from hpcflow.plan.ir.program import Part


@dataclasses.dataclass(frozen=True)
class KernelInfo:
    """What the generator must know of a node's kernel (see hpcflow.kernels.kernel_registry)."""

    form: str
    inplace: tuple[int, ...] = ()
    scratch: tuple[Spec, ...] = ()  # memory that it uses while it runs
    tiles: bool = False  # an update that can be done tile by tile, with something else in between


@dataclasses.dataclass(frozen=True)
class SendInfo:
    """How a Send leaves: from a fixed buffer, copied, loose (from where it lies), or sized."""

    node: str
    how: str
    bind: str = ""


@dataclasses.dataclass(frozen=True)
class Code:
    """The generated text of a part and what its names are bound to.

    A bind is a tuple: ("kernel", node), ("tiles", node), ("const", node),
    ("buffer", device, block, dtype, shape, first byte), ("viewof", node, name), ("frame", node),
    ("room", node, buffers), ("var", node of its handle), ("recv", node), ("stage", node),
    ("box", node, index), ("bucket_in" | "bucket_out", node, index), ("hook", name).
    """

    source: str
    binds: dict[str, tuple]
    blocks: list[Block]
    arenas: dict[str, int]  # device -> bytes of one step instance
    strands: list[Strand]
    sends: list[SendInfo]
    lines: list[str]  # the node behind each line of the source
    simple: bool  # one strand, no messages: strand 0 returns the results itself
    versions: frozenset[str] = frozenset()  # variables of which a step may hold a version
    tiled: frozenset[int] = frozenset()  # strands that yield between the tiles of large updates

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers of one step instance."""
        return sum(self.arenas.values())


@dataclasses.dataclass(frozen=True)
class Generated:
    """A part as it runs, its code, and those of its loops and branches: by node, then by place."""

    part: Part
    code: Code
    inner: dict[str, dict[str, Generated]]
