"""Random choice ops: multinomial, random_shuffle, random_crop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import as_dtype, float64, int64
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, is_known, merge_shapes, shape_text
from hpcflow.ops.array.array_ops import checked_sizes, expand_dims, shape, sizes
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.slice_ops import getitem, slice
from hpcflow.ops.control_flow.host_callback_ops import Assert
from hpcflow.ops.math.arithmetic_ops import add, cast, less_equal, subtract
from hpcflow.ops.math.reduction_ops import reduce_all
from hpcflow.ops.random.random_ops import RandomSource, uniform
from hpcflow.ops.shape_inference import Attrs, first_output, require, require_rank


def _pick(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    """Shape rule: inputs are logits [batch, classes] and uniform numbers [batch, n]."""
    logits, fractions = inputs
    for label, spec in (("multinomial", logits), ("multinomial's numbers", fractions)):
        require(label, spec, "f")
        require_rank(label, spec, 2)
    if logits.shape is None:
        return [Spec(attrs["dtype"], fractions.shape or (None, None))]
    if logits.shape[1] == 0:
        raise ShapeError(f"there are no classes in logits {shape_text(logits.shape)}")
    return [Spec(attrs["dtype"], merge_shapes((logits.shape[0], None), fractions.shape))]


op("PickCategory", infer=_pick, grad=NoGrad("its output is integers"), kernels="random_kernels")


def _categorical(
    source: RandomSource, logits: Any, num_samples: Any, dtype: Any, name: str | None
) -> Tensor:
    logits = convert_to_tensor(logits)
    require_rank("multinomial", logits.spec, 2)
    with get_default_graph().name_scope(name or "multinomial"):
        rows = getitem(shape(logits), 0) if not is_known(logits.shape) else logits.shape[0]
        fractions = uniform(source, [rows, num_samples], 0, 1, float64, None)
        return first_output("PickCategory", [logits, fractions], {"dtype": as_dtype(dtype)})


def multinomial(
    logits: Any,
    num_samples: Any,
    seed: int | None = None,
    name: str | None = None,
    output_dtype: Any = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """`num_samples` classes for each row of `logits`, unnormalized log-probabilities.

    Shapes:   `logits` [batch, classes]; the result is [batch, num_samples], of `output_dtype` or
              int64. Seeds and `batch` as in `random_uniform`.
    Rounding: CPU and GPU differ where a number is within rounding of a class boundary.
    Errors: NumericError for a row with NaN or +inf, or with all -inf.
    """
    return _categorical(RandomSource(seed, batch), logits, num_samples, output_dtype or int64, name)


def categorical(
    logits: Any,
    num_samples: Any,
    dtype: Any = None,
    seed: int | None = None,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """`multinomial` with arguments in the order of `hf.random`."""
    return _categorical(RandomSource(seed, batch), logits, num_samples, dtype or int64, name)


def stateless_categorical(
    logits: Any,
    num_samples: Any,
    seed: Any,
    dtype: Any = int64,
    name: str | None = None,
    *,
    batch: bool | None = None,
) -> Tensor:
    """`multinomial` determined by `seed`, two integers."""
    return _categorical(RandomSource(seed, batch, True), logits, num_samples, dtype, name)


def _shuffled(source: RandomSource, value: Any, name: str | None) -> Tensor:
    value = convert_to_tensor(value)
    if value.shape == ():
        raise ShapeError("a scalar has no rows to shuffle")
    with get_default_graph().name_scope(name or "random_shuffle"):
        rows = (
            [value.shape[0]]
            if value.shape is not None and value.shape[0] is not None
            else expand_dims(getitem(shape(value), 0), 0)
        )
        order = source.draw("RandomPermutation", rows, int64, None, kinds="i")
        return gather(value, order)


def random_shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """The rows of `value` in random order; seeds as in `random_uniform`.

    Each replica shuffles its own rows, by the same permutation if numbers of rows are equal.
    Gradient: by `value`, permuted back.
    """
    return _shuffled(RandomSource(seed, False), value, name)


def stateless_shuffle(value: Any, seed: Any, name: str | None = None) -> Tensor:
    """`random_shuffle` determined by `seed`, two integers."""
    return _shuffled(RandomSource(seed, False, True), value, name)


def random_crop(value: Any, size: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """A random part of `value` of shape `size`, uniformly placed; seeds as in `random_uniform`.

    All replicas crop at the same position.
    Errors: ShapeError if `size` exceeds a static shape, AssertError at run time.
    """
    value = convert_to_tensor(value)
    graph = get_default_graph()
    with graph.name_scope(name or "random_crop"):
        value_shape, crop_shape = sizes(value), convert_to_tensor(size)
        if value.shape is not None and crop_shape.constant is not None:
            _check_crop(value, crop_shape.constant)
        crop_shape = checked_sizes(crop_shape, "a size of random_crop")
        have, want = cast(convert_to_tensor(value_shape), int64), cast(crop_shape, int64)
        checks = []
        if have.constant is None or want.constant is None:
            says = [
                "random_crop: size is larger than value; size and the shape of value:",
                want,
                have,
            ]
            checks = [Assert(reduce_all(less_equal(want, have)), says)]
        with graph.control_dependencies(checks):
            limit = add(subtract(have, want), 1)
        ranks = [len(value.shape)] if value.shape is not None else shape(have)
        begin = uniform(RandomSource(seed, False), ranks, 0, limit, int64, None)
        part = slice(value, begin, crop_shape)
        if crop_shape.constant is not None:
            part.set_shape(tuple(int(n) for n in crop_shape.constant))
        return part


def _check_crop(value: Tensor, crop_size: np.ndarray) -> None:
    assert value.shape is not None
    fits = crop_size.shape == (len(value.shape),) and all(
        0 <= want and (have is None or want <= have)
        for want, have in zip(crop_size, value.shape, strict=True)
    )
    if not fits:
        raise ShapeError(
            f"random_crop: size {crop_size.tolist()} does not fit value of shape "
            f"{shape_text(value.shape)}",
            line=user_line(),
        )
