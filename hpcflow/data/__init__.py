"""Samples for the ranks: every one once per epoch, the same joined batches on any number."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hpcflow.data.dataset import Dataset
from hpcflow.data.feeding import Batch
from hpcflow.data.orders import Blocks
from hpcflow.data.sources import Source

if TYPE_CHECKING:
    from hpcflow.data.h5 import hdf5
    from hpcflow.data.queued import dequeued
    from hpcflow.data.stream import Stream

__all__ = ["Batch", "Blocks", "Dataset", "Source", "Stream", "dequeued", "hdf5"]

_LATER = {  # loaded when first named
    "Stream": "hpcflow.data.stream",
    "dequeued": "hpcflow.data.queued",
    "hdf5": "hpcflow.data.h5",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'hpcflow.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
