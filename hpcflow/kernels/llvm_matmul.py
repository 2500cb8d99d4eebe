"""Generated matrix products of float64, for which BLAS packs its operands in vain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.codegen.kernel_cache import builtin
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.kernels.kernel_registry import KernelNode, fast

KEPT_ELEMENTS = 1 << 12  # of what each row of tiles uses again: they stay in the L1 cache
LEAST_ROWS = 16  # of a result, so that transposing the second operand takes little of the time


def _refuses(node: KernelNode) -> str:
    a, b, out = (*node.inputs, *node.outputs)
    if any(s.dtype.name != "float64" for s in (a, b, out)):
        return f"its arrays are {a.dtype}, not float64"
    if any(s.shape is None or None in s.shape for s in (a, b, out)):
        return "its sizes are known only in the step"
    if len(a.shape) != 2 or len(b.shape) != 2:
        return "it is a batch of products"
    if node.attrs["transpose_a"] and node.attrs["transpose_b"]:
        return "both operands are transposed"
    rows, columns = out.shape
    summed = a.shape[0] if node.attrs["transpose_a"] else a.shape[1]
    if min(rows, columns, summed) == 0:
        return "it is empty"
    if node.attrs["transpose_b"] and rows < LEAST_ROWS:
        return f"it has fewer than {LEAST_ROWS} rows, and its second operand is transposed"
    kept = (rows if node.attrs["transpose_a"] else summed) * columns
    if kept > KEPT_ELEMENTS:
        return f"it has {kept} elements to keep in the L1 cache, more than {KEPT_ELEMENTS}"
    return ""


def _scratch(node: KernelNode) -> Sequence[tuple[Any, tuple[int, ...]]]:
    """Room for the transposed second operand."""
    b = node.inputs[1]
    return [(b.dtype, (b.shape[1], b.shape[0]))] if node.attrs["transpose_b"] else []


@fast("llvm", "MatMul", "out", on="cpu", refuses=_refuses, scratch=_scratch)
def _matmul(xp: Any, node: KernelNode) -> Callable[..., Any]:
    from hpcflow.codegen import matmul_codegen  # few steps need it

    (rows, columns), transpose_b = node.outputs[0].shape, node.attrs["transpose_b"]
    dtype = node.outputs[0].dtype.name
    run = builtin(matmul_codegen.text(columns, dtype, node.attrs["transpose_a"], transpose_b, rows))
    if not transpose_b:
        return lambda a, b, out: run(as_contiguous(a), as_contiguous(b), out)

    def call(a: Any, b: Any, out: Any, room: Any = ()) -> None:
        transposed = room[0] if room else xp.empty(b.shape[::-1], b.dtype)
        run(as_contiguous(a), as_contiguous(b), out, transposed)

    return call
