"""Broadcast ops: fill, zeros, ones, broadcast_to, and sums that invert broadcasting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import as_array, as_dtype, float32, string
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Spec, broadcast_shapes, is_known, merge_shapes, shape_text
from hpcflow.ops.array.array_ops import constant, shape_argument, sizes
from hpcflow.ops.shape_inference import Attrs, as_first, first_output, told_shape


def _fill(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    values = 0 if "value" in attrs else 1
    if values and inputs[0].shape not in (None, ()):
        raise ShapeError(f"the value to fill with has shape {shape_text(inputs[0].shape)}, not []")
    dtype = inputs[0].dtype if values else attrs["dtype"]
    return [Spec(dtype, told_shape(inputs, values, attrs))]


def _fill_back(op: Operation, g: Tensor) -> list[Any]:
    grads: list[Any] = [] if "value" in op.attrs else [sum_to_shape(g, ())]
    return grads + [None] * (len(op.inputs) - len(grads))


def _broadcast_to(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    target = told_shape(inputs, 1, attrs)
    joint = broadcast_shapes([inputs[0].shape, target])
    if joint is None or target is None:
        return [Spec(inputs[0].dtype, target)]
    return [Spec(inputs[0].dtype, merge_shapes(joint, target))]  # the target is never broadcast


def _broadcast_back(op: Operation, g: Tensor) -> list[Any]:
    return [sum_to(g, op.inputs[0], g), *[None] * (len(op.inputs) - 1)]


def _sum_to_shape(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    target = told_shape(inputs, 1, attrs)
    joint = broadcast_shapes([inputs[0].shape, target])
    if joint is not None and inputs[0].shape is not None:
        merge_shapes(joint, inputs[0].shape)  # the input is never broadcast
    return [Spec(inputs[0].dtype, target)]


def _sum_to_back(op: Operation, g: Tensor) -> list[Any]:
    return [broadcast_to(g, sizes(op.inputs[0])), *[None] * (len(op.inputs) - 1)]


op("Fill", infer=_fill, grad=_fill_back, source="fill", work="move", shape_input=True)
op("ZerosLike", infer=as_first, grad=lambda op, g: [None], work="move", fills_with=0)
op("OnesLike", infer=as_first, grad=lambda op, g: [None], work="move", fills_with=1)
op(
    "BroadcastTo",
    shape_input=True,
    infer=_broadcast_to,
    grad=_broadcast_back,
    identity="if_specs_equal",
    spreads=True,
    work="move",
    checks_shape=True,
)
op(
    "SumToShape",
    shape_input=True,
    infer=_sum_to_shape,
    grad=_sum_to_back,
    identity="if_specs_equal",
    sums=True,
    kernels="broadcast_kernels kernels.llvm_reduction",
)


def fill(dims: Any, value: Any, name: str | None = None) -> Tensor:
    """A tensor of shape `dims` with all elements `value` (a number or a scalar tensor)."""
    static, extra = shape_argument(dims)
    attrs: Attrs = {"shape": static}
    if isinstance(value, Tensor) or hasattr(value, "as_tensor"):
        return first_output("Fill", [convert_to_tensor(value), *extra], attrs, name)
    array = as_array(value)
    if array.ndim:
        raise ShapeError(f"the value to fill with has shape {shape_text(array.shape)}, not []")
    return first_output("Fill", extra, {**attrs, "value": array.item(), "dtype": array.dtype}, name)


def zeros(shape: Any, dtype: Any = float32, name: str | None = None) -> Tensor:
    """A tensor of zeros."""
    return fill(shape, _number(as_dtype(dtype), 0), name)


def ones(shape: Any, dtype: Any = float32, name: str | None = None) -> Tensor:
    """A tensor of ones."""
    return fill(shape, as_dtype(dtype).type(1), name)


def _number(dtype: np.dtype, number: int) -> Any:
    """0 or 1 of a dtype; for strings 0 is the empty string."""
    return b"" if dtype == string and not number else dtype.type(number)


def _like(tensor: Any, dtype: Any, number: int, type: str, name: str | None) -> Tensor:
    t = convert_to_tensor(tensor)
    dtype = t.dtype if dtype is None else as_dtype(dtype)
    if t.shape == ():
        return constant(_number(dtype, number), name=name)
    if is_known(t.shape) or dtype != t.dtype:
        return fill(sizes(t), _number(dtype, number), name)
    return first_output(type, [t], {}, name)


@accepts_and_ignores("optimize")
def zeros_like(tensor: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """Zeros in the shape of `tensor`."""
    return _like(tensor, dtype, 0, "ZerosLike", name)


@accepts_and_ignores("optimize")
def ones_like(tensor: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    """Ones in the shape of `tensor`."""
    return _like(tensor, dtype, 1, "OnesLike", name)


def broadcast_to(input: Any, shape: Any, name: str | None = None) -> Tensor:
    """`input` broadcast to `shape`: repeated along axes of size 1 and along new leading axes."""
    static, extra = shape_argument(shape)
    return first_output("BroadcastTo", [convert_to_tensor(input), *extra], {"shape": static}, name)


def sum_to_shape(input: Any, shape: Any, name: str | None = None) -> Tensor:
    """The adjoint of `broadcast_to`: sums over the axes that broadcasting from `input` repeats."""
    static, extra = shape_argument(shape)
    return first_output("SumToShape", [convert_to_tensor(input), *extra], {"shape": static}, name)


def sum_to(g: Tensor, x: Tensor, *others: Tensor) -> Tensor:
    """The gradient of `x` from `g`, where `x` was broadcast with `others`.

    It adds no node if static shapes show that `x` was not repeated.
    """
    if not any(_stretched(x, other) for other in others):
        return g
    return sum_to_shape(g, sizes(x))


def _stretched(x: Tensor, other: Tensor) -> bool:
    """Whether broadcasting with `other` may have repeated `x`."""
    if x is other or other.shape == ():
        return False
    if x.shape is None or other.shape is None or len(other.shape) > len(x.shape):
        return True
    pairs = zip(reversed(x.shape), reversed(other.shape), strict=False)
    return any(x_size in (None, 1) and other_size != 1 for x_size, other_size in pairs)
