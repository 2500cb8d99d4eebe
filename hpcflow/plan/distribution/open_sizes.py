"""Open sizes: what a size that the graph does not tell counts as, usually that of a batch.

Variables get their tasks before a step is fed, and all replicas must choose the same ones. So the
feeds cannot tell the size, but a dataset of the graph can.
"""

from __future__ import annotations

from typing import NamedTuple

from hpcflow.graph.graph import Graph
from hpcflow.plan.ir.program import Cluster

ASSUMED_ROWS = 128  # without a dataset
# Other numbers of rows for which the tasks that are best for ASSUMED_ROWS must not be worse than
# the default: most of what is gained for 128 rows of a small model is lost several times for one.
OTHER_ROWS = (1, 16, 1024)


class OpenSizes(NamedTuple):
    """What an open size counts as; `is_known` if a dataset tells it."""

    rows: int
    is_known: bool

    def text(self) -> str:
        """Say it, and how to tell the size."""
        if self.is_known:
            return f"for {self.rows:,} rows, the share of a replica in the dataset's batch"
        return (
            f"for {self.rows:,} rows, since the graph leaves the size of the batch open: give "
            "placeholders their shape, or make the Dataset before the session"
        )


def open_sizes(graph: Graph, cluster: Cluster) -> OpenSizes | None:
    """Return what open sizes count as; None if the graph has none."""
    root = graph.root
    if not any(None in (t.shape or ()) for op in root.get_operations() for t in op.outputs):
        return None
    for dataset in root.get_collection("datasets"):
        return OpenSizes(-(-dataset.batch // cluster.replicas), True)
    return OpenSizes(ASSUMED_ROWS, False)
