"""Static RNN: recurrent networks unrolled in the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph import nested_structure
from hpcflow.graph.dtypes import int32
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.ops.array.array_ops import expand_dims, identity, rank, reshape, shape
from hpcflow.ops.array.broadcast_ops import ones
from hpcflow.ops.array.concat_split_ops import concat, stack, unstack
from hpcflow.ops.array.rearrange_ops import reverse_sequence
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import less, subtract, where
from hpcflow.ops.rnn.rnn_cells import RNNCell
from hpcflow.ops.variables.variable_scope import variable_scope


def static_rnn(
    cell: RNNCell,
    inputs: Sequence[Any],
    initial_state: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """The outputs of `cell` for a list of inputs, one for each step, and its last state.

    `initial_state` defaults to zeros of `dtype`. After its `sequence_length` (integers [batch]) a
    sample's outputs are zeros and its state is unchanged.

    Shapes: inputs [batch, features] each; a list of outputs [batch, units], and the state.
    """
    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise GraphError(
            f"static_rnn takes a list of inputs, not {inputs!r}",
            line=user_line(),
            hint="hf.unstack(x, axis=1) of [batch, time, features]",
        )
    xs = [convert_to_tensor(x) for x in inputs]
    with variable_scope("rnn" if scope is None else scope) as rnn_scope:
        state = _initial(cell, xs[0], initial_state, dtype)
        lengths = None if sequence_length is None else convert_to_tensor(sequence_length)
        outputs = []
        for t, x in enumerate(xs):
            if t:
                rnn_scope.reuse_variables()
            output, new = cell(x, state)
            if lengths is None:
                state = new
            else:
                output, state = while_alive(less(t, lengths), output, new, state)
            outputs.append(output)
        return outputs, state


def static_state_saving_rnn(
    cell: RNNCell,
    inputs: Sequence[Any],
    state_saver: Any,
    state_name: Any,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Any]:
    """`static_rnn` that starts from a saved state, and saves its last state.

    `state_saver.state(name)` returns a part of the state, `state_saver.save_state(name, value)` an
    operation that saves it. `state_name` is a name, or names in the structure of the cell's state.
    The last output and the state are available after all is saved.
    """
    if not isinstance(cell, RNNCell):
        raise GraphError(
            f"{cell!r} is not an RNN cell", line=user_line(), hint="use one of hf.nn.rnn_cell"
        )
    names, sizes = nested_structure.flatten_structure(state_name), cell.state_size
    if len(names) != len(nested_structure.flatten_structure(sizes)):
        raise GraphError(
            f"state_name has {len(names)} names for a state of "
            f"{len(nested_structure.flatten_structure(sizes))} parts",
            line=user_line(),
            hint="give names in the structure of cell.state_size",
        )
    state = nested_structure.pack_structure(sizes, [state_saver.state(name) for name in names])
    outputs, state = static_rnn(cell, inputs, state, None, sequence_length, scope)
    parts = zip(names, nested_structure.flatten_structure(state), strict=True)
    saved = [state_saver.save_state(name, part) for name, part in parts]
    with get_default_graph().control_dependencies(saved):
        outputs[-1] = nested_structure.map_structure(identity, outputs[-1])
        return outputs, nested_structure.map_structure(identity, state)


def _initial(cell: RNNCell, x: Tensor, state: Any, dtype: Any) -> Any:
    if state is not None:
        return state
    if dtype is None:
        raise GraphError("give initial_state, or the dtype of a state of zeros", line=user_line())
    if x.shape is not None and not x.shape:
        raise ShapeError(f"{x.name!r} has no batch axis", line=user_line())
    batch = None if x.shape is None else x.shape[0]
    return cell.zero_state(getitem(shape(x), 0) if batch is None else batch, dtype)


def while_alive(alive: Tensor, output: Any, new: Any, old: Any) -> tuple[Any, Any]:
    """Output and state where the sample has this step; else zeros and the old state."""

    def kept(current: Tensor, fallback: Any) -> Tensor:
        selected = where(_beside(alive, current), current, fallback)
        selected.set_shape(current.shape)
        return selected

    return nested_structure.map_structure(
        lambda y: kept(y, 0), output
    ), nested_structure.map_structure(kept, new, old)


def _beside(flags: Tensor, x: Tensor) -> Tensor:
    """Flags, one per sample, reshaped to broadcast with `x`."""
    if x.shape is not None:
        return reshape(flags, [-1, *[1] * (len(x.shape) - 1)])
    unit_dims = ones(expand_dims(subtract(rank(x), 1), 0), int32)
    return reshape(flags, concat([shape(flags), unit_dims], 0))


def _reversed(xs: Sequence[Any], lengths: Any) -> list[Any]:
    """The steps reversed, within each sample's `lengths`."""
    if lengths is None:
        return list(xs)[::-1]
    return unstack(reverse_sequence(stack(xs), lengths, seq_axis=0, batch_axis=1), len(xs))


def static_bidirectional_rnn(
    cell_fw: RNNCell,
    cell_bw: RNNCell,
    inputs: Sequence[Any],
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], Any, Any]:
    """`static_rnn` forward with one cell and backward with another.

    Shapes: outputs [batch, units of both], forward ones first; then the last state of each.
    """
    with variable_scope("bidirectional_rnn" if scope is None else scope):
        forward, last_fw = static_rnn(
            cell_fw, inputs, initial_state_fw, dtype, sequence_length, "fw"
        )
        turned = _reversed([convert_to_tensor(x) for x in inputs], sequence_length)
        backward, last_bw = static_rnn(
            cell_bw, turned, initial_state_bw, dtype, sequence_length, "bw"
        )
        pairs = zip(forward, _reversed(backward, sequence_length), strict=True)
        return [concat([a, b], 1) for a, b in pairs], last_fw, last_bw
