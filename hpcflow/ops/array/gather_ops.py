"""Gather ops: slices selected by an index tensor, and one_hot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, RangeError, ShapeError
from hpcflow.graph.dtypes import as_array, as_dtype, bool_, float32, int64
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec, merge_shapes, shape_text
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import shape, shape_argument, sizes
from hpcflow.ops.array.dynamic_axis_ops import along
from hpcflow.ops.shape_inference import (
    Attrs,
    first_output,
    integer_argument,
    like,
    normal_axis,
    one_axis,
    operand,
    require,
    require_rank,
    told_shape,
    with_value,
)
from hpcflow.ops.variables.indexed_slices import slices_of


def _gather(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    params, indices = inputs
    require("gather's indices", indices, "iu")
    if params.shape is None or indices.shape is None:
        return [Spec(params.dtype, None)]
    at, batch = normal_axis(attrs["axis"], len(params.shape)), attrs.get("batch_dims", 0)
    if batch > min(at, len(indices.shape)):
        raise ShapeError(
            f"batch_dims {batch} is more than axis {at} or the rank of indices "
            f"{shape_text(indices.shape)}"
        )
    lead = merge_shapes(params.shape[:batch], indices.shape[:batch]) or ()
    _check_known(indices.value, params.shape[at])
    middle = (*params.shape[batch:at], *indices.shape[batch:])
    spec = Spec(params.dtype, (*lead, *middle, *params.shape[at + 1 :]))
    if batch:
        return [spec]
    index = indices.value
    if index is None:
        return [spec]
    return [with_value(spec, lambda p: np.take(p, index, at), inputs[:1], moves=True)]


def _check_known(indices: np.ndarray | None, size: int | None) -> None:
    """Check constant indices at graph construction. Errors: RangeError."""
    if indices is not None and size is not None and indices.size:
        if indices.min() < 0 or indices.max() >= size:
            wrong = indices[(indices < 0) | (indices >= size)]
            raise RangeError(
                f"gather: index {wrong.flat[0]} is outside [0, {size}) "
                f"({wrong.size} of {indices.size} are)"
            )


def _gather_back(op: Operation, g: Tensor) -> list[Any]:
    params, indices = op.inputs
    keeps_rows = op.attrs["axis"] == 0 and not op.attrs.get("dense")
    if keeps_rows and (rows := slices_of(params, indices, g)) is not None:
        return [rows, None]
    static, dynamic = shape_argument(sizes(params))
    return [first_output("GatherGrad", [g, indices, *dynamic], {**op.attrs, "shape": static}), None]


def _gather_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(inputs[0].dtype, told_shape(inputs, 2, attrs))]


def _gather_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    attrs = {name: v for name, v in op.attrs.items() if name != "shape"}
    return [first_output("Gather", [gg, op.inputs[1]], attrs), *[None] * (len(op.inputs) - 1)]


def _one_hot(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("one_hot's indices", inputs[0], "iu")
    input_shape, dtype, depth = inputs[0].shape, attrs["dtype"], attrs["depth"]
    if len(inputs) > 1:
        require("one_hot's depth", inputs[1], "iu")
        require_rank("one_hot's depth", inputs[1], 0)
        depth = None if inputs[1].value is None else int(inputs[1].value)
    if depth is not None and depth < 0:
        raise ShapeError(f"one_hot: depth must be at least 0, not {depth}")
    if input_shape is None:
        return [Spec(dtype, None)]
    at = normal_axis(attrs["axis"], len(input_shape) + 1)
    return [Spec(dtype, (*input_shape[:at], depth, *input_shape[at:]))]


op(
    "Gather",
    infer=_gather,
    grad=_gather_back,
    work="pick",
    kernels="gather_kernels kernels.llvm_row_gather_scatter kernels.ptx_row_gather_scatter",
)
op(
    "GatherGrad",
    shape_input=True,
    infer=_gather_grad,
    grad=_gather_grad_back,
    flops=flop_counts.per_input(1),
    kernels="gather_kernels kernels.llvm_row_gather_scatter",
)
op(
    "OneHot",
    infer=_one_hot,
    grad=NoGrad("its input is integers"),
    work="move",
)


def gather(
    params: Any,
    indices: Any,
    validate_indices: None = None,
    name: str | None = None,
    axis: Any = None,
    batch_dims: int | None = 0,
) -> Tensor:
    """The slices of `params` at `indices` along `axis`; on axis 0 the gradient is IndexedSlices.

    The first `batch_dims` axes of both correspond; `axis` defaults to `batch_dims`.
    Shapes: params.shape[:axis] + indices.shape[batch_dims:] + params.shape[axis + 1:]. For a
            variable only these rows are read, on its device (`Variable.sparse_read`).
    Errors: RangeError at run time for an index outside [0, size), also a negative one.
    """
    rows_alone = axis is None or (not isinstance(axis, Tensor) and axis == 0)
    if hasattr(params, "sparse_read") and not batch_dims and rows_alone:
        rows: Tensor = params.sparse_read(indices, name)
        return rows
    x, i = convert_to_tensor(params), convert_to_tensor(indices)
    batch = _batch_dims(batch_dims, i)
    at = batch if axis is None else one_axis(axis)
    if isinstance(at, Tensor):
        return _gather_along(x, i, at, batch, name)
    if not batch and at < 0 and x.shape is not None:
        at = normal_axis(at, len(x.shape))
    attrs: Attrs = {"axis": at, "batch_dims": batch} if batch else {"axis": at}
    return first_output("Gather", [x, i], attrs, name)


def _gather_along(x: Tensor, indices: Tensor, axis: Tensor, batch: int, name: Any) -> Tensor:
    """`gather` along an axis known at run time."""
    if batch:
        raise ShapeError(
            "gather with batch_dims needs an axis that is known when the graph is built",
            line=user_line(),
            hint="give axis as a number, or batch_dims 0",
        )
    attrs: Attrs = {"axis": 1, "dense": True}
    middle = shape(indices, out_type=int64)
    return along(x, axis, lambda flat: first_output("Gather", [flat, indices], attrs), middle, name)


def _batch_dims(batch_dims: int | None, indices: Tensor) -> int:
    batch = 0 if batch_dims is None else integer_argument(batch_dims, "batch_dims")
    if batch < 0:
        if indices.shape is None:
            raise ShapeError("negative batch_dims need indices of a known rank")
        batch += len(indices.shape)
    if batch < 0:
        raise ShapeError(f"batch_dims {batch_dims} is out of range")
    return batch


def batch_gather(params: Any, indices: Any, name: str | None = None) -> Tensor:
    """`gather` where all axes of `indices` except the last are batch axes."""
    return gather(params, indices, name=name, batch_dims=-1)


def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = None,
    off_value: Any = None,
    axis: int | None = None,
    dtype: Any = None,
    name: str | None = None,
) -> Tensor:
    """`on_value` at each index along a new `axis` of size `depth`, else `off_value`.

    The default values are 1 and 0 of `dtype` (None: float32); given values determine the dtype. The
    default axis is the last. An index outside [0, depth) gives `off_value` everywhere.
    """
    _require_one_dtype(on_value, off_value)
    tensors = [v for v in (on_value, off_value) if isinstance(v, Tensor)]
    if tensors:
        hot = one_hot(indices, depth, axis=axis, dtype=bool_)
        lead = tensors[0]
        values = (1 if on_value is None else on_value, 0 if off_value is None else off_value)
        return first_output("Select", [hot, *(like(v, lead) for v in values)], {}, name)
    sample = next((v for v in (on_value, off_value) if v is not None), None)
    if dtype is None:
        dtype = float32 if sample is None else as_array(sample).dtype
    attrs: Attrs = {"axis": -1 if axis is None else axis, "dtype": as_dtype(dtype), "depth": None}
    attrs["on_value"] = _plain_value(on_value, 1)
    attrs["off_value"] = _plain_value(off_value, 0)
    inputs = [operand(indices, "iu")]
    size = convert_to_tensor(depth)
    if size.constant is None:
        inputs.append(size)
    else:
        attrs["depth"] = int(size.constant)
    return first_output("OneHot", inputs, attrs, name)


def _require_one_dtype(on_value: Any, off_value: Any) -> None:
    """Check that both values have the same dtype, if they have one.

    Errors: DTypeError if not.
    """
    dtypes = [
        v.dtype for v in (on_value, off_value) if isinstance(v, (Tensor, np.ndarray, np.generic))
    ]
    if len(dtypes) == 2 and dtypes[0] != dtypes[1] and dtypes[0].kind not in "SUO":
        raise DTypeError(
            f"one_hot: the dtypes of on_value, {dtypes[0]}, and off_value, {dtypes[1]}, differ",
            line=user_line(),
        )


def _plain_value(scalar: Any, default: int) -> Any:
    plain = default if scalar is None else np.asarray(scalar).item()
    return plain.encode() if isinstance(plain, str) else plain
