"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.data import experimental as experimental
from hpcflow.data.dataset import Dataset as Dataset
from hpcflow.data.elements import text_lines as TextLineDataset
from hpcflow.data.feeding import Batch as Batch
from hpcflow.data.h5 import hdf5 as hdf5
from hpcflow.data.iterator import Iterator as Iterator
from hpcflow.data.iterator import get_output_classes as get_output_classes
from hpcflow.data.iterator import get_output_shapes as get_output_shapes
from hpcflow.data.iterator import get_output_types as get_output_types
from hpcflow.data.iterator import initializable as make_initializable_iterator
from hpcflow.data.iterator import one_shot as make_one_shot_iterator
from hpcflow.data.options import Options as Options
from hpcflow.data.orders import Blocks as Blocks
from hpcflow.data.pipeline import Pipeline as Pipeline
from hpcflow.data.queued import dequeued as dequeued
from hpcflow.data.sources import Source as Source
from hpcflow.data.stream import Stream as Stream
