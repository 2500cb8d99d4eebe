"""Matrix diagonal ops: diagonals, bands, transpose, trace, norm; leading axes are batch axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import as_dtype, float32, int64
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, user_line
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Shape, Spec, merge_shapes, shape_text
from hpcflow.ops.array.array_ops import (
    LARGE,
    checked_sizes,
    constant,
    expand_dims,
    range,
    reshape,
    shape,
    size,
    transpose,
)
from hpcflow.ops.array.broadcast_ops import broadcast_to, zeros_like
from hpcflow.ops.array.concat_split_ops import concat
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import (
    abs,
    cast,
    conj,
    equal,
    floordiv,
    less,
    less_equal,
    logical_and,
    logical_or,
    negative,
    pow,
    sqrt,
    square,
    subtract,
    where,
)
from hpcflow.ops.math.reduction_ops import reduce_max, reduce_prod, reduce_sum
from hpcflow.ops.shape_inference import (
    Attrs,
    axes_argument,
    count_argument,
    first_output,
    like,
    require_equal,
)

# -- shape rules


def matrix_shape(type: str, spec: Spec) -> tuple[Shape, int | None, int | None]:
    """The leading axes, rows and columns of matrices.

    Errors: ShapeError if the rank is below 2.
    """
    dims = spec.shape
    if dims is None:
        return None, None, None
    if len(dims) < 2:
        raise ShapeError(f"{type} takes matrices of rank 2 or more, not shape {shape_text(dims)}")
    return dims[:-2], dims[-2], dims[-1]


def least_size(a: int | None, b: int | None) -> int | None:
    """The smaller of two sizes, as far as it is known."""
    if a is None or b is None:
        return 0 if 0 in (a, b) else None
    return min(a, b)


def _diag(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    dims = inputs[0].shape
    if dims == ():
        raise ShapeError("matrix_diag takes a tensor of rank 1 or more, not a scalar")
    return [Spec(inputs[0].dtype, None if dims is None else (*dims, dims[-1]))]


def _diag_part(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    lead, rows, columns = matrix_shape("matrix_diag_part", inputs[0])
    return [Spec(inputs[0].dtype, None if lead is None else (*lead, least_size(rows, columns)))]


def _set_diag(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("matrix_set_diag", inputs)
    lead, rows, columns = matrix_shape("matrix_set_diag", inputs[0])
    diagonal_shape = inputs[1].shape
    if lead is not None:
        joint = merge_shapes(diagonal_shape, (*lead, least_size(rows, columns)))
        assert joint is not None  # the second is known
        lead = joint[:-1]
    elif diagonal_shape is not None:
        lead = diagonal_shape[:-1]
    return [Spec(inputs[0].dtype, None if lead is None else (*lead, rows, columns))]


def _band(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    matrix_shape("matrix_band_part", inputs[0])
    return [Spec(inputs[0].dtype, inputs[0].shape)]


def _diag_part_back(op: Operation, g: Tensor) -> list[Any]:
    return [matrix_set_diag(zeros_like(op.inputs[0]), g)]


def _set_diag_back(op: Operation, g: Tensor) -> list[Any]:
    return [
        lambda: matrix_set_diag(g, zeros_like(op.inputs[1])),
        lambda: matrix_diag_part(g),
    ]


op("MatrixDiag", infer=_diag, grad=lambda op, g: [matrix_diag_part(g)])
op("MatrixDiagPart", infer=_diag_part, grad=_diag_part_back)
op("MatrixSetDiag", infer=_set_diag, grad=_set_diag_back)
op(
    "MatrixBandPart",
    infer=_band,
    grad=lambda op, g: [first_output("MatrixBandPart", [g], op.attrs)],
)


# -- diagonals and bands


def matrix_diag(diagonal: Any, name: str | None = None) -> Tensor:
    """Diagonal matrices with these diagonals: [..., n] gives [..., n, n]."""
    return first_output("MatrixDiag", [convert_to_tensor(diagonal)], {}, name)


def matrix_diag_part(input: Any, name: str | None = None) -> Tensor:
    """The diagonals of matrices: [..., m, n] gives [..., min(m, n)]."""
    return first_output("MatrixDiagPart", [convert_to_tensor(input)], {}, name)


def matrix_set_diag(input: Any, diagonal: Any, name: str | None = None) -> Tensor:
    """The matrices with their diagonals replaced."""
    x = convert_to_tensor(input)
    return first_output("MatrixSetDiag", [x, like(diagonal, x)], {}, name)


def matrix_band_part(input: Any, num_lower: Any, num_upper: Any, name: str | None = None) -> Tensor:
    """The band of `num_lower` diagonals below and `num_upper` above the main one; zeros elsewhere.

    A negative number keeps all: (-1, 0) is the lower triangle, (0, -1) the upper.
    """
    x = convert_to_tensor(input)
    (lower, below), (upper, above) = (
        count_argument(num_lower, "num_lower"),
        count_argument(num_upper, "num_upper"),
    )
    if not below and not above:
        return first_output("MatrixBandPart", [x], {"num_lower": lower, "num_upper": upper}, name)
    rows = expand_dims(range(getitem(shape(x, out_type=int64), -2)), 1)
    away = subtract(rows, range(getitem(shape(x, out_type=int64), -1)))
    band = logical_and(_within(away, below or lower), _within(negative(away), above or upper))
    return where(band, x, zeros_like(x), name)


def _within(away: Tensor, max_offset: Any) -> Tensor:
    """Whether diagonals, counted from the main one, are in the band; a negative limit: all."""
    limit = cast(
        convert_to_tensor(max_offset[0] if isinstance(max_offset, list) else max_offset), int64
    )
    return logical_or(less(limit, 0), less_equal(away, limit))


def diag(diagonal: Any, name: str | None = None) -> Tensor:
    """A tensor of twice the rank with diagonal `diagonal`, zeros elsewhere."""
    x = convert_to_tensor(diagonal)
    if x.shape == ():
        raise ShapeError("diag takes a tensor of rank 1 or more, not a scalar", line=user_line())
    flat = matrix_diag(reshape(x, [-1]))
    if x.shape is not None and None not in x.shape:
        return reshape(flat, [*x.shape, *x.shape], name)
    tensor = reshape(flat, concat([shape(x), shape(x)], 0), name)
    if x.shape is not None:
        tensor.set_shape((*x.shape, *x.shape))
    return tensor


def diag_part(input: Any, name: str | None = None) -> Tensor:
    """The diagonal of a tensor whose shape is a shape repeated twice."""
    x = convert_to_tensor(input)
    if x.shape is None:
        x_shape = shape(x)
        first = getitem(x_shape, slice(None, floordiv(size(x_shape), 2)))
        rows = reduce_prod(first)
        return reshape(matrix_diag_part(reshape(x, [rows, rows])), first, name)
    if len(x.shape) % 2 or not x.shape:
        raise ShapeError(
            f"diag_part needs an even rank of 2 or more, not shape {shape_text(x.shape)}"
        )
    half = len(x.shape) // 2
    both = merge_shapes(x.shape[:half], x.shape[half:])
    assert both is not None
    if None in both:
        half_shape: Any = getitem(shape(x), slice(None, half))
        count = size(x)
        root = cast(sqrt(cast(count, np.float64)), count.dtype)
        diagonal = reshape(matrix_diag_part(reshape(x, [root, root])), half_shape, name)
        diagonal.set_shape(both)
        return diagonal
    side = int(np.prod([d for d in both if d is not None]))
    return reshape(matrix_diag_part(reshape(x, [side, side])), both, name)


def trace(x: Any, name: str | None = None) -> Tensor:
    """The sum of the diagonal of each matrix."""
    return reduce_sum(matrix_diag_part(x), -1, name=name)


def matrix_transpose(a: Any, name: str | None = None, conjugate: bool = False) -> Tensor:
    """The last two axes exchanged, conjugated if `conjugate`."""
    x = convert_to_tensor(a)
    if conjugate:
        x = conj(x)
    if x.shape is None:
        return first_output("Einsum", [x], {"equation": "...ij->...ji"}, name)
    lead, _, _ = matrix_shape("matrix_transpose", x.spec)
    n = len(lead or ())
    return transpose(x, [*(i for i, _ in enumerate(lead or ())), n + 1, n], name)


def adjoint(matrix: Any, name: str | None = None) -> Tensor:
    """The conjugate transpose of each matrix."""
    return matrix_transpose(matrix, name, conjugate=True)


def eye(
    num_rows: Any,
    num_columns: Any = None,
    batch_shape: Any = None,
    dtype: Any = float32,
    name: str | None = None,
) -> Tensor:
    """Identity matrices, repeated to `batch_shape` if given."""
    n = checked_sizes(num_rows, "the number of rows of eye")
    m = n if num_columns is None else checked_sizes(num_columns, "the number of columns of eye")
    static = [int(t.constant) for t in (n, m) if t.constant is not None]
    if len(static) == 2 and static[0] * static[1] <= LARGE:
        matrix = constant(np.eye(*static, dtype=as_dtype(dtype)))
    else:
        rows, columns = range(cast(n, int64)), range(cast(m, int64))
        matrix = cast(equal(expand_dims(rows, 1), columns), dtype)
    if batch_shape is None:
        return matrix if name is None else first_output("Identity", [matrix], {}, name)
    lead = convert_to_tensor(batch_shape)
    if lead.shape == (0,):
        return matrix
    return broadcast_to(matrix, concat([lead, cast(shape(matrix), lead.dtype)], 0), name)


# -- norms


@accepts_aliases(keep_dims="keepdims")
def norm(
    tensor: Any,
    ord: Any = "euclidean",
    axis: Any = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """The norm of vectors along one axis, of matrices over two, or of all elements (axis None).

    `ord` is "euclidean", 1, 2, infinity or any positive number; for matrices "euclidean" or "fro",
    1, 2 and infinity. The result is real.
    """
    x = convert_to_tensor(tensor)
    axes = axes_argument(axis)
    if isinstance(axes, Tensor) and axes.shape not in ((), (1,)):
        raise ShapeError(
            f"norm: the number of axes in {axes.name!r}, {shape_text(axes.shape)}, is unknown",
            line=user_line(),
            hint="give one axis as a scalar for vectors, or two numbers for matrices",
        )
    if isinstance(axes, tuple) and len(axes) == 2:
        return _matrix_norm(x, ord, axes, keepdims, name)
    if isinstance(axes, tuple) and len(axes) != 1:
        raise ShapeError(
            f"norm takes one or two axes, not {axes}",
            hint="give one axis for vectors, two for matrices",
        )
    size_of = abs(x)
    if ord in ("euclidean", 2):
        return sqrt(reduce_sum(square(size_of), axes, keepdims), name)
    if ord == 1:
        return reduce_sum(size_of, axes, keepdims, name)
    if ord == np.inf:
        return reduce_max(size_of, axes, keepdims, name)
    if isinstance(ord, str) or not ord > 0:
        raise ShapeError(f"norm of vectors: order {ord!r} is not known")
    power = size_of.dtype.type(ord)
    total = reduce_sum(pow(size_of, power), axes, keepdims)
    return pow(total, size_of.dtype.type(1 / ord), name)


def _matrix_norm(
    x: Tensor, ord: Any, axes: tuple[int, ...], keepdims: bool, name: str | None
) -> Tensor:
    if ord in ("euclidean", "fro"):
        return sqrt(reduce_sum(square(abs(x)), axes, keepdims), name)
    if ord not in (1, 2, np.inf):
        raise ShapeError(f"norm of matrices: order {ord!r} is not known")
    if x.shape is None:
        raise ShapeError(
            "norm of matrices needs a tensor of known rank", hint="use tensor.set_shape"
        )
    rank = len(x.shape)
    first, second = (a % rank for a in axes)
    if first == second or max(first, second) >= rank:
        raise ShapeError(f"norm of matrices: axes {axes} do not fit shape {shape_text(x.shape)}")
    if ord == 2:
        order = [i for i in np.arange(rank).tolist() if i not in (first, second)]
        values = first_output("Svd", [transpose(x, [*order, first, second])],
                     {"full_matrices": False, "compute_uv": False})  # fmt: skip
        norms = reduce_max(values, -1)
    else:
        along, over = (first, second) if ord == 1 else (second, first)
        sums = reduce_sum(abs(x), along, True)
        norms = reduce_max(sums, (over, along))
    if not keepdims:
        return norms if name is None else first_output("Identity", [norms], {}, name)
    for a in sorted((first, second)):
        norms = expand_dims(norms, a)
    return norms if name is None else first_output("Identity", [norms], {}, name)
