"""Recurrent layers: sequences of variable lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.layers.activation_names import activation_of
from hpcflow.layers.layer_builder import Function, drops, of_rank
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.nn.training_calls import call_in_phase
from hpcflow.ops.rnn.dynamic_rnn import bidirectional_dynamic_rnn, dynamic_rnn
from hpcflow.ops.rnn.rnn_cell_wrappers import DropoutWrapper, MultiRNNCell
from hpcflow.ops.rnn.rnn_cells import BasicRNNCell, GRUCell, LSTMCell, RNNCell
from hpcflow.ops.shape_inference import rename_function
from hpcflow.ops.variables.variable_scope import variable_scope


def _recurrent(layer_name: str, make: Callable[..., RNNCell], doc: str) -> Function:
    """A recurrent layer of the cells that `make(units, activation)` returns."""

    def recurrent(
        inputs: Any,
        units: int,
        num_layers: int = 1,
        sequence_length: Any = None,
        initial_state: Any = None,
        bidirectional: bool = False,
        dropout_rate: Any = 0.0,
        training: bool | None = None,
        activation: Function | str | None = None,
        time_major: bool = False,
        name: str | None = None,
        reuse: Any = None,
    ) -> tuple[Tensor, Any]:
        x = of_rank(convert_to_tensor(inputs), 3, layer_name)
        if num_layers < 1:
            raise ShapeError(
                f"{layer_name}: num_layers must be at least 1, not {num_layers}", line=user_line()
            )

        def cell(training: Any) -> RNNCell:
            cells = [make(units, activation_of(activation)) for _ in range(num_layers)]
            if training:  # between the layers and on the output
                cells = [DropoutWrapper(c, output_keep_prob=1 - dropout_rate) for c in cells]
            return cells[0] if num_layers == 1 else MultiRNNCell(cells)

        def unrolled(x: Any, lengths: Any, start: Any, training: Any = False) -> tuple[Tensor, Any]:
            facts: dict[str, Any] = {"dtype": x.dtype, "time_major": time_major}
            if not bidirectional:
                return dynamic_rnn(cell(training), x, lengths, start, **facts)
            cells = cell(training), cell(training)
            states = (None, None) if start is None else start
            both, last = bidirectional_dynamic_rnn(*cells, x, lengths, *states, **facts)
            return concat(both, 2), last

        def again(*args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
            with variable_scope(scope, reuse=True):
                return unrolled(*args, **kwargs)

        with variable_scope(name, layer_name, [x], reuse=reuse) as scope:
            how = {"training": training if drops(dropout_rate) else False}
            run, given = (unrolled, unrolled, again), (x, sequence_length, initial_state)
            result: tuple[Tensor, Any] = call_in_phase(*run, given, how, layer_name)
            return result

    return rename_function(recurrent, layer_name, doc)


rnn = _recurrent(
    "rnn",
    lambda units, activation: BasicRNNCell(units, activation),
    """Recurrent layers, `activation([x, state] @ kernel + bias)`: outputs and last state.

    As `hf.layers.lstm`.
    """,
)
gru = _recurrent(
    "gru",
    lambda units, activation: GRUCell(units, activation),
    """Layers of gated recurrent units: outputs and last state.

    As `hf.layers.lstm`.
    """,
)
lstm = _recurrent(
    "lstm",
    lambda units, activation: LSTMCell(units, activation=activation),
    """Layers of long short-term memory: outputs and last state.

    Several layers are stacked; `bidirectional` runs another stack backward and joins the outputs.
    While `training`, by default in `fit` of a model alone, `dropout_rate` of what leaves each layer
    is dropped. Beyond its `sequence_length` (integers [batch]) a sample's outputs are zeros and its
    state stays.

    Shapes:    [batch, time, features] to [batch, time, units], twice the units if bidirectional;
               with `time_major` time is the first axis. The state is that of the cell, a tuple of
               those of several layers, a pair (forward, backward) if bidirectional.
    Variables: those of `hf.nn.rnn_cell`'s cells.
    """,
)
