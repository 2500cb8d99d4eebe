"""Index expressions: the key of `x[key]` as plain data, and the result shape.

An int i is ("at", i); a slice is ("slice", start, stop, step); ... is ("rest",); None is ("new",).
A scalar tensor is ("t", k): the k-th scalar tensor after x among the inputs.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError, DTypeError, ShapeError
from hpcflow.graph.graph import Tensor
from hpcflow.graph.static_shape import Shape, shape_text
from hpcflow.platform.exception_translation import value_text

Key = tuple[tuple[Any, ...], ...]
UNKNOWN = "?"  # an int that is still unknown


def plain_key(key: Any) -> tuple[Key, list[Tensor]]:
    """An index expression as plain data, and its scalar tensors.

    Errors: ShapeError or ArgumentError for anything except ints, slices of them, `...` and None.
    """
    parts = key if isinstance(key, tuple) else (key,)
    entries: list[tuple[Any, ...]] = []
    scalars: list[Tensor] = []
    for part in parts:
        if part is Ellipsis:
            entries.append(("rest",))
        elif part is None:
            entries.append(("new",))
        elif isinstance(part, builtins.slice):
            limits = [_plain(v, scalars) for v in (part.start, part.stop, part.step)]
            if limits[2] == 0:
                raise ShapeError("a slice cannot have step 0")
            entries.append(("slice", *limits))
        else:
            entries.append(("at", _plain(part, scalars)))
    if entries.count(("rest",)) > 1:
        raise ShapeError("an index can have one '...' only")
    return tuple(entries), scalars


def _plain(value: Any, scalars: list[Tensor]) -> Any:
    if hasattr(value, "as_tensor"):
        value = value.as_tensor()
    if isinstance(value, Tensor):
        return _encode_scalar(value, scalars)
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if value is None or (isinstance(value, (int, np.integer)) and not isinstance(value, bool)):
        return None if value is None else int(value)
    raise ArgumentError(
        f"{value_text(value)} cannot index a tensor",
        hint="use ints, slices of ints, ..., None, or integer scalar tensors",
    )


def _encode_scalar(value: Tensor, scalars: list[Tensor]) -> Any:
    if value.dtype.kind not in "iu":
        raise DTypeError(f"an index must be an integer; {value.name!r} is {value.dtype}")
    if value.shape not in (None, ()):
        raise ShapeError(
            f"a limit of a slice must be a scalar; {value.name!r} has shape "
            f"{shape_text(value.shape)}"
        )
    if value.constant is not None:
        return int(value.constant)
    scalars.append(value)
    return ("t", len(scalars) - 1)


def scalars_in(key: Key) -> int:
    """The number of scalar tensors that a key refers to."""
    return sum(isinstance(v, tuple) for part in key for v in part)


def filled(key: Key, values: Sequence[Any]) -> Key:
    """The key with `values` in place of its scalar tensors; a value of None gives UNKNOWN."""

    def number(v: Any) -> Any:
        if not isinstance(v, tuple):
            return v
        return UNKNOWN if values[v[1]] is None else int(values[v[1]])

    return tuple(tuple(number(v) for v in part) for part in key)


def index_of(key: Key) -> tuple[Any, ...]:
    """The index expression of a key, for NumPy."""
    kinds: dict[str, Any] = {"rest": lambda: Ellipsis, "new": lambda: None}
    kinds.update(at=lambda i: i, slice=builtins.slice)
    return tuple(kinds[part[0]](*part[1:]) for part in key)


def sliced(shape: tuple[int | None, ...], key: Key) -> Shape:
    """The shape of x[key] for x of this `shape`."""
    used = sum(part[0] in ("at", "slice") for part in key)
    if used > len(shape):
        raise ShapeError(f"{used} indices are too many for a tensor of shape {shape_text(shape)}")
    if ("rest",) not in key:
        key = (*key, ("rest",))
    out: list[int | None] = []
    at = 0
    for part in key:
        if part[0] == "new":
            out.append(1)
        elif part[0] == "rest":
            out.extend(shape[at : at + len(shape) - used])
            at += len(shape) - used
        else:
            size = shape[at]
            if part[0] == "slice":
                out.append(_slice_size(size, *part[1:]))
            elif size is not None and part[1] != UNKNOWN and not -size <= part[1] < size:
                raise ShapeError(
                    f"index {part[1]} is out of range for axis {at} of {shape_text(shape)}"
                )
            at += 1
    return tuple(out)


def _slice_size(size: int | None, start: Any, stop: Any, step: Any) -> int | None:
    if UNKNOWN in (start, stop, step):
        return 0 if size == 0 else None
    if step == 0:
        raise ShapeError("a slice cannot have step 0")
    if size is not None:
        return len(builtins.range(*builtins.slice(start, stop, step).indices(size)))
    return 0 if stop == 0 and step in (None, 1) else None
