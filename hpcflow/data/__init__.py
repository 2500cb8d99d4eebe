"""Samples for the ranks: every one once per epoch, the same joined batches on any number."""

from __future__ import annotations

from hpcflow.data.dataset import Dataset
from hpcflow.data.feeding import Batch
from hpcflow.data.h5 import hdf5
from hpcflow.data.orders import Blocks
from hpcflow.data.sources import Source
from hpcflow.data.stream import Stream

__all__ = ["Batch", "Blocks", "Dataset", "Source", "Stream", "hdf5"]
