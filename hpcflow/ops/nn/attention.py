"""Attention: scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import bool_
from hpcflow.graph.graph import Tensor, convert_to_tensor, user_line
from hpcflow.ops.array.array_ops import expand_dims, range, shape
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.linalg.matmul_ops import matmul
from hpcflow.ops.math.arithmetic_ops import (
    add,
    cast,
    less_equal,
    logical_and,
    multiply,
    rsqrt,
    subtract,
    where,
)
from hpcflow.ops.nn.nn_ops import dropout, softmax
from hpcflow.ops.shape_inference import like


def scaled_dot_product_attention(
    queries: Any,
    keys: Any,
    values: Any,
    mask: Any = None,
    causal: bool = False,
    dropout_rate: Any = 0.0,
    scale: Any = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`softmax(queries @ keys' * scale) @ values` (Vaswani et al., 2017).

    `mask` (booleans) is true where a query may attend to a key. With `causal` query i of m attends
    to the keys up to i + n - m, so that the last one attends to all n. A query without keys gets
    zeros. `scale` is 1 / sqrt(features) by default.

    Shapes: [..., m, features], [..., n, features], [..., n, d] give [..., m, d]; `mask` is
            broadcast to [..., m, n].
    """
    q = convert_to_tensor(queries)
    k, v = like(keys, q), like(values, q)
    if scale is None:
        if q.shape is not None and q.shape and q.shape[-1] is not None:
            scale = 1 / math.sqrt(max(1, q.shape[-1]))
        else:
            scale = rsqrt(cast(getitem(shape(q), -1), q.dtype))
    visible = None if mask is None else convert_to_tensor(mask)
    if visible is not None and visible.dtype != bool_:
        raise ShapeError(f"a mask must hold booleans, not {visible.dtype}", line=user_line())
    if causal:
        past = _past(q, k)
        visible = past if visible is None else logical_and(visible, past)
    if q.dtype.itemsize == 2:  # products in 16 bits may overflow before scaling
        scores = matmul(multiply(q, scale), k, transpose_b=True)
    else:  # generated code fuses everything after the product
        scores = multiply(matmul(q, k, transpose_b=True), scale)
    if visible is None:
        weights = softmax(scores)
    else:
        weights = where(visible, softmax(where(visible, scores, _lowest(scores))), 0)
    if not (isinstance(dropout_rate, (int, float)) and dropout_rate == 0):
        weights = dropout(weights, rate=dropout_rate, seed=seed)
    return matmul(weights, v, name=name)


def _lowest(scores: Tensor) -> float:
    """A score below all others, from which the largest can be subtracted without overflow."""
    return -3e4 if scores.dtype.itemsize == 2 else -1e30


def _past(q: Tensor, k: Tensor) -> Tensor:
    """[m, n]: whether key j is not after query i; the last query attends to all keys."""
    m, n = (getitem(shape(t), -2) for t in (q, k))
    last = add(range(m), subtract(n, m))
    return less_equal(expand_dims(range(n), 0), expand_dims(last, 1))
