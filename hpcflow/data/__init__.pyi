"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.data import experimental as experimental
from hpcflow.data.array_rows import Source as Source
from hpcflow.data.batch_iterator import Batch as Batch
from hpcflow.data.dataset import Dataset as Dataset
from hpcflow.data.dataset_iterator import Iterator as Iterator
from hpcflow.data.dataset_iterator import get_output_classes as get_output_classes
from hpcflow.data.dataset_iterator import get_output_shapes as get_output_shapes
from hpcflow.data.dataset_iterator import get_output_types as get_output_types
from hpcflow.data.dataset_iterator import initializable_iterator as make_initializable_iterator
from hpcflow.data.dataset_iterator import one_shot_iterator as make_one_shot_iterator
from hpcflow.data.dataset_options import Options as Options
from hpcflow.data.dataset_sources import text_lines as TextLineDataset
from hpcflow.data.epoch_shuffle import Blocks as Blocks
from hpcflow.data.hdf5_rows import hdf5 as hdf5
from hpcflow.data.queue_stream import dequeued as dequeued
from hpcflow.data.stream import Stream as Stream
from hpcflow.data.tf_data import Pipeline as Pipeline
