"""Out-of-memory errors: the error of a step lists the largest tensors and suggests remedies."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator
from typing import Any

from hpcflow.errors import OutOfMemoryError
from hpcflow.graph.dtypes import name_of
from hpcflow.graph.static_shape import Spec, shape_text
from hpcflow.lowering.fusion import fused_node_label
from hpcflow.plan.ir.control_flow_nodes import nested_programs
from hpcflow.plan.ir.program import Node, Partition
from hpcflow.plan.listing.plan_text import format_table
from hpcflow.platform.quantity_text import format_bytes

MAX_LISTED_TENSORS = 10
HINT = (
    "take smaller batches, compute blocks again in the backward pass (hf.recompute), or share the "
    "variables out over more servers (--ps); `hpcflow plan` tells how much each rank needs"
)


@dataclasses.dataclass(frozen=True, order=True)
class LiveTensor:
    """A tensor in memory: a value of a step, or a variable."""

    nbytes: int
    type: str
    name: str
    line: str
    spec: str  # dtype and shape


def out_of_memory_error(
    compiled: Any, error: MemoryError, node: Node | None, rank: int | None
) -> OutOfMemoryError:
    """The error of a partition that ran out of memory, at `node` or before it began.

    `compiled` is its `hpcflow.runtime.step.step_instance.CompiledPartition`.
    """
    largest = heapq.nlargest(
        MAX_LISTED_TENSORS, {*_live_values(compiled.part), *_live_variables(compiled.store)}
    )
    rows = [(format_bytes(t.nbytes), t.spec, t.type, t.name, t.line) for t in largest]
    table = format_table(("bytes", "is", "op", "name", "made at"), rows).replace("\n", "\n  ")
    location = (
        f"{fused_node_label.node_label(node)} on {node.device}"
        if node is not None
        else f"a step of {compiled.part.task}"
    )
    return OutOfMemoryError(
        f"out of memory: {location}: {error}\nthe largest of its tensors:\n  {table}",
        op=node.name if node is not None else None,
        line=node.line if node is not None else None,
        rank=rank,
        hint=HINT,
    )


def _held_elsewhere(node: Node) -> bool:
    """Whether a value is a variable, which is listed separately, or a feed."""
    return node.row.variable in ("handle", "read") or node.row.source == "feed"


def _live_values(part: Partition) -> Iterator[LiveTensor]:
    """The values of known size of a partition, its loops and branches included."""
    for node in part.nodes.values():
        for _, inside in nested_programs(node):
            assert isinstance(inside, Partition)
            yield from _live_values(inside)
        for i, spec in enumerate(node.specs):
            if spec.nbytes and not _held_elsewhere(node) and not node.is_state:
                yield _live_tensor(
                    spec,
                    fused_node_label.node_label(node),
                    f"{node.name}:{i}" if i else node.name,
                    node.line,
                )


def _live_variables(store: Any) -> Iterator[LiveTensor]:
    for state in store.states.values():
        yield _live_tensor(Spec(state.dtype, state.shape), "Variable", state.name, state.line)


def _live_tensor(spec: Spec, type: str, name: str, line: str) -> LiveTensor:
    return LiveTensor(
        spec.nbytes, type, name, line, f"{name_of(spec.dtype)} {shape_text(spec.shape)}"
    )
