"""Dense layers, embeddings, dropout, flattening."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.graph.shape import is_known, size_of
from hpcflow.layers.base import Function, bias_of, finished, known_size
from hpcflow.ops import nn
from hpcflow.ops.array import as_scalar, identity, reshape, shape, transpose
from hpcflow.ops.gather import gather
from hpcflow.ops.math import where
from hpcflow.ops.matmul import matmul
from hpcflow.ops.slicing import getitem
from hpcflow.ops.variable_scope import get_variable, variable_scope


def dense(
    inputs: Any,
    units: int,
    activation: Function | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = None,
    bias_initializer: Any = None,
    kernel_regularizer: Function | None = None,
    bias_regularizer: Function | None = None,
    activity_regularizer: Function | None = None,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
) -> Tensor:
    """`activation(inputs @ kernel + bias)`.

    Shapes:    [..., features] with known features to [..., units].
    Variables: `kernel` [features, units], Glorot's uniform by default; `bias` [units], zeros.
    """
    x = convert_to_tensor(inputs)
    with variable_scope(name, "dense", [x], reuse=reuse):
        features = known_size(x, -1, "dense")
        kernel = get_variable(
            "kernel", [features, units], x.dtype, kernel_initializer, kernel_regularizer, trainable
        )
        assert x.shape is not None
        rows = x if len(x.shape) == 2 else reshape(x, [-1, features])
        y = matmul(rows, kernel)
        if use_bias:
            y = nn.bias_add(y, bias_of(x, units, bias_initializer, bias_regularizer, trainable))
        if len(x.shape) != 2:
            y = reshape(y, [*_sizes(x)[:-1], units])
        return finished(y, activation, activity_regularizer)


def _sizes(x: Tensor) -> list[Any]:
    """The sizes of `x`, tensors for unknown ones."""
    assert x.shape is not None
    return [getitem(shape(x), i) if n is None else n for i, n in enumerate(x.shape)]


def flatten(inputs: Any, name: str | None = None, data_format: str = "channels_last") -> Tensor:
    """All axes but the batch as one; with channels_first, in the order of channels_last."""
    x = convert_to_tensor(inputs)
    if data_format == "channels_first" and x.shape is not None and len(x.shape) > 2:
        x = transpose(x, [0, *range(2, len(x.shape)), 1])
    if x.shape is not None and is_known(x.shape[1:]):
        return reshape(x, [-1, size_of(x.shape[1:])], name)
    return reshape(x, [getitem(shape(x), 0), -1], name)


def dropout(
    inputs: Any,
    rate: Any = 0.5,
    noise_shape: Any = None,
    seed: int | None = None,
    training: Any = False,
    name: str | None = None,
) -> Tensor:
    """While `training` (a bool or a tensor), each element is 0 with probability `rate`.

    The others are divided by `1 - rate`. Otherwise `inputs` as they are.
    """
    x = convert_to_tensor(inputs)
    if isinstance(training, (bool, int)):
        if not training:
            return identity(x, name)
        return nn.dropout(x, noise_shape=noise_shape, seed=seed, name=name, rate=rate)
    now = where(as_scalar(training), convert_to_tensor(rate, x.dtype), 0)
    return nn.dropout(x, noise_shape=noise_shape, seed=seed, name=name, rate=now)


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
    """A row of a table for each of `ids`; only the rows that are used have gradients.

    Shapes:    integers [...] to [..., units].
    Variables: `embeddings` [vocabulary_size, units].
    Errors:    an id outside [0, vocabulary_size) raises RangeError when it runs.
    """
    places = convert_to_tensor(ids)
    with variable_scope(name, "embedding", [places], reuse=reuse):
        table = get_variable(
            "embeddings", [vocabulary_size, units], dtype, initializer, regularizer, trainable
        )
        return gather(table, places)
