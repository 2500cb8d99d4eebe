"""Tensors of tensors and back: concat, split, stack, unstack, pad, tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.graph import OPERATORS, Operation, Tensor, convert_to_tensor
from hpcflow.graph.registry import op
from hpcflow.graph.shape import Shape, Spec, merge, show
from hpcflow.ops.array import constant, shape
from hpcflow.ops.broadcast import zeros_like
from hpcflow.ops.rules import (
    Attrs,
    has_tensors,
    make,
    normal_axis,
    one,
    require_equal,
    static_axes,
    tensors,
    with_value,
)
from hpcflow.ops.slicing import getitem


def _concat(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("concat", inputs)
    known = [s.shape for s in inputs if s.shape is not None]
    if not known:
        return [Spec(inputs[0].dtype, None)]
    at = normal_axis(attrs["axis"], len(known[0]))
    rest: Shape = None
    for s in known:
        rest = merge(rest, (*s[:at], None, *s[at + 1 :]) if len(s) > at else s)
    assert rest is not None
    lengths = [None if s.shape is None else s.shape[at] for s in inputs]
    total = None if None in lengths else sum(n for n in lengths if n is not None)
    spec = Spec(inputs[0].dtype, (*rest[:at], total, *rest[at + 1 :]))
    return [with_value(spec, lambda *v: np.concatenate(v, at), inputs)]


def _concat_back(op: Operation, g: Tensor) -> list[Any]:
    axis = op.attrs["axis"]
    lengths = [None if t.shape is None else t.shape[axis] for t in op.inputs]
    if None not in lengths:
        return list(make("Split", [g], {"axis": axis, "sizes": tuple(lengths)}).outputs)
    told = stack([getitem(shape(t), axis) for t in op.inputs])
    return list(make("Split", [g, told], {"axis": axis, "sizes": tuple(lengths)}).outputs)


def _split(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    lengths, given = attrs["sizes"], inputs[0].shape
    if len(inputs) > 1 and inputs[1].value is not None:
        lengths = tuple(int(v) for v in inputs[1].value)
    if given is None:
        return [Spec(inputs[0].dtype, None) for _ in lengths]
    at = normal_axis(attrs["axis"], len(given))
    if given[at] is not None and None not in lengths and sum(lengths) != given[at]:
        raise ShapeError(f"sizes {lengths} do not add up to axis {at} of {show(given)}")
    return [Spec(inputs[0].dtype, (*given[:at], n, *given[at + 1 :])) for n in lengths]


def _split_back(op: Operation, *grads: Tensor | None) -> list[Any]:
    parts = [zeros_like(y) if g is None else g for y, g in zip(op.outputs, grads, strict=True)]
    return [concat(parts, op.attrs["axis"]), *[None] * (len(op.inputs) - 1)]


def _pack(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("stack", inputs)
    given: Shape = None
    for s in inputs:
        given = merge(given, s.shape)
    if given is None:
        return [Spec(inputs[0].dtype, None)]
    at = normal_axis(attrs["axis"], len(given) + 1)
    spec = Spec(inputs[0].dtype, (*given[:at], len(inputs), *given[at:]))
    return [with_value(spec, lambda *v: np.stack(v, at), inputs)]


def _pack_back(op: Operation, g: Tensor) -> list[Tensor]:
    attrs = {"axis": op.attrs["axis"], "num": len(op.inputs)}
    return list(make("Unpack", [g], attrs).outputs)


def _unpack(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    given, num = inputs[0].shape, attrs["num"]
    if given is None:
        return [Spec(inputs[0].dtype, None)] * num
    at = normal_axis(attrs["axis"], len(given))
    merge((given[at],), (num,))
    spec = Spec(inputs[0].dtype, (*given[:at], *given[at + 1 :]))
    rows = range(num)
    return [with_value(spec, lambda v, i=i: np.take(v, i, at), inputs) for i in rows]


def _unpack_back(op: Operation, *grads: Tensor | None) -> list[Tensor]:
    parts = [zeros_like(y) if g is None else g for y, g in zip(op.outputs, grads, strict=True)]
    return [stack(parts, op.attrs["axis"])]


op("Concat", infer=_concat, grad=_concat_back)
op("Split", infer=_split, grad=_split_back)
op("Pack", infer=_pack, grad=_pack_back)
op("Unpack", infer=_unpack, grad=_unpack_back)


def concat(values: Sequence[Any], axis: int, name: str | None = None) -> Tensor:
    """`values`, one after the other along `axis`."""
    return one("Concat", tensors(values, "concat"), {"axis": static_axes(axis)}, name)


def stack(values: Sequence[Any], axis: int = 0, name: str | None = None) -> Tensor:
    """`values`, all of one shape, side by side along a new `axis`."""
    return one("Pack", tensors(values, "stack"), {"axis": static_axes(axis)}, name)


def _convert(value: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    if not has_tensors(value):
        return constant(value, dtype, None, name)
    lead = next((v for v in value if isinstance(v, Tensor) or hasattr(v, "as_tensor")), None)
    if dtype is None and lead is not None:
        dtype = lead.dtype
    parts = [convert_to_tensor(v, dtype) for v in value]
    return stack(parts, name=name)


OPERATORS["constant"] = _convert


def unstack(
    value: Any, num: int | None = None, axis: int = 0, name: str | None = None
) -> list[Tensor]:
    """The slices of `value` along `axis`, without that axis; `num` of them."""
    x = convert_to_tensor(value)
    if num is None and x.shape is not None:
        num = x.shape[normal_axis(axis, len(x.shape))]
    if num is None:
        raise ShapeError(f"unstack of {show(x.shape)} along axis {axis} needs num", op=x.op.name)
    return list(make("Unpack", [x], {"axis": static_axes(axis), "num": num}, name).outputs)


def split(
    value: Any, num_or_size_splits: Any, axis: int = 0, name: str | None = None
) -> list[Tensor]:
    """`value` in parts along `axis`: a number of equal ones, or the sizes given.

    Errors: ShapeError if the parts do not fill the axis, which must be known for equal parts.
    """
    x, parts = convert_to_tensor(value), static_axes(num_or_size_splits)
    if isinstance(parts, int):
        size = None if x.shape is None else x.shape[normal_axis(axis, len(x.shape))]
        if size is None or size % parts:
            raise ShapeError(f"axis {axis} of {show(x.shape)} has no {parts} equal parts")
        parts = (size // parts,) * parts
    return list(make("Split", [x], {"axis": static_axes(axis), "sizes": parts}, name).outputs)


# -- pad and tile


def _pad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    given, paddings = inputs[0].shape, attrs["paddings"]
    if given is None:
        return [Spec(inputs[0].dtype, (None,) * len(paddings))]
    if len(given) != len(paddings):
        raise ShapeError(f"{len(paddings)} pairs of paddings for a tensor of shape {show(given)}")
    pairs = zip(given, paddings, strict=True)
    return [Spec(inputs[0].dtype, tuple(None if d is None else d + a + b for d, (a, b) in pairs))]


def _pad_back(op: Operation, g: Tensor) -> list[Tensor]:
    key = tuple(("slice", a, -b or None, None) for a, b in op.attrs["paddings"])
    return [one("StridedSlice", [g], {"key": key})]


def _tile(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    given, times = inputs[0].shape, attrs["multiples"]
    if given is None:
        return [Spec(inputs[0].dtype, (None,) * len(times))]
    if len(given) != len(times):
        raise ShapeError(f"{len(times)} multiples for a tensor of shape {show(given)}")
    pairs = zip(given, times, strict=True)
    return [Spec(inputs[0].dtype, tuple(None if d is None else d * n for d, n in pairs))]


def _tile_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    known, told = attrs["shape"], inputs[0].shape
    if told is not None:
        pairs = zip(told, attrs["multiples"], strict=True)
        known = merge(known, tuple(None if d is None or n == 0 else d // n for d, n in pairs))
    return [Spec(inputs[0].dtype, known)]


def _tile_back(op: Operation, g: Tensor) -> list[Tensor]:
    if 0 in op.attrs["multiples"]:
        return [zeros_like(op.inputs[0])]
    return [one("TileGrad", [g], {**op.attrs, "shape": op.inputs[0].shape})]


def _tile_grad_back(op: Operation, gg: Tensor) -> list[Tensor]:
    return [tile(gg, op.attrs["multiples"])]


op("Pad", infer=_pad, grad=_pad_back)
op("Tile", infer=_tile, grad=_tile_back)
op("TileGrad", infer=_tile_grad, grad=_tile_grad_back)


def pad(
    tensor: Any,
    paddings: Any,
    mode: str = "CONSTANT",
    name: str | None = None,
    constant_values: float = 0,
) -> Tensor:
    """`tensor` with `paddings[i] = (before, after)` elements of `constant_values` along axis i."""
    if mode.upper() != "CONSTANT":
        raise ShapeError(f"pad mode {mode!r} is not known", hint="'CONSTANT' is")
    pairs = tuple((int(a), int(b)) for a, b in np.asarray(paddings).reshape(-1, 2))
    if any(a < 0 or b < 0 for a, b in pairs):
        raise ShapeError(f"paddings {pairs} has a negative size")
    attrs = {"paddings": pairs, "value": constant_values}
    return one("Pad", [convert_to_tensor(tensor)], attrs, name)


def tile(input: Any, multiples: Sequence[int], name: str | None = None) -> Tensor:
    """`input` repeated `multiples[i]` times along axis i."""
    times = static_axes(multiples)
    return one("Tile", [convert_to_tensor(input)], {"multiples": times}, name)
