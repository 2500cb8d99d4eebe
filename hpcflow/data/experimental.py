"""`hf.data.experimental`: functions for `dataset.apply`, under TensorFlow 1's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcflow.data.tf_data import Pipeline
from hpcflow.platform.exception_translation import translate_module

AUTOTUNE = -1  # for num_parallel_calls and prefetch, which have no effect

Change = Callable[[Pipeline], Pipeline]


def shuffle_and_repeat(
    buffer_size: int, count: int | None = None, seed: int | None = None
) -> Change:
    """For `apply`: `shuffle`, in a new order each time, and `repeat`."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: int,
    num_parallel_batches: int | None = None,
    drop_remainder: bool = False,
    num_parallel_calls: int | None = None,
) -> Change:
    """For `apply`: `map` and `batch`; the arguments about parallel calls have no effect."""
    return lambda dataset: dataset.map(map_func).batch(batch_size, drop_remainder)


def unbatch() -> Change:
    """For `apply`: `unbatch`."""
    return lambda dataset: dataset.unbatch()


def enumerate_dataset(start: int = 0) -> Change:
    """For `apply`: `enumerate`."""
    return lambda dataset: dataset.enumerate(start)


def take_while(predicate: Callable[..., Any]) -> Change:
    """For `apply`: `take_while`."""
    return lambda dataset: dataset.take_while(predicate)


__all__ = [
    "AUTOTUNE",
    "enumerate_dataset",
    "map_and_batch",
    "shuffle_and_repeat",
    "take_while",
    "unbatch",
]
translate_module(globals(), [name for name in __all__ if name != "AUTOTUNE"])
