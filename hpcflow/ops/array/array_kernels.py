"""Array kernels: reshape, transpose, shape, range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import NumericError, ShapeError
from hpcflow.kernels.cuda_graph_restrictions import HOST_VALUES, READS_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel


def _register_identity(type: str) -> None:
    @kernel(type, "view")
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        return lambda x: x


for _type in ("Identity", "StopGradient", "PlaceholderWithDefault"):
    _register_identity(_type)


@kernel("CheckSizes", "out", moves=True, uncaptured=READS_VALUES)
def _check_sizes(xp: Any, node: KernelNode) -> Callable[..., Any]:
    what, least = node.attrs["what"], node.attrs["least"]

    def run(x: Any, out: Any) -> None:
        if x.size and (smallest := int(x.min())) < least:
            raise ShapeError(f"{what} is {smallest}, less than {least}")
        xp.copyto(out, x)

    return run


@kernel("EnsureShape", "view")
def _ensure_shape(xp: Any, node: KernelNode) -> Callable[..., Any]:
    expected_shape = node.attrs["shape"]

    def run(x: Any) -> Any:
        if expected_shape is not None:
            fits = [d is None or d == n for d, n in zip(expected_shape, x.shape, strict=False)]
            if len(expected_shape) != x.ndim or not all(fits):
                expected_text = ", ".join("?" if d is None else str(d) for d in expected_shape)
                raise ShapeError(f"the shape is {list(x.shape)}, not [{expected_text}]")
        return x

    return run


def _under_known_shape(node: KernelNode) -> Callable[..., Any] | None:
    shape = node.outputs[0].shape
    is_static = shape is not None and None not in shape
    return (lambda x, *told: x.reshape(shape)) if is_static else None


@kernel("Reshape", "view")
def _reshape(xp: Any, node: KernelNode) -> Callable[..., Any]:
    target = node.attrs["shape"]
    of_step = len(node.inputs) > 1 and node.inputs[1].value is None

    def run(x: Any, *shape_inputs: Any) -> Any:
        sizes = shape_inputs[0].tolist() if shape_inputs else target
        if x.size == 0 and -1 in sizes and 0 in sizes:
            sizes = _of_none(x.shape, sizes)
        try:
            if min(sizes, default=0) >= -1:
                return x.reshape(sizes)
        except ValueError:
            pass
        raise ShapeError(f"{list(x.shape)} ({x.size} elements) cannot be reshaped to {list(sizes)}")

    return (None if of_step else _under_known_shape(node)) or run


def _of_none(source: Sequence[int], target: Sequence[int]) -> list[int]:
    """The reshape result for a tensor without elements; -1 is inferred as if sizes 0 were 1."""
    source_size, target_size = (math.prod(n for n in shape if n > 0) for shape in (source, target))
    return [source_size // target_size if n == -1 else n for n in target]


@kernel("ExpandDims", "view")
def _expand_dims(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis = node.attrs["axis"]
    return _under_known_shape(node) or (lambda x: xp.expand_dims(x, axis))


@kernel("Squeeze", "view")
def _squeeze(xp: Any, node: KernelNode) -> Callable[..., Any]:
    axis = node.attrs["axis"]
    return _under_known_shape(node) or (lambda x: xp.squeeze(x, axis))


@kernel("FromParcel", "view")
def _from_parcel(xp: Any, node: KernelNode) -> Callable[..., Any]:
    value, start = node.outputs[0], node.attrs["start"]
    return lambda x: x[start : start + value.nbytes].view(value.dtype).reshape(value.shape)


@kernel("Transpose", "out", moves=True)
def _transpose(xp: Any, node: KernelNode) -> Callable[..., Any]:
    perm = node.attrs["perm"]
    return lambda x, out: xp.copyto(out, x.transpose(perm))


@kernel("TransposeTold", "out", moves=True, uncaptured=READS_VALUES)
def _transpose_told(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda x, perm, out: xp.copyto(out, x.transpose(perm.tolist()))


# -- shapes as values


def _fact(type: str, compute: Callable[[Any], Any], uncaptured: str = "") -> None:
    @kernel(type, "out", moves=True, uncaptured=uncaptured)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        dtype = node.outputs[0].dtype
        return lambda x, out: xp.copyto(out, xp.asarray(compute(x), dtype))


_fact("Shape", lambda x: x.shape, uncaptured=HOST_VALUES)
_fact("Size", lambda x: x.size)
_fact("Rank", lambda x: x.ndim)


@kernel("Range", "new", uncaptured=READS_VALUES)
def _range(xp: Any, node: KernelNode) -> Callable[..., Any]:
    dtype: np.dtype = node.outputs[0].dtype

    def run(*limits: Any) -> Any:
        values = [v.item() for v in limits]
        if values[-1] == 0:
            raise NumericError("range: delta must not be 0")
        if any(v - v != 0 for v in values):  # NaN and infinity
            raise NumericError(f"range: start, limit and delta must be finite, not {values}")
        start, limit, delta = values
        if (limit - start) * delta < 0:
            raise ShapeError(
                f"range: delta {delta} does not lead from start {start} to limit {limit}"
            )
        return xp.arange(*values, dtype=dtype)

    return run
