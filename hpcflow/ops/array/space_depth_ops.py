"""Space-to-depth ops: blocks moved between space, depth and batch; image patches; composed ops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import ArgumentError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.static_shape import shape_text
from hpcflow.ops.array.array_ops import identity, reshape, shape, transpose
from hpcflow.ops.array.broadcast_ops import zeros_like
from hpcflow.ops.array.concat_split_ops import concat, pad, stack
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.math.arithmetic_ops import add, floordiv, maximum, mod, multiply, negative
from hpcflow.ops.math.reduction_ops import reduce_prod
from hpcflow.ops.shape_inference import integer_argument
from hpcflow.platform.exception_translation import value_text


def sizes_of(x: Tensor) -> list[Any]:
    """The size of each axis: an int, or a scalar tensor if unknown."""
    assert x.shape is not None
    dynamic = shape(x) if None in x.shape else None
    return [getitem(dynamic, i) if d is None else d for i, d in enumerate(x.shape)]


def _rank(x: Tensor, label: str) -> int:
    if x.shape is None:
        raise ShapeError(f"{label} needs a tensor of a known rank", op=x.op.name, line=user_line())
    return len(x.shape)


def as_images(x: Any) -> Tensor:
    """The argument as a tensor; unknown rank is taken as 4."""
    t = convert_to_tensor(x)
    if t.shape is None:
        t = identity(t)
        t.set_shape((None,) * 4)
    return t


def _static_integers(numbers: Any, label: str) -> np.ndarray:
    value = numbers.constant if isinstance(numbers, Tensor) else np.asarray(numbers)
    if value is None:
        raise ShapeError(f"{label} must be known when the graph is built", line=user_line())
    array = np.asarray(value)
    if array.dtype.kind not in "iu" and array.size:
        raise ArgumentError(
            f"{label} must be integers, not {value_text(numbers)}", line=user_line()
        )
    return array


def _pairs(numbers: Any, label: str) -> list[list[int]]:
    array = _static_integers(numbers, label)
    if array.size and array.shape[1:] != (2,):
        raise ArgumentError(
            f"{label} must be pairs of integers, not {value_text(numbers)}", line=user_line()
        )
    return [[int(a), int(b)] for a, b in array.reshape(-1, 2)]


def _even(size: Any, by: int, label: str) -> None:
    if isinstance(size, (int, np.integer)) and size % by:
        raise ShapeError(f"{label}: size {size} is not a multiple of {by}", line=user_line())


def _under(x: Tensor, sizes: Sequence[Any]) -> Tensor:
    """Reshape to sizes that may be tensors."""
    unknown = [i for i, s in enumerate(sizes) if isinstance(s, Tensor)]
    if len(unknown) == 1 and 0 not in [s for s in sizes if not isinstance(s, Tensor)]:
        return reshape(x, [-1 if isinstance(s, Tensor) else s for s in sizes])
    return reshape(x, stack(list(sizes)) if unknown else list(sizes))


# -- space and batch


def space_to_batch_nd(
    input: Any, block_shape: Any, paddings: Any, name: str | None = None
) -> Tensor:
    """Zero-pad the spatial axes, divide them into blocks, and move block positions to the batch.

    Shapes: [n, s_i, ...] -> [n * prod(block), (s_i + padding_i) / block_i, ...].
    """
    x = convert_to_tensor(input)
    block = _static_integers(block_shape, "block_shape").reshape(-1).tolist()
    if x.shape is None:
        return _of_rank(x, 1 + len(block), lambda t: space_to_batch_nd(t, block, paddings), name)
    pads = _pairs(paddings, "paddings")
    rank, spatial = _rank(x, "space_to_batch"), len(block)
    if len(pads) != spatial or rank < 1 + spatial or any(b < 1 for b in block):
        raise ShapeError(
            f"block_shape {block} and paddings {pads} do not fit shape {shape_text(x.shape)}",
            line=user_line(),
        )
    with get_default_graph().name_scope(name or "SpaceToBatchND"):
        x = pad(x, [(0, 0), *pads, *[(0, 0)] * (rank - 1 - spatial)])
        n, *dims = sizes_of(x)
        cut: list[Any] = []
        for size, b in zip(dims, block, strict=False):
            _even(size, b, "space_to_batch")
            cut += [floordiv(size, b) if isinstance(size, Tensor) else size // b, b]
        x = _under(x, [n, *cut, *dims[spatial:]])
        places = [2 + 2 * i for i in range(spatial)]
        blocks = [1 + 2 * i for i in range(spatial)]
        depth = list(range(1 + 2 * spatial, 1 + 2 * spatial + rank - 1 - spatial))
        x = transpose(x, [*places, 0, *blocks, *depth])
        batch = _times(n, int(np.prod(block)))
        return _under(x, [batch, *cut[::2], *dims[spatial:]])


def _of_rank(x: Tensor, lead: int, move: Callable[[Tensor], Tensor], name: str | None) -> Tensor:
    """`move` for unknown rank: the axes after the first `lead` are temporarily merged."""
    sizes = shape(x)
    tail = getitem(sizes, np.s_[lead:])
    flat = reshape(x, concat([getitem(sizes, np.s_[:lead]), [reduce_prod(tail)]], 0))
    flat.set_shape((None,) * (lead + 1))
    moved = move(flat)
    return reshape(moved, concat([getitem(shape(moved), np.s_[:lead]), tail], 0), name)


def _times(size: Any, by: int) -> Any:
    return multiply(size, by) if isinstance(size, Tensor) else size * by


def batch_to_space_nd(input: Any, block_shape: Any, crops: Any, name: str | None = None) -> Tensor:
    """The inverse of `space_to_batch_nd`; `crops` are removed at the ends of each axis.

    Shapes: [n, s_i, ...] -> [n / prod(block), s_i * block_i - crop_i, ...].
    """
    x = convert_to_tensor(input)
    block = _static_integers(block_shape, "block_shape").reshape(-1).tolist()
    if x.shape is None:
        return _of_rank(x, 1 + len(block), lambda t: batch_to_space_nd(t, block, crops), name)
    cuts = _pairs(crops, "crops")
    rank, spatial = _rank(x, "batch_to_space"), len(block)
    if len(cuts) != spatial or rank < 1 + spatial or any(c < 0 for pair in cuts for c in pair):
        raise ShapeError(
            f"block_shape {block} and crops {cuts} do not fit shape {shape_text(x.shape)}",
            line=user_line(),
        )
    with get_default_graph().name_scope(name or "BatchToSpaceND"):
        n, *dims = sizes_of(x)
        _even(n, int(np.prod(block)), "batch_to_space")
        count = int(np.prod(block))
        n = floordiv(n, count) if isinstance(n, Tensor) else n // count
        x = _under(x, [*block, n, *dims])
        order = [spatial]
        for i in range(spatial):
            order += [spatial + 1 + i, i]
        x = transpose(x, [*order, *range(2 * spatial + 1, spatial + rank)])
        wide = [_times(size, b) for size, b in zip(dims, block, strict=False)]
        for size, (a, b) in zip(wide, cuts, strict=True):
            if not isinstance(size, Tensor) and a + b > size:
                raise ShapeError(
                    f"crops {[a, b]} are larger than an axis of size {size}", line=user_line()
                )
        x = _under(x, [n, *wide, *dims[spatial:]])
        keys = [np.s_[a : -b or None] for a, b in cuts]
        return getitem(x, (np.s_[:], *keys))


@accepts_aliases(block_shape="block_size")
def space_to_batch(input: Any, paddings: Any, block_size: int, name: str | None = None) -> Tensor:
    """`space_to_batch_nd` for images [n, height, width, depth] with square blocks."""
    return space_to_batch_nd(as_images(input), [block_size, block_size], paddings, name)


@accepts_aliases(block_shape="block_size")
def batch_to_space(input: Any, crops: Any, block_size: int, name: str | None = None) -> Tensor:
    """`batch_to_space_nd` for images [n, height, width, depth] with square blocks."""
    return batch_to_space_nd(as_images(input), [block_size, block_size], crops, name)


def required_space_to_batch_paddings(
    input_shape: Any, block_shape: Any, base_paddings: Any = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Paddings that make each size a multiple of its block, and the crops that undo them.

    `base_paddings` are the minimum at both ends; more is added at the end.
    """
    sizes, block = convert_to_tensor(input_shape), convert_to_tensor(block_shape)
    with get_default_graph().name_scope(name or "required_space_to_batch_paddings"):
        base = convert_to_tensor(
            np.zeros((*_known_length(block), 2), np.int32)
            if base_paddings is None
            else base_paddings
        )
        start, end = getitem(base, (np.s_[:], 0)), getitem(base, (np.s_[:], 1))
        missing = mod(negative(add(sizes, add(start, end))), block)
        paddings = stack([start, add(end, missing)], 1)
        crops = stack([zeros_like(missing), missing], 1)
    return identity(paddings), identity(crops)


def _known_length(block: Tensor) -> tuple[int]:
    if block.shape is None or len(block.shape) != 1 or block.shape[0] is None:
        raise ShapeError(
            f"block_shape {shape_text(block.shape)} must be a vector of a known length"
        )
    return (block.shape[0],)


# -- space and depth


def _channels_last(x: Tensor, data_format: str) -> Tensor:
    if data_format not in ("NHWC", "NCHW"):
        raise ShapeError(f"data_format {data_format!r} is neither 'NHWC' nor 'NCHW'")
    if _rank(x, "space_to_depth") != 4:
        raise ShapeError(
            "space_to_depth and depth_to_space take images of rank 4, not shape "
            f"{shape_text(x.shape)}"
        )
    return x if data_format == "NHWC" else transpose(x, [0, 2, 3, 1])


def space_to_depth(
    input: Any, block_size: int, name: str | None = None, data_format: str = "NHWC"
) -> Tensor:
    """Move each square block of pixels into the depth of one pixel.

    Shapes: [n, h, w, d] -> [n, h / b, w / b, b * b * d].
    """
    b = integer_argument(block_size, "block_size")
    with get_default_graph().name_scope(name or "SpaceToDepth"):
        x = _channels_last(as_images(input), data_format)
        n, h, w, d = sizes_of(x)
        _even(h, b, "space_to_depth")
        _even(w, b, "space_to_depth")
        rows, columns = (floordiv(s, b) if isinstance(s, Tensor) else s // b for s in (h, w))
        x = transpose(_under(x, [n, rows, b, columns, b, d]), [0, 1, 3, 2, 4, 5])
        y = _under(x, [n, rows, columns, _times(d, b * b)])
        return y if data_format == "NHWC" else transpose(y, [0, 3, 1, 2])


def depth_to_space(
    input: Any, block_size: int, name: str | None = None, data_format: str = "NHWC"
) -> Tensor:
    """The inverse of `space_to_depth`.

    Shapes: [n, h, w, b * b * d] -> [n, h * b, w * b, d].
    """
    b = integer_argument(block_size, "block_size")
    with get_default_graph().name_scope(name or "DepthToSpace"):
        x = _channels_last(as_images(input), data_format)
        n, h, w, d = sizes_of(x)
        _even(d, b * b, "depth_to_space")
        d = floordiv(d, b * b) if isinstance(d, Tensor) else d // (b * b)
        x = transpose(_under(x, [n, h, w, b, b, d]), [0, 1, 3, 2, 4, 5])
        y = _under(x, [n, _times(h, b), _times(w, b), d])
        return y if data_format == "NHWC" else transpose(y, [0, 3, 1, 2])


# -- patches


@accepts_aliases(sizes="ksizes")
def extract_image_patches(
    images: Any,
    ksizes: Sequence[int],
    strides: Sequence[int],
    rates: Sequence[int],
    padding: str,
    name: str | None = None,
) -> Tensor:
    """Patches of images, flattened into the depth: [n, h, w, d] -> [n, rows, columns, kh kw d].

    `ksizes`, `strides` and `rates` are [1, along height, along width, 1]. `padding` is VALID, or
    SAME with zero padding.
    """
    x = as_images(images)
    for entries in (ksizes, strides, rates):
        if len(entries) != 4 or entries[0] != 1 or entries[3] != 1 or min(entries) < 1:
            raise ShapeError(
                f"ksizes, strides and rates must be [1, rows, columns, 1], not {list(entries)}",
                line=user_line(),
            )
    if _rank(x, "extract_image_patches") != 4:
        raise ShapeError(
            f"extract_image_patches takes images of rank 4, not shape {shape_text(x.shape)}"
        )
    if padding not in ("SAME", "VALID"):
        raise ShapeError(f"padding {padding!r} is neither 'SAME' nor 'VALID'")
    with get_default_graph().name_scope(name or "ExtractImagePatches"):
        sizes = sizes_of(x)[1:3]
        windows = zip(sizes, ksizes[1:3], strides[1:3], rates[1:3], strict=True)
        down, right = (SlidingAxis.from_window(n, k, s, r, padding) for n, k, s, r in windows)
        x = padded(x, [(0, 0), down.pads, right.pads, (0, 0)])
        places = itertools.product(range(ksizes[1]), range(ksizes[2]))
        parts = [getitem(x, (np.s_[:], down.positions(i), right.positions(j))) for i, j in places]
        return concat(parts, 3)


class SlidingAxis(NamedTuple):
    """A sliding window along one axis; sizes are ints, or scalar tensors."""

    pads: tuple[Any, Any]
    reach: Any  # distance from its first to its last element
    stride: int
    rate: int

    @staticmethod
    def from_window(size: Any, k: int, stride: int, rate: int, padding: str) -> SlidingAxis:
        """A window of `k` elements over an axis of this size."""
        span, pad_size = (k - 1) * rate + 1, 0
        if padding == "SAME":
            reach = _from_0((size + (stride - 1)) // stride * stride - (stride - 1))
            pad_size = _from_0(reach + (span - 1) - size)
        else:
            reach = _from_0((size - span) // stride * stride + 1)
        return SlidingAxis((pad_size // 2, pad_size - pad_size // 2), reach, stride, rate)

    def positions(self, i: int) -> slice:
        """The slice of positions of its element `i` over all window positions."""
        start = i * self.rate
        return np.s_[start : start + self.reach : self.stride]


def _from_0(size: Any) -> Any:
    return maximum(size, 0) if isinstance(size, Tensor) else max(size, 0)


def padded(x: Tensor, pads: Sequence[tuple[Any, Any]], value: float = 0) -> Tensor:
    """`pad` by sizes that may be tensors."""
    is_dynamic = any(isinstance(size, Tensor) for pair in pads for size in pair)
    paddings = stack([stack(list(pair)) for pair in pads]) if is_dynamic else pads
    return pad(x, paddings, constant_values=value)
