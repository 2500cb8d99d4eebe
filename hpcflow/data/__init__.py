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
    from hpcflow.data.stream import Stream

__all__ = ["Batch", "Blocks", "Dataset", "Source", "Stream", "hdf5"]

_LATER = {"Stream": "hpcflow.data.stream", "hdf5": "hpcflow.data.h5"}  # loaded when first named


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'hpcflow.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
