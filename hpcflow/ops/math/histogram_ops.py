"""Histogram ops: bincount, count_nonzero, confusion_matrix, histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import as_dtype, int32, int64, kind_of
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Spec, merge_shapes
from hpcflow.ops.array.array_ops import checked_sizes, reshape, size
from hpcflow.ops.array.broadcast_ops import ones_like, zeros
from hpcflow.ops.array.concat_split_ops import concat, stack
from hpcflow.ops.array.segment_ops import unsorted_segment_sum
from hpcflow.ops.array.slice_ops import gather, getitem
from hpcflow.ops.math.arithmetic_ops import (
    add,
    cast,
    clip_by_value,
    divide,
    less,
    maximum,
    minimum,
    multiply,
    not_equal,
    subtract,
    where,
)
from hpcflow.ops.math.elementwise_math_ops import floor
from hpcflow.ops.math.reduction_ops import reduce_max, reduce_sum
from hpcflow.ops.shape_inference import (
    Attrs,
    count_argument,
    first_output,
    integer_argument,
    like,
    operand,
    require,
    require_alike,
    require_rank,
)


def _bincount(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("bincount", inputs[0], "iu")
    for s in inputs[1:]:
        require("bincount's weights", s, "iuf")
        merge_shapes(inputs[0].shape, s.shape)
    dtype = inputs[1].dtype if len(inputs) > 1 else attrs["dtype"]
    low, high, value = attrs["minlength"], attrs["maxlength"], inputs[0].value
    if value is not None and (not value.size or value.min() >= 0):
        count = max(int(value.max(initial=-1)) + 1, low)
        return [Spec(dtype, (count if high is None else min(count, high),))]
    return [Spec(dtype, (low if low == high else None,))]


def _bincount_back(op: Operation, g: Tensor) -> list[Any]:
    if len(op.inputs) == 1:
        return [None]

    def of_weights() -> Tensor:
        number = op.inputs[0]
        if op.attrs["maxlength"] is None:
            return gather(g, number)
        inside = less(number, cast(size(g), number.dtype))  # gradient 0 above
        return gather(concat([g, zeros([1], g.dtype)], 0), where(inside, number, size(g)))

    return [None, of_weights]


op("Bincount", infer=_bincount, grad=_bincount_back)


def bincount(
    arr: Any,
    weights: Any = None,
    minlength: Any = None,
    maxlength: Any = None,
    dtype: Any = int32,
    name: str | None = None,
) -> Tensor:
    """The count of each number 0, 1, ... in `arr`, or the sums of its `weights`.

    Shapes: [largest + 1], at least `minlength` and at most `maxlength`; larger numbers are ignored.
    Errors: RangeError at run time for a negative number.
    """
    inputs = [operand(arr, "iu")]
    if weights is not None:
        inputs.append(convert_to_tensor(weights))
        require_alike("bincount", *inputs)
    if kind_of(as_dtype(dtype)) not in "iuf":
        raise DTypeError(f"bincount cannot count in {as_dtype(dtype)}", line=user_line())
    if isinstance(minlength, Tensor) or isinstance(maxlength, Tensor):
        return _bincount_dynamic(inputs, minlength, maxlength, dtype, name)
    attrs: Attrs = {
        "minlength": integer_argument(minlength or 0, "minlength"),
        "dtype": as_dtype(dtype),
    }
    attrs["maxlength"] = None if maxlength is None else integer_argument(maxlength, "maxlength")
    if min(attrs["minlength"], attrs["maxlength"] or 0) < 0:
        raise ShapeError(
            f"bincount: minlength {minlength} and maxlength {maxlength} must be at least 0",
            line=user_line(),
        )
    return first_output("Bincount", inputs, attrs, name)


def _bincount_dynamic(
    inputs: Sequence[Tensor], minlength: Any, maxlength: Any, dtype: Any, name: str | None
) -> Tensor:
    """`bincount` with a length known at run time."""
    numbers = cast(reshape(inputs[0], [-1]), int64)
    count = maximum(add(reduce_max(numbers), 1), 0)
    if minlength is not None:
        count = maximum(count, cast(convert_to_tensor(minlength), int64))
    if maxlength is not None:
        count = minimum(count, cast(convert_to_tensor(maxlength), int64))
    left_out = where(less(numbers, count), numbers, -1)
    places = where(less(numbers, 0), count, left_out)  # a segment number that does not occur
    if len(inputs) > 1:
        hits = reshape(inputs[1], [-1])
    else:
        hits = ones_like(numbers, dtype=as_dtype(dtype))
    return unsorted_segment_sum(hits, places, count, name)


@accepts_aliases(reduction_indices="axis", keep_dims="keepdims", input="input_tensor")
def count_nonzero(
    input_tensor: Any,
    axis: Any = None,
    keepdims: bool = False,
    dtype: Any = int64,
    name: str | None = None,
) -> Tensor:
    """The number of elements over `axis` that are not 0, False, or the empty string."""
    x = convert_to_tensor(input_tensor)
    hit = x if x.dtype.kind == "b" else not_equal(x, "" if x.dtype.kind == "O" else 0)
    return reduce_sum(cast(hit, dtype), axis, keepdims, name)


def confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: Any = None,
    dtype: Any = int32,
    name: str | None = None,
    weights: Any = None,
) -> Tensor:
    """The count of each class (row) predicted as each class (column), or the sums of `weights`.

    Shapes: vectors of integers; [num_classes, num_classes], by default the largest class + 1.
    Errors: RangeError at run time for a class that is negative or not below `num_classes`.
    """
    truth, guess = operand(labels, "iu"), operand(predictions, "iu")
    for t in (truth, guess):
        require("confusion_matrix", t.spec, "iu")
        require_rank("confusion_matrix", t.spec, 1)
    truth, guess = cast(truth, int64), cast(guess, int64)
    require_alike("confusion_matrix", truth, guess)
    if num_classes is None:
        count = add(maximum(reduce_max(truth), reduce_max(guess)), 1)
        count = maximum(count, 0)  # the maximum of none is the least integer
    else:
        count = cast(convert_to_tensor(num_classes), int64)
    bad = maximum(truth, guess)
    bad = where(less(minimum(truth, guess), 0), count, bad)
    outside = multiply(count, count)  # no segment has this number: error at run time
    places = where(less(bad, count), add(multiply(truth, count), guess), outside)
    if weights is None:
        hits = ones_like(truth, dtype=as_dtype(dtype))
    else:
        hits = cast(convert_to_tensor(weights), dtype)
        require_alike("confusion_matrix", truth, hits)
    flat = unsorted_segment_sum(hits, places, outside)
    return reshape(flat, stack([count, count]), name)


def histogram_fixed_width_bins(
    values: Any, value_range: Any, nbins: Any = 100, dtype: Any = int32, name: str | None = None
) -> Tensor:
    """The bin of each value among `nbins` bins of equal width over `value_range`, [low, high].

    Values outside belong to the first and last bin.
    """
    static, dynamic = count_argument(nbins, "nbins")
    if static is not None and static < 1:
        raise ShapeError(f"nbins must be at least 1, not {static}", line=user_line())
    dynamic = [checked_sizes(n, "nbins", 1) for n in dynamic]
    x = convert_to_tensor(values)
    limits = like(value_range, x)
    require_rank("value_range", limits.spec, 1)
    low, high = getitem(limits, 0), getitem(limits, 1)
    part = divide(subtract(x, low), subtract(high, low))
    count = cast(dynamic[0], part.dtype) if dynamic else convert_to_tensor(static, part.dtype)
    bins = floor(multiply(part, count))
    return cast(clip_by_value(bins, 0, subtract(count, 1)), dtype, name)


def histogram_fixed_width(
    values: Any, value_range: Any, nbins: Any = 100, dtype: Any = int32, name: str | None = None
) -> Tensor:
    """The number of values in each of `nbins` bins of equal width over `value_range`.

    Values outside belong to the first and last bin.
    """
    bins = reshape(histogram_fixed_width_bins(values, value_range, nbins), [-1])
    return unsorted_segment_sum(ones_like(bins, dtype=as_dtype(dtype)), bins, nbins, name)
