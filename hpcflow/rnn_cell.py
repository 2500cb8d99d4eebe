"""`hf.nn.rnn_cell`: the cells of TensorFlow 1's `tf.nn.rnn_cell`; re-exports only."""

from __future__ import annotations

from hpcflow.guard import guard_module
from hpcflow.ops.rnn_cell import (
    BasicLSTMCell,
    BasicRNNCell,
    GRUCell,
    LSTMCell,
    LSTMStateTuple,
    RNNCell,
)
from hpcflow.ops.rnn_wrappers import (
    DeviceWrapper,
    DropoutWrapper,
    MultiRNNCell,
    ResidualWrapper,
)

__all__ = [
    "BasicLSTMCell",
    "BasicRNNCell",
    "DeviceWrapper",
    "DropoutWrapper",
    "GRUCell",
    "LSTMCell",
    "LSTMStateTuple",
    "MultiRNNCell",
    "RNNCell",
    "ResidualWrapper",
]

guard_module(globals(), __all__)
