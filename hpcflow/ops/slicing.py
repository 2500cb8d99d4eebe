"""Parts of tensors: `x[...]`, slice, gather; and one_hot."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ShapeError
from hpcflow.graph.dtypes import as_dtype, float32, int32
from hpcflow.graph.graph import OPERATORS, Operation, Tensor, convert_to_tensor
from hpcflow.graph.registry import NoGrad, op
from hpcflow.graph.shape import Shape, Spec, merge, show
from hpcflow.ops.array import shape_argument, sizes
from hpcflow.ops.indexed_slices import slices_of
from hpcflow.ops.rules import (
    Attrs,
    normal_axis,
    one,
    require,
    require_rank,
    static_axes,
    told_shape,
    with_value,
)

# -- x[...]: the key is kept as plain data
#    an int i is ("at", i); a slice is ("slice", start, stop, step); ... is ("rest",); None ("new",)

Key = tuple[tuple[Any, ...], ...]


def plain_key(key: Any) -> Key:
    """An index expression as plain data; ShapeError if it has something else than basic indices."""
    parts = key if isinstance(key, tuple) else (key,)
    found: list[tuple[Any, ...]] = []
    for part in parts:
        if part is Ellipsis:
            found.append(("rest",))
        elif part is None:
            found.append(("new",))
        elif isinstance(part, builtins.slice):
            limits = [_plain_int(v) for v in (part.start, part.stop, part.step)]
            if limits[2] == 0:
                raise ShapeError("a slice cannot have step 0")
            found.append(("slice", *limits))
        else:
            found.append(("at", _plain_int(part, part)))
    if found.count(("rest",)) > 1:
        raise ShapeError("an index can have one '...' only")
    return tuple(found)


def _plain_int(value: Any, part: Any = None) -> int | None:
    if isinstance(value, Tensor) and value.constant is not None and value.shape == ():
        value = value.constant.item()
    if value is None or (isinstance(value, (int, np.integer)) and not isinstance(value, bool)):
        return None if value is None else int(value)
    raise ShapeError(
        f"{value!r} cannot index a tensor",
        hint="use ints, slices of ints, ..., None; hf.gather and hf.slice take tensors",
    )


def index_of(key: Key) -> tuple[Any, ...]:
    """The index expression again, for NumPy."""
    kinds: dict[str, Any] = {"rest": lambda: Ellipsis, "new": lambda: None}
    kinds.update(at=lambda i: i, slice=builtins.slice)
    return tuple(kinds[part[0]](*part[1:]) for part in key)


def _sliced(given: tuple[int | None, ...], key: Key) -> Shape:
    """The shape of x[key]."""
    used = sum(part[0] in ("at", "slice") for part in key)
    if used > len(given):
        raise ShapeError(f"{used} indices for a tensor of shape {show(given)}")
    if ("rest",) not in key:
        key = (*key, ("rest",))
    out: list[int | None] = []
    at = 0
    for part in key:
        if part[0] == "new":
            out.append(1)
        elif part[0] == "rest":
            out.extend(given[at : at + len(given) - used])
            at += len(given) - used
        else:
            size = given[at]
            if part[0] == "slice":
                out.append(_slice_size(size, *part[1:]))
            elif size is not None and not -size <= part[1] < size:
                raise ShapeError(f"index {part[1]} is out of range for axis {at} of {show(given)}")
            at += 1
    return tuple(out)


def _slice_size(size: int | None, start: Any, stop: Any, step: Any) -> int | None:
    if size is not None:
        return len(builtins.range(*builtins.slice(start, stop, step).indices(size)))
    return 0 if stop == 0 and step in (None, 1) else None


def _strided(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    given, key = inputs[0].shape, attrs["key"]
    spec = Spec(inputs[0].dtype, None if given is None else _sliced(given, key))
    return [with_value(spec, lambda x: x[index_of(key)], inputs)]


def _strided_back(op: Operation, g: Tensor) -> list[Tensor]:
    known, told = shape_argument(sizes(op.inputs[0]))
    return [one("StridedSliceGrad", [g, *told], {"key": op.attrs["key"], "shape": known})]


def _strided_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(inputs[0].dtype, told_shape(inputs, 1, attrs))]


def _strided_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    grad = one("StridedSlice", [gg], {"key": op.attrs["key"]})
    return [grad, *[None] * (len(op.inputs) - 1)]


op("StridedSlice", infer=_strided, grad=_strided_back)
op("StridedSliceGrad", infer=_strided_grad, grad=_strided_grad_back)


def getitem(x: Tensor, key: Any) -> Tensor:
    """`x[key]` with ints, slices, `...` and None; one scalar tensor alone gathers along axis 0."""
    if isinstance(key, Tensor) and key.constant is None:
        return gather(x, key)
    return one("StridedSlice", [x], {"key": plain_key(key)})


OPERATORS["getitem"] = getitem


# -- slice: begin and size may be tensors


def _slice(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    x, begin, length = inputs
    for s in (begin, length):
        require("slice's begin and size", s, "iu")
        require_rank("slice's begin and size", s, 1)
    if x.shape is None:
        return [Spec(x.dtype, None)]
    merge((len(x.shape),), merge(begin.shape, length.shape))
    found = attrs["size"] if length.value is None else tuple(int(v) for v in length.value)
    starts = (None,) * len(x.shape) if begin.value is None else tuple(map(int, begin.value))
    out: list[int | None] = []
    for size, start, n in zip(x.shape, starts, found or (None,) * len(x.shape), strict=True):
        if n == -1:
            n = None if size is None or start is None else size - start
        inside = size is None or start is None or n is None or 0 <= start <= start + n <= size
        if not inside:
            raise ShapeError(f"a slice of {n} from {start} is outside {show(x.shape)}")
        out.append(n)
    return [Spec(x.dtype, tuple(out))]


def _slice_back(op: Operation, g: Tensor) -> list[Any]:
    x, begin, _ = op.inputs
    known, told = shape_argument(sizes(x))
    told = told or [convert_to_tensor(np.array(known, int32))]
    return [one("SliceGrad", [g, begin, *told], {"shape": known}), None, None]


def _slice_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(inputs[0].dtype, told_shape(inputs, 2, attrs))]


def _slice_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    return [slice(gg, op.inputs[1], sizes(op.inputs[0])), None, None]


op("Slice", infer=_slice, grad=_slice_back)
op("SliceGrad", infer=_slice_grad, grad=_slice_grad_back)


def slice(input_: Any, begin: Any, size: Any, name: str | None = None) -> Tensor:
    """`size` elements from `begin` along each axis; size -1 means to the end."""
    x = convert_to_tensor(input_)
    starts, begin_told = shape_argument(begin)
    lengths, size_told = shape_argument(size)
    if not begin_told and not size_told and starts is not None and lengths is not None:
        if len(starts) != len(lengths):
            raise ShapeError(f"begin {starts} and size {lengths} are of different lengths")
        if x.shape is not None:
            static = [Spec(np.dtype(int32), (len(v),), np.array(v)) for v in (starts, lengths)]
            _slice([x.spec, *static], {})
        pairs = zip(starts, lengths, strict=True)
        key = tuple(("slice", b, None if n == -1 else (b or 0) + (n or 0), None) for b, n in pairs)
        return one("StridedSlice", [x], {"key": key}, name)
    inputs = [
        x,
        *(
            t[0] if t else convert_to_tensor(list(v or ()))
            for v, t in ((starts, begin_told), (lengths, size_told))
        ),
    ]
    return one("Slice", inputs, {"size": lengths}, name)


# -- gather and one_hot


def _gather(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    params, indices = inputs
    require("gather's indices", indices, "iu")
    if params.shape is None or indices.shape is None:
        return [Spec(params.dtype, None)]
    at = normal_axis(attrs["axis"], len(params.shape))
    spec = Spec(params.dtype, (*params.shape[:at], *indices.shape, *params.shape[at + 1 :]))
    return [with_value(spec, lambda p, i: np.take(p, i, at, mode="clip"), inputs)]


def _gather_back(op: Operation, g: Tensor) -> list[Any]:
    params, indices = op.inputs
    if op.attrs["axis"] == 0 and (rows := slices_of(params, indices, g)) is not None:
        return [rows, None]
    known, told = shape_argument(sizes(params))
    attrs = {"axis": op.attrs["axis"], "shape": known}
    return [one("GatherGrad", [g, indices, *told], attrs), None]


def _gather_grad(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(inputs[0].dtype, told_shape(inputs, 2, attrs))]


def _gather_grad_back(op: Operation, gg: Tensor) -> list[Any]:
    grad = gather(gg, op.inputs[1], axis=op.attrs["axis"])
    return [grad, *[None] * (len(op.inputs) - 1)]


def _one_hot(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("one_hot's indices", inputs[0], "iu")
    given, dtype = inputs[0].shape, attrs["dtype"]
    if given is None:
        return [Spec(dtype, None)]
    at = normal_axis(attrs["axis"], len(given) + 1)
    return [Spec(dtype, (*given[:at], attrs["depth"], *given[at:]))]


op("Gather", infer=_gather, grad=_gather_back)
op("GatherGrad", infer=_gather_grad, grad=_gather_grad_back)
op("OneHot", infer=_one_hot, grad=NoGrad("its input is integers"))


def gather(
    params: Any,
    indices: Any,
    validate_indices: None = None,
    name: str | None = None,
    axis: int = 0,
) -> Tensor:
    """The slices of `params` along `axis` that `indices` name; along axis 0 the gradient is rows.

    Shapes: params.shape[:axis] + indices.shape + params.shape[axis + 1:].
    Of a variable only these rows are read, where it lives (`Variable.sparse_read`).
    Errors: an index outside [0, size) raises RangeError when it runs.
    """
    if axis == 0 and hasattr(params, "sparse_read"):
        rows: Tensor = params.sparse_read(indices, name)
        return rows
    inputs = [convert_to_tensor(params), convert_to_tensor(indices)]
    return one("Gather", inputs, {"axis": static_axes(axis)}, name)


def one_hot(
    indices: Any,
    depth: int,
    on_value: float = 1,
    off_value: float = 0,
    axis: int = -1,
    dtype: Any = float32,
    name: str | None = None,
) -> Tensor:
    """`on_value` where each index points along a new `axis` of size `depth`, else `off_value`.

    An index outside [0, depth) gives `off_value` everywhere.
    """
    attrs: Attrs = {"depth": static_axes(depth), "axis": axis, "dtype": as_dtype(dtype)}
    attrs.update(on_value=on_value, off_value=off_value)
    return one("OneHot", [convert_to_tensor(indices)], attrs, name)
