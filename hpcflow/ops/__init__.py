"""The vocabulary: one family of ops a file. Imports leaves and graph; never comm or kernels.

With it come what operators of tensors and plans are made of; other families when they are used.
"""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Graph
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
    "bits",
    "comm",
    "epilogues",
    "join",
    "math",
    "matmul",
    "packed",
    "random",
    "reduce",
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
