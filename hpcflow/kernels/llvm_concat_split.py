"""Generated concatenation and splits along later axes: NumPy takes long for each short row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hpcflow.codegen import row_copy_codegen
from hpcflow.codegen.kernel_cache import builtin
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.kernels.kernel_registry import KernelNode, fast

MOST_PARTS = 64
SHORT_ROW = 16  # bytes of a part's row on average: calls for each take longer than NumPy's loop
LONG_ROW = 1 << 12  # bytes of a part's row, which NumPy copies as fast
FEWEST_BYTES = 1 << 11


def _refuses(node: KernelNode) -> str:
    joins = node.type in ("Concat", "Pack")
    (whole,), parts = (node.outputs, node.inputs) if joins else (node.inputs[:1], node.outputs)
    if any(s.shape is None or None in s.shape for s in (whole, *parts)):
        return "its sizes are known only in the step"
    if whole.dtype.hasobject:
        return f"elements of {whole.dtype}"
    axis = node.attrs["axis"] % len(whole.shape)
    rows, nbytes = math.prod(whole.shape[:axis]), math.prod(whole.shape) * whole.dtype.itemsize
    if rows < 2 or nbytes < FEWEST_BYTES:
        return "it has one row" if rows < 2 else "it has few elements"
    if len(parts) > MOST_PARTS:
        return f"it has more than {MOST_PARTS} parts"
    widths = [math.prod(s.shape) * s.dtype.itemsize // rows for s in parts]
    if max(widths) >= LONG_ROW or sum(widths) < SHORT_ROW * len(widths):
        return f"its rows have from {min(widths)} to {max(widths)} bytes"
    return ""


def _copies(node: KernelNode, parts: int, whole: Any, splits: bool) -> Callable[..., Any]:
    axis = node.attrs["axis"] % len(whole.shape)
    return builtin(row_copy_codegen.text(parts, axis, whole.dtype.itemsize, splits))


def _joining(type: str) -> None:
    @fast("llvm", type, "out", on="cpu", exact=True, refuses=_refuses)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        copies = _copies(node, len(node.inputs), node.outputs[0], False)
        return lambda *arrays: copies(*map(as_contiguous, arrays[:-1]), arrays[-1])


def _splitting(type: str) -> None:
    @fast("llvm", type, "out", on="cpu", exact=True, refuses=_refuses)
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        parts = len(node.outputs)
        copies = _copies(node, parts, node.inputs[0], True)
        return lambda x, *more: copies(as_contiguous(x), *more[-parts:])


for _type in ("Concat", "Pack"):
    _joining(_type)
for _type in ("Split", "Unpack"):
    _splitting(_type)
