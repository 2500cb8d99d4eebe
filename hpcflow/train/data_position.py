"""Data position: the dataset batch of a training step, which a checkpoint records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcflow.graph.graph import Graph


def restore_batch_position(feeds: Mapping[Any, Any], graph: Graph) -> Mapping[Any, Any]:
    """The feeds of a step; a modified copy such as `{**batch, rate: 0.1}` counts as the batch.

    Errors: DataError if placeholders of a dataset are fed anything but a copy of its last batch.
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
