"""What layers share: variables in a scope, activations, regularization of what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.graph import Tensor, get_default_graph, user_line
from hpcflow.graph.keys import GraphKeys
from hpcflow.graph.shape import show
from hpcflow.ops.initializer_objects import Zeros
from hpcflow.ops.variable_scope import get_variable

Function = Callable[..., Any]


def known_size(x: Tensor, axis: int, what: str) -> int:
    """The size of `x` along `axis`, which variables are shaped by; ShapeError if it is unknown."""
    size = None if x.shape is None or len(x.shape) <= abs(axis + (axis < 0)) else x.shape[axis]
    if size is None:
        raise ShapeError(
            f"{what} needs a known size along axis {axis}, not shape {show(x.shape)}",
            op=x.op.name,
            line=user_line(),
            hint="x.set_shape([...]) says what is known",
        )
    return size


def of_rank(x: Tensor, rank: int, what: str) -> Tensor:
    """`x` itself; ShapeError unless its rank is `rank`."""
    if x.shape is None or len(x.shape) != rank:
        raise ShapeError(
            f"{what} takes rank {rank}, not shape {show(x.shape)}", op=x.op.name, line=user_line()
        )
    return x


def bias_of(
    x: Tensor, size: int, initializer: Any, regularizer: Any, trainable: bool, name: str = "bias"
) -> Any:
    """A variable of one number for each of `size` features, zeros at first."""
    start = Zeros() if initializer is None else initializer
    return get_variable(name, [size], x.dtype, start, regularizer, trainable)


def finished(y: Tensor, activation: Function | None, regularizer: Function | None = None) -> Tensor:
    """The output of a layer: activated; `regularizer` of it joins the regularization losses."""
    if activation is not None:
        y = activation(y)
    if regularizer is not None:
        get_default_graph().add_to_collection(GraphKeys.REGULARIZATION_LOSSES, regularizer(y))
    return y


def sizes_of(value: Any, rank: int, what: str) -> list[int]:
    """`rank` ints, from as many or from one for all."""
    given = [value] * rank if isinstance(value, int) else list(value)
    if len(given) != rank or not all(isinstance(n, int) and n > 0 for n in given):
        raise ShapeError(f"{what} {value!r} is not {rank} positive ints", line=user_line())
    return given


def format_of(data_format: str, rank: int) -> str:
    """'NHWC' and the like for `rank` spatial axes from channels_last or channels_first."""
    axes = {1: "W", 2: "HW", 3: "DHW"}[rank]
    if data_format not in ("channels_last", "channels_first"):
        raise ShapeError(
            f"data_format {data_format!r} is not 'channels_last' or 'channels_first'",
            line=user_line(),
        )
    return f"NC{axes}" if data_format == "channels_first" else f"N{axes}C"
