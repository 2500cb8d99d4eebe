"""Sources of rows: arrays, and objects with a length and items; HDF5 is in `hdf5_rows.py`."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np

from hpcflow.errors import DataError

Shape = tuple[int, ...]


class Source(Protocol):
    """Rows that can be read by number, in any order and from any thread.

    Errors use `name`. `dtype` and `row_shape` are known after `open`.
    """

    name: str
    dtype: np.dtype
    row_shape: Shape

    def open(self) -> None:
        """Inspect the data; called at least once before any other method."""

    def __len__(self) -> int: ...

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """The rows with these numbers, in this order."""

    def close(self) -> None:
        """Release the files; `open` reopens them."""


class ArraySource:
    """An array in memory, or mapped from a file."""

    name = "an array"

    def __init__(self, value: Any) -> None:
        self.array = np.asarray(value)
        self.is_loose = not isinstance(value, np.ndarray)  # the user did not choose its dtype
        self.dtype, self.row_shape = self.array.dtype, self.array.shape[1:]

    def take(self, array: np.ndarray) -> None:
        """Replace the values, which may change the dtype."""
        self.array, self.dtype = np.ascontiguousarray(array), array.dtype

    def __len__(self) -> int:
        return len(self.array) if self.array.ndim else 1

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """A copy of the rows with these numbers."""
        return self.array[numbers]


class _LastRead(threading.local):
    """The samples that this thread has read last, and their columns."""

    cached: tuple[np.ndarray, list[np.ndarray]] | None = None


class ItemReader:
    """An object with `__len__` and `__getitem__` whose items are rows, or tuples of `fields` rows.

    The prefetch threads read the items one by one.
    """

    def __init__(self, items: Any, fields: int | None = None) -> None:
        self._items, self._fields = items, fields
        self._last = _LastRead()  # the last samples: their fields are read one by one

    def fields(self) -> list[ItemField]:
        """A source for each field, or one for the items themselves."""
        return [ItemField(self, number) for number in range(self._fields or 1)]

    def __len__(self) -> int:
        return len(self._items)

    def item(self, number: int) -> tuple[np.ndarray, ...]:
        """One sample.

        Errors: DataError that names it.
        """
        label = f"item {number} of {_value_text(self._items)}"
        try:
            sample = self._items[number]
        except Exception as error:
            raise DataError(
                f"{label} cannot be read: {type(error).__name__}: {error}",
                hint="the cause is printed above; items are numbered from 0 to len - 1",
            ) from error
        if self._fields is None:
            return (np.asarray(sample),)
        if not isinstance(sample, (tuple, list)) or len(sample) != self._fields:
            raise DataError(
                f"{label} is not a tuple of {self._fields} fields",
                hint="give one field for each placeholder",
            )
        return tuple(np.asarray(field) for field in sample)

    def columns(self, numbers: np.ndarray) -> list[np.ndarray]:
        """The fields of these samples; cached until the same thread reads other samples."""
        last = self._last.cached
        if last is None or last[0] is not numbers:
            rows = [self.item(int(number)) for number in numbers]
            try:
                columns = [np.stack(column) for column in zip(*rows, strict=True)]
            except ValueError as error:
                raise DataError(
                    f"items of {_value_text(self._items)} differ in shape: {error}",
                    hint="pad them to the same shape",
                ) from error
            last = self._last.cached = (numbers, columns)
        return last[1]


class ItemField:
    """One field of the items of an object."""

    dtype: np.dtype
    row_shape: Shape

    def __init__(self, items: ItemReader, number: int) -> None:
        self._items, self._number = items, number
        self.name = _value_text(items._items)

    def __len__(self) -> int:
        return len(self._items)

    def open(self) -> None:
        """Read dtype and shape from the first item."""
        if len(self):
            first = self._items.item(0)[self._number]
            self.dtype, self.row_shape = first.dtype, first.shape
        else:
            self.dtype, self.row_shape = np.dtype(np.float32), ()

    def close(self) -> None:
        """Does nothing: the object belongs to the user."""

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """The field's rows with these numbers, stacked."""
        if not len(numbers):
            return np.empty((0, *self.row_shape), self.dtype)
        return self._items.columns(numbers)[self._number]


def sources_of(value: Any, fields: int | None) -> list[Source]:
    """`value` as one source, or as one source for each of the `fields` of its items."""
    if fields is not None:
        return list(ItemReader(value, fields).fields())
    if all(hasattr(value, name) for name in ("open", "rows", "close")):
        return [value]
    if type(value).__module__.startswith("h5py."):
        from hpcflow.data.hdf5_rows import hdf5

        return [hdf5(value.file.filename, value.name)]
    has_items = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    is_stored = hasattr(value, "chunks")  # arrays on disk as those of Zarr: larger than memory
    is_array = isinstance(value, (list, tuple)) or (hasattr(value, "__array__") and not is_stored)
    return [ArraySource(value)] if is_array or not has_items else list(ItemReader(value).fields())


def _value_text(value: Any) -> str:
    return f"a {type(value).__name__}"
