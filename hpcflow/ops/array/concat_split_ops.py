"""Concatenation and split: concat, stack, unstack, split, pad, tile."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.dtypes import as_dtype, as_strings, bool_, int64
from hpcflow.graph.graph import (
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
    user_line,
)
from hpcflow.graph.op_registry import op
from hpcflow.graph.operator_overloads import OPERATORS
from hpcflow.graph.static_shape import Shape, Spec, merge_shapes, shape_text
from hpcflow.graph.tensor_shape import Dimension, Sizes, TensorShape
from hpcflow.ops.array.array_ops import (
    checked_sizes,
    constant,
    ensure_shape,
    identity,
    partial_value,
    reshape,
    shape,
    stop_gradient,
)
from hpcflow.ops.array.broadcast_ops import broadcast_to, ones_like, zeros_like
from hpcflow.ops.array.dynamic_axis_ops import flat_around, joined_along, with_axis_replaced
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.slice_ops import getitem, reverse, slice
from hpcflow.ops.math.arithmetic_ops import (
    add,
    cast,
    floordiv,
    less,
    maximum,
    minimum,
    multiply,
    negative,
    subtract,
    where,
)
from hpcflow.ops.shape_inference import (
    Attrs,
    axes_argument,
    first_output,
    has_tensors,
    like,
    make,
    normal_axis,
    one_axis,
    require,
    require_equal,
    require_rank,
    static_axes,
    tensors,
    with_value,
)


def _concat(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("concat", inputs)
    shapes = [s.shape for s in inputs if s.shape is not None]
    if not shapes:
        return [Spec(inputs[0].dtype, None)]
    at = normal_axis(attrs["axis"], len(shapes[0]))
    merged: Shape = None
    for s in shapes:
        merged = merge_shapes(merged, (*s[:at], None, *s[at + 1 :]) if len(s) > at else s)
    assert merged is not None
    lengths = [None if s.shape is None else s.shape[at] for s in inputs]
    total = None if None in lengths else sum(n for n in lengths if n is not None)
    spec = Spec(inputs[0].dtype, (*merged[:at], total, *merged[at + 1 :]))
    return [with_value(spec, lambda *v: np.concatenate(v, at), inputs, moves=True)]


def _concat_back(op: Operation, g: Tensor) -> list[Any]:
    axis = op.attrs["axis"]
    lengths = [None if t.shape is None else t.shape[axis] for t in op.inputs]
    if None not in lengths:
        return list(make("Split", [g], {"axis": axis, "sizes": tuple(lengths)}).outputs)
    dynamic = stack([getitem(shape(t), axis) for t in op.inputs])
    return list(make("Split", [g, dynamic], {"axis": axis, "sizes": tuple(lengths)}).outputs)


def _split(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    lengths, x_shape = attrs["sizes"], inputs[0].shape
    if len(inputs) > 1 and inputs[1].value is not None:
        lengths = tuple(int(v) for v in inputs[1].value)
    if x_shape is None:
        return [Spec(inputs[0].dtype, None) for _ in lengths]
    at = normal_axis(attrs["axis"], len(x_shape))
    lengths = _filled(lengths, x_shape[at])
    fixed = [n for n in lengths if n is not None]
    if x_shape[at] is not None and len(fixed) == len(lengths) and sum(fixed) != x_shape[at]:
        raise ShapeError(
            f"sizes {lengths} do not add up to the size of axis {at} of {shape_text(x_shape)}"
        )
    return [Spec(inputs[0].dtype, (*x_shape[:at], n, *x_shape[at + 1 :])) for n in lengths]


def _filled(lengths: Any, size: int | None) -> tuple[int | None, ...]:
    """The sizes of parts; one of -1 is replaced by the rest of `size`."""
    if lengths.count(-1) > 1 or any(n is not None and n < -1 for n in lengths):
        raise ShapeError(f"sizes {lengths} of a split are negative; one may be -1")
    if -1 not in lengths:
        return tuple(lengths)
    remainder = None
    if size is not None and None not in lengths:
        remainder = size - sum(n for n in lengths if n is not None and n != -1)
    return tuple(remainder if n == -1 else n for n in lengths)


def _split_back(op: Operation, *grads: Tensor | None) -> list[Any]:
    parts = [zeros_like(y) if g is None else g for y, g in zip(op.outputs, grads, strict=True)]
    return [concat(parts, op.attrs["axis"]), *[None] * (len(op.inputs) - 1)]


def _pack(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("stack", inputs)
    merged: Shape = None
    for s in inputs:
        merged = merge_shapes(merged, s.shape)
    if merged is None:
        return [Spec(inputs[0].dtype, None)]
    at = normal_axis(attrs["axis"], len(merged) + 1)
    spec = Spec(inputs[0].dtype, (*merged[:at], len(inputs), *merged[at:]))
    return [with_value(spec, lambda *v: np.stack(v, at), inputs, moves=True)]


def _pack_back(op: Operation, g: Tensor) -> list[Tensor]:
    attrs = {"axis": op.attrs["axis"], "num": len(op.inputs)}
    return list(make("Unpack", [g], attrs).outputs)


def _unpack(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x_shape, num = inputs[0].shape, attrs["num"]
    if x_shape is None:
        return [Spec(inputs[0].dtype, None)] * num
    at = normal_axis(attrs["axis"], len(x_shape))
    merge_shapes((x_shape[at],), (num,))
    spec = Spec(inputs[0].dtype, (*x_shape[:at], *x_shape[at + 1 :]))
    rows = range(num)
    return [with_value(spec, lambda v, i=i: np.take(v, i, at), inputs, moves=True) for i in rows]


def _unpack_back(op: Operation, *grads: Tensor | None) -> list[Tensor]:
    parts = [zeros_like(y) if g is None else g for y, g in zip(op.outputs, grads, strict=True)]
    return [stack(parts, op.attrs["axis"])]


_KERNELS = "concat_split_kernels kernels.llvm_concat_split"
op(
    "Concat",
    infer=_concat,
    grad=_concat_back,
    joins="concat",
    work="move",
    kernels=_KERNELS,
)
op(
    "Split",
    infer=_split,
    grad=_split_back,
    view="strided",
    splits="split",
    work="move",
    kernels=_KERNELS,
)
op(
    "Pack",
    infer=_pack,
    grad=_pack_back,
    joins="stack",
    work="move",
    kernels=_KERNELS,
)
op(
    "Unpack",
    infer=_unpack,
    grad=_unpack_back,
    view="strided",
    splits="unstack",
    work="move",
    kernels=_KERNELS,
)


def concat(values: Sequence[Any], axis: Any, name: str | None = None) -> Tensor:
    """`values` concatenated along `axis`; a single tensor, also a scalar, is returned as it is."""
    values = values if isinstance(values, (list, tuple)) else [values]
    parts, at = tensors(values, "concat"), axes_argument(axis)
    if len(parts) == 1:
        one_axis(axis)
        return identity(parts[0], name)
    if isinstance(at, Tensor):
        return joined_along(parts, at, name)
    return first_output("Concat", parts, {"axis": at}, name)


def stack(values: Sequence[Any], axis: int = 0, name: str | None = None) -> Tensor:
    """`values` of one shape stacked along a new `axis`."""
    return first_output("Pack", tensors(values, "stack"), {"axis": static_axes(axis)}, name)


def _convert(value: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    if isinstance(value, (TensorShape, Sizes, Dimension)):
        return _sizes_constant(value, dtype, name)
    if not has_tensors(value):
        return constant(value, dtype, None, name)
    if dtype is not None:  # requested: others are cast
        parts = [cast(convert_to_tensor(v), dtype) if _is_tensor_like(v) else v for v in value]
        return stack([convert_to_tensor(v, dtype) for v in parts], name=name)
    lead = next((v.dtype for v in value if _is_tensor_like(v)), None)
    return stack([convert_to_tensor(v, lead) for v in value], name=name)


def _sizes_constant(value: Any, dtype: Any, name: str | None) -> Tensor:
    """A static shape or size as a constant of int32 or the requested integer dtype."""
    plain: Any = value.value if isinstance(value, Dimension) else TensorShape(value).plain
    if plain is None or (not isinstance(plain, int) and None in plain):
        kind = "size" if isinstance(value, Dimension) else "shape"
        raise ShapeError(
            f"the static {kind} {value!r} is not fully known and cannot be converted to a tensor",
            line=user_line(),
            hint="use hf.shape(x), the shape at run time",
        )
    out_dtype = np.dtype(np.int32) if dtype is None else as_dtype(dtype)
    if out_dtype.kind not in "iu":
        raise DTypeError(f"a shape is integers, not {out_dtype}", line=user_line())
    return constant(np.array(plain, out_dtype), name=name)


def _is_tensor_like(value: Any) -> bool:
    """Whether the argument is a tensor, or an object that converts to one, such as a variable."""
    return isinstance(value, Tensor) or hasattr(value, "as_tensor")


OPERATORS["constant"] = _convert


def unstack(
    value: Any, num: int | None = None, axis: int = 0, name: str | None = None
) -> list[Tensor]:
    """The slices of `value` along `axis`, without that axis; `num` is their number."""
    x = convert_to_tensor(value)
    if num is None and x.shape is not None:
        num = x.shape[normal_axis(axis, len(x.shape))]
    if num is None:
        raise ShapeError(
            f"unstack of {shape_text(x.shape)} along axis {axis} needs num", op=x.op.name
        )
    return list(make("Unpack", [x], {"axis": static_axes(axis), "num": num}, name).outputs)


@accepts_aliases(split_dim="axis", num_split="num_or_size_splits")
def split(
    value: Any,
    num_or_size_splits: Any,
    axis: Any = 0,
    name: str | None = None,
    num: int | None = None,
) -> list[Tensor]:
    """`value` split along `axis`: into a number of equal parts, or parts of given sizes.

    One size may be -1 (the rest). `num` is the number of parts if sizes are a tensor.
    Errors: ShapeError if the sizes do not add up, at graph construction or at run time.
    """
    x, splits, axis = convert_to_tensor(value), num_or_size_splits, one_axis(axis)
    if isinstance(axis, Tensor):
        return _split_along(x, splits, axis, num, name)
    if has_tensors(splits):
        splits = convert_to_tensor(splits)
    if isinstance(splits, Tensor) and splits.constant is None:
        return _split_as_told(x, splits, axis, num, name)
    parts: Any = static_axes(splits)
    size = None if x.shape is None else x.shape[normal_axis(axis, len(x.shape))]
    if isinstance(parts, int):
        if parts < 1 or (size is not None and size % parts):
            raise ShapeError(
                f"axis {axis} of {shape_text(x.shape)} cannot be split into {parts} equal parts",
                line=user_line(),
            )
        if size is None:
            each = floordiv(getitem(shape(x), axis), parts)
            return _split_as_told(x, stack([each] * parts), axis, parts, name)
        parts = (size // parts,) * parts
    if size is None and -1 in parts:
        return _split_as_told(x, constant(parts), axis, len(parts), name)
    parts = _filled(parts, size)
    return list(make("Split", [x], {"axis": static_axes(axis), "sizes": parts}, name).outputs)


def _split_along(
    x: Tensor, splits: Any, axis: Tensor, num: int | None, name: str | None
) -> list[Tensor]:
    """`split` along an axis known at run time."""
    flat = split(flat_around(x, axis), splits, 1, None, num)
    sizes = [reshape(getitem(shape(part, out_type=int64), 1), [1]) for part in flat]
    names = [name if len(flat) == 1 or not name else f"{name}_{i}" for i, _ in enumerate(flat)]
    return [
        reshape(part, with_axis_replaced(x, axis, size), part_name)
        for part, size, part_name in zip(flat, sizes, names, strict=True)
    ]


def _split_as_told(
    x: Tensor, sizes: Tensor, axis: int, num: int | None, name: str | None
) -> list[Tensor]:
    (count,) = merge_shapes(sizes.shape, (num,)) or (None,)
    if count is None:
        raise ShapeError(
            f"sizes of {shape_text(sizes.shape)} must be a vector of a known length",
            hint="give the number of sizes: split(value, sizes, axis, num=...)",
        )
    attrs = {"axis": static_axes(axis), "sizes": (None,) * count}
    return list(make("Split", [x, sizes], attrs, name).outputs)


# -- pad and tile


def _pad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x_shape, paddings = inputs[0].shape, attrs["paddings"]
    if len(inputs) > 1:
        require("paddings", inputs[1], "iu")
        value = inputs[1].value
        paddings = None if value is None else [(int(a), int(b)) for a, b in value.reshape(-1, 2)]
        if paddings is None:
            flat = inputs[1].shape
            rank = None if flat is None or flat[0] is None else flat[0] // 2
            merge_shapes(x_shape, None if rank is None else (None,) * rank)
            ndim = rank if x_shape is None else len(x_shape)
            return [Spec(inputs[0].dtype, None if ndim is None else (None,) * ndim)]
    if any(a < 0 or b < 0 for a, b in paddings):
        raise ShapeError(f"paddings {list(paddings)} have a negative size")
    if x_shape is None:
        return [Spec(inputs[0].dtype, (None,) * len(paddings))]
    if len(x_shape) != len(paddings):
        raise ShapeError(
            f"paddings have {len(paddings)} pairs, but the tensor has shape {shape_text(x_shape)}"
        )
    pairs = zip(x_shape, paddings, strict=True)
    return [Spec(inputs[0].dtype, tuple(None if d is None else d + a + b for d, (a, b) in pairs))]


def _pad_back(op: Operation, g: Tensor) -> list[Any]:
    if len(op.inputs) > 1:
        before = getitem(reshape(op.inputs[1], [-1, 2]), (builtins.slice(None), 0))
        return [slice(g, before, shape(op.inputs[0])), None]
    key = tuple(("slice", a, -b or None, None) for a, b in op.attrs["paddings"])
    return [first_output("StridedSlice", [g], {"key": key})]


def _tile(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x_shape, times = inputs[0].shape, attrs["multiples"]
    if x_shape is None:
        return [Spec(inputs[0].dtype, tuple(None if n else 0 for n in times))]
    if len(x_shape) != len(times):
        raise ShapeError(
            f"tile has {len(times)} multiples, but the tensor has shape {shape_text(x_shape)}"
        )
    pairs = zip(x_shape, times, strict=True)
    return [Spec(inputs[0].dtype, tuple(_times(d, n) for d, n in pairs))]


def _times(size: int | None, n: int) -> int | None:
    return size * n if size is not None else None if n else 0


def _tile_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    target, grad_shape = attrs["shape"], inputs[0].shape
    if grad_shape is not None:
        pairs = zip(grad_shape, attrs["multiples"], strict=True)
        target = merge_shapes(
            target, tuple(None if d is None or n == 0 else d // n for d, n in pairs)
        )
    return [Spec(inputs[0].dtype, target)]


def _tile_back(op: Operation, g: Tensor) -> list[Tensor]:
    if 0 in op.attrs["multiples"]:
        return [zeros_like(op.inputs[0])]
    return [first_output("TileGrad", [g], {**op.attrs, "shape": op.inputs[0].shape})]


def _tile_grad_back(op: Operation, gg: Tensor) -> list[Tensor]:
    return [tile(gg, op.attrs["multiples"])]


op("Pad", infer=_pad, grad=_pad_back, work="move")
op("Tile", infer=_tile, grad=_tile_back, work="move")
op("TileGrad", infer=_tile_grad, grad=_tile_grad_back)


def pad(
    tensor: Any,
    paddings: Any,
    mode: str = "CONSTANT",
    name: str | None = None,
    constant_values: Any = 0,
) -> Tensor:
    """`tensor` padded with `paddings[i] = (before, after)` elements along axis i.

    Modes: CONSTANT pads with `constant_values`, REFLECT mirrors without the edge elements,
           SYMMETRIC mirrors with them, EDGE repeats them.
    Errors: ShapeError for negative paddings, or paddings longer than the mirrored part.
    """
    x, mode = convert_to_tensor(tensor), mode.upper()
    if isinstance(constant_values, Tensor) or hasattr(constant_values, "as_tensor"):
        inside = pad(ones_like(x, dtype=bool_), paddings, mode)
        outside = stop_gradient(like(constant_values, x))
        return where(inside, pad(x, paddings, mode), outside, name)
    if mode != "CONSTANT" and mode not in _MIRRORS:
        modes = ", ".join(("CONSTANT", *_MIRRORS))
        raise ShapeError(f"pad mode {mode!r} is not known", hint=f"use one of {modes}")
    pads = convert_to_tensor(paddings) if has_tensors(paddings) else paddings
    if isinstance(pads, Tensor) and pads.constant is None:
        if pads.shape is not None and (len(pads.shape) != 2 or pads.shape[1] not in (2, None)):
            raise ShapeError(f"paddings have shape {shape_text(pads.shape)}, not [rank, 2]")
        if mode != "CONSTANT":
            return _mirrored_as_told(x, pads, mode, name)
        attrs = {"paddings": None, "value": _plain(constant_values, x)}
        padded = first_output("Pad", [x, reshape(pads, [-1])], attrs, name)
        padded.set_shape(_padded_in_part(x, pads))
        return padded
    listed = np.asarray(pads.constant if isinstance(pads, Tensor) else pads).reshape(-1, 2)
    pairs = tuple((int(a), int(b)) for a, b in listed)
    if mode == "CONSTANT":
        value = _plain(constant_values, x)
        return first_output("Pad", [x], {"paddings": pairs, "value": value}, name)
    return _mirrored(x, pairs, mode, name)


def _plain(value: Any, x: Tensor) -> Any:
    """The padding value for the dtype of `x`; for strings bytes, empty for 0."""
    return as_strings(value or b"").item() if x.dtype.kind == "O" else value


def _padded_in_part(x: Tensor, paddings: Tensor) -> Shape:
    """The partial shape if only some paddings, a stack of pairs, are known."""
    rows = paddings.op.inputs if paddings.op.type == "Pack" else ()
    if x.shape is None or len(rows) != len(x.shape):
        return None
    pairs = [partial_value(row) or (None, None) for row in rows]
    return tuple(
        None if d is None or None in pair else d + sum(n for n in pair if n is not None)
        for d, pair in zip(x.shape, pairs, strict=True)
    )


_MIRRORS = {"REFLECT": 1, "SYMMETRIC": 0, "EDGE": 0}  # mode -> edge elements not mirrored


def _mirrored(x: Tensor, pairs: Any, mode: str, name: str | None) -> Tensor:
    if any(a < 0 or b < 0 for a, b in pairs):
        raise ShapeError(f"paddings {list(pairs)} have a negative size", line=user_line())
    if x.shape is not None and len(x.shape) != len(pairs):
        raise ShapeError(
            f"paddings have {len(pairs)} pairs, but the tensor has shape {shape_text(x.shape)}"
        )
    with get_default_graph().name_scope(name or "MirrorPad"):
        for axis, pair in enumerate(pairs):
            if pair != (0, 0):
                x = concat(_ends(x, axis, len(pairs), pair, mode), axis)
    return x


def _mirrored_as_told(x: Tensor, paddings: Tensor, mode: str, name: str | None) -> Tensor:
    """`x` mirrored at its ends by paddings known at run time.

    Errors: RangeError at run time if `x` has too few elements.
    """
    lead = None if paddings.shape is None else paddings.shape[:1]
    (count,) = merge_shapes(lead, None if x.shape is None else (len(x.shape),)) or (None,)
    if count is None:
        raise ShapeError(
            f"pad with mode {mode} needs a tensor or paddings of known rank",
            line=user_line(),
            hint="set the rank with x.set_shape or paddings.set_shape",
        )
    pairs, x = checked_sizes(cast(paddings, int64), "a padding"), ensure_shape(x, [None] * count)
    for axis in builtins.range(count):
        size = getitem(shape(x, out_type=int64), axis)
        before, after = getitem(pairs, (axis, 0)), getitem(pairs, (axis, 1))
        at = first_output("Range", [negative(before), add(size, after), constant(1, int64)])
        skip = _MIRRORS[mode]
        if mode == "EDGE":
            at = minimum(maximum(at, 0), subtract(size, 1))
        else:  # gather raises for a position outside
            above = subtract(multiply(subtract(size, 1), 2), subtract(at, 1 - skip))
            at = where(less(at, 0), subtract(-1 + skip, at), where(less(at, size), at, above))
        x = gather(x, at, axis=axis)
    return identity(x, name)


def _ends(x: Tensor, axis: int, rank: int, pair: tuple[int, int], mode: str) -> list[Tensor]:
    """`x` between its paddings along `axis`."""
    size = None if x.shape is None else x.shape[axis]
    skip = _MIRRORS[mode]
    most = 1 if mode == "EDGE" else max(pair) + skip
    if size is not None and size < most:
        raise ShapeError(
            f"paddings {pair} of axis {axis} of {shape_text(x.shape)}: mode {mode} needs a size of "
            f"{most} or more",
            line=user_line(),
        )
    parts = [x]
    for before, n in ((True, pair[0]), (False, pair[1])):
        if not n:
            continue
        count = 1 if mode == "EDGE" else n
        part = _end(x, axis, rank, skip, count, before)
        if mode == "EDGE":
            part = tile(part, [n if i == axis else 1 for i in range(rank)])
        else:
            part = reverse(part, [axis])
        parts = [part, *parts] if before else [*parts, part]
    return parts


def _end(x: Tensor, axis: int, rank: int, skip: int, n: int, before: bool) -> Tensor:
    """`n` elements at the start or end of `axis`, after skipping `skip` elements.

    It uses `slice`, which raises at run time if there are too few.
    """
    sizes = [n if i == axis else -1 for i in range(rank)]
    if before:
        return slice(x, [skip if i == axis else 0 for i in range(rank)], sizes)
    if x.shape is not None and (size := x.shape[axis]) is not None:
        start: Any = size - skip - n
    else:
        start = subtract(getitem(shape(x), axis), skip + n)
    return slice(x, stack([start if i == axis else 0 for i in range(rank)]), sizes)


def _tiled(x: Tensor, times: Tensor, name: str | None) -> Tensor:
    """`tile` for unknown rank."""
    sizes = shape(x, out_type=times.dtype)
    once = reshape(x, reshape(stack([ones_like(sizes), sizes], 1), [-1]))
    many = broadcast_to(once, reshape(stack([times, sizes], 1), [-1]))
    return reshape(many, multiply(times, sizes), name)


def tile(input: Any, multiples: Any, name: str | None = None) -> Tensor:
    """`input` repeated `multiples[i]` times along axis i; `multiples` has a known length."""
    x = convert_to_tensor(input)
    factors = convert_to_tensor(multiples) if has_tensors(multiples) else multiples
    if not isinstance(factors, Tensor) or factors.constant is not None:
        return first_output("Tile", [x], {"multiples": static_axes(factors)}, name)
    require_rank("multiples", factors.spec, 1)
    (rank,) = merge_shapes(factors.shape, None if x.shape is None else (len(x.shape),)) or (None,)
    if rank is None:
        return _tiled(x, factors, name)
    sizes = unstack(shape(x, out_type=factors.dtype), rank)
    times = unstack(factors, rank)
    flat = [n for pair in zip(times, sizes, strict=True) for n in pair]
    once = reshape(x, stack([n for size in sizes for n in (1, size)])) if rank else x
    out_sizes = [multiply(size, n) for size, n in zip(sizes, times, strict=True)]
    if not rank:
        return ensure_shape(x, [], name)
    tiled = reshape(broadcast_to(once, stack(flat)), stack(out_sizes), name)
    tiled.set_shape([0 if d == 0 else None for d in x.shape or (None,) * rank])
    return tiled
