"""RNN cells `hf.nn.rnn_cell`: names of TensorFlow 1's `tf.nn.rnn_cell`; re-exports only."""

from __future__ import annotations

from hpcflow.ops.rnn.rnn_cell_wrappers import (
    DeviceWrapper,
    DropoutWrapper,
    MultiRNNCell,
    ResidualWrapper,
)
from hpcflow.ops.rnn.rnn_cells import (
    BasicLSTMCell,
    BasicRNNCell,
    GRUCell,
    LSTMCell,
    LSTMStateTuple,
    RNNCell,
)
from hpcflow.platform.exception_translation import guard_module

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
