"""Operation features: what a predicted time of an operation depends on, apart from the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.graph.dtypes import OPAQUE
from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.fusion.fused_node_label import node_label
from hpcflow.plan.cost.op_flops_and_bytes import node_cost
from hpcflow.plan.ir.program import Node
from hpcflow.platform.measured_costs import OperationKey


class OperationFeatures(NamedTuple):
    """The label of a node, its dtypes (each once, sorted), and FLOPs and bytes of one call."""

    type: str
    dtypes: tuple[str, ...]
    flops: int
    nbytes: int

    @classmethod
    def of_key(cls, key: OperationKey) -> OperationFeatures:
        """Return the features of a measured operation."""
        return cls(key.type, key.dtypes, key.flops, key.nbytes)


def operation_features(node: Node, inputs: Sequence[Spec]) -> OperationFeatures | None:
    """Return the features of a node on `inputs`, specs as of `cost_input_specs`.

    None if a size is known only at run time, or if no formula covers the operation.
    """
    cost = node_cost(node, inputs)
    if cost is None:
        return None
    specs = [spec for spec in (*inputs, *node.specs) if spec.dtype not in OPAQUE]
    dtypes = tuple(sorted({str(spec.dtype) for spec in specs}))
    return OperationFeatures(node_label(node), dtypes, cost.flops, cost.nbytes)
