"""RNN cells: one step of a recurrent network.

A cell is a layer: it creates its variables at its first call, in the current variable scope, and
reuses them in later calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph import nested_structure
from hpcflow.graph.graph import Tensor, user_line
from hpcflow.graph.static_shape import as_shape, require_known, shape_text
from hpcflow.graph.tensor_shape import TensorShape
from hpcflow.ops.array.broadcast_ops import zeros
from hpcflow.ops.array.concat_split_ops import concat, split
from hpcflow.ops.linalg.matmul_ops import matmul
from hpcflow.ops.math.arithmetic_ops import add, clip_by_value, multiply, sigmoid, subtract, tanh
from hpcflow.ops.nn.layer_objects import Layer
from hpcflow.ops.nn.nn_ops import bias_add
from hpcflow.ops.shape_inference import integer_argument
from hpcflow.ops.variables.initializer_objects import Ones, Zeros

Activation = Callable[[Any], Tensor]


class LSTMStateTuple(NamedTuple):
    """The state of an LSTM: cell state c and output h."""

    c: Any
    h: Any


class RNNCell(Layer):
    """One step of a recurrent network: `output, new_state = cell(inputs, state)`.

    A subclass has `state_size` and `output_size` (an int or a TensorShape, for one sample, or a
    structure of these), creates its variables with `add_variable` in `build(input_shape)`, and
    computes in `call(inputs, state)`.
    """

    def __init__(
        self,
        name: str | None = None,
        dtype: Any = None,
        reuse: Any = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, dtype, **{"_reuse": reuse, **kwargs})

    @property
    def state_size(self) -> Any:
        """The number of state elements per sample, or a structure of such numbers."""
        raise NotImplementedError(f"{type(self).__name__} has no state_size")

    @property
    def output_size(self) -> Any:
        """The number of output elements per sample."""
        raise NotImplementedError(f"{type(self).__name__} has no output_size")

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        """The output and the new state of one step, for a batch of samples."""
        output_and_state: tuple[Any, Any] = super().__call__(inputs, state, scope=scope)
        return output_and_state

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """The output and the new state."""
        raise NotImplementedError(f"{type(self).__name__} has no call(inputs, state)")

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """A zero state for `batch_size` samples (a number or a scalar tensor)."""
        return nested_structure.map_structure(
            lambda size: zeros([batch_size, *sizes_per_sample(size)], dtype), self.state_size
        )


def sizes_per_sample(size: Any) -> list[Any]:
    """The sizes of a sample's state or output: of one axis, or those of a TensorShape.

    Errors: ShapeError if one is not known.
    """
    return [*require_known(size.plain)] if isinstance(size, TensorShape) else [size]


def _depth(cell: RNNCell, shape: Any) -> int:
    """The number of input features."""
    sizes = as_shape(shape)
    if sizes is None or len(sizes) != 2 or sizes[-1] is None:
        raise ShapeError(
            f"{cell.name} takes inputs [batch, features] with known features, not "
            f"{shape_text(sizes)}",
            line=user_line(),
        )
    return int(sizes[-1])


def _linear(x: Tensor, h: Any, kernel: Any, bias: Any) -> Tensor:
    return bias_add(matmul(concat([x, h], 1), kernel), bias)


class BasicRNNCell(RNNCell):
    """`activation([inputs, state] @ kernel + bias)`, which is output and state."""

    def __init__(
        self,
        num_units: int,
        activation: Activation | None = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name, dtype, reuse)
        self._units, self._activation = integer_argument(num_units, "num_units"), activation or tanh

    @property
    def state_size(self) -> int:
        """The number of units."""
        return self._units

    output_size = state_size

    def build(self, input_shape: Any) -> None:
        """Create `kernel` and `bias`."""
        rows = _depth(self, input_shape) + self._units
        self.kernel = self.add_variable("kernel", [rows, self._units])
        self.bias = self.add_variable("bias", [self._units], initializer=Zeros())

    def call(self, inputs: Tensor, state: Any) -> tuple[Any, Any]:
        """One step."""
        output = self._activation(_linear(inputs, state, self.kernel, self.bias))
        return output, output


class GRUCell(RNNCell):
    """Gated recurrent unit (Cho et al., 2014); the reset gate acts on the state itself."""

    def __init__(
        self,
        num_units: int,
        activation: Activation | None = None,
        reuse: Any = None,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name, dtype, reuse)
        self._units, self._activation = integer_argument(num_units, "num_units"), activation or tanh
        self._kernel, self._bias = kernel_initializer, bias_initializer

    @property
    def state_size(self) -> int:
        """The number of units."""
        return self._units

    output_size = state_size

    def build(self, input_shape: Any) -> None:
        """Create kernels and biases of gates and candidate; gate biases start at 1."""
        n, rows = self._units, _depth(self, input_shape) + self._units
        ones, none = self._bias or Ones(), self._bias or Zeros()
        self.gate_kernel = self.add_variable(
            "gates/kernel", [rows, 2 * n], initializer=self._kernel
        )
        self.gate_bias = self.add_variable("gates/bias", [2 * n], initializer=ones)
        self.kernel = self.add_variable("candidate/kernel", [rows, n], initializer=self._kernel)
        self.bias = self.add_variable("candidate/bias", [n], initializer=none)

    def call(self, inputs: Tensor, state: Any) -> tuple[Any, Any]:
        """One step."""
        gates = sigmoid(_linear(inputs, state, self.gate_kernel, self.gate_bias))
        reset, update = split(gates, 2, 1)
        new = self._activation(_linear(inputs, multiply(reset, state), self.kernel, self.bias))
        state = add(multiply(update, state), multiply(subtract(1, update), new))
        return state, state


class LSTMCell(RNNCell):
    """Long short-term memory with optional peepholes, clipping and projection (Sak et al., 2014).

    Kernel columns are input gate, candidate, forget gate and output gate. With `state_is_tuple`
    False the state is c and h concatenated on axis 1.
    """

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        cell_clip: float | None = None,
        initializer: Any = None,
        num_proj: int | None = None,
        proj_clip: float | None = None,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Activation | None = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name, dtype, reuse)
        self._units, self._activation = integer_argument(num_units, "num_units"), activation or tanh
        self._peepholes, self._initializer = use_peepholes, initializer
        self._cell_clip, self._proj_clip = cell_clip, proj_clip
        self._proj, self._forget_bias, self._tuple = num_proj, forget_bias, state_is_tuple

    @property
    def state_size(self) -> Any:
        """The sizes of c and h."""
        sizes = LSTMStateTuple(self._units, self.output_size)
        return sizes if self._tuple else sum(sizes)

    @property
    def output_size(self) -> int:
        """The number of units, or the size of the projection."""
        return self._proj or self._units

    def build(self, input_shape: Any) -> None:
        """Create kernel and bias, and the weights of peepholes and projection."""
        n, start = self._units, self._initializer
        rows = _depth(self, input_shape) + self.output_size
        self.kernel = self.add_variable("kernel", [rows, 4 * n], initializer=start)
        self.bias = self.add_variable("bias", [4 * n], initializer=Zeros())
        if self._peepholes:
            self.to_forget = self.add_variable("w_f_diag", [n], initializer=start)
            self.to_input = self.add_variable("w_i_diag", [n], initializer=start)
            self.to_output = self.add_variable("w_o_diag", [n], initializer=start)
        if self._proj:
            self.projection = self.add_variable(
                "projection/kernel", [n, self._proj], initializer=start
            )

    def _parts(self, state: Any) -> tuple[Any, Any]:
        if self._tuple:
            if not isinstance(state, (tuple, list)) or len(state) != 2:
                raise GraphError(
                    f"{self.name}: the state of an LSTM is (c, h), not {state!r}", line=user_line()
                )
            return state[0], state[1]
        c, h = split(state, [self._units, self.output_size], 1)
        return c, h

    def call(self, inputs: Tensor, state: Any) -> tuple[Any, Any]:
        """One step."""
        before, h = self._parts(state)
        i, j, f, o = split(_linear(inputs, h, self.kernel, self.bias), 4, 1)
        f = add(f, self._forget_bias)
        if self._peepholes:
            f, i = add(f, multiply(before, self.to_forget)), add(i, multiply(before, self.to_input))
        c = add(multiply(before, sigmoid(f)), multiply(sigmoid(i), self._activation(j)))
        if self._cell_clip is not None:
            c = clip_by_value(c, -self._cell_clip, self._cell_clip)
        if self._peepholes:
            o = add(o, multiply(c, self.to_output))
        h = multiply(self._activation(c), sigmoid(o))
        if self._proj:
            h = matmul(h, self.projection)
            if self._proj_clip is not None:
                h = clip_by_value(h, -self._proj_clip, self._proj_clip)
        return h, LSTMStateTuple(c, h) if self._tuple else concat([c, h], 1)


class BasicLSTMCell(LSTMCell):
    """`LSTMCell` without peepholes, clipping and projection (Zaremba et al., 2014)."""

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Activation | None = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            num_units,
            forget_bias=forget_bias,
            state_is_tuple=state_is_tuple,
            activation=activation,
            reuse=reuse,
            name=name,
            dtype=dtype,
        )
