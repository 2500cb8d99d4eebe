"""ONNX export of slicing."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Operation
from hpcflow.onnx.export_emitter import Emitter, exports, rank_of, refused

END = int(np.iinfo(np.int64).max)


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
