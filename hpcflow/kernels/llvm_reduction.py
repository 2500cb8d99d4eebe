"""Generated kernels of reductions over other axes than the last ones.

Such a reduction is in the loop of its neighbours where they have the rows of one array
(`lowering/fusion`); these kernels serve the others, as a mean over height and width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.codegen import middle_axis_codegen, normalization_codegen
from hpcflow.codegen.kernel_cache import builtin
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.kernels.llvm_normalization import COMPUTED, FEWEST_LANES, Layout, layout_of

LEAST_ELEMENTS = 1 << 14
LEAST_IN_MIDDLE, FEWEST_COLUMNS = 1 << 8, 4
SHARES = 8  # samples that keep all threads busy without blocks of rows
FEW_ROWS = 4096  # more are summed in blocks, which rounds less


def _reduced_axes(rank: int, axis: Any) -> list[int]:
    """The axes that are reduced, which may be counted from the last one."""
    return sorted(range(rank)[a] for a in (range(rank) if axis is None else np.atleast_1d(axis)))


def _axes(node: KernelNode) -> Sequence[int]:
    """The axes that are summed."""
    shape = node.inputs[0].shape
    if node.type != "SumToShape":
        return _reduced_axes(len(shape), node.attrs["axis"])
    result = node.outputs[0].shape
    padded = (1,) * (len(shape) - len(result)) + tuple(result)
    return tuple(i for i, n in enumerate(shape) if n != padded[i])


def _layout(node: KernelNode) -> Layout | None:
    spec = node.inputs[0]
    layout = layout_of(spec.shape, _axes(node), spec.dtype.itemsize)
    if layout is None or layout.outer < SHARES or layout.rows > FEW_ROWS:
        return layout
    if layout.kept * layout.inner >= FEWEST_LANES:  # rows side by side would have to be added up
        layout = layout._replace(rows=layout.rows * layout.sides, sides=1)
    return layout._replace(blocks=1)


def _refuses(node: KernelNode) -> str:
    x, out = node.inputs[0], node.outputs[0]
    if any(s.shape is None or None in s.shape for s in (x, out)):
        return "its sizes are known only in the step"
    if x.dtype.name not in COMPUTED or out.dtype != x.dtype:
        return f"elements of {x.dtype}, a result of {out.dtype}"
    if np.prod(x.shape) < LEAST_ELEMENTS:
        return "it has few elements"
    return "" if _layout(node) is not None else "it sums over last axes, or few numbers at a time"


def _is_whole(layout: Layout) -> bool:
    """Whether the sums of the lanes are the results."""
    return layout.blocks * layout.sides * layout.inner == 1


def _scratch(node: KernelNode) -> Sequence[tuple[Any, tuple[int, ...]]]:
    """The sums of blocks, and of 16-bit floats the results before they are rounded."""
    layout, dtype = _layout(node), COMPUTED[node.inputs[0].dtype.name]
    if layout is None:
        return []
    rounds = dtype != node.inputs[0].dtype
    parts = [] if _is_whole(layout) and not rounds else [(dtype, layout.parts[1:])]
    return [*parts, *([(dtype, (layout.outer, layout.kept))] if rounds else [])]


def _reduction(type: str) -> None:
    @fast("llvm", type, "out", on="cpu", refuses=_refuses, scratch=_scratch)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        layout, name = _layout(node), node.inputs[0].dtype.name
        assert layout is not None
        sums = builtin(normalization_codegen.sums(name))
        count = COMPUTED[name].type(layout.rows * layout.sides * layout.inner)
        divides, arrays = node.type == "Mean", _scratch(node)
        grouped = (layout.outer, layout.blocks, layout.sides, layout.kept, layout.inner)

        def run(x: Any, *more: Any, room: Any = ()) -> None:
            out = more[-1].reshape(layout.outer, layout.kept)
            x = as_contiguous(x).reshape(layout.array)
            held: list[Any] = [*(room or [np.empty(shape, kind) for kind, shape in arrays]), out]
            parts, total = held[0], held[:2][-1]  # of one array they are the same
            sums(x, parts.reshape(1, *layout.parts[1:]))
            if parts is not total:
                np.add.reduce(parts.reshape(grouped), (1, 2, 4), None, total)
            if divides:
                np.true_divide(total, count, total)
            if total is not out:
                out[...] = total

        return run


for _type in ("Sum", "Mean", "SumToShape"):
    _reduction(_type)


def _rows_and_lanes(node: KernelNode) -> tuple[int, int, int] | None:
    """What is reduced as [outer, rows, lanes], where the axes of the rows are reduced."""
    shape = node.inputs[node.type == "ExtremeGrad"].shape
    axes = [i for i in _reduced_axes(len(shape), node.attrs["axis"]) if shape[i] > 1]
    kept = [i for i in range(axes[-1] + 1, len(shape)) if shape[i] > 1] if axes else []
    if not kept or any(shape[i] > 1 for i in range(axes[0], kept[0]) if i not in axes):
        return None
    sizes = shape[: axes[0]], shape[axes[0] : kept[0]], shape[kept[0] :]
    return tuple(map(math.prod, sizes))  # type: ignore[return-value]


def _refuses_middle(node: KernelNode) -> str:
    specs = (*node.inputs, *node.outputs)
    if any(s.shape is None or None in s.shape for s in specs):
        return "its sizes are known only in the step"
    if {s.dtype.name for s in specs} not in ({"float32"}, {"float64"}):
        return f"elements of {node.inputs[0].dtype}"
    sizes = _rows_and_lanes(node)
    if sizes is None or sizes[2] < FEWEST_COLUMNS:
        return "its axes are the last ones, or not neighbours"
    return "it has few elements" if math.prod(sizes) < LEAST_IN_MIDDLE else ""


def _lanes(node: KernelNode) -> Sequence[tuple[Any, tuple[int, ...]]]:
    """A number for each lane."""
    sizes = _rows_and_lanes(node)
    return [] if sizes is None else [(node.inputs[0].dtype, (sizes[0], sizes[2]))]


def _extreme(type: str) -> None:
    @fast("llvm", type, "out", on="cpu", refuses=_refuses_middle)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        sizes = outer, _, lanes = _rows_and_lanes(node) or (0, 0, 0)
        text = middle_axis_codegen.extreme(node.inputs[0].dtype.name, type == "Max")
        compute = builtin(text)
        return lambda x, out: compute(as_contiguous(x).reshape(sizes), out.reshape(outer, lanes))


_extreme("Max")
_extreme("Min")


@fast("llvm", "LogSumExp", "out", on="cpu", refuses=_refuses_middle, scratch=_lanes)
def _log_sum_exp(xp: Any, node: KernelNode) -> Callable[..., Any]:
    sizes = outer, _, lanes = _rows_and_lanes(node) or (0, 0, 0)
    compute = builtin(middle_axis_codegen.log_sum_exp(node.inputs[0].dtype.name))

    def run(x: Any, out: Any, room: Any = ()) -> None:
        (top,) = room or (np.empty((outer, lanes), x.dtype),)
        compute(as_contiguous(x).reshape(sizes), top, out.reshape(outer, lanes))

    return run


@fast("llvm", "ExtremeGrad", "out", on="cpu", refuses=_refuses_middle, scratch=_lanes)
def _extreme_grad(xp: Any, node: KernelNode) -> Callable[..., Any]:
    sizes = outer, _, lanes = _rows_and_lanes(node) or (0, 0, 0)
    compute = builtin(middle_axis_codegen.extreme_gradient(node.inputs[0].dtype.name))

    def run(g: Any, x: Any, y: Any, out: Any, room: Any = ()) -> None:
        (counts,) = room or (np.empty((outer, lanes), x.dtype),)
        g, y = (as_contiguous(v).reshape(outer, lanes) for v in (g, y))
        compute(as_contiguous(x).reshape(sizes), y, g, counts, out.reshape(sizes))

    return run
