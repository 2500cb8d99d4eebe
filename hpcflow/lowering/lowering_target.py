"""Lowering target: the facts of a task's machine that the passes over its partition may use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.fusion.update_fusion import UpdateLoopFactory
from hpcflow.lowering.kernel_metadata import KernelInfo
from hpcflow.plan.ir.program import Node, Partition


@dataclasses.dataclass(frozen=True)
class LoweringTarget:
    """Libraries, threads and kernels of a task.

    With `exact` no bit of a result may change. `generates` is true if generated loops are wanted
    and their compiler is installed; `kinds` are the kinds of devices that have such loops.
    `threads` is the number of threads of a rank. `is_fast(part)(node, specs)` is true if a
    provider's kernel serves a node with inputs of these specs, `infos(part)(node)` is the metadata
    of its kernel.
    """

    exact: bool
    generates: bool
    kinds: tuple[str, ...]
    threads: int
    is_fast: Callable[[Partition], Callable[[Node, list[Spec]], bool]]
    infos: Callable[[Partition], Callable[[Node], KernelInfo]]

    def writer(self) -> UpdateLoopFactory | None:
        """The writer of update loops; None if no loops are generated."""
        return UpdateLoopFactory(self.exact, self.kinds) if self.generates else None
