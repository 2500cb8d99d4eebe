"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.ops.rnn.rnn_cell_wrappers import DeviceWrapper as DeviceWrapper
from hpcflow.ops.rnn.rnn_cell_wrappers import DropoutWrapper as DropoutWrapper
from hpcflow.ops.rnn.rnn_cell_wrappers import MultiRNNCell as MultiRNNCell
from hpcflow.ops.rnn.rnn_cell_wrappers import ResidualWrapper as ResidualWrapper
from hpcflow.ops.rnn.rnn_cells import BasicLSTMCell as BasicLSTMCell
from hpcflow.ops.rnn.rnn_cells import BasicRNNCell as BasicRNNCell
from hpcflow.ops.rnn.rnn_cells import GRUCell as GRUCell
from hpcflow.ops.rnn.rnn_cells import LSTMCell as LSTMCell
from hpcflow.ops.rnn.rnn_cells import LSTMStateTuple as LSTMStateTuple
from hpcflow.ops.rnn.rnn_cells import RNNCell as RNNCell
