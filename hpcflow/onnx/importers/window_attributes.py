"""Window attributes: kernel, strides, pads and dilations of ONNX convolution and pooling."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from hpcflow.graph.graph import Tensor
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.concat_split_ops import pad
from hpcflow.ops.array.slice_ops import getitem

Ints = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class WindowAttributes:
    """A window over the spatial axes, and its number of positions."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    pads: tuple[tuple[int, int], ...]  # before and after, as in the attributes
    sizes: Ints  # of the input
    positions: Ints

    @property
    def extra(self) -> tuple[tuple[int, int], ...]:
        """The pads that cover every position; larger at the end with ceil_mode."""
        pads = []
        for k, s, d, (a, b), size, n in self.axis_windows():
            reach = (n - 1) * s + (k - 1) * d + 1
            pads.append((a, max(b, reach - size - a)))
        return tuple(pads)

    def axis_windows(self) -> Sequence[tuple[int, int, int, tuple[int, int], int, int]]:
        """For each axis: kernel size, stride, dilation, padding, input size, output positions."""
        columns = (self.kernel, self.strides, self.dilations, self.pads, self.sizes, self.positions)
        return list(zip(*columns, strict=True))


def window(
    node: OnnxNode, x: Tensor, kernel: Sequence[int], ceil: bool = False
) -> WindowAttributes:
    """The window of a node over the spatial axes of `x`, whose sizes must be known."""
    rank = len(kernel)
    spatial = tuple(node.static_shape(x)[2:]) if x.shape is None else x.shape[2:]
    if None in spatial:
        spatial = node.static_shape(x)[2:]
    sizes: Ints = tuple(d for d in spatial if d is not None)
    strides = tuple(node.attr("strides", [1] * rank))
    dilations = tuple(node.attr("dilations", [1] * rank))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = node.attr("auto_pad", "NOTSET")
    explicit_pads = node.attr("pads", [0] * 2 * rank)
    pads, positions = [], []
    for i, (size, s, r) in enumerate(zip(sizes, strides, reach, strict=True)):
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            n = -(-size // s)
            total = max((n - 1) * s + r - size, 0)
            less, more = total // 2, total - total // 2
            pads.append((more, less) if auto == "SAME_LOWER" else (less, more))
        else:
            pads.append((0, 0) if auto == "VALID" else (explicit_pads[i], explicit_pads[i + rank]))
            room = size + sum(pads[-1]) - r
            n = (-(-room // s) if ceil else room // s) + 1
            if ceil and (n - 1) * s >= size + pads[-1][0]:
                n -= 1  # a window that starts in the end padding does not count
        positions.append(n)
    return WindowAttributes(tuple(kernel), strides, dilations, tuple(pads), sizes, tuple(positions))


def slices(x: Tensor, w: WindowAttributes, fill: float) -> list[Tensor]:
    """For each offset in the window, the elements at all positions: [batch, channels, ...]."""
    extra = w.extra
    if any(a or b for a, b in extra):
        x = pad(x, [(0, 0), (0, 0), *extra], constant_values=fill)
    taps = []
    for offset in itertools.product(*map(range, w.kernel)):
        key: list[slice] = [slice(None), slice(None)]
        for o, s, d, n in zip(offset, w.strides, w.dilations, w.positions, strict=True):
            key.append(slice(o * d, o * d + (n - 1) * s + 1, s))
        taps.append(getitem(x, tuple(key)))
    return taps
