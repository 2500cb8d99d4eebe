"""Contiguous array buffers for the transports: checks and flat views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import CommError
from hpcflow.graph.dtypes import bfloat16

CHUNK_BYTES = 32 << 10  # of a message: larger ones wait for an answer of the receiver over TCP


def byte_view(array: np.ndarray, *, writable: bool = False) -> np.ndarray:
    """A flat byte view of `array` without a copy; CommError if there is none."""
    if not isinstance(array, np.ndarray):
        raise CommError(f"a NumPy array is needed, not {type(array).__name__}")
    if array.dtype.hasobject:
        raise CommError(f"an array of dtype {array.dtype} holds Python objects and cannot be moved")
    if not array.flags.c_contiguous:
        raise CommError(
            f"an array of shape {array.shape} and strides {array.strides} is not C-contiguous",
            hint="pass numpy.ascontiguousarray(array)",
        )
    if writable and not array.flags.writeable:
        raise CommError(f"an array of shape {array.shape} is read-only and cannot receive")
    return array.reshape(-1).view(np.uint8)


def flat_view(array: np.ndarray) -> np.ndarray:
    """A one-dimensional view of a writable array that a collective reduces in place."""
    byte_view(array, writable=True)
    return array.reshape(-1)


def check_rows(array: np.ndarray, out: np.ndarray, rows: Sequence[int], rank: int) -> None:
    """CommError unless `out` holds the `rows` of all ranks and `array` holds those of `rank`."""
    alike = array.dtype == out.dtype and array.shape[1:] == out.shape[1:]
    if not alike or array.shape[:1] != (rows[rank],) or out.shape[:1] != (sum(rows),):
        raise CommError(
            f"{list(rows)} rows cannot be gathered from {array.dtype}{list(array.shape)} into "
            f"{out.dtype}{list(out.shape)}",
            rank=rank,
        )


def read_only(array: np.ndarray) -> np.ndarray:
    """A view of `array` that cannot be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def add_bfloat16(addend: Any, total: Any, kind: Any) -> None:
    """An MPI reduction function: adds the bfloat16 values of `addend` to `total`."""
    into = np.frombuffer(total, bfloat16)
    np.add(np.frombuffer(addend, bfloat16), into, out=into)


def chunk_of(count: int, parts: int, part: int, unit: int = 1) -> slice:
    """Chunk `part` of `parts` nearly equal ones of `count` elements, cut at multiples of `unit`."""
    units = math.ceil(count / unit)
    low, high = units * part // parts, units * (part + 1) // parts
    return slice(min(low * unit, count), min(high * unit, count))
