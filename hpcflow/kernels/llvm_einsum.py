"""Generated einsum kernels, for einsums that are no matrix product of BLAS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.codegen import einsum_codegen
from hpcflow.codegen.kernel_cache import builtin
from hpcflow.codegen.python_call_abi import as_contiguous
from hpcflow.kernels.kernel_registry import KernelNode, fast
from hpcflow.ops.linalg.einsum_kernels import spelled


def _terms(node: KernelNode) -> tuple[list[str], str]:
    left, _, right = node.attrs["equation"].partition("->")
    return spelled(left.split(","), right, [len(s.shape) for s in node.inputs])


def _refuses(node: KernelNode) -> str:
    """Why generated loops are not the better choice for an einsum."""
    shapes = [spec.shape for spec in (*node.inputs, *node.outputs)]
    if len(node.inputs) != 2:
        return f"an einsum of {len(node.inputs)} arrays"
    if any(shape is None or None in shape for shape in shapes):
        return "a size is not known"
    if node.outputs[0].dtype.name not in ("float32", "float64"):
        return f"elements of {node.outputs[0].dtype}"
    terms, out = _terms(node)
    return _unlike(terms, out, shapes[:2]) or _as_matrices(terms, out, shapes[:2])


def _unlike(terms: Sequence[str], out: str, shapes: Sequence[Any]) -> str:
    """Why loops over these labels cannot be generated."""
    x, y = terms
    if len(set(x)) < len(x) or len(set(y)) < len(y) or (set(x) ^ set(y)) - set(out):
        return "an axis that is of one array alone is summed over"
    sizes = [dict(zip(t, shape, strict=True)) for t, shape in zip(terms, shapes, strict=True)]
    if any(sizes[0][c] != sizes[1][c] for c in x if c in y):
        return "an axis of size 1 is repeated"
    return "" if einsum_codegen.innermost(terms, out) else "no axis lies together in memory"


def _as_matrices(terms: Sequence[str], out: str, shapes: Sequence[Any]) -> str:
    """A reason if the einsum is a matrix product, which BLAS computes faster."""
    x, y = terms
    size: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        size.update(zip(term, shape, strict=True))
    both = [c for c in x if c in y]
    groups = ([c for c in x if c not in y], [c for c in y if c not in x])
    inner = [c for c in both if c not in out]
    degenerate = any(np.prod([size[c] for c in group]) == 1 for group in (*groups, inner))
    return "" if degenerate and len(inner) < len(both) else "it is a product of matrices"


@fast("llvm", "Einsum", "out", on="cpu", refuses=_refuses)
def _einsum(xp: Any, node: KernelNode) -> Callable[..., Any]:
    terms, out = _terms(node)
    run = builtin(einsum_codegen.text(terms, out, node.outputs[0].dtype.name))
    return lambda x, y, out: run(as_contiguous(x), as_contiguous(y), out)
