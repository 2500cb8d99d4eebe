"""Reduction ops: sum, mean, extremes, logic, argmax, argmin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import as_dtype, int64
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.op_registry import Infer, NoGrad, op
from hpcflow.graph.static_shape import Shape, Spec, normalize_axes, shape_text
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import constant, reshape, shape_argument, sizes
from hpcflow.ops.array.broadcast_ops import ones_like
from hpcflow.ops.array.dynamic_axis_ops import along, reduced_over
from hpcflow.ops.math.arithmetic_ops import conj, exp, multiply, subtract
from hpcflow.ops.shape_inference import (
    Attrs,
    axes_argument,
    first_output,
    normal_axis,
    one_axis,
    operand,
    require,
    told_shape,
    with_value,
)


class ReductionFunction(Protocol):
    """Type of a public function that reduces a tensor over `axis` (None: all axes)."""

    def __call__(  # noqa: D102
        self, input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
    ) -> Tensor: ...


def reduced_shape(shape: Shape, axis: Any, keepdims: bool) -> Shape:
    """The shape after a reduction.

    Errors: ShapeError if an axis is out of range.
    """
    if shape is None:
        return () if axis is None and not keepdims else None
    axes = normalize_axes(axis, len(shape))
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _reduce(type: str, kinds: str, value: Any) -> Infer:
    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        require(type, inputs[0], kinds)
        axis, keep = attrs["axis"], attrs["keepdims"]
        spec = Spec(inputs[0].dtype, reduced_shape(inputs[0].shape, axis, keep))
        if value is None:
            return [spec]
        return [with_value(spec, lambda x: value(x, axis=axis, keepdims=keep), inputs)]

    return infer


_KERNELS = "reduction_kernels kernels.llvm_reduction"


def _reduction(
    type: str, kinds: str, grad: Any, doc: str, value: Any = None, **facts: Any
) -> ReductionFunction:
    """Add a reduction to the op table; returns its public function."""
    op(type, infer=_reduce(type, kinds, value), grad=grad, reduction=True, **facts)

    def function(
        input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
    ) -> Tensor:
        x, axes = operand(input_tensor, kinds), axes_argument(axis)
        if isinstance(axes, Tensor):
            return reduced_over(type, x, axes, bool(keepdims), name)
        return first_output(type, [x], {"axis": axes, "keepdims": bool(keepdims)}, name)

    function.__doc__ = f"{doc}\n\n    Shapes: without the axes reduced, of size 1 with `keepdims`."
    return accepts_aliases(reduction_indices="axis", keep_dims="keepdims")(function)


# -- gradients: broadcast to the reduced elements


def _spread(type: str) -> Callable[[Operation, Tensor], list[Tensor]]:
    def grad(op: Operation, g: Tensor) -> list[Tensor]:
        static, dynamic = shape_argument(sizes(op.inputs[0]))
        return [first_output(type, [g, *dynamic], {**op.attrs, "shape": static})]

    return grad


def _spread_rule(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(inputs[0].dtype, told_shape(inputs, 1, attrs))]


def _spread_back(function: str) -> Callable[[Operation, Tensor], list[Any]]:
    def grad(op: Operation, gg: Tensor) -> list[Any]:
        attrs = {**{k: op.attrs[k] for k in ("axis", "keepdims")}, "empty": 0.0}
        return [first_output(function, [gg], attrs), *[None] * (len(op.inputs) - 1)]

    return grad


def _like_second(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(inputs[1].dtype, inputs[1].shape)]


def _extreme(op: Operation, g: Tensor) -> list[Tensor]:
    return [first_output("ExtremeGrad", [g, op.inputs[0], op.outputs[0]], op.attrs)]


def _extreme_back(op: Operation, gg: Tensor) -> list[Any]:
    def of_g() -> Tensor:  # linear in its first input
        g, x, y = op.inputs
        share = first_output("ExtremeGrad", [ones_like(g), x, y], op.attrs)
        return first_output("Sum", [multiply(gg, share)], op.attrs)

    return [of_g, None, None]


def _prod(op: Operation, g: Tensor) -> list[Tensor]:
    return [first_output("ProdGrad", [g, conj(op.inputs[0])], op.attrs)]


def _log_sum_exp(op: Operation, g: Tensor) -> list[Tensor]:
    x, y = op.inputs[0], op.outputs[0]
    if not op.attrs["keepdims"]:
        y, g = _keep_dims(y, op), _keep_dims(g, op)
    return [multiply(g, exp(subtract(x, y)))]


def _keep_dims(t: Tensor, op: Operation) -> Tensor:
    """A reduction's output reshaped as with keepdims."""
    axis = op.attrs["axis"]
    target = reduced_shape(op.inputs[0].shape, axis, True)
    if target is not None and None not in target:
        return reshape(t, target)
    attrs = {"axis": axis, "keepdims": True}
    return reshape(t, sizes(first_output("Sum", [op.inputs[0]], attrs)))


_LOGIC = NoGrad("its output is booleans")
_NO_SECOND_GRADIENT = NoGrad("the gradient of a product is not differentiated again")

op("SumGrad", infer=_spread_rule, grad=_spread_back("Sum"), spreads=True, shape_input=True)
op("MeanGrad", infer=_spread_rule, grad=_spread_back("Mean"), spreads=True, shape_input=True)
op("ExtremeGrad", infer=_like_second, grad=_extreme_back, kernels=_KERNELS)
op("ProdGrad", infer=_like_second, grad=_NO_SECOND_GRADIENT)

reduce_sum = _reduction(
    "Sum", "iufc", _spread("SumGrad"), "The sum over `axis`.", np.sum, sums=True, kernels=_KERNELS
)
reduce_mean = _reduction(
    "Mean",
    "iufc",
    _spread("MeanGrad"),
    "The mean over `axis`: NaN over no elements; of integers cut towards zero, and 0 over none.",
    sums=True,
    kernels=_KERNELS,
)
reduce_prod = _reduction("Prod", "iufc", _prod, "The product over `axis`.", np.prod)
reduce_max = _reduction(
    *("Max", "iuf", _extreme, "The largest over `axis`; equal ones share the gradient."),
    kernels=_KERNELS,
)
reduce_min = _reduction(
    *("Min", "iuf", _extreme, "The smallest over `axis`; equal ones share the gradient."),
    kernels=_KERNELS,
)
reduce_any = _reduction("Any", "b", _LOGIC, "Whether any over `axis` is true.")
reduce_all = _reduction("All", "b", _LOGIC, "Whether all over `axis` are true.")
reduce_logsumexp = _reduction(
    "LogSumExp",
    "f",
    _log_sum_exp,
    "`log(sum(exp(x)))` over `axis`, without overflow.",
    flops=flop_counts.per_input(4),
    kernels=_KERNELS,
)


# -- argmax and argmin


def _position(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("argmax and argmin", inputs[0], "biuf")
    shape = inputs[0].shape
    if shape is None:
        return [Spec(attrs["dtype"], None)]
    at = normal_axis(attrs["axis"], len(shape))
    if shape[at] == 0:
        raise ShapeError(f"axis {at} of {shape_text(shape)} has no elements to choose from")
    return [Spec(attrs["dtype"], (*shape[:at], *shape[at + 1 :]))]


op("ArgMax", infer=_position, grad=NoGrad("its output is integers"))
op("ArgMin", infer=_position, grad=NoGrad("its output is integers"))


def _placed(type: str, input: Any, axis: Any, output_type: Any, name: str | None) -> Tensor:
    x, at, dtype = convert_to_tensor(input), one_axis(axis), as_dtype(output_type)
    if isinstance(at, Tensor):
        middle = {"axis": 1, "dtype": dtype}
        return along(
            x, at, lambda flat: first_output(type, [flat], middle), constant([], int64), name
        )
    return first_output(type, [x], {"axis": at, "dtype": dtype}, name)


@accepts_aliases(dimension="axis")
def argmax(input: Any, axis: Any = 0, name: str | None = None, output_type: Any = int64) -> Tensor:
    """The index of the largest element along `axis`, the first of equal ones."""
    return _placed("ArgMax", input, axis, output_type, name)


@accepts_aliases(dimension="axis")
def argmin(input: Any, axis: Any = 0, name: str | None = None, output_type: Any = int64) -> Tensor:
    """The index of the smallest element along `axis`, the first of equal ones."""
    return _placed("ArgMin", input, axis, output_type, name)


def arg_max(
    input: Any, dimension: int, output_type: Any = int64, name: str | None = None
) -> Tensor:
    """The older name of `argmax`."""
    return argmax(input, dimension, name, output_type)


def arg_min(
    input: Any, dimension: int, output_type: Any = int64, name: str | None = None
) -> Tensor:
    """The older name of `argmin`."""
    return argmin(input, dimension, name, output_type)
