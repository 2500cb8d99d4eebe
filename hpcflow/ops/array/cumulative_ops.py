"""Cumulative ops: cumulative sums and products along an axis; top_k along the last axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import int32
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.op_registry import Infer, op
from hpcflow.graph.static_shape import Spec, shape_text
from hpcflow.ops.array.array_ops import expand_dims, range, reshape, shape, size, sizes
from hpcflow.ops.array.broadcast_ops import zeros_like
from hpcflow.ops.array.concat_split_ops import stack
from hpcflow.ops.array.dynamic_axis_ops import along
from hpcflow.ops.array.segment_ops import unsorted_segment_sum
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import (
    add,
    cast,
    conj,
    equal,
    exp,
    floordiv,
    greater,
    log,
    logical_and,
    maximum,
    minimum,
    multiply,
    negative,
    subtract,
    where,
)
from hpcflow.ops.named_results import TopKV2
from hpcflow.ops.shape_inference import (
    Attrs,
    count_argument,
    first_output,
    make,
    normal_axis,
    one_axis,
    require,
    require_rank,
)

# -- cumulative sums, products, and log-sum-exp


def _scan(type: str, kinds: str) -> Infer:
    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        require(type, inputs[0], kinds)
        if inputs[0].shape is not None:
            normal_axis(attrs["axis"], len(inputs[0].shape))
        return [Spec(inputs[0].dtype, inputs[0].shape)]

    return infer


def _turned(op: Operation) -> Attrs:
    return {**op.attrs, "reverse": not op.attrs["reverse"]}


def _cumsum_back(op: Operation, g: Tensor) -> list[Any]:
    return [first_output("Cumsum", [g], _turned(op))]


def _cumprod_back(op: Operation, g: Tensor) -> list[Any]:
    """Products divided by each factor; for the first 0 of a row, products without it."""
    x, y = op.inputs[0], op.outputs[0]
    zero = equal(x, 0)
    zero_count = first_output("Cumsum", [cast(zero, int32)], {**op.attrs, "exclusive": False})
    first = logical_and(zero, equal(zero_count, 1))
    without = first_output("Cumprod", [where(first, 1, x)], op.attrs)
    of_first = first_output("Cumsum", [multiply(g, conj(without))], _turned(op))
    of_others = first_output("Cumsum", [multiply(g, conj(y))], _turned(op))
    return [where(first, of_first, first_output("RealDiv", [of_others, conj(where(zero, 1, x))]))]


def _cumlogsumexp_back(op: Operation, g: Tensor) -> list[Any]:
    x, y = op.inputs[0], op.outputs[0]

    def part(weight: Tensor) -> Tensor:  # sum of weight * exp(x - y), without overflow
        some = greater(weight, 0)
        logs = where(some, subtract(log(where(some, weight, 1)), y), -float("inf"))
        return exp(add(first_output("CumulativeLogSumExp", [logs], _turned(op)), x))

    return [subtract(part(maximum(g, 0)), part(negative(minimum(g, 0))))]


op("Cumsum", infer=_scan("cumsum", "iufc"), grad=_cumsum_back)
op("Cumprod", infer=_scan("cumprod", "iufc"), grad=_cumprod_back)
op(
    "CumulativeLogSumExp",
    infer=_scan("cumulative_logsumexp", "f"),
    grad=_cumlogsumexp_back,
)


def _scanned(
    type: str, x: Any, axis: Any, exclusive: bool, reverse: bool, name: str | None
) -> Tensor:
    x, at = convert_to_tensor(x), one_axis(axis)
    attrs: Attrs = {"exclusive": bool(exclusive), "reverse": bool(reverse)}
    if isinstance(at, Tensor):
        return along(
            x, at, lambda flat: first_output(type, [flat], {**attrs, "axis": 1}), name=name
        )
    return first_output(type, [x], {**attrs, "axis": at}, name)


def cumsum(
    x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Cumulative sums along `axis`; `exclusive` omits the element itself."""
    return _scanned("Cumsum", x, axis, exclusive, reverse, name)


def cumprod(
    x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Cumulative products along `axis`; `exclusive` omits the element itself."""
    return _scanned("Cumprod", x, axis, exclusive, reverse, name)


def cumulative_logsumexp(
    x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """`log(cumsum(exp(x)))` without overflow; -infinity for an empty sum."""
    return _scanned("CumulativeLogSumExp", x, axis, exclusive, reverse, name)


# -- top_k


def _top_k(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("top_k", inputs[0], "iuf")
    input_shape, k = inputs[0].shape, attrs["k"]
    if len(inputs) > 1:
        require("top_k's k", inputs[1], "iu")
        require_rank("top_k's k", inputs[1], 0)
        k = None if inputs[1].value is None else int(inputs[1].value)
    if k is not None and k < 0:
        raise ShapeError(f"top_k: k must be at least 0, not {k}")
    if input_shape is None:
        return [Spec(inputs[0].dtype, None), Spec(int32, None)]
    least = 0 if k is None else k
    if not input_shape or (input_shape[-1] is not None and input_shape[-1] < least):
        raise ShapeError(
            f"top_k: the last axis of {shape_text(input_shape)} has fewer than k = {least} elements"
        )
    return [Spec(d, (*input_shape[:-1], k)) for d in (inputs[0].dtype, int32)]


def _flat_places(op: Operation) -> Tensor:
    """The flat index in the input of each selected element."""
    x, places = op.inputs[0], op.outputs[1]
    width, k = getitem(shape(x), -1), getitem(shape(places), -1)
    count = floordiv(size(x), maximum(width, 1))
    rows = expand_dims(multiply(range(count), width), 1)
    return reshape(add(reshape(places, stack([count, k])), rows), [-1])


def _top_k_back(op: Operation, g: Tensor | None, _: Any) -> list[Any]:
    x = op.inputs[0]
    none = [None] * (len(op.inputs) - 1)
    if g is None:
        return [None, *none]
    if op.attrs["k"] == 0:
        return [zeros_like(x), *none]
    flat = unsorted_segment_sum(reshape(g, [-1]), _flat_places(op), size(x))
    return [reshape(flat, sizes(x)), *none]


op("TopK", infer=_top_k, grad=_top_k_back)


def top_k(input: Any, k: Any = 1, sorted: bool = True, name: str | None = None) -> TopKV2:
    """The `k` largest elements along the last axis, in descending order, and their indices (int32).

    Of equal elements the first comes first; NaN counts as largest. `sorted` has no effect.
    """
    static, extra = count_argument(k, "k")
    values, indices = make("TopK", [convert_to_tensor(input), *extra], {"k": static}, name).outputs
    return TopKV2(values, indices)
