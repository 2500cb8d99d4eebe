"""Einsum kernel: contracts pairs of inputs by matrix products (BLAS)."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.kernels.kernel_registry import KernelNode, kernel


def spelled(terms: Sequence[str], out: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The labels with "..." written out as labels; the last axes correspond."""
    used = set("".join(terms))
    free = [c for c in string.ascii_letters if c not in used]
    pairs = zip(terms, ranks, strict=True)
    spare = [rank - len(term) + 3 if "..." in term else 0 for term, rank in pairs]
    dots = free[: max(spare, default=0)]
    labels = [
        term.replace("...", "".join(dots[len(dots) - n :]))
        for term, n in zip(terms, spare, strict=True)
    ]
    return labels, out.replace("...", "".join(dots))


def tidy(xp: Any, x: Any, labels: str, keep: set[str]) -> tuple[Any, str]:
    """`x` with one axis for each label, summed over labels not in `keep`."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first, second = labels.index(label), labels.rindex(label)
            x = xp.diagonal(x, 0, first, second)  # moves the diagonal to the last axis
            labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + label
    gone = tuple(i for i, label in enumerate(labels) if label not in keep)
    if gone:
        x = x.sum(axis=gone, dtype=x.dtype)
        labels = "".join(label for label in labels if label in keep)
    return x, labels


def ordered(x: Any, labels: str, out: str) -> Any:
    """`x` transposed to the order `out` of labels."""
    return x.transpose([labels.index(c) for c in out])


def _narrow(a: Any, a_labels: str, b: Any, b_labels: str) -> tuple[Any, str]:
    """`a` without axes of size 1 that are longer in `b`, since these are broadcast."""
    ones = [
        i
        for i, label in enumerate(a_labels)
        if label in b_labels and a.shape[i] == 1 and b.shape[b_labels.index(label)] != 1
    ]
    labels = "".join(label for i, label in enumerate(a_labels) if i not in ones)
    return a.reshape([d for i, d in enumerate(a.shape) if i not in ones]), labels


def _for_blas(xp: Any, x: Any) -> Any:
    """The matrix, copied unless one axis is contiguous, as BLAS requires."""
    return x if x.itemsize in x.strides[-2:] else xp.ascontiguousarray(x)


def pair(xp: Any, a: Any, a_labels: str, b: Any, b_labels: str, out: str) -> Any:
    """The contraction of two arrays, as one matrix product for each batch index."""
    a, a_labels = tidy(xp, a, a_labels, set(b_labels + out))
    b, b_labels = tidy(xp, b, b_labels, set(a_labels + out))
    (a, a_labels), (b, b_labels) = (
        _narrow(a, a_labels, b, b_labels),
        _narrow(b, b_labels, a, a_labels),
    )
    joint = "".join(c for c in out if c in a_labels and c in b_labels)
    inner = "".join(c for c in a_labels if c in b_labels and c not in out)
    rows = "".join(c for c in out if c in a_labels and c not in b_labels)
    columns = "".join(c for c in out if c in b_labels and c not in a_labels)
    size = dict(zip(a_labels + b_labels, a.shape + b.shape, strict=True))
    shapes = [[size[c] for c in part] for part in (joint, rows, inner, columns)]
    lead, n, k, m = shapes[0], *(math.prod(part) for part in shapes[1:])
    first = _for_blas(xp, ordered(a, a_labels, joint + rows + inner).reshape([*lead, n, k]))
    second = _for_blas(xp, ordered(b, b_labels, joint + inner + columns).reshape([*lead, k, m]))
    result = xp.matmul(first, second).reshape([*lead, *shapes[1], *shapes[3]])
    return ordered(result, joint + rows + columns, out)


def _path(terms: Sequence[str], out: str, inputs: Sequence[Any]) -> list[tuple[int, ...]]:
    """The contraction order: pairs of inputs; each result is appended to the list."""
    if len(terms) == 2:
        return [(0, 1)]
    stand_ins = [np.broadcast_to(np.float32(0), x.shape) for x in inputs]
    text = ",".join(terms) + "->" + out
    return np.einsum_path(text, *stand_ins, optimize="greedy")[0][1:]


def contract(xp: Any, terms: Sequence[str], out: str, inputs: Sequence[Any], path: Any) -> Any:
    """The einsum of `inputs`, contracted in the order of `path`."""
    operands = list(zip(inputs, terms, strict=True))
    for places in path:
        chosen = [operands[i] for i in places]
        operands = [t for i, t in enumerate(operands) if i not in places]
        x, labels = chosen[0]
        for i, (y, y_labels) in enumerate(chosen[1:], 2):
            later = set(out).union(*(t for _, t in [*operands, *chosen[i:]]))
            result = "".join(c for c in dict.fromkeys(labels + y_labels) if c in later)
            x, labels = pair(xp, x, labels, y, y_labels, result), result
        operands.append((x, labels))
    ((x, labels),) = operands
    x, labels = tidy(xp, x, labels, set(out))
    return ordered(x, labels, out)


@kernel("Einsum", "out")
def _einsum(xp: Any, node: KernelNode) -> Callable[..., Any]:
    left, _, right = node.attrs["equation"].partition("->")
    labels = left.split(",")
    paths: dict[tuple[Any, ...], Any] = {}  # by shapes, of which a plan has few

    def run(*args: Any) -> None:
        *inputs, result = args
        shapes = tuple(x.shape for x in inputs)
        if shapes not in paths:
            terms, out = spelled(labels, right, [x.ndim for x in inputs])
            order = _path(terms, out, inputs) if len(inputs) > 1 else []
            paths.clear() if len(paths) > 100 else None
            paths[shapes] = terms, out, order
        terms, out, order = paths[shapes]
        xp.copyto(result, contract(xp, terms, out, inputs, order))

    return run
