"""Inputs and results of code generation: facts of kernels and sends, and the generated code."""

from __future__ import annotations

import dataclasses
import functools

from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.arena_allocation import MemoryBlock
from hpcflow.lowering.instructions import Binding, CodeFunction
from hpcflow.lowering.python_printer import PrintedCode, PythonPrinter
from hpcflow.lowering.segments_between_waits import Segment
from hpcflow.plan.ir.program import Partition


@dataclasses.dataclass(frozen=True)
class KernelInfo:
    """What code generation needs of a node's kernel (see hpcflow.kernels.kernel_registry)."""

    form: str
    inplace: tuple[int, ...] = ()
    scratch: tuple[Spec, ...] = ()  # workspace of one call
    tiles: bool = False  # an update that runs tile by tile and can yield between tiles


@dataclasses.dataclass(frozen=True)
class SendInfo:
    """How a Send reads its value: "fixed" buffer, "copied", in place ("loose"), or "sized".

    "sized" sends a value whose size is known only in the step.
    """

    node: str
    mode: str
    bind: str = ""


@dataclasses.dataclass(frozen=True)
class GeneratedCode:
    """The instructions of a partition, and what their names are bound to."""

    functions: tuple[CodeFunction, ...]  # one for each segment, then `release`
    shared: tuple[str, ...]  # names that several functions use
    binds: dict[str, Binding]
    blocks: list[MemoryBlock]
    arenas: dict[str, int]  # device -> bytes of one step instance
    segments: list[Segment]
    sends_info: list[SendInfo]
    is_single_segment: bool  # one segment and no messages: segment 0 returns the results itself
    versions: frozenset[str] = frozenset()  # variables of which a step may hold a version
    tiled: frozenset[int] = frozenset()  # segments that yield between the tiles of large updates

    @functools.cached_property
    def printed(self) -> PrintedCode:
        """The Python code that a step runs."""
        return PythonPrinter().print(self.binds, self.shared, self.functions)

    @property
    def source(self) -> str:
        """The source of the Python code."""
        return self.printed.source

    @property
    def lines(self) -> list[str]:
        """The node that each line of the source computes."""
        return self.printed.lines

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers of one step instance."""
        return sum(self.arenas.values())


@dataclasses.dataclass(frozen=True)
class LoweredPartition:
    """A partition as it runs, its code, and the code of its loops and branches.

    `frames` maps the name of a control-flow node, then the name of a body, to the code of the body.
    """

    part: Partition
    code: GeneratedCode
    frames: dict[str, dict[str, LoweredPartition]]
