"""Dynamic RNN: recurrent networks as while loops, up to the longest sequence of the batch."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph import nested_structure
from hpcflow.graph.dtypes import int32, kind_of, name_of
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import constant, range, reshape, shape, transpose
from hpcflow.ops.array.broadcast_ops import zeros
from hpcflow.ops.array.concat_split_ops import concat, stack
from hpcflow.ops.array.rearrange_ops import reverse_sequence
from hpcflow.ops.array.slice_ops import gather, reverse
from hpcflow.ops.control_flow.cond_while import while_loop
from hpcflow.ops.control_flow.tensor_array import TensorArray
from hpcflow.ops.math.arithmetic_ops import (
    add,
    cast,
    less,
    logical_not,
    logical_or,
    maximum,
    minimum,
    subtract,
)
from hpcflow.ops.math.reduction_ops import reduce_all, reduce_max
from hpcflow.ops.rnn.rnn_cells import RNNCell, sizes_per_sample
from hpcflow.ops.rnn.static_rnn import while_alive
from hpcflow.ops.variables.variable_scope import variable_scope


def dynamic_rnn(
    cell: RNNCell,
    inputs: Any,
    sequence_length: Any = None,
    initial_state: Any = None,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
    history: str = "keep",
) -> tuple[Any, Any]:
    """The outputs of `cell` for each step of `inputs`, and its last state, by a while loop.

    After its `sequence_length` (integers [batch]) a sample's outputs are zeros and its state is
    unchanged. The loop ends with the longest sequence. `initial_state` defaults to zeros of
    `dtype`. `history` and `swap_memory` are those of `while_loop`.

    Steps behind the last one of `inputs` are left out, whatever `sequence_length` says.

    Shapes: inputs [batch, time, ...], with `time_major` [time, batch, ...], as many sizes behind
            these as the cell takes (features; height, width, channels); outputs the same with the
            cell's output size, an int or a TensorShape. Batch and time may be unknown.
    """
    x = _by_time(inputs, time_major)
    samples = None if x.shape is None else x.shape[1]
    with variable_scope("rnn" if scope is None else scope):
        time, batch = _size(x, 0), _size(x, 1)
        lengths = None if sequence_length is None else _lengths(sequence_length)
        count = time if lengths is None else minimum(time, maximum(reduce_max(lengths), 0))
        steps = TensorArray(x.dtype, time).unstack(x)
        state = initial_state
        if state is None:
            state = cell.zero_state(batch if samples is None else samples, dtype or x.dtype)
        arrays, state = _looped(
            *(cell, steps, count, lengths, state),
            parallel_iterations=parallel_iterations or 32,
            swap_memory=swap_memory,
            history=history,
        )

        def joined(array: TensorArray, size: Any) -> Tensor:
            outputs = _joined(array, time, count, [batch, *sizes_per_sample(size)])
            of_cell = samples if outputs.shape is None else outputs.shape[1]
            known = (None if x.shape is None else x.shape[0], of_cell, *sizes_per_sample(size))
            outputs.set_shape(known)
            return outputs if time_major else _with_axes_exchanged(outputs)

        return nested_structure.map_structure(joined, arrays, cell.output_size), state


def _joined(array: TensorArray, time: Tensor, count: Tensor, sizes: Sequence[Any]) -> Tensor:
    """The first `count` elements of `array`, of these sizes, and zeros behind for `time` steps."""
    gathered = array.gather(range(count))
    outputs = reshape(gathered, stack([count, *sizes]))  # an empty array does not give its sizes
    if gathered.shape is not None:
        outputs.set_shape((None, *gathered.shape[1:]))
    if count is time:
        return outputs
    return concat([outputs, zeros(stack([subtract(time, count), *sizes]), array.dtype)], 0)


def _looped(
    cell: RNNCell, steps: TensorArray, count: Tensor, lengths: Tensor | None, state: Any, **how: Any
) -> tuple[Any, Any]:
    """Lists of the cell's outputs for the first `count` of `steps`, and its last state."""
    arrays = nested_structure.map_structure(
        lambda n: TensorArray(steps.dtype, count), cell.output_size
    )

    def step(t: Tensor, arrays: Any, old: Any) -> Any:
        output, new = cell(steps.read(t), old)
        if lengths is not None:
            output, new = while_alive(less(t, lengths), output, new, old)
        return (
            add(t, 1),
            nested_structure.map_structure(lambda a, y: a.write(t, y), arrays, output),
            new,
        )

    begin = [constant(0), arrays, state]
    _, arrays, state = while_loop(lambda t, *_: less(t, count), step, begin, **how)
    return arrays, state


def _by_time(inputs: Any, time_major: bool) -> Tensor:
    """The inputs as [time, batch, ...]."""
    x = convert_to_tensor(inputs)
    if x.shape is None or len(x.shape) < 3:
        raise ShapeError(
            f"dynamic_rnn takes inputs of rank 3 or more, not {shape_text(x.shape)}",
            op=x.op.name,
            line=user_line(),
        )
    return x if time_major else _with_axes_exchanged(x)


def _with_axes_exchanged(x: Tensor) -> Tensor:
    """The first two axes, of samples and of time, exchanged."""
    assert x.shape is not None
    return transpose(x, [1, 0, *[*builtins.range(2, len(x.shape))]])


def _size(x: Tensor, axis: int) -> Tensor:
    static_size = None if x.shape is None else x.shape[axis]
    return gather(shape(x), axis) if static_size is None else constant(static_size)


def _lengths(sequence_length: Any) -> Tensor:
    lengths = convert_to_tensor(sequence_length)
    if kind_of(lengths.dtype) not in "iuf":
        raise DTypeError(
            f"sequence_length is numbers, not {name_of(lengths.dtype)}",
            op=lengths.op.name,
            line=user_line(),
        )
    return cast(lengths, int32)


def bidirectional_dynamic_rnn(
    cell_fw: RNNCell,
    cell_bw: RNNCell,
    inputs: Any,
    sequence_length: Any = None,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """`dynamic_rnn` forward with one cell and backward with another: pairs of results."""
    x = convert_to_tensor(inputs)
    axes = (0, 1) if time_major else (1, 0)  # time, batch
    facts: dict[str, Any] = {
        "dtype": dtype,
        "parallel_iterations": parallel_iterations,
        "swap_memory": swap_memory,
        "time_major": time_major,
    }

    def turned(values: Any) -> Any:
        if sequence_length is None:
            return nested_structure.map_structure(lambda v: reverse(v, [axes[0]]), values)
        return nested_structure.map_structure(
            lambda v: reverse_sequence(v, sequence_length, *axes), values
        )

    with variable_scope("bidirectional_rnn" if scope is None else scope):
        forward, last_fw = dynamic_rnn(
            cell_fw, x, sequence_length, initial_state_fw, scope="fw", **facts
        )
        backward, last_bw = dynamic_rnn(
            cell_bw, turned(x), sequence_length, initial_state_bw, scope="bw", **facts
        )
        return (forward, turned(backward)), (last_fw, last_bw)


def _growing_array(like: Any) -> TensorArray:
    """An empty TensorArray of the dtype of `like`."""
    return TensorArray(convert_to_tensor(like).dtype, 0, dynamic_size=True)


def raw_rnn(
    cell: RNNCell,
    loop_fn: Callable[..., Any],
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    scope: Any = None,
) -> tuple[Any, Any, Any]:
    """A recurrent network controlled by the function `loop_fn`: inputs, states and end.

    `loop_fn(time, cell_output, cell_state, loop_state)` returns (finished [batch], next input, next
    cell state, emitted output, next loop state). At time 0 it is called with None for output and
    states; it then returns the initial ones, and for `emit` a structure of tensors shaped like one
    sample (None for the cell's output). A finished sample emits zeros and keeps its state.

    Returns: TensorArrays of emitted outputs, the last cell state, the last loop state.
    """
    with variable_scope("rnn" if scope is None else scope):
        time = constant(0)
        finished, x, state, emit, loop_state = loop_fn(time, None, None, None)
        finished, x = convert_to_tensor(finished), convert_to_tensor(x)
        state = nested_structure.map_structure(convert_to_tensor, state)
        carried = constant(0) if loop_state is None else loop_state
        if emit is None:
            emit = nested_structure.map_structure(lambda _: x, cell.output_size)
        arrays = nested_structure.map_structure(_growing_array, emit)

        def step(t: Tensor, finished: Tensor, x: Any, arrays: Any, state: Any, carried: Any) -> Any:
            output, new = cell(x, state)
            user_state = None if loop_state is None else carried
            now, following, next_state, emit, after = loop_fn(add(t, 1), output, new, user_state)
            shown = output if emit is None else emit
            emitted, next_state = while_alive(logical_not(finished), shown, next_state, state)
            arrays = nested_structure.map_structure(lambda a, y: a.write(t, y), arrays, emitted)
            return (
                add(t, 1),
                logical_or(finished, convert_to_tensor(now)),
                convert_to_tensor(following),
                arrays,
                next_state,
                carried if loop_state is None else after,
            )

        _, _, _, arrays, state, carried = while_loop(
            lambda t, done, *_: logical_not(reduce_all(done)),
            step,
            [time, finished, x, arrays, state, carried],
            parallel_iterations=parallel_iterations or 32,
            swap_memory=swap_memory,
        )
        return arrays, state, None if loop_state is None else carried
