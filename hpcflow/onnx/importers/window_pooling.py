"""ONNX import of pooling: maximum, mean or Lp norm of windows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.convolution_matmul import FORMATS
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.onnx.importers.window_attributes import WindowAttributes, slices, window
from hpcflow.ops.array.array_ops import constant
from hpcflow.ops.array.concat_split_ops import stack
from hpcflow.ops.math import arithmetic_ops, reduction_ops
from hpcflow.ops.nn import pooling_ops

_LARGEST: dict[int, Any] = {
    1: pooling_ops.max_pool1d,
    2: pooling_ops.max_pool,
    3: pooling_ops.max_pool3d,
}
_MEAN: dict[int, Any] = {
    1: pooling_ops.avg_pool1d,
    2: pooling_ops.avg_pool,
    3: pooling_ops.avg_pool3d,
}


def _is_plain(w: WindowAttributes, x: Tensor) -> bool:
    """Whether the op for pooling computes the same: no size is rounded up."""
    return len(w.kernel) in _LARGEST and w.extra == w.pads and x.dtype.kind == "f"


def _as_ours(w: WindowAttributes) -> dict[str, Any]:
    """The arguments of the op for pooling."""
    return {
        "ksize": w.kernel,
        "strides": w.strides,
        "padding": w.pads,
        "data_format": FORMATS[len(w.kernel)],
    }


@imports("MaxPool")
def _max_pool(node: OnnxNode, x: Tensor) -> Sequence[Tensor]:
    w = window(node, x, node.attr("kernel_shape"), bool(node.attr("ceil_mode", 0)))
    if not node.is_output_used(1) and _is_plain(w, x):
        return [_LARGEST[len(w.kernel)](x, dilations=w.dilations, **_as_ours(w))]
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    parts = slices(x, w, lowest)
    y = functools.reduce(arithmetic_ops.maximum, parts)
    if not node.is_output_used(1):
        return [y]
    return [y, _places(node, x, w, reduction_ops.argmax(stack(parts), 0))]


def _places(node: OnnxNode, x: Tensor, w: WindowAttributes, which: Tensor) -> Tensor:
    """The flat index in the input of the element `which` of each window."""
    batch, channels = node.static_shape(x)[:2]
    order = range(len(w.sizes))
    if node.attr("storage_order", 0):
        order = order[::-1]
    scale = dict.fromkeys(order, 1)
    for i, j in itertools.pairwise(reversed(order)):
        scale[j] = scale[i] * w.sizes[i]
    grid = np.zeros((len(list(itertools.product(*map(range, w.kernel)))), *w.positions), np.int64)
    for row, offset in zip(grid, itertools.product(*map(range, w.kernel)), strict=True):
        for axis, (o, s, d, (a, _)) in enumerate(
            zip(offset, w.strides, w.dilations, w.pads, strict=True)
        ):
            at = np.arange(w.positions[axis]) * s + o * d - a
            row += scale[axis] * at.reshape([-1 if i == axis else 1 for i in range(row.ndim)])
    images = np.arange(batch * channels).reshape(batch, channels, *[1] * len(w.sizes))
    table = constant(grid[:, None, None])
    chosen = [
        arithmetic_ops.where(arithmetic_ops.equal(which, i), table[i], np.int64(0))
        for i in range(len(grid))
    ]
    return arithmetic_ops.add(
        arithmetic_ops.add_n(chosen), constant(images * int(np.prod(w.sizes)))
    )


@imports("AveragePool")
def _average_pool(node: OnnxNode, x: Tensor) -> Tensor:
    w = window(node, x, node.attr("kernel_shape"), bool(node.attr("ceil_mode", 0)))
    if _is_plain(w, x) and set(w.dilations) == {1}:
        counted = bool(node.attr("count_include_pad", 0))
        return _MEAN[len(w.kernel)](x, count_include_pad=counted, **_as_ours(w))
    total = arithmetic_ops.add_n(slices(x, w, 0))
    counts = _counts(w, bool(node.attr("count_include_pad", 0)))
    return arithmetic_ops.divide(total, counts.astype(x.dtype))


def _counts(w: WindowAttributes, padding_too: bool) -> np.ndarray:
    """The number of elements of each window, with or without padding."""
    counts = np.ones((), np.int64)
    for k, s, d, (a, b), size, n in w.axis_windows():
        low, high = (-a, size + b) if padding_too else (0, size)
        at = np.arange(n)[:, None] * s + np.arange(k)[None, :] * d - a
        inside = ((at >= low) & (at < high)).sum(1)
        counts = np.multiply.outer(counts, inside)
    return counts


@imports("LpPool")
def _lp_pool(node: OnnxNode, x: Tensor) -> Tensor:
    w = window(node, x, node.attr("kernel_shape"), bool(node.attr("ceil_mode", 0)))
    return norm(slices(x, w, 0), node.attr("p", 2))


def norm(parts: Sequence[Tensor], p: float) -> Tensor:
    """The Lp norm over `parts`: `sum(|x| ** p) ** (1 / p)`."""
    powers = [arithmetic_ops.pow(arithmetic_ops.abs(part), float(p)) for part in parts]
    return arithmetic_ops.pow(arithmetic_ops.add_n(powers), 1.0 / p)


# -- global pooling


def _spatial(node: OnnxNode, x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, node.rank(x)))


@imports("GlobalAveragePool")
def _global_average(node: OnnxNode, x: Tensor) -> Tensor:
    return reduction_ops.reduce_mean(x, _spatial(node, x), True)


@imports("GlobalMaxPool")
def _global_max(node: OnnxNode, x: Tensor) -> Tensor:
    return reduction_ops.reduce_max(x, _spatial(node, x), True)


@imports("GlobalLpPool")
def _global_lp(node: OnnxNode, x: Tensor) -> Tensor:
    p = float(node.attr("p", 2))
    total = reduction_ops.reduce_sum(
        arithmetic_ops.pow(arithmetic_ops.abs(x), p), _spatial(node, x), True
    )
    return arithmetic_ops.pow(total, 1 / p)


@imports("MaxUnpool")
def _max_unpool(
    node: OnnxNode, x: Tensor, index: Tensor, output_shape: Tensor | None = None
) -> Tensor:
    """MaxUnpool: write each element to its position in `index`; the rest is 0."""
    from hpcflow.onnx.importers.gather_scatter import scattered

    kernel = node.attr("kernel_shape")
    rank = len(kernel)
    strides, pads = node.attr("strides", [1] * rank), node.attr("pads", [0] * 2 * rank)
    input_shape = node.static_shape(x)
    sizes = [
        (n - 1) * s + k - pads[i] - pads[i + rank]
        for i, (n, s, k) in enumerate(zip(input_shape[2:], strides, kernel, strict=True))
    ]
    sizes = [*input_shape[:2], *sizes]
    if output_shape is None:
        return scattered(index, x, sizes)
    # the indices refer to the smaller shape; the larger one is padded at its end
    target_shape = node.integers("output_shape", output_shape)
    small = scattered(arithmetic_ops.cast(index, int64), x, sizes)
    from hpcflow.ops.array.concat_split_ops import pad

    return pad(small, [(0, b - a) for a, b in zip(sizes, target_shape, strict=True)])
