"""The vocabulary: one family of ops a file. Imports leaves and graph; never comm or kernels.

With it come what operators of tensors and plans are made of; other families when they are used.
What makes graphs and tensors is public from here, so that they come with their operators.
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
from hpcflow.graph.operators import OPERATORS
from hpcflow.ops import (
    bits,
    comm,
    epilogues,
    join,
    math,
    matmul,
    packed,
    random,
    reduce,
    rounds,
    rows,
    slicing,
    state,
    views,
)

__all__ = [
    "Graph",
    "Operation",
    "Tensor",
    "bits",
    "comm",
    "convert_to_tensor",
    "epilogues",
    "get_default_graph",
    "join",
    "math",
    "matmul",
    "packed",
    "random",
    "reduce",
    "reset_default_graph",
    "rounds",
    "rows",
    "slicing",
    "state",
    "views",
]


def _as_graph_def(graph: Graph) -> dict[str, Any]:
    from hpcflow.ops.graph_data import as_graph_def

    return as_graph_def(graph)


OPERATORS["as_graph_def"] = _as_graph_def
