"""Checks that data fits its placeholders, before the first step; errors name the data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hpcflow.data.array_rows import ArraySource, Source
from hpcflow.errors import DataError, DTypeError, FeedError, HpcflowError, ShapeError
from hpcflow.graph.graph import Tensor
from hpcflow.graph.static_shape import merge_shapes, shape_text
from hpcflow.runtime.step.feed_and_fetch import cast, castable, read_feed


def global_batch_size(batch: int | None, per_rank: int | None, replicas: int) -> int:
    """The size of the global batch, from either `batch` or `per_rank`."""
    if (batch is None) == (per_rank is None):
        raise HpcflowError(
            "a dataset takes either batch or batch_per_rank",
            hint="batch=64 means 64 samples in each step over all workers",
        )
    name, size = ("batch", batch) if per_rank is None else ("batch_per_rank", per_rank)
    if not isinstance(size, (int, np.integer)) or size < 1:
        hint = f"give a whole number from 1 on, such as int({size!r})"
        is_text = repr(size)[:1] in "'\"" and str(size).strip().isdecimal()
        raise HpcflowError(
            f"{name}={size!r} is not a number of samples",
            hint=hint if is_text else "give 1 or more",
        )
    return int(size) * (1 if per_rank is None else replicas)


def check_key(key: Any) -> None:
    """Raise FeedError unless `key` is a tensor."""
    if not isinstance(key, Tensor):
        raise FeedError(
            f"{key!r} is not a tensor", hint="write Dataset({x: images, y: labels}, ...)"
        )


def check_fits(
    key: Tensor,
    label: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    cure: str | None = None,
    taker: str = "",
) -> None:
    """Check that values of this dtype and shape, one row a sample, can be fed to `key`.

    `label` names the values, `taker` what takes them: without it the placeholder, by its name.

    Errors: DTypeError if feeds are not cast this way, ShapeError.
    """
    values, array = (label, label) if taker else (f"{label} for {key.name!r}", "array")
    taker = taker or "the placeholder"
    if not castable(dtype, key.dtype):
        raise DTypeError(
            f"{values} is {dtype}; {taker} is {key.dtype}",
            hint=cure or f"give {array}.astype({str(key.dtype)!r})",
            op=key.op.name,
            line=key.op.line,
        )
    try:
        merge_shapes(shape[1:] if shape else None, key.shape and key.shape[1:])
        fits = bool(shape) and key.shape != ()
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{values} has shape {shape_text(shape)}; "
            f"{taker} takes {shape_text(key.shape)}, one row a sample",
            hint=cure or f"reshape the array, or {taker}",
            op=key.op.name,
            line=key.op.line,
        )


def fit_source(key: Tensor, source: Source, label: str = "the array", taker: str = "") -> None:
    """Check an open source; values that were not NumPy arrays are cast here, once.

    `label` names an array, `taker` what takes it (`check_fits`).
    """
    if isinstance(source, ArraySource):
        if source.is_loose:
            source.take(cast(key, read_feed(key, source.array)))
        check_fits(key, label, source.dtype, source.array.shape, taker=taker)
        return
    shape = (len(source), *source.row_shape)
    cure = "change the placeholder, or convert rows by Dataset(map=...)"
    check_fits(key, source.name, source.dtype, shape, cure)


def common_length(lengths: Mapping[str, int]) -> int:
    """The number of samples, which must be equal for all data and not 0."""
    if not lengths or 0 in lengths.values():
        raise ShapeError("a dataset needs samples", hint="give arrays with at least one row")
    if len(set(lengths.values())) > 1:
        lengths_text = ", ".join(f"{length:,} for {name!r}" for name, length in lengths.items())
        raise ShapeError(
            f"the arrays differ in their number of samples: {lengths_text}",
            hint="give arrays of the same length: row i of each belongs to sample i",
        )
    return next(iter(lengths.values()))


def check_enough(samples: int, replicas: int, rank: int) -> None:
    """Check that every worker has samples in an epoch.

    Errors: DataError.
    """
    if samples < replicas:
        raise DataError(
            f"{samples:,} samples are too few for {replicas:,} workers: some would have none",
            rank=rank,
            hint=f"run it on at most {samples:,} workers, or give more samples",
        )


def check_fixed_sizes(keys: Iterable[Tensor], row_counts: set[int]) -> None:
    """Raise ShapeError if a placeholder with a fixed number of rows would get another number."""
    for key in keys:
        rows = key.shape[0] if key.shape else None
        if rows is not None and row_counts != {rows}:
            raise ShapeError(
                f"placeholder {key.name!r} takes {rows} rows, but a worker's share has "
                f"{' or '.join(map(str, sorted(row_counts)))}",
                op=key.op.name,
                line=key.op.line,
                hint="make the placeholder's first size None",
            )


def check_may_vary(keys: Iterable[Tensor]) -> None:
    """Raise ShapeError for a placeholder with a fixed number of rows: shares by speed vary."""
    for key in keys:
        if key.shape and key.shape[0] is not None:
            raise ShapeError(
                f"placeholder {key.name!r} takes {key.shape[0]} rows, but with balance=True the "
                "number of a worker's samples changes",
                op=key.op.name,
                line=key.op.line,
                hint="make the placeholder's first size None",
            )
