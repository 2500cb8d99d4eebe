"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.data.dataset import Dataset as Dataset
from hpcflow.data.feeding import Batch as Batch
from hpcflow.data.h5 import hdf5 as hdf5
from hpcflow.data.orders import Blocks as Blocks
from hpcflow.data.queued import dequeued as dequeued
from hpcflow.data.sources import Source as Source
from hpcflow.data.stream import Stream as Stream
