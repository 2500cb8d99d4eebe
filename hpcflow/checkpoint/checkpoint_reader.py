"""Checkpoint reader: checks a checkpoint and reads any rows, by user blocks and without HDF5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcflow.checkpoint import checkpoint_directory, header_digests
from hpcflow.checkpoint.checkpoint_layout import ArraySpec
from hpcflow.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    HpcflowError,
)


class CheckedRange(NamedTuple):
    """A piece of a file to check, and the array that it belongs to."""

    file: str
    piece: header_digests.DigestedRange
    array: str | None  # None: the structure of the file


class CheckpointFault(NamedTuple):
    """A fault in a file: the file's name, the arrays affected, and the message for the user."""

    file: str
    arrays: tuple[str, ...]
    text: str
    whole_file: bool = False  # missing, truncated or foreign file: faults of its bytes add nothing


class SavedCheckpoint:
    """The checkpoint at `path`, a directory or a file; `facts` are those of its index."""

    def __init__(self, path: Path, facts: dict[str, Any] | None = None) -> None:
        self.path = path
        self.index = checkpoint_directory.index_file(path)
        self.facts = header_digests.read_user_block(self.index) if facts is None else facts
        self.base = self.index.parent
        self.arrays = {
            name: ArraySpec(name, dtype, tuple(shape))
            for name, dtype, shape in self.facts["arrays"]
        }
        # a single-file checkpoint may have been renamed
        own = {"file": self.index.name, "slabs": self.facts["slabs"], "rest": self.facts["rest"]}
        self.files: list[dict[str, Any]] = self.facts.get("files") or [own]
        self._records = {record["file"]: record for record in self.files}
        self._slabs: dict[str, list[tuple[dict[str, Any], str]]] = {}
        for record in self.files:
            for slab in record["slabs"]:
                self._slabs.setdefault(slab["name"], []).append((slab, record["file"]))
        self._owned: set[str] = set()  # files that `read_checked` found to belong to the index

    def slabs_of(self, name: str) -> Sequence[tuple[dict[str, Any], str]]:
        """The slabs of an array, each with the name of its file."""
        return self._slabs.get(name, [])

    # -- checking

    def problems(self, share: int = 0, shares: int = 1) -> list[str]:
        """The faults in `share` of `shares` of the checkpoint, as texts; empty if none.

        All shares together cover every byte of every file.
        """
        return [fault.text for fault in self.faults(share, shares)]

    def faults(self, share: int = 0, shares: int = 1) -> list[CheckpointFault]:
        """The faults in `share` of `shares`, by file and arrays."""
        faults = [
            fault
            for i, r in enumerate(self.files)
            if i % shares == share
            for fault in self._owner(r)
        ]
        duties = list(self._duties())
        total = sum(duty.piece.nbytes for duty in duties)
        before = 0
        file_ranges: dict[str, list[CheckedRange]] = {}
        for duty in duties:
            if before * shares // max(total, 1) == share:
                file_ranges.setdefault(duty.file, []).append(duty)
            before += duty.piece.nbytes
        for file, some in file_ranges.items():
            faults += self._damaged(file, some)
        return list({fault.text: fault for fault in faults}.values())

    def _damaged(self, file: str, duties: Sequence[CheckedRange]) -> Iterator[CheckpointFault]:
        path = self.base / file
        every: tuple[str, ...] = ()
        try:
            for i in header_digests.damaged_pieces(path, [duty.piece for duty in duties]):
                array, at = duties[i].array, duties[i].piece.offset
                label = "its structure" if array is None else array
                every = every or self.arrays_in(file)
                arrays = every if array is None else (array,)
                yield CheckpointFault(file, arrays, f"{path}: {label} is damaged (at byte {at:,})")
        except HpcflowError as error:
            yield self._whole_file_fault(file, error.message)
        except FileNotFoundError:
            yield self._whole_file_fault(file, f"{path} is missing")
        except OSError as error:
            yield self._whole_file_fault(file, f"{path} cannot be read: {error.strerror}")

    def _whole_file_fault(self, file: str, text: str) -> CheckpointFault:
        return CheckpointFault(file, self.arrays_in(file), text, whole_file=True)

    def arrays_in(self, file: str) -> tuple[str, ...]:
        """The arrays with rows in a file; for an index, all arrays."""
        if file == self.index.name:
            return tuple(sorted(self.arrays))
        return tuple(sorted({slab["name"] for slab in self._records[file]["slabs"]}))

    def _owner(self, record: Mapping[str, Any]) -> Iterator[CheckpointFault]:
        """A fault unless the file is the one that the index records."""
        path = self.base / record["file"]
        if path == self.index:
            return
        try:
            facts = header_digests.read_user_block(path)
            index, index_id = self.index.name, self.facts["id"]
            if facts["id"] != index_id:
                raise header_digests.foreign_file_error(
                    path, f"its id is {facts['id']}, that of {index} is {index_id}"
                )
            if any(facts.get(name) != value for name, value in record.items()):
                raise header_digests.foreign_file_error(path, f"it does not match {index}")
        except HpcflowError as error:
            yield self._whole_file_fault(record["file"], error.message)

    def _duties(self) -> Iterator[CheckedRange]:
        for offset, nbytes, crc in self.facts["rest"]:
            yield CheckedRange(
                self.index.name, header_digests.DigestedRange(offset, nbytes, crc), None
            )
        for record in self.files:
            if record["file"] != self.index.name:
                for offset, nbytes, crc in record["rest"]:
                    yield CheckedRange(
                        record["file"], header_digests.DigestedRange(offset, nbytes, crc), None
                    )
            for slab in record["slabs"]:
                for piece in header_digests.digested_pieces(slab):
                    yield CheckedRange(record["file"], piece, slab["name"])

    # -- reading

    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        """Fill `out`, C-contiguous, with rows `start` to `stop` of an array.

        Errors: CheckpointError if no part has some of these rows.
        """
        row = self.arrays[name].row_bytes
        self.read_bytes(name, start * row, stop * row, out)

    def read_bytes(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        """Fill `out`, C-contiguous, with bytes `start` to `stop` of an array.

        Errors: CheckpointError if no part has some of these bytes.
        """
        row = self.arrays[name].row_bytes
        data = out.reshape(-1).view(np.uint8).data
        bytes_read = 0
        for slab, file in self.slabs_of(name):
            begin = slab["start"] * row
            low, high = max(start, begin), min(stop, slab["stop"] * row)
            if low >= high:
                continue
            self._read(
                self.base / file, slab["offset"] + low - begin, data[low - start : high - start]
            )
            bytes_read += high - low
        if bytes_read != stop - start:
            raise CheckpointError(
                f"{self.path} has only {bytes_read} of the bytes {start} to {stop} of {name!r}"
            )

    def read_checked(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        """`read_rows` after checking these rows' digests and that their files belong to the index.

        Errors: CheckpointCorruptError that names the faults.
        """
        row = self.arrays[name].row_bytes
        faults: list[CheckpointFault] = []
        for slab, file in self.slabs_of(name):
            # file offset -> byte of the array
            shift = slab["start"] * row - slab["offset"]
            duties = [
                CheckedRange(file, piece, name)
                for piece in header_digests.digested_pieces(slab)
                if piece.offset + shift < stop * row
                and start * row < piece.offset + shift + piece.nbytes
            ]
            if duties:
                if file not in self._owned:
                    faults += self._owner(self._records[file])
                    self._owned |= set() if faults else {file}
                faults += self._damaged(file, duties)
        if faults:
            raise CheckpointCorruptError(
                f"{name!r} of {self.path} is damaged:\n  " + "\n  ".join(f.text for f in faults),
                hint="use another checkpoint; hpcflow verify shows which are good",
            )
        self.read_rows(name, start, stop, out)

    def _read(self, path: Path, offset: int, data: memoryview) -> None:
        with header_digests.open_checkpoint_file(path) as fd:
            header_digests.read_all(fd, data, offset, path)

    def read(self, name: str) -> np.ndarray:
        """A whole array."""
        return self.rows(name, 0, self.arrays[name].rows)

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows of an array; a scalar, which is one row, keeps its shape ()."""
        array = self.arrays[name]
        out = np.empty((stop - start, *array.shape[1:]) if array.shape else (), array.dtype)
        self.read_rows(name, start, stop, out)
        return out

    # -- comparing

    def check_fits(self, specs: Sequence[ArraySpec], label: str, reshape: bool = False) -> None:
        """Raise unless the checkpoint has every array of `specs` with the same shape and dtype.

        With `reshape` the same dtype and number of elements are enough.
        Errors: CheckpointMismatchError with a diff.
        """
        rows = []
        for spec in specs:
            saved = self.arrays.get(spec.name)
            if saved is None:
                rows.append(f"  - {_shape_text(spec)}: not in the checkpoint")
            elif (saved.dtype, saved.shape) != (spec.dtype, spec.shape) and not (
                reshape and (saved.dtype, saved.nbytes) == (spec.dtype, spec.nbytes)
            ):
                rows.append(f"  ! {_shape_text(spec)}: in the checkpoint {_array_kind(saved)}")
        if not rows:
            return
        names = {spec.name for spec in specs}
        rows += [
            f"  + {_shape_text(a)}: only in the checkpoint"
            for a in self.arrays.values()
            if a.name not in names
        ]
        omitted = len(rows) - MOST_ROWS
        rows = rows[:MOST_ROWS] + ([f"  ... {omitted} more"] if omitted > 0 else [])
        raise CheckpointMismatchError(
            f"{self.path} is a checkpoint of another model ({label}):\n" + "\n".join(rows),
            hint="build the graph that it was saved from, or restore the variables both have: "
            "hf.train.Saver([some, variables]), or Saver({'name in the checkpoint': variable})",
        )


MOST_ROWS = 20


def _array_kind(array: ArraySpec) -> str:
    return f"{np.dtype(array.dtype)}{list(array.shape)}"


def _shape_text(array: ArraySpec) -> str:
    return f"{array.name} {_array_kind(array)}"
