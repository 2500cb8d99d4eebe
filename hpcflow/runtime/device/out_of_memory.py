"""Out-of-memory errors: the error of a step lists the largest tensors and suggests remedies."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator
from typing import Any

from hpcflow.errors import OutOfMemoryError
from hpcflow.graph.dtypes import name_of
from hpcflow.graph.static_shape import Spec, show
from hpcflow.lowering.fusion import fused_node_label
from hpcflow.plan.ir.control_flow_nodes import inner
from hpcflow.plan.ir.program import Node, Part
from hpcflow.plan.listing.plan_text import as_table, nbytes

NAMED = 10
HINT = (
    "take smaller batches, compute blocks again in the backward pass (hf.recompute), or share the "
    "variables out over more servers (--ps); `hpcflow plan` tells how much each rank needs"
)


@dataclasses.dataclass(frozen=True, order=True)
class Tensor:
    """A tensor in memory: a value of a step, or a variable."""

    nbytes: int
    type: str
    name: str
    line: str
    what: str  # dtype and shape


def exhausted(
    compiled: Any, error: MemoryError, node: Node | None, rank: int | None
) -> OutOfMemoryError:
    """The error of a partition that ran out of memory, at `node` or before it began.

    `compiled` is its `hpcflow.runtime.step.step_instance.Compiled`.
    """
    found = heapq.nlargest(NAMED, {*_values(compiled.part), *_variables(compiled.store)})
    rows = [(nbytes(t.nbytes), t.what, t.type, t.name, t.line) for t in found]
    table = as_table(("bytes", "is", "op", "name", "made at"), rows).replace("\n", "\n  ")
    where = (
        f"{fused_node_label.label(node)} on {node.device}"
        if node is not None
        else f"a step of {compiled.part.task}"
    )
    return OutOfMemoryError(
        f"out of memory: {where}: {error}\nthe largest of its tensors:\n  {table}",
        op=node.name if node is not None else None,
        line=node.line if node is not None else None,
        rank=rank,
        hint=HINT,
    )


def _held_elsewhere(node: Node) -> bool:
    """Whether a value is a variable, which is listed separately, or a feed."""
    return node.row.variable in ("handle", "read") or node.row.source == "feed"


def _values(part: Part) -> Iterator[Tensor]:
    """The values of known size of a partition, its loops and branches included."""
    for node in part.nodes.values():
        for _, inside in inner(node):
            assert isinstance(inside, Part)
            yield from _values(inside)
        for i, spec in enumerate(node.specs):
            if spec.nbytes and not _held_elsewhere(node) and not node.is_state:
                yield _tensor(
                    spec,
                    fused_node_label.label(node),
                    f"{node.name}:{i}" if i else node.name,
                    node.line,
                )


def _variables(store: Any) -> Iterator[Tensor]:
    for state in store.states.values():
        yield _tensor(Spec(state.dtype, state.shape), "Variable", state.name, state.line)


def _tensor(spec: Spec, type: str, name: str, line: str) -> Tensor:
    return Tensor(spec.nbytes, type, name, line, f"{name_of(spec.dtype)} {show(spec.shape)}")
