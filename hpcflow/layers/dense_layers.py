"""Dense, embedding, dropout and flatten layers."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.graph.static_shape import is_known, size_of
from hpcflow.layers.layer_builder import Function, OfTensor, Weighted, function, known_size
from hpcflow.ops.array.array_ops import as_scalar, identity, reshape, shape, transpose
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.linalg.matmul_ops import matmul
from hpcflow.ops.math.arithmetic_ops import where
from hpcflow.ops.nn import nn_ops
from hpcflow.ops.nn.layer_objects import InputSpec
from hpcflow.ops.variables.variable_scope import get_variable, variable_scope


class Dense(Weighted):
    """Fully connected layer: `activation(inputs @ kernel + bias)`.

    Shapes:    [..., features] to [..., units]; features must be known.
    Variables: `kernel` [features, units], by default Glorot uniform; `bias` [units], zeros.
    """

    what = "dense"

    def __init__(
        self,
        units: int,
        activation: Function | str | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        kernel_regularizer: Function | None = None,
        bias_regularizer: Function | None = None,
        activity_regularizer: Function | None = None,
        kernel_constraint: Function | None = None,
        bias_constraint: Function | None = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activation, use_bias, activity_regularizer, trainable, name, kwargs)
        self.units = self._count("units", units)
        self._store_weight_options(
            kernel=(kernel_initializer, kernel_regularizer, kernel_constraint),
            bias=(bias_initializer, bias_regularizer, bias_constraint),
        )

    def build(self, input_shape: Any) -> None:
        """Create `kernel` and `bias`."""
        features = known_size(input_shape, -1, "dense")
        self.input_spec = InputSpec(min_ndim=1, axes={-1: features})
        self.kernel = self._weight("kernel", [features, self.units])
        self._add_bias(self.units)
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """The matrix product with the kernel, with bias and activation."""
        x = inputs
        assert x.shape is not None
        if len(x.shape) == 2:
            return self._finished(matmul(x, self.kernel))
        y = matmul(reshape(x, [-1, self.kernel.shape[0]]), self.kernel)
        y = y if self.bias is None else nn_ops.bias_add(y, self.bias)
        return self._activated(reshape(y, [*_sizes(x)[:-1], self.units]))


def _sizes(x: Tensor) -> list[Any]:
    """The sizes of `x`; scalar tensors for unknown ones."""
    assert x.shape is not None
    return [getitem(shape(x), i) if n is None else n for i, n in enumerate(x.shape)]


class Flatten(OfTensor):
    """Flatten all axes except the batch; channels_first inputs are transposed to channels_last."""

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = data_format

    def call(self, inputs: Tensor) -> Tensor:
        """The inputs as a matrix."""
        x = inputs
        if self.data_format == "channels_first" and x.shape is not None and len(x.shape) > 2:
            x = transpose(x, [0, *range(2, len(x.shape)), 1])
        if x.shape is not None and is_known(x.shape[1:]):
            return reshape(x, [-1, size_of(x.shape[1:])])
        return reshape(x, [getitem(shape(x), 0), -1])


def flatten(inputs: Any, name: str | None = None, data_format: str = "channels_last") -> Tensor:
    """Flatten all axes except the batch; channels_first inputs are transposed to channels_last."""
    return Flatten(data_format, name=name)(inputs)


class Dropout(OfTensor):
    """Dropout: while `training` (a bool or a tensor), an element is 0 with probability `rate`.

    The other elements are divided by `1 - rate`. Without training the result equals the inputs. By
    default `training` is true in `fit` of a model of the outputs, and only there.
    """

    what = "dropout"

    def __init__(
        self,
        rate: Any = 0.5,
        noise_shape: Any = None,
        seed: int | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.rate, self.noise_shape, self.seed = rate, noise_shape, seed

    def call(self, inputs: Tensor, training: Any = False) -> Tensor:
        """The inputs with dropout applied while `training`."""
        rate = self.rate
        if isinstance(training, (bool, int)):
            if not training:
                return identity(inputs)
        else:
            rate = where(as_scalar(training), convert_to_tensor(rate, inputs.dtype), 0)
        return nn_ops.dropout(inputs, noise_shape=self.noise_shape, seed=self.seed, rate=rate)


dense = function(Dense)
dropout = function(Dropout, reuse=False)


def embedding(
    ids: Any,
    vocabulary_size: int,
    units: int,
    initializer: Any = None,
    regularizer: Function | None = None,
    dtype: Any = "float32",
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Tensor:
    """Embedding lookup: one row of a table for each id; gradients are IndexedSlices.

    Shapes:    integers [...] to [..., units].
    Variables: `embeddings` [vocabulary_size, units].
    Errors:    RangeError at run time for an id outside [0, vocabulary_size).
    """
    places = convert_to_tensor(ids)
    with variable_scope(name, "embedding", [places], reuse=reuse):
        table = get_variable(
            "embeddings", [vocabulary_size, units], dtype, initializer, regularizer, trainable
        )
        return gather(table, places)
