"""Ops: one family per folder, with op table rows, shape rules, gradients, kernels and exports.

Importing this package loads the ops that tensor operators and plans use; other families load on
first use. The classes of graphs and tensors are re-exported here, so that they come with their
operators.
"""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
    reset_default_graph,
)
from hpcflow.graph.operator_overloads import OPERATORS
from hpcflow.ops.array import concat_split_ops, slice_ops
from hpcflow.ops.linalg import matmul_ops, packed_matmul_ops
from hpcflow.ops.math import arithmetic_ops, bitwise_ops, reduction_ops
from hpcflow.ops.nn import fused_epilogue_ops
from hpcflow.ops.random import random_ops
from hpcflow.ops.replicas import gradient_aggregation_ops, replica_ops
from hpcflow.ops.variables import row_list_ops, variable_ops

__all__ = [
    "Graph",
    "Operation",
    "Tensor",
    "arithmetic_ops",
    "bitwise_ops",
    "concat_split_ops",
    "convert_to_tensor",
    "fused_epilogue_ops",
    "get_default_graph",
    "gradient_aggregation_ops",
    "matmul_ops",
    "packed_matmul_ops",
    "random_ops",
    "reduction_ops",
    "replica_ops",
    "reset_default_graph",
    "row_list_ops",
    "slice_ops",
    "variable_ops",
]


def _as_graph_def(graph: Graph) -> dict[str, Any]:
    from hpcflow.ops.graph_def import as_graph_def

    return as_graph_def(graph)


OPERATORS["as_graph_def"] = _as_graph_def
