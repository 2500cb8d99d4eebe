"""Which batch of a dataset a training step is on, so that a checkpoint has its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcflow.graph.graph import Graph


def as_dealt(feeds: Mapping[Any, Any], graph: Graph) -> Mapping[Any, Any]:
    """The feeds of a step; a copy of a batch of `hf.data`, as `{**batch, rate: 0.1}`, is one again.

    Errors: DataError for feeds of a dataset's placeholders that are no copy of its last batch.
    """
    if not feeds or hasattr(feeds, "source"):
        return feeds
    datasets = graph.get_collection("datasets")
    for dataset in datasets:
        batch = dataset.copied(feeds)
        if batch is not None:
            return batch
    for dataset in datasets:
        dataset.check_unfed(feeds)
    return feeds
