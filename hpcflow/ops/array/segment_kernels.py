"""Segment kernels: reductions over segments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import RangeError
from hpcflow.kernels.cuda_graph_restrictions import READS_VALUES
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.ops.array.gather_kernels import add_at, check_indices


def grouped(xp: Any, name: str, rows: Any, ids: Any, out: Any) -> None:
    """Reduce the rows with the same number in `ids` by the ufunc `name` into that row of `out`."""
    ufunc = getattr(xp, name)
    if not ids.size or not out.size:
        return
    if xp is not np and name == "add":
        add_at(xp, out, ids, rows)
        return
    if xp is not np and name != "multiply" and out.dtype.name in ("float32", "int32", "uint32"):
        out[ids] = rows  # initial values: any row of each segment
        ufunc.at(out, ids, rows)
        return
    order = xp.argsort(ids, kind="stable")
    segments, starts = xp.unique(ids[order], return_index=True)
    rows = rows[order]
    if xp is np:
        out[segments] = ufunc.reduceat(rows, starts, axis=0)
        return
    ends = xp.concatenate([starts[1:], xp.asarray([ids.size])])
    # CuPy has no multiply.at, and its maximum.at of float64 rounds to float32 (14.2)
    out[segments] = rows[starts]
    for i in range(1, int((ends - starts).max())):  # the second row of each segment, the third ...
        longer = starts + i < ends
        places = segments[longer]
        out[places] = ufunc(out[places], rows[starts[longer] + i])


def empty_result(name: str, dtype: Any) -> Any:
    """The result of a reduction of no rows."""
    if name in ("add", "multiply"):
        return name == "multiply"
    info: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return info.min if name == "maximum" else info.max


def _segments(kind: str, name: str) -> None:
    @kernel(f"Segment{kind}", "new")
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        def run(data: Any, ids: Any) -> Any:
            if ids.shape != data.shape[:1]:
                raise RangeError(
                    f"segment_ids have {ids.size} entries, but data has {data.shape[0]} rows"
                )
            if ids.size and (ids[0] < 0 or (ids[1:] < ids[:-1]).any()):
                raise RangeError(
                    "segment_ids are negative or not sorted",
                    hint="use hf.unsorted_segment_sum for ids in any order",
                )
            count = int(ids[-1]) + 1 if ids.size else 0
            out = xp.full((count, *data.shape[1:]), name == "multiply", data.dtype)
            width = math.prod(data.shape[1:])
            grouped(xp, name, data.reshape(ids.size, width), ids, out.reshape(count, width))
            return out

        return run

    @kernel(f"UnsortedSegment{kind}", "out", uncaptured=READS_VALUES)
    def make_unsorted(xp: Any, node: KernelNode) -> Callable[..., Any]:
        empty = node.attrs.get("empty", empty_result(name, node.outputs[0].dtype))

        def run(data: Any, ids: Any, num: Any, out: Any) -> None:
            out.fill(empty)
            width, flat = math.prod(out.shape[1:]), ids.reshape(-1)
            rows = data.reshape(flat.size, width)
            if flat.dtype.kind == "i" and (flat < 0).any():
                rows, flat = rows[flat >= 0], flat[flat >= 0]
            check_indices(xp, flat, out.shape[0], "segment number")
            grouped(xp, name, rows, flat, out.reshape(out.shape[0], width))
            if name in ("maximum", "minimum"):
                getattr(xp, name)(out, empty, out=out)  # the finite limit for infinities

        return run


for _kind, _name in (("Sum", "add"), ("Prod", "multiply"), ("Max", "maximum"), ("Min", "minimum")):
    _segments(_kind, _name)
