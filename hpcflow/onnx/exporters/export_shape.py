"""ONNX export of shape operations, slicing, concatenation and indexing."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.dtypes import bool_, int64
from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, rank_of, refused

END = int(np.iinfo(np.int64).max)


def _sizes(to: Emitter, op: Operation, at: int) -> Any:
    """The shape argument of an operation: its attribute, or its input `at`."""
    known = op.attrs.get("shape")
    if known is not None and None not in known:
        return to.ints(list(known))
    return to.cast(op.inputs[at], int64)


@exports("Reshape")
def _reshape(to: Emitter, op: Operation) -> Any:
    known = op.attrs["shape"]
    zeros = known is not None and 0 in known and -1 not in known
    allow = 1 if zeros else None  # a size 0 means 0, not a copy of the input's size
    return to.node("Reshape", op.inputs[0], _sizes(to, op, 1), allowzero=allow)


@exports("ExpandDims")
def _expand_dims(to: Emitter, op: Operation) -> Any:
    return to.node("Unsqueeze", op.inputs[0], to.ints([op.attrs["axis"]]))


@exports("Squeeze")
def _squeeze(to: Emitter, op: Operation) -> Any:
    axis = op.attrs["axis"]
    axes = [] if axis is None else [to.ints([axis] if isinstance(axis, int) else list(axis))]
    return to.node("Squeeze", op.inputs[0], *axes)


@exports("Transpose")
def _transpose(to: Emitter, op: Operation) -> Any:
    perm = op.attrs["perm"]
    return to.node("Transpose", op.inputs[0], perm=None if perm is None else list(perm))


@exports("Shape", "Size")
def _shape(to: Emitter, op: Operation) -> Any:
    made = to.node(op.type, op.inputs[0])
    return made if op.outputs[0].dtype == int64 else to.cast(made, op.outputs[0].dtype)


@exports("Rank")
def _rank(to: Emitter, op: Operation) -> Any:
    made = to.node("Size", to.node("Shape", op.inputs[0]))
    return to.cast(made, op.outputs[0].dtype)


# -- filling


@exports("Fill")
def _fill(to: Emitter, op: Operation) -> Any:
    if "value" in op.attrs:
        value: Any = to.constant(np.asarray(op.attrs["value"], op.outputs[0].dtype))
        return to.node("Expand", value, _sizes(to, op, 0))
    return to.node("Expand", op.inputs[0], _sizes(to, op, 1))


@exports("ZerosLike", "OnesLike")
def _like(to: Emitter, op: Operation) -> Any:
    value = to.constant(np.asarray(op.type == "OnesLike", op.outputs[0].dtype))
    return to.node("Expand", value, to.node("Shape", op.inputs[0]))


@exports("BroadcastTo")
def _broadcast_to(to: Emitter, op: Operation) -> Any:
    return to.node("Expand", op.inputs[0], _sizes(to, op, 1))


@exports("Range")
def _range(to: Emitter, op: Operation) -> Any:
    return to.node("Range", *op.inputs)


# -- concatenation and slicing


@exports("Concat")
def _concat(to: Emitter, op: Operation) -> Any:
    return to.node("Concat", *op.inputs, axis=op.attrs["axis"])


@exports("Pack")
def _pack(to: Emitter, op: Operation) -> Any:
    axis = to.ints([op.attrs["axis"]])
    parts = [to.node("Unsqueeze", t, axis) for t in op.inputs]
    return to.node("Concat", *parts, axis=op.attrs["axis"])


@exports("Unpack")
def _unpack(to: Emitter, op: Operation) -> list[Any]:
    axis, count = op.attrs["axis"], len(op.outputs)
    parts = [op.inputs[0]]
    if count > 1:
        parts = to.node("Split", op.inputs[0], to.ints([1] * count), outputs=count, axis=axis)
    return [to.node("Squeeze", part, to.ints([axis])) for part in parts]


@exports("Split")
def _split(to: Emitter, op: Operation) -> Any:
    sizes = op.attrs["sizes"]
    told = to.cast(op.inputs[1], int64) if None in sizes else to.ints(list(sizes))
    if len(sizes) == 1:
        return to.node("Identity", op.inputs[0])
    return to.node("Split", op.inputs[0], told, outputs=len(sizes), axis=op.attrs["axis"])


@exports("Tile")
def _tile(to: Emitter, op: Operation) -> Any:
    if "multiples" not in op.attrs or op.attrs["multiples"] is None:
        return to.node("Tile", op.inputs[0], to.cast(op.inputs[1], int64))
    return to.node("Tile", op.inputs[0], to.ints(list(op.attrs["multiples"])))


@exports("Pad")
def _pad(to: Emitter, op: Operation) -> Any:
    pairs, value = op.attrs["paddings"], to.number(op.attrs["value"], op.inputs[0])
    if pairs is None:  # ONNX lists all pads before, then all pads after
        table = to.node("Reshape", to.cast(op.inputs[1], int64), to.ints([-1, 2]))
        ends = to.node("Reshape", to.node("Transpose", table, perm=[1, 0]), to.ints([-1]))
        return to.node("Pad", op.inputs[0], ends, value)
    if not any(a or b for a, b in pairs):
        return to.node("Identity", op.inputs[0])
    pads = to.ints([p[0] for p in pairs] + [p[1] for p in pairs])
    return to.node("Pad", op.inputs[0], pads, value)


@exports("StridedSlice")
def _strided_slice(to: Emitter, op: Operation) -> Any:
    """Emit Slice, then Squeeze for integer indices, then Unsqueeze for new axes."""
    x: Any = op.inputs[0]
    key = op.attrs["key"]
    rest = rank_of(x) - sum(part[0] in ("at", "slice") for part in key)
    cuts: list[tuple[Any, Any, int, Any]] = []
    gone, new = [], []
    axis = out = 0
    for part in key if ("rest",) in key else (*key, ("rest",)):
        if part[0] == "new":
            new.append(out)
            out += 1
        elif part[0] == "rest":
            axis, out = axis + rest, out + rest
        elif part[0] == "at":
            cuts.append((part[1], _slice_end(to, op, part[1]), axis, 1))
            gone.append(axis)
            axis += 1
        else:
            limits = _limits(op, *part[1:])
            if limits != (0, END, 1):
                cuts.append((*limits[:2], axis, limits[2]))
            axis, out = axis + 1, out + 1
    if cuts:
        columns = zip(*cuts, strict=True)
        x = to.node("Slice", x, *(_vector(to, op, column) for column in columns))
    if gone:
        x = to.node("Squeeze", x, to.ints(gone))
    if new:
        x = to.node("Unsqueeze", x, to.ints(new))
    return x if isinstance(x, str) else to.node("Identity", x)


def _slice_end(to: Emitter, op: Operation, at: Any) -> Any:
    """The end of a slice of the single element `at`."""
    if isinstance(at, int):
        return at + 1 if at != -1 else END
    index = _scalar(to, op, at)
    after = to.node("Add", index, to.ints([1]))
    return to.node("Where", to.node("Equal", after, to.ints([0])), to.ints([END]), after)


def _limits(op: Operation, start: Any, stop: Any, step: Any) -> tuple[Any, Any, Any]:
    """The bounds of a slice, with explicit numbers for omitted ones."""
    if step is not None and not isinstance(step, int):
        raise refused(op, "the step of a slice is not known")
    step = 1 if step is None else step
    first = (0 if step > 0 else END) if start is None else start
    last = (END if step > 0 else -END) if stop is None else stop
    return first, last, step


def _scalar(to: Emitter, op: Operation, entry: Any) -> Any:
    """The scalar input that an index entry refers to, as a vector of one element."""
    return to.node("Reshape", to.cast(op.inputs[1 + entry[1]], int64), to.ints([1]))


def _vector(to: Emitter, op: Operation, entries: Any) -> Any:
    """A vector of integers, scalar inputs, and names of vectors, concatenated."""
    if all(isinstance(e, int) for e in entries):
        return to.ints(list(entries))
    parts = [
        to.ints([e]) if isinstance(e, int) else e if isinstance(e, str) else _scalar(to, op, e)
        for e in entries
    ]
    return to.node("Concat", *parts, axis=0)


@exports("Slice")
def _slice(to: Emitter, op: Operation) -> Any:
    x, begin, size = op.inputs
    starts, sizes = to.cast(begin, int64), to.cast(size, int64)
    ends = to.node("Add", starts, sizes)
    to_end = to.node("Equal", sizes, to.ints(-1))
    ends = to.node("Where", to_end, to.ints(END), ends)
    return to.node("Slice", x, starts, ends)


# -- gather and scatter


@exports("Gather")
def _gather(to: Emitter, op: Operation) -> Any:
    if op.attrs.get("batch_dims"):
        return _batch_gather(to, op)
    return to.node("Gather", *op.inputs, axis=op.attrs["axis"])


def _batch_gather(to: Emitter, op: Operation) -> Any:
    """Transpose the indexed axis to follow the batch axes, and the result back."""
    x, index = op.inputs
    batch, axis = op.attrs["batch_dims"], op.attrs["axis"] % rank_of(op.inputs[0])
    rank, inner = rank_of(x), rank_of(index) - batch
    given: Any = x
    if axis != batch:
        order = [*range(batch), axis, *(a for a in range(batch, rank) if a != axis)]
        given = to.node("Transpose", x, perm=order)
    at = to.node("Unsqueeze", to.cast(index, int64), to.ints([rank_of(index)]))
    y = to.node("GatherND", given, at, batch_dims=batch)
    if axis == batch:
        return y
    middle = axis - batch
    made = range(batch + inner + rank - batch - 1)
    order = [*made[:batch], *made[batch + inner : batch + inner + middle]]
    order += [*made[batch : batch + inner], *made[batch + inner + middle :]]
    return to.node("Transpose", y, perm=order)


@exports("GatherNd")
def _gather_nd(to: Emitter, op: Operation) -> Any:
    x, index = op.inputs
    return to.node("GatherND", x, to.cast(index, int64), batch_dims=op.attrs.get("batch_dims", 0))


@exports("OneHot")
def _one_hot(to: Emitter, op: Operation) -> Any:
    attrs, dtype = op.attrs, op.outputs[0].dtype
    values = [attrs["off_value"], attrs["on_value"]]
    depth: Any = to.ints(attrs["depth"]) if attrs["depth"] is not None else op.inputs[1]
    made = np.asarray(values, np.float32 if dtype == bool_ else dtype)
    index, scalar = to.cast(op.inputs[0], int64), rank_of(op.inputs[0]) == 0
    if scalar:
        index = to.node("Unsqueeze", index, to.ints([0]))
    hot = to.node("OneHot", index, depth, to.constant(made), axis=-1 if scalar else attrs["axis"])
    if scalar:
        hot = to.node("Squeeze", hot, to.ints([0]))
    return to.cast(hot, dtype) if dtype == bool_ else hot


@exports("Where")
def _where(to: Emitter, op: Operation) -> Any:
    if rank_of(op.inputs[0]) == 0:
        raise refused(op, "NonZero of ONNX does not support scalars")
    return to.node("Transpose", to.node("NonZero", op.inputs[0]), perm=[1, 0])


@exports("ScatterNd")
def _scatter_nd(to: Emitter, op: Operation) -> Any:
    index, updates = op.inputs[:2]
    zero = to.constant(np.zeros((), updates.dtype))
    empty = to.node("Expand", zero, _sizes(to, op, 2))
    return to.node("ScatterND", empty, to.cast(index, int64), updates, reduction="add")


@exports("TensorScatterAdd", "TensorScatterUpdate")
def _tensor_scatter(to: Emitter, op: Operation) -> Any:
    x, index, updates = op.inputs
    added = "add" if op.type == "TensorScatterAdd" else None
    return to.node("ScatterND", x, to.cast(index, int64), updates, reduction=added)
