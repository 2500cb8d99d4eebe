"""Gradients compared with differences: TensorFlow 1's `compute_gradient`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcflow.autodiff.gradients import gradients
from hpcflow.errors import GradientError, ShapeError
from hpcflow.graph.default_session import session_or_default
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.ops.array.array_ops import placeholder
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.platform.exception_translation import value_text

Jacobians = tuple[np.ndarray, np.ndarray]


def compute_gradient(
    x: Any,
    x_shape: Any,
    y: Tensor,
    y_shape: Any,
    x_init_value: Any = None,
    delta: float = 1e-3,
    init_targets: Any = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> Any:
    """The matrix of the slopes of `y` by `x`, from gradients and from differences of 2 `delta`.

    Each has a row for each element of `x`, a column for each of `y`; of complex tensors for each
    real part, then for the imaginary one. `x` and `x_shape`, and with them `x_init_value`, by
    default random numbers, may be lists; then the result is a list, too. `init_targets` are run in
    the default session before; `extra_feed_dict` is fed in each step.
    Errors: GradientError if `y` does not depend on `x`.
    """
    several = isinstance(x, (list, tuple))
    xs, shapes = (list(x), list(x_shape)) if several else ([x], [x_shape])
    values = list(x_init_value) if several and x_init_value is not None else [x_init_value]
    values *= len(xs) if x_init_value is None else 1
    if not len(xs) == len(shapes) == len(values):
        raise ShapeError(
            f"x, x_shape and x_init_value have different lengths: {len(xs)}, "
            f"{len(shapes)} and {len(values)}"
        )
    session = session_or_default(None, y.graph, "compute_gradient")
    targets = init_targets if isinstance(init_targets, (list, tuple)) else [init_targets]
    for target in targets:
        if target is not None:
            target.run() if isinstance(target, Operation) else session.run(target)
    begin = [_begin(t, s, v) for t, s, v in zip(map(_fed, xs), shapes, values, strict=True)]
    feeds = {**dict(extra_feed_dict or {}), **dict(zip(map(_fed, xs), begin, strict=True))}
    size = tuple(int(d) for d in y_shape)
    jacobians = []
    for t in xs:
        args = session, y, size, t, feeds
        jacobians.append((_by_gradient(*args), _by_difference(*args, delta)))
    return jacobians if several else jacobians[0]


def compute_gradient_error(
    x: Any,
    x_shape: Any,
    y: Tensor,
    y_shape: Any,
    x_init_value: Any = None,
    delta: float = 1e-3,
    init_targets: Any = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> float:
    """The largest difference between the two matrices of `compute_gradient`."""
    options = x_init_value, delta, init_targets, extra_feed_dict
    jacobians = compute_gradient(x, x_shape, y, y_shape, *options)
    pairs: list[Jacobians] = jacobians if isinstance(jacobians, list) else [jacobians]
    errors = [np.abs(slopes - steps).max() for slopes, steps in pairs if slopes.size]
    return float(max(errors, default=0.0))


def _fed(x: Any) -> Tensor:
    """The tensor that is fed: of a variable what all reads of it give."""
    return x.fetched if hasattr(x, "fetched") else convert_to_tensor(x)


def _begin(x: Tensor, shape: Any, init_value: Any) -> np.ndarray:
    """The value of `x` about which slopes are taken."""
    x_shape = tuple(int(d) for d in shape)
    value = np.random.random_sample(x_shape) if init_value is None else np.asarray(init_value)
    if value.shape != x_shape:
        raise ShapeError(
            f"x_init_value has shape {list(value.shape)}, but x_shape is {list(x_shape)}",
            op=x.op.name,
            line=x.op.line,
        )
    return np.array(value, x.dtype)


def _numbers(value: np.ndarray) -> np.ndarray:
    """The real numbers of an array, in a row: a view of one that has its own memory."""
    flat = np.ascontiguousarray(value).reshape(-1)
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def _by_gradient(
    session: Any, y: Tensor, size: tuple[int, ...], x: Any, feeds: dict[Any, Any]
) -> np.ndarray:
    with y.graph.as_default():
        seed = placeholder(y.dtype, size)
        (slope,) = gradients(y, x, grad_ys=[seed])
        if slope is None:
            raise GradientError(
                f"{value_text(y)} does not depend on {value_text(x)}", op=y.op.name, line=y.op.line
            )
        if isinstance(slope, IndexedSlices):
            slope = convert_to_tensor(slope)
    one_hot = np.zeros(size, y.dtype)
    columns = []
    for i in range(_numbers(one_hot).size):
        flat = _numbers(one_hot)
        flat[:] = 0
        flat[i] = 1
        columns.append(_numbers(session.run(slope, {**feeds, seed: one_hot})).copy())
    rows = _numbers(feeds[_fed(x)]).size
    return np.array(columns).reshape(len(columns), rows).T


def _by_difference(
    session: Any,
    y: Tensor,
    size: tuple[int, ...],
    x: Any,
    feeds: dict[Any, Any],
    delta: float,
) -> np.ndarray:
    key = _fed(x)
    rows, begin = [], feeds[key]
    for i in range(_numbers(begin).size):
        ends = []
        for by in (delta, -delta):
            moved = begin.copy()
            _numbers(moved)[i] += by
            ends.append(_numbers(session.run(y, {**feeds, key: moved})).copy())
        rows.append((ends[0] - ends[1]) / (2 * delta))
    columns = _numbers(np.zeros(size, y.dtype)).size
    return np.array(rows).reshape(len(rows), columns).astype(_numbers(begin).dtype)
