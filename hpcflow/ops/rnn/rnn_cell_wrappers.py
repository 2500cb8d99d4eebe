"""RNN cell wrappers: stacked cells, dropout, residual connection, device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph import nested_structure
from hpcflow.graph.graph import Tensor, get_default_graph, user_line
from hpcflow.ops.array.concat_split_ops import concat, split
from hpcflow.ops.math.arithmetic_ops import add, divide, less, where
from hpcflow.ops.nn.nn_ops import dropout
from hpcflow.ops.random.random_ops import random_uniform
from hpcflow.ops.rnn.rnn_cells import LSTMStateTuple, RNNCell
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.ops.variables.variable_scope import variable_scope


class MultiRNNCell(RNNCell):
    """Stacked cells: the output of each is the input of the next.

    The state is a tuple of their states; with `state_is_tuple` False it is their concatenation on
    axis 1.
    """

    def __init__(self, cells: Sequence[RNNCell], state_is_tuple: bool = True) -> None:
        super().__init__()
        if not cells:
            raise GraphError("MultiRNNCell needs at least one cell", line=user_line())
        if len({id(cell) for cell in cells}) < len(cells):
            raise GraphError(
                "MultiRNNCell has the same cell twice, which would share its weights",
                line=user_line(),
                hint="make one for each layer: [hf.nn.rnn_cell.LSTMCell(n) for _ in range(layers)]",
            )
        self._cells, self._tuple = list(cells), state_is_tuple

    @property
    def state_size(self) -> Any:
        """The state sizes of the cells."""
        sizes = tuple(cell.state_size for cell in self._cells)
        return sizes if self._tuple else sum(nested_structure.flatten_structure(sizes))

    @property
    def output_size(self) -> Any:
        """The output size of the last cell."""
        return self._cells[-1].output_size

    def _all_variables(self) -> list[Variable]:
        return [v for cell in self._cells for v in cell.variables]

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """The zero states of the cells."""
        if not self._tuple:
            return super().zero_state(batch_size, dtype)
        return tuple(cell.zero_state(batch_size, dtype) for cell in self._cells)

    def call(self, inputs: Tensor, state: Any) -> tuple[Any, Any]:
        """One step of all cells."""
        if self._tuple:
            before = list(state)
        else:
            before = split(state, [cell.state_size for cell in self._cells], 1)
        if len(before) != len(self._cells):
            raise GraphError(
                f"MultiRNNCell of {len(self._cells)} cells takes as many states, not {len(before)}",
                line=user_line(),
            )
        after = []
        for i, (cell, cell_state) in enumerate(zip(self._cells, before, strict=True)):
            with variable_scope(f"cell_{i}"):
                inputs, new = cell(inputs, cell_state)
            after.append(new)
        return inputs, tuple(after) if self._tuple else concat(after, 1)


class _Wrapper(RNNCell):
    """A cell around another, with the variables and sizes of the inner cell."""

    def __init__(self, cell: RNNCell) -> None:
        super().__init__()
        self._cell = cell

    @property
    def state_size(self) -> Any:
        """That of the inner cell."""
        return self._cell.state_size

    @property
    def output_size(self) -> Any:
        """That of the inner cell."""
        return self._cell.output_size

    def _all_variables(self) -> list[Variable]:
        return self._cell.variables

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """That of the inner cell."""
        return self._cell.zero_state(batch_size, dtype)

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """One step of the inner cell, in its own scope."""
        return self.wrapped(lambda x, s: self._cell(x, s, scope), inputs, state)

    def wrapped(self, step: Callable[..., Any], inputs: Any, state: Any) -> tuple[Any, Any]:
        """Apply the wrapper to `step(inputs, state)`."""
        raise NotImplementedError


class DropoutWrapper(_Wrapper):
    """Dropout on the inputs, outputs and state of a cell.

    Of an LSTM's state only h is dropped. With `variational_recurrent` (Gal and Ghahramani, 2015)
    all steps and samples of a run use the same mask; `dtype`, and `input_size` for input dropout,
    are required then.
    """

    def __init__(
        self,
        cell: RNNCell,
        input_keep_prob: Any = 1.0,
        output_keep_prob: Any = 1.0,
        state_keep_prob: Any = 1.0,
        variational_recurrent: bool = False,
        input_size: int | None = None,
        dtype: Any = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(cell)
        self._keep = {"input": input_keep_prob, "state": state_keep_prob}
        self._keep["output"] = output_keep_prob
        self._seed, self._calls = seed, 0
        self._noise: dict[str, list[Tensor]] = {}
        if variational_recurrent:
            if dtype is None or (input_size is None and self._drops("input")):
                raise GraphError(
                    "variational dropout needs dtype, and input_size if inputs are dropped",
                    line=user_line(),
                )
            sizes = {"input": input_size, "output": cell.output_size, "state": cell.state_size}
            for kind, size in sizes.items():
                if self._drops(kind):
                    noise = [
                        random_uniform([1, n], dtype=dtype, seed=self._own_seed(kind, i))
                        for i, n in enumerate(nested_structure.flatten_structure(size))
                    ]
                    self._noise[kind] = noise

    def _drops(self, kind: str) -> bool:
        keep = self._keep[kind]
        return not isinstance(keep, (int, float)) or keep < 1

    def _own_seed(self, kind: str, index: int) -> int | None:
        """A seed for each kind of dropout and each unrolled step, derived from the given one."""
        if self._seed is None:
            return None
        facts = f"{self._seed} {kind} {index} {self._calls}"
        return int.from_bytes(hashlib.blake2b(facts.encode(), digest_size=4).digest(), "little")

    def _drop(self, kind: str, value: Any, index: int = 0) -> Any:
        keep = self._keep[kind]
        if kind in self._noise:
            return where(less(self._noise[kind][index], keep), divide(value, keep), 0)
        return dropout(value, keep, seed=self._own_seed(kind, index))

    def wrapped(self, step: Callable[..., Any], inputs: Any, state: Any) -> tuple[Any, Any]:
        """One step with dropout."""
        self._calls += 1
        if self._drops("input"):
            inputs = self._drop("input", inputs)
        output, new = step(inputs, state)
        if self._drops("state"):
            new = self._dropped_state(new)
        if self._drops("output"):
            output = self._drop("output", output)
        return output, new

    def _dropped_state(self, state: Any) -> Any:
        remembered = {id(s.c) for s in _lstm_states(state)}
        leaves = nested_structure.flatten_structure(state)
        return nested_structure.pack_structure(
            state,
            [s if id(s) in remembered else self._drop("state", s, i) for i, s in enumerate(leaves)],
        )


def _lstm_states(state: Any) -> list[LSTMStateTuple]:
    if isinstance(state, LSTMStateTuple):
        return [state]
    if isinstance(state, (list, tuple)):
        return [lstm_state for item in state for lstm_state in _lstm_states(item)]
    return []


class ResidualWrapper(_Wrapper):
    """The output of a cell plus its input, or `residual_fn(inputs, outputs)`."""

    def __init__(self, cell: RNNCell, residual_fn: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__(cell)
        self._residual = residual_fn or add

    def wrapped(self, step: Callable[..., Any], inputs: Any, state: Any) -> tuple[Any, Any]:
        """One step with the residual connection."""
        output, new = step(inputs, state)
        return self._residual(inputs, output), new


class DeviceWrapper(_Wrapper):
    """A cell whose operations run on `device`."""

    def __init__(self, cell: RNNCell, device: str) -> None:
        super().__init__(cell)
        self._device = device

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """The zero state, on the device."""
        with get_default_graph().device(self._device):
            return self._cell.zero_state(batch_size, dtype)

    def wrapped(self, step: Callable[..., Any], inputs: Any, state: Any) -> tuple[Any, Any]:
        """One step on the device."""
        with get_default_graph().device(self._device):
            return step(inputs, state)
