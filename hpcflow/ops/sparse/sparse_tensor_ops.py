"""Sparse tensors: indices and values of nonzero elements; dense forms, matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import ArgumentError, DTypeError, GraphError, ShapeError
from hpcflow.graph.composite_tensor import WithValues
from hpcflow.graph.dtypes import as_dtype, int64
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Shape, Spec, is_known, merge_shapes, shape_text
from hpcflow.graph.tensor_shape import TensorShape
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import (
    constant,
    partial_value,
    placeholder,
    reshape,
    size,
    sizes,
    transpose,
)
from hpcflow.ops.array.broadcast_ops import broadcast_to, sum_to_shape
from hpcflow.ops.array.gather_nd_scatter_nd import gather_nd
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import cast, conj, divide, multiply, negative, subtract
from hpcflow.ops.math.reduction_ops import reduce_sum
from hpcflow.ops.shape_inference import (
    Attrs,
    first_output,
    given_shape,
    like,
    require,
    require_equal,
    require_rank,
)
from hpcflow.ops.variables.row_list_ops import gather_values
from hpcflow.platform.exception_translation import translate_exceptions, value_text


@translate_exceptions
class SparseTensorValue(NamedTuple):
    """A sparse tensor as arrays, for feeds and fetches."""

    indices: np.ndarray
    values: np.ndarray
    dense_shape: np.ndarray


class SparseTensor(WithValues):
    """The tensor of shape `dense_shape` with `values[i]` at `indices[i]` and zeros elsewhere.

    Most functions require unique indices in row-major order (`sparse_reorder`).

    Shapes: `indices` [n, rank] and `dense_shape` [rank], int64; `values` [n].
    """

    Value = SparseTensorValue

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        self.indices = _int64(indices)
        self.values = convert_to_tensor(values)
        self.dense_shape = _int64(dense_shape)
        shapes = self.indices.shape, self.values.shape, self.dense_shape.shape
        for shape, rank in zip(shapes, (2, 1, 1), strict=True):
            if shape is not None and len(shape) != rank:
                raise ShapeError(
                    f"indices {shape_text(shapes[0])}, values {shape_text(shapes[1])} and "
                    "dense_shape "
                    f"{shape_text(shapes[2])} do not make a sparse tensor",
                    line=user_line(),
                    hint="give indices [n, rank], values [n] and dense_shape [rank]",
                )
        merge_shapes(
            shapes[0], (shapes[1][0] if shapes[1] else None, shapes[2][0] if shapes[2] else None)
        )

    @classmethod
    def from_value(cls, sparse_tensor_value: Any) -> SparseTensor:
        """A SparseTensor from a SparseTensorValue; a SparseTensor is returned as it is."""
        return as_sparse(sparse_tensor_value)

    def parts(self) -> tuple[Tensor, ...]:
        """`indices`, `values`, `dense_shape`."""
        return self.indices, self.values, self.dense_shape

    def invariants(self, shape_invariant: tuple[Shape] | None) -> list[Shape]:
        """The invariant given is the shape of `dense_shape`; the number of values may change."""
        invariant = self.dense_shape.shape if shape_invariant is None else shape_invariant[0]
        rank = None if invariant is None else invariant[0]
        return [(None, rank), (None,), (rank,)]

    def of(self, parts: Sequence[Tensor]) -> SparseTensor:
        """The same kind of tensor from other components."""
        return SparseTensor(*parts)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> Shape:
        """The static dense shape."""
        return partial_value(self.dense_shape)

    def get_shape(self) -> TensorShape:
        """The static dense shape as a TensorShape."""
        return TensorShape(self.shape)

    def with_values(self, values: Any) -> SparseTensor:
        """The same indices with other values."""
        return SparseTensor(self.indices, values, self.dense_shape)

    def as_tensor(self) -> Tensor:
        """Raise GraphError: conversion to a dense tensor must be explicit."""
        raise GraphError(
            f"sparse tensor {self.name!r} was given where a dense one is needed",
            op=self.op.name,
            line=self.op.line,
            hint="use hf.sparse_tensor_to_dense(x), or a sparse_... function",
        )

    def __mul__(self, other: Any) -> SparseTensor:
        """The product with a dense tensor, broadcast, at the stored indices."""
        return self.with_values(multiply(self.values, _at_places(self, other)))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> SparseTensor:
        return self.with_values(divide(self.values, _at_places(self, other)))

    def __neg__(self) -> SparseTensor:
        return self.with_values(negative(self.values))

    def __repr__(self) -> str:
        return f"<hf.SparseTensor {self.name!r} of {shape_text(self.shape)} dtype={self.dtype}>"


def _int64(value: Any) -> Tensor:
    if not isinstance(value, Tensor) and not hasattr(value, "as_tensor"):
        array = np.asarray(value)
        if array.dtype.kind in "iu" or not array.size:
            value = constant(array.astype(int64))
    t = convert_to_tensor(value)
    if t.dtype.kind not in "iu":
        raise DTypeError(f"indices must be integers; {t.name!r} is {t.dtype}", line=user_line())
    return cast(t, int64)


def _at_places(sp: SparseTensor, other: Any) -> Tensor:
    dense = like(other, sp.values)
    if dense.shape == ():
        return dense
    return gather_nd(broadcast_to(dense, sp.dense_shape), sp.indices)


def sparse_placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> SparseTensor:
    """A sparse tensor fed in each run, as a SparseTensorValue or a tuple of its arrays.

    Feeds are checked against the known part of `shape`, which may be a tensor.
    """
    shape_tensor, name = shape if isinstance(shape, Tensor) else None, name or "sparse"
    if shape_tensor is not None:
        length = None if shape_tensor.shape is None else shape_tensor.shape[0]
        shape = None if length is None else (None,) * length
        shape = shape if shape_tensor.constant is None else shape_tensor.constant.tolist()
    known = given_shape(shape)
    rank = None if known is None else len(known)
    indices = placeholder(int64, [None, rank], f"{name}/indices")
    values = placeholder(as_dtype(dtype), [None], f"{name}/values")
    if shape_tensor is not None and shape_tensor.constant is None:
        return SparseTensor(indices, values, shape_tensor)
    if is_known(known):
        return SparseTensor(indices, values, constant(np.array(known, int64), name=f"{name}/shape"))
    attrs = {"dtype": int64, "shape": (rank,), **({} if known is None else {"sizes": known})}
    return SparseTensor(indices, values, first_output("Placeholder", [], attrs, f"{name}/shape"))


def convert_to_tensor_or_sparse_tensor(
    value: Any, dtype: Any = None, name: str | None = None
) -> Tensor | SparseTensor:
    """A SparseTensor unchanged, a SparseTensorValue as one, anything else as a tensor."""
    if isinstance(value, SparseTensorValue):
        return SparseTensor(*value)
    return value if isinstance(value, SparseTensor) else convert_to_tensor(value, dtype, name)


def as_sparse(value: Any) -> SparseTensor:
    """An argument that is a sparse tensor, or the value of one.

    Errors: ArgumentError if it is neither.
    """
    if isinstance(value, (SparseTensor, SparseTensorValue)):
        return convert_to_tensor_or_sparse_tensor(value)  # type: ignore[return-value]
    raise ArgumentError(
        f"{value_text(value)} is not a sparse tensor",
        line=user_line(),
        hint="make one with hf.SparseTensor(indices, values, dense_shape)",
    )


# -- dense forms


def _to_dense(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    indices, shape, values, default = inputs
    for s in (indices, shape):
        require("places", s, "iu")
    require_equal("sparse_to_dense", (values, default))
    require_rank("sparse_to_dense's indices", indices, 2)
    require_rank("sparse_to_dense's shape", shape, 1)
    require_rank("sparse_to_dense's values", values, 0, 1)
    require_rank("sparse_to_dense's default", default, 0)
    if indices.shape is not None:
        merge_shapes(indices.shape[1:], shape.shape)
        if values.shape:
            merge_shapes(indices.shape[:1], values.shape)
    if shape.value is not None:
        return [Spec(values.dtype, tuple(int(d) for d in shape.value))]
    rank = indices.shape[1] if indices.shape is not None else None
    rank = shape.shape[0] if rank is None and shape.shape is not None else rank
    return [Spec(values.dtype, None if rank is None else (None,) * rank)]


def _to_dense_back(op: Operation, g: Tensor) -> list[Any]:
    indices, _, values, _ = op.inputs
    picked = gather_nd(g, indices)
    return [
        None,
        None,
        lambda: sum_to_shape(picked, sizes(values)),
        lambda: subtract(reduce_sum(g), reduce_sum(picked)),
    ]


op("SparseToDense", infer=_to_dense, grad=_to_dense_back, work="move")


def sparse_to_dense(
    sparse_indices: Any,
    output_shape: Any,
    sparse_values: Any,
    default_value: Any = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """`sparse_values` at `sparse_indices` of a tensor of `output_shape`, else `default_value`.

    Shapes: indices [n, rank], or [n] or a scalar for a vector; values [n] or one for all.
    Errors: RangeError at run time for an index outside, and with `validate_indices` for indices
            that
            are not sorted or are repeated (otherwise the last value counts).
    """
    indices, shape = _int64(sparse_indices), _int64(output_shape)
    values = convert_to_tensor(sparse_values)
    if indices.shape is None:
        indices = reshape(indices, [-1, size(shape)])
    elif len(indices.shape) < 2:
        indices = reshape(indices, [-1, 1])
    inputs = [indices, shape, values, like(default_value, values)]
    dense = first_output("SparseToDense", inputs, {"validate": bool(validate_indices)}, name)
    dense.set_shape(partial_value(shape))
    return dense


def sparse_tensor_to_dense(
    sp_input: SparseTensor,
    default_value: Any = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """The dense tensor, with `default_value` elsewhere; errors as `sparse_to_dense`."""
    indices, values, shape = as_sparse(sp_input).parts()
    return sparse_to_dense(indices, shape, values, default_value, validate_indices, name)


# -- products


def _matmul(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    indices, values, shape, b = inputs
    for s in (indices, shape):
        require("places", s, "iu")
    merge_shapes(shape.shape, (2,))
    require("sparse_tensor_dense_matmul", values, "iufc")
    require_equal("sparse_tensor_dense_matmul", (values, b))
    require_rank("sparse_tensor_dense_matmul's indices", indices, 2)
    require_rank("sparse_tensor_dense_matmul's b", b, 2)
    if indices.shape is not None:
        merge_shapes(indices.shape[1:], (2,))
        if values.shape is not None:
            merge_shapes(indices.shape[:1], values.shape)
    sizes = (None, None) if shape.value is None else tuple(int(d) for d in shape.value)
    rows, inner = sizes[::-1] if attrs["adjoint_a"] else sizes
    if b.shape is None:
        return [Spec(values.dtype, (rows, None))]
    try:
        merge_shapes((inner,), b.shape[:1])
    except ShapeError:
        raise ShapeError(
            f"a sparse matrix {shape_text(sizes)}{' transposed' if attrs['adjoint_a'] else ''} "
            "cannot "
            f"be multiplied by {shape_text(b.shape)}"
        ) from None
    return [Spec(values.dtype, (rows, b.shape[1]))]


def _matmul_back(op: Operation, g: Tensor) -> list[Any]:
    indices, values, shape, b = op.inputs
    adjoint = op.attrs["adjoint_a"]

    def of_values() -> Tensor:
        row, column = (getitem(indices, (slice(None), i)) for i in (0, 1))
        if adjoint:
            return reduce_sum(multiply(conj(gather_values(g, column)), gather_values(b, row)), -1)
        return reduce_sum(multiply(gather_values(g, row), conj(gather_values(b, column))), -1)

    return [
        None,
        of_values,
        None,
        lambda: first_output(
            "SparseTensorDenseMatMul", [indices, values, shape, g], {"adjoint_a": not adjoint}
        ),
    ]


op("SparseTensorDenseMatMul", infer=_matmul, grad=_matmul_back, flops=flop_counts.sparse_matmul)


def sparse_tensor_dense_matmul(
    sp_a: SparseTensor,
    b: Any,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    name: str | None = None,
) -> Tensor:
    """The product of a sparse and a dense matrix; either may be transposed and conjugated first.

    Indices may be unsorted and repeated.
    Gradient: of the values and of `b`.
    Errors: RangeError at run time for an index outside the matrix.
    """
    indices, values, shape = as_sparse(sp_a).parts()
    dense = like(b, values)
    if adjoint_b:
        dense = conj(transpose(dense))
    attrs = {"adjoint_a": bool(adjoint_a)}
    return first_output("SparseTensorDenseMatMul", [indices, values, shape, dense], attrs, name)
