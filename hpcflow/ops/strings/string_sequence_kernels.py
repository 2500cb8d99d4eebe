"""String sequence kernels: split and edit distance; on CPUs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import RangeError
from hpcflow.kernels.kernel_registry import KernelNode, kernel


@kernel("StringSplit", "new", on="cpu")
def _string_split(xp: Any, node: KernelNode) -> Callable[..., Any]:
    delimiter, skip = node.attrs["delimiter"].encode(), node.attrs["skip_empty"]
    ends = re.compile(b"[" + re.escape(delimiter) + b"]") if delimiter else None

    def words(text: bytes) -> list[bytes]:
        if ends is None or not text:
            return [text[i : i + 1] for i in range(len(text))]
        pieces = ends.split(text)
        return [w for w in pieces if w] if skip else pieces

    def run(source: Any) -> Any:
        rows = [words(text) for text in source.tolist()]
        counts = [len(row) for row in rows]
        indices = np.zeros((sum(counts), 2), np.int64)
        indices[:, 0] = np.repeat(np.arange(len(rows)), counts)
        indices[:, 1] = [i for n in counts for i in range(n)]
        values = np.array([w for row in rows for w in row] + [None], object)[:-1]
        return indices, values, np.array([len(rows), max(counts, default=0)], np.int64)

    return run


@kernel("EditDistance", "new", on="cpu")
def _edit_distance(xp: Any, node: KernelNode) -> Callable[..., Any]:
    normalize = node.attrs["normalize"]

    def run(hi: Any, hv: Any, hs: Any, ti: Any, tv: Any, ts: Any) -> Any:
        if hs.shape != ts.shape:
            raise RangeError(
                f"edit_distance: the ranks of shapes {hs.tolist()} and {ts.tolist()} differ"
            )
        shape = tuple(np.maximum(hs[:-1], ts[:-1]).tolist())
        if min(shape, default=0) < 0:
            raise RangeError(f"edit_distance: shape {list(shape)} has a negative size")
        out = np.zeros(shape, np.float32)
        hypotheses, truths = _sequences(hi, hv, shape), _sequences(ti, tv, shape)
        for place in {**hypotheses, **truths}:
            h, t = (sequences.get(place, hv[:0]) for sequences in (hypotheses, truths))
            distance = float(levenshtein(h, t))
            if normalize and distance:
                distance = distance / len(t) if len(t) else np.inf
            out[place] = distance
        return out

    return run


def _sequences(indices: Any, values: Any, shape: tuple[int, ...]) -> dict[tuple[int, ...], Any]:
    """The values of each sequence, in order."""
    places: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(indices[:, :-1].tolist()):
        places.setdefault(tuple(row), []).append(i)
    for place in places:
        if len(place) != len(shape) or not all(
            0 <= p < d for p, d in zip(place, shape, strict=True)
        ):
            raise RangeError(f"edit_distance: a sequence at {list(place)} is outside {list(shape)}")
    return {place: values[np.array(at)] for place, at in places.items()}


def levenshtein(a: Any, b: Any) -> int:
    """The edit distance: insertions, deletions and substitutions from `a` to `b`."""
    steps = np.arange(len(b) + 1)
    row = steps.copy()
    for i, x in enumerate(a, 1):
        changed = row[:-1] + (b != x)
        row = np.concatenate([[i], np.minimum(changed, row[1:] + 1)])
        row = np.minimum.accumulate(row - steps) + steps  # insertions
    return int(row[-1])
