"""ONNX import of Col2Im, DepthToSpace and SpaceToDepth."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.array_ops import constant, reshape, shape, transpose
from hpcflow.ops.array.segment_ops import unsorted_segment_sum
from hpcflow.ops.array.slice_ops import getitem


@imports("Col2Im")
def _col2im(node: OnnxNode, x: Tensor, image_shape: Tensor, block_shape: Tensor) -> Tensor:
    """[batch, channels * block, windows] to images; overlapping windows are added."""
    image = node.integers("image_shape", image_shape)
    block = node.integers("block_shape", block_shape)
    rank = len(image)
    pads = node.attr("pads", [0] * 2 * rank)
    strides, dilations = (node.attr(n, [1] * rank) for n in ("strides", "dilations"))
    padded_sizes = [size + pads[i] + pads[i + rank] for i, size in enumerate(image)]
    counts = [
        (size - (b - 1) * d - 1) // s + 1
        for size, b, s, d in zip(padded_sizes, block, strides, dilations, strict=True)
    ]
    numbers = [
        np.ravel_multi_index(
            [o * d + w * s for o, w, s, d in zip(offset, at, strides, dilations, strict=True)],
            padded_sizes,
        )
        for offset in itertools.product(*map(range, block))
        for at in itertools.product(*map(range, counts))
    ]
    batch, rows, windows = node.static_shape(x)
    size = int(np.prod(block))
    channels = rows // size
    columns = reshape(
        transpose(reshape(x, [batch * channels, size * windows]), [1, 0]), [-1, batch * channels]
    )
    total = int(np.prod(padded_sizes))
    summed = unsorted_segment_sum(columns, constant(np.array(numbers, np.int64)), total)
    images = reshape(transpose(summed, [1, 0]), [batch, channels, *padded_sizes])
    cut = [slice(pads[i], pads[i] + n) for i, n in enumerate(image)]
    return getitem(images, (slice(None), slice(None), *cut))


@imports("DepthToSpace")
def _depth_to_space(node: OnnxNode, x: Tensor) -> Tensor:
    """Rearrange channels to blocks of pixels, in mode DCR or CRD."""
    size = node.attr("blocksize")
    batch, depth, rows, columns = _sizes(x)
    channels = depth // (size * size)
    if node.attr("mode", "DCR") == "CRD":
        parts, order = [batch, channels, size, size, rows, columns], [0, 1, 4, 2, 5, 3]
    else:
        parts, order = [batch, size, size, channels, rows, columns], [0, 3, 4, 1, 5, 2]
    apart = transpose(reshape(x, parts), order)
    return reshape(apart, [batch, channels, rows * size, columns * size])


@imports("SpaceToDepth")
def _space_to_depth(node: OnnxNode, x: Tensor) -> Tensor:
    """Rearrange blocks of pixels to channels: the inverse of `DepthToSpace` in the same mode."""
    size = node.attr("blocksize")
    batch, channels, high, wide = _sizes(x)
    rows, columns = high // size, wide // size
    apart = reshape(x, [batch, channels, rows, size, columns, size])
    crd = node.attr("mode", "DCR") == "CRD"
    together = transpose(apart, [0, 1, 3, 5, 2, 4] if crd else [0, 3, 5, 1, 2, 4])
    return reshape(together, [batch, channels * size * size, rows, columns])


def _sizes(x: Tensor) -> list[Any]:
    """The sizes of an image [batch, channels, rows, columns]; scalar tensors where unknown."""
    static_shape = x.shape or (None,) * 4
    return [getitem(shape(x), i) if n is None else n for i, n in enumerate(static_shape)]
