"""Columns of windows put together again as images."""

from __future__ import annotations

import itertools

import numpy as np

from hpcflow.graph.graph import Tensor
from hpcflow.onnx.node import Node
from hpcflow.onnx.table import imports
from hpcflow.ops.array import constant, reshape, transpose
from hpcflow.ops.segment import unsorted_segment_sum
from hpcflow.ops.slicing import getitem


@imports("Col2Im")
def _col2im(node: Node, x: Tensor, image_shape: Tensor, block_shape: Tensor) -> Tensor:
    """[batch, channels * block, windows] as images; where windows overlap, they are added."""
    image = node.integers("image_shape", image_shape)
    block = node.integers("block_shape", block_shape)
    rank = len(image)
    pads = node.attr("pads", [0] * 2 * rank)
    strides, dilations = (node.attr(n, [1] * rank) for n in ("strides", "dilations"))
    whole = [size + pads[i] + pads[i + rank] for i, size in enumerate(image)]
    counts = [
        (size - (b - 1) * d - 1) // s + 1
        for size, b, s, d in zip(whole, block, strides, dilations, strict=True)
    ]
    numbers = [
        np.ravel_multi_index(
            [o * d + w * s for o, w, s, d in zip(offset, at, strides, dilations, strict=True)],
            whole,
        )
        for offset in itertools.product(*map(range, block))
        for at in itertools.product(*map(range, counts))
    ]
    batch, rows, windows = node.known(x)
    size = int(np.prod(block))
    channels = rows // size
    columns = reshape(
        transpose(reshape(x, [batch * channels, size * windows]), [1, 0]), [-1, batch * channels]
    )
    total = int(np.prod(whole))
    summed = unsorted_segment_sum(columns, constant(np.array(numbers, np.int64)), total)
    images = reshape(transpose(summed, [1, 0]), [batch, channels, *whole])
    cut = [slice(pads[i], pads[i] + n) for i, n in enumerate(image)]
    return getitem(images, (slice(None), slice(None), *cut))
