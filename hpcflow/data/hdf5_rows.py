"""HDF5 rows: reads rows of a dataset in an HDF5 or NetCDF-4 file that is larger than memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.data.node_local_file_cache import local_copy
from hpcflow.data.row_buffer_pool import RowBufferPool
from hpcflow.errors import MALFORMED, DataError
from hpcflow.platform.artifact_cache import as_path
from hpcflow.platform.record_files import open_plain
from hpcflow.runtime.hdf5_library import library

BRIDGE = 64 << 10  # a gap of fewer bytes between two wanted rows is read, not skipped
PIECE = 4 << 20  # bytes per read if only some of the rows read are wanted
SIGNATURE = b"\x89HDF\r\n\x1a\n"
FOREIGN = {
    b"CDF": "a NetCDF-3 file; convert it with: nccopy -k nc4 OLD NEW",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"PK": "a zip or npz file; give the arrays of np.load instead",
    b"\x93NUMPY": "a NumPy file; give np.load(PATH, mmap_mode='r') instead",
}


class Hdf5Rows:
    """Rows of one dataset of an HDF5 file; `hf.data.hdf5` creates it."""

    dtype: np.dtype
    row_shape: tuple[int, ...]

    def __init__(self, path: str | Path, field: str, part: slice, cache: bool) -> None:
        self.path, self.field, self.part, self.cache = as_path(path, "path"), field, part, cache
        self.name = f"{path}:{field}"
        self._lock = threading.RLock()
        self._buffers = RowBufferPool()
        self._readers, self._is_closing = 0, False  # the last reader closes the file
        self._file: Any = None
        self._data: Any = None
        self._raw: tuple[int, int] | None = None  # descriptor, offset of the first row
        self._range = range(0)  # the rows of the file that `part` selects

    def __len__(self) -> int:
        return len(self._range)

    def open(self) -> None:
        """Open the file on this rank, without other ranks.

        Errors: DataError with the path, if it is missing, foreign, truncated or lacks the dataset.
        """
        with self._lock:
            self._is_closing = False
            if self._file is not None:
                return
            path = local_copy(self.path, _readable) if self.cache else self.path
            self._file = open_hdf5(path)
            try:
                self._inspect(path)
            except DataError:
                self._close()
                raise
            except BaseException as error:
                self._close()
                if isinstance(error, (OSError, RuntimeError, *MALFORMED)):
                    raise self._error(f"is damaged: {error}", "copy it again") from error
                raise

    def _inspect(self, path: Path) -> None:
        h5py = library()
        try:
            data = self._file.get(self.field)
        except Exception as error:
            raise self._error(
                f"cannot be opened: {error}", "inspect it with: h5ls -r FILE"
            ) from error
        if not isinstance(data, h5py.Dataset):
            raise self._missing(h5py)
        if data.shape is None or data.ndim == 0:
            raise self._error("has no rows", "its first dimension must be the samples")
        if data.dtype.hasobject:
            raise self._error("has rows of variable length", "store them as an array, padded")
        self._check_parts(path, data)
        self._data, self._range = data, range(data.shape[0])[self.part]
        self.dtype, self.row_shape = data.dtype, data.shape[1:]
        self._raw = self._raw_location(path)

    def _missing(self, h5py: Any) -> DataError:
        names: list[str] = []
        self._file.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
        )
        fields = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        return DataError(
            f"{self.path} has no dataset {self.field!r}; it has {fields or 'none'}",
            hint="give one of these names",
        )

    def _check_parts(self, path: Path, data: Any) -> None:
        """Check a virtual dataset's files: HDF5 reads missing ones as fill values, silently."""
        for source in data.virtual_sources() if data.is_virtual else []:
            name = source.file_name
            if name != "." and "%" not in name and not (path.parent / name).exists():
                raise self._error(
                    f"is a virtual dataset of other files, of which {name} is missing",
                    f"it must be in {path.parent.absolute()} on every node"
                    + (", so do not use cache=True" if self.cache else ""),
                )

    def _raw_location(self, path: Path) -> tuple[int, int] | None:
        """Descriptor and offset of the rows, if they lie in the file as they will in memory.

        They are then read without HDF5: faster, without its global lock and the interpreter lock.
        """
        h5py, data = library(), self._data
        plist = data.id.get_create_plist()
        is_plain = (
            plist.get_layout() == h5py.h5d.CONTIGUOUS
            and plist.get_external_count() == 0
            and data.id.get_type() == h5py.h5t.py_create(data.dtype, logical=True)
            and self._file.driver == "sec2"
            and data.size > 0
        )
        offset = data.id.get_offset() if is_plain else None
        if offset is None:
            return None
        handle = os.open(path, os.O_RDONLY)
        if hasattr(os, "posix_fadvise"):  # the system then reads further ahead
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        bytes_ = data.size * data.dtype.itemsize
        if os.fstat(handle).st_size < offset + bytes_:
            os.close(handle)
            raise self._error("ends before its last row", "the file was cut off: copy it again")
        self._raw = handle, offset
        for row in (0, data.shape[0] - 1):  # read directly only if HDF5 reads the same bytes
            raw_row = np.empty((1, *self.row_shape), self.dtype)
            self._read_plain(raw_row, row)
            if raw_row.tobytes() != np.asarray(data[row : row + 1]).tobytes():
                os.close(handle)
                return None
        return handle, offset

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """These rows, in this order; neighbours are read together."""
        with self._lock:
            self.open()  # reopens a closed file
            self._readers += 1
        try:
            return self._rows(numbers)
        finally:
            with self._lock:
                self._readers -= 1
                if self._is_closing:
                    self._close()

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        numbers = np.asarray(numbers, np.int64)
        out = self._empty(len(numbers))
        if not len(numbers):
            return out
        if int(numbers.min()) < 0 or int(numbers.max()) >= len(self):
            raise self._error(
                f"has no row {numbers.max() if numbers.min() >= 0 else numbers.min()}",
                f"it has {len(self):,}",
            )
        file_rows = self._range.start + numbers * self._range.step
        if bool((np.diff(file_rows) > 0).all()):
            for low, high, start, count in self._runs(file_rows):
                if count == high - low:  # read in place
                    self._read(out[low:high], start)
                else:
                    out[low:high] = self._rows_from(start, count)[file_rows[low:high] - start]
            return out
        places = np.argsort(file_rows)
        ascending = file_rows[places]
        for low, high, start, count in self._runs(ascending):
            got = self._rows_from(start, count)
            is_whole = count == high - low and bool((np.diff(ascending[low:high]) == 1).all())
            out[places[low:high]] = got if is_whole else got[ascending[low:high] - start]
            del got
        return out

    def _empty(self, count: int) -> np.ndarray:
        try:
            return self._buffers.empty((count, *self.row_shape), self.dtype)
        except (MemoryError, ValueError) as error:
            raise self._error(
                f"{count} rows of {list(self.row_shape)} {self.dtype} are too large: {error}",
                "the file may be damaged; inspect it with: h5ls -r FILE",
            ) from error

    def _rows_from(self, start: int, count: int) -> np.ndarray:
        got = self._empty(count)
        self._read(got, start)
        return got

    def _runs(self, rows: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
        """Ascending rows, split into runs at large gaps and at PIECE bytes.

        Each run has its begin and end in `rows`, its first row, and the number of rows it spans.
        """
        size = max(1, int(np.prod(self.row_shape)) * self.dtype.itemsize)
        cuts = (np.flatnonzero(np.diff(rows) > 1 + BRIDGE // size) + 1).tolist()
        most = max(1, PIECE // size)
        for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            start, last = int(rows[low]), int(rows[high - 1])
            while last - start >= most:
                end = int(np.searchsorted(rows[low:high], start + most)) + low
                yield low, end, start, int(rows[end - 1]) + 1 - start
                low, start = end, int(rows[end])
            yield low, high, start, last + 1 - start

    def _read(self, out: np.ndarray, start: int) -> None:
        """Fill `out` with the rows of the file from `start`."""
        try:
            if self._raw is not None:
                self._read_plain(out, start)
            elif self._data is None:
                raise OSError("the file is closed")
            elif len(out) * (size := out[:1].nbytes) < 1 << 20 or not size:
                out[...] = self._data[start : start + len(out)]  # read_direct has a high overhead
            else:
                self._data.read_direct(out, np.s_[start : start + len(out)])
        except Exception as error:
            last = start + len(out) - 1
            raise self._error(
                f"rows {start:,} to {last:,} cannot be read: {error}",
                "the file may be damaged, or the disk: copy it again, or inspect it with: h5dump",
            ) from error

    def _read_plain(self, out: np.ndarray, start: int) -> None:
        assert self._raw is not None
        handle, offset = self._raw
        memory = out.reshape(-1).view(np.uint8).data
        at, bytes_read = offset + start * out[:1].nbytes, 0
        while bytes_read < len(memory):
            count = os.preadv(handle, [memory[bytes_read:]], at + bytes_read)
            if not count:
                raise OSError("the file is shorter than it was")
            bytes_read += count

    def _error(self, message: str, hint: str) -> DataError:
        return DataError(f"{self.name}: {message}", hint=hint)

    def close(self) -> None:
        """Close the file; if threads read it now, the last of them closes it."""
        with self._lock:
            self._is_closing = True
            self._close()

    def _close(self) -> None:
        if self._readers:
            return
        file, self._file, self._data = self._file, None, None
        raw, self._raw = self._raw, None
        self._buffers.clear()
        if raw is not None:
            os.close(raw[0])
        if file is not None:
            file.close()


def hdf5(
    path: str | Path,
    field: str,
    *,
    rows: slice = slice(None),
    cache: bool = False,
) -> Hdf5Rows:
    """The rows of the dataset `field` of an HDF5 or NetCDF-4 file, as data of `hf.data.Dataset`.

    Values are as stored: NetCDF's scale_factor and fill values are not applied. `rows` selects a
    part: `slice(0, 50_000)`, or every second row, `slice(0, None, 2)`. With `cache` the file is
    first copied to the node's own disk (HPCFLOW_CACHE_DIR, else TMPDIR), once per node.

    Errors: DataError when the Dataset is constructed, with path, rank and remedy.
    """
    if rows.step is not None and rows.step < 1:
        raise DataError(
            f"rows={rows}: the step must be at least 1", hint="use shuffle=True for another order"
        )
    return Hdf5Rows(path, field, rows, cache)


def open_hdf5(path: Path) -> Any:
    """The HDF5 file, open for reading.

    Errors: DataError that distinguishes a missing, foreign, truncated and unreadable file.
    """
    _readable(path)
    h5py = library()
    try:
        with contextlib.suppress(TypeError, ValueError):  # HDF5 before 1.12 lacks this locking
            return h5py.File(path, "r", locking="best-effort")
        return h5py.File(path, "r")
    except Exception as error:
        why = str(error)
        hint = "copy it again, and inspect it with: h5ls -r FILE"
        problem = "is truncated" if "truncated" in why else "cannot be opened as HDF5"
        if "not found" in why or "signature" in why:
            problem, hint = "is not an HDF5 file", _kind(path)
        raise DataError(f"{path} {problem}: {why}", hint=hint) from error


def _readable(path: Path) -> None:
    """Raise DataError unless the file can be read and is not empty."""
    try:
        size = path.stat().st_size
        os.close(open_plain(path))
    except OSError as error:
        here = os.uname().nodename
        hint = f"every rank reads the file: {path.absolute()} must be there on every node"
        if isinstance(error, PermissionError):
            hint = "ask its owner to let you read it: chmod +r, and +x for its folders"
        raise DataError(f"{path} cannot be read on {here}: {error.strerror}", hint=hint) from error
    if not size:
        raise DataError(f"{path} is empty", hint="it was not written, or the disk was full")


def _kind(path: Path) -> str:
    """A hint at the format of a file that HDF5 cannot open."""
    with path.open("rb") as file:
        first = file.read(8)
    for magic, format_name in FOREIGN.items():
        if first.startswith(magic):
            return f"it is {format_name}"
    if first == SIGNATURE:
        return "its signature is HDF5's, so it is damaged: copy it again"
    return "give a file written by h5py, HDF5 or NetCDF-4"
