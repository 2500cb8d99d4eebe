"""Checkpoint comparison: arrays block by block, then the facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hpcflow.checkpoint.checkpoint_layout import ArraySpec
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.graph.dtypes import kind_of

BLOCK_BYTES = 16 << 20
PER_CHECKPOINT_FACTS = {
    "id",
    "serial",
    "saved",
    "arrays",
    "paths",
    "files",
    "file",
    "size",
    "slabs",
    "rest",
    "kind",
}
JOB_FACTS = ("form", "mode", "ranks", "servers", "replicas", "tasks_per_replica", "format_version")


class CheckpointDifference(NamedTuple):
    """How an array or a fact differs: `kind` is missing, dtype, shape, values, position or fact.

    For values: `differing` counts them, `absolute` and `relative` are the largest differences, nan
    where one of two is not a number. The relative difference is |a - b| / max(|a|, |b|).
    """

    name: str
    kind: str
    text: str
    differing: int = 0
    absolute: float = 0.0
    relative: float = 0.0


def diff(
    a: SavedCheckpoint, b: SavedCheckpoint, rtol: float = 0.0, atol: float = 0.0
) -> Iterator[CheckpointDifference]:
    """The differences between two checkpoints: arrays by name, then facts.

    With tolerances, values with |a - b| <= atol + rtol * max(|a|, |b|) are equal. Without them only
    equal numbers are, and nan equals nan. The number of ranks and the time of the save are not
    compared.
    """
    for name in sorted({*a.arrays, *b.arrays}):
        lhs, rhs = a.arrays.get(name), b.arrays.get(name)
        if lhs is None or rhs is None:
            yield CheckpointDifference(name, "missing", f"only in {(b if lhs is None else a).path}")
        elif lhs.shape != rhs.shape:
            yield CheckpointDifference(name, "shape", f"{list(lhs.shape)} and {list(rhs.shape)}")
        elif lhs.dtype != rhs.dtype:
            yield CheckpointDifference(name, "dtype", f"{_dtype(lhs)} and {_dtype(rhs)}")
        else:
            yield from _values(a, b, lhs, rtol, atol)
    yield from _facts(a.facts, b.facts)


def job_differences(a: SavedCheckpoint, b: SavedCheckpoint) -> dict[str, tuple[Any, Any]]:
    """The differences between the jobs that saved them: name -> both values."""
    both = {name: (a.facts.get(name), b.facts.get(name)) for name in JOB_FACTS}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def _dtype(array: ArraySpec) -> str:
    return str(np.dtype(array.dtype))


def _values(
    a: SavedCheckpoint, b: SavedCheckpoint, array: ArraySpec, rtol: float, atol: float
) -> Iterator[CheckpointDifference]:
    count, absolute, relative = 0, 0.0, 0.0
    for start, stop in row_blocks(array):
        x, y = a.rows(array.name, start, stop), b.rows(array.name, start, stop)
        if x.tobytes() != y.tobytes():
            some = _compare_values(x.ravel(), y.ravel(), rtol, atol)
            count += some[0]
            absolute = float(np.maximum(absolute, some[1]))  # maximum propagates nan
            relative = float(np.maximum(relative, some[2]))
    if count:
        total = array.nbytes // np.dtype(array.dtype).itemsize
        text = f"{count:,} of {total:,} differ, by up to {absolute:.3g} (relative {relative:.3g})"
        yield CheckpointDifference(array.name, "values", text, count, absolute, relative)


def _compare_values(
    x: np.ndarray, y: np.ndarray, rtol: float, atol: float
) -> tuple[int, float, float]:
    """The number of differing values, and the largest absolute and relative difference."""
    same = (x == y) | ((x != x) & (y != y))
    x, y = _as_longdouble(x[~same]), _as_longdouble(y[~same])
    with np.errstate(all="ignore"):
        apart, size = np.abs(x - y), np.maximum(np.abs(x), np.abs(y))
        far = ~(apart <= atol + rtol * size) | ~np.isfinite(size)
        relative = apart[far] / size[far]
    if not far.any():
        return 0, 0.0, 0.0
    return int(far.sum()), float(np.max(apart[far])), float(np.max(relative))


def _as_longdouble(x: np.ndarray) -> np.ndarray:
    """As long doubles: differences do not overflow, and 64-bit integers are exact."""
    return x.astype(np.clongdouble if kind_of(x.dtype) == "c" else np.longdouble)


def row_blocks(array: ArraySpec) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about BLOCK_BYTES; none for an array without bytes."""
    step = max(BLOCK_BYTES // max(array.row_bytes, 1), 1)
    for start in range(0, array.rows if array.nbytes else 0, step):
        yield start, min(start + step, array.rows)


def _facts(a: dict[str, Any], b: dict[str, Any]) -> Iterator[CheckpointDifference]:
    """Differences in steps, samples, draws, the graph, and the positions of the datasets.

    The job's random seed is not compared: its effect is in the variables.
    """
    for name in sorted(
        {*a, *b} - PER_CHECKPOINT_FACTS - set(JOB_FACTS) - {"position", "draws", "random_seed"}
    ):
        if a.get(name) != b.get(name):
            yield CheckpointDifference(name, "fact", f"{a.get(name)} and {b.get(name)}")
    if a["draws"]["most"] != b["draws"]["most"]:
        draws_a, draws_b = _draws(a), _draws(b)
        keys = sorted(key for key in {*draws_a, *draws_b} if draws_a.get(key) != draws_b.get(key))
        for key in keys:
            text = f"{draws_a.get(key, 0)} and {draws_b.get(key, 0)} draws made"
            yield CheckpointDifference(key, "fact", text)
    places_a, places_b = a.get("position", []), b.get("position", [])
    if len(places_a) != len(places_b):
        yield CheckpointDifference(
            "position", "position", f"{len(places_a)} and {len(places_b)} datasets"
        )
    for i, (place_a, place_b) in enumerate(zip(places_a, places_b, strict=False)):
        keys = sorted(key for key in {*place_a, *place_b} if place_a.get(key) != place_b.get(key))
        if keys:
            text = "; ".join(f"{key} {place_a.get(key)} and {place_b.get(key)}" for key in keys)
            yield CheckpointDifference(f"dataset {i}", "position", text)


def _draws(facts: dict[str, Any]) -> dict[str, int]:
    return {f"{label}: {op}": count for label, op, count in facts["draws"]["most"]}
