"""Generated kernels of sums and means over other axes than the last ones.

Such a reduction is in the loop of its neighbours where they have the rows of one array
(`lowering/fusion`); these kernels serve the others, as a mean over height and width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.codegen import normalization_codegen
from hpcflow.codegen.kernel_cache import builtin
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.kernels.llvm_normalization import COMPUTED, FEWEST_LANES, Layout, layout_of

LEAST_ELEMENTS = 1 << 14
SHARES = 8  # samples that keep all threads busy without blocks of rows
FEW_ROWS = 4096  # more are summed in blocks, which rounds less


def _axes(node: KernelNode) -> tuple[int, ...]:
    """The axes that are summed; they may be counted from the last one."""
    shape = node.inputs[0].shape
    if node.type != "SumToShape":
        axis = node.attrs["axis"]
        return tuple(range(len(shape)) if axis is None else np.atleast_1d(axis).tolist())
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
