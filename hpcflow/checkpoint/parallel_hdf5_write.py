"""HDF5 writing: each rank writes its rows of the variables without a copy of host memory."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from hpcflow.checkpoint import hdf5_datasets, header_digests
from hpcflow.checkpoint.checkpoint_layout import ArraySpec, HeldRows, Slab
from hpcflow.checkpoint.hdf5_structure_check import check_written
from hpcflow.checkpoint.save_plan import SavePlan
from hpcflow.errors import CheckpointCorruptError
from hpcflow.graph.dtypes import text_of
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.state.state_store import StateStore, VariableState

Record = dict[str, Any]  # the index's entry about a file: slabs, offsets, digests


class SlabRecord(TypedDict):
    """What the record of a file says of a slab in it."""

    name: str
    start: int
    stop: int
    offset: int  # in the file
    crcs: list[list[int]]  # of each piece: its bytes, its CRC-32


def local_pieces(store: StateStore, array_names: Mapping[str, str]) -> list[HeldRows]:
    """This rank's pieces of the variables `array_names` (variable -> name in the checkpoint).

    Of a slot that each piece has for itself, the first copy represents all.
    """
    pieces = []
    for state in store.states.values():
        if state.variable in array_names and state.array is not None:
            copy = state.copied[0] if state.copied else 0
            name, dtype, shape = (
                array_names[state.variable],
                text_of(state.dtype),
                tuple(state.full_shape),
            )
            pieces.append(HeldRows(name, dtype, shape, *state.rows, copy))
    return pieces


class PinnedRows(NamedTuple):
    """A pinned or copied version of rows of a variable, for a save."""

    rows: tuple[int, int]
    array: Any
    device: Device


class PinnedSnapshot:
    """The current values of some slabs, by slab; they do not change until `release`.

    Host memory is not copied: its version is pinned, so that an update goes to a second buffer.
    With `to_host`, rows on another device are copied to host memory, so that writing them later
    makes no calls of that device.
    """

    def __init__(
        self,
        store: StateStore,
        names: Mapping[str, str],
        duty: Sequence[Slab],
        to_host: bool = False,
    ) -> None:
        self.versions: dict[Slab, PinnedRows] = {}
        self._pins: dict[Slab, tuple[VariableState, Any]] = {}
        try:
            for slab, state in slab_states(store, names, duty):
                self.versions[slab] = self._pin(state, slab, to_host)
        except BaseException:
            self.release()
            raise

    def _pin(self, state: VariableState, slab: Slab, to_host: bool) -> PinnedRows:
        if to_host and not isinstance(state.array, np.ndarray):
            return _copy_to_host(
                PinnedRows(state.rows, state.read(), state.device), slab, state.dtype
            )
        array = state.pin()
        self._pins[slab] = state, array
        return PinnedRows(state.rows, array, state.device)

    def is_current(self) -> bool:
        """Whether an update has yet to copy one of the pinned versions; callable in any thread."""
        return any(state.array is array for state, array in list(self._pins.values()))

    def release(self, slab: Slab | None = None) -> None:
        """Unpin one slab or all; the caller holds the progress lock."""
        for pinned in list(self.versions) if slab is None else [slab]:
            self.versions.pop(pinned, None)
            state, array = self._pins.pop(pinned, (None, None))
            if state is not None:
                state.unpin(array)


def slab_states(
    store: StateStore, names: Mapping[str, str], duty: Sequence[Slab]
) -> Iterator[tuple[Slab, VariableState]]:
    """Each slab with the variable state that holds its rows."""
    slab_names = {slab.name for slab in duty}
    states: dict[str, list[VariableState]] = {}
    for state in store.states.values():
        if names.get(state.variable) in slab_names and state.array is not None:
            states.setdefault(names[state.variable], []).append(state)
    for slab in duty:
        yield slab, next(s for s in states[slab.name] if s.rows[0] <= slab.start < s.rows[1])


def _copy_to_host(version: PinnedRows, slab: Slab, dtype: np.dtype) -> PinnedRows:
    """A copy of the rows of a slab in host memory."""
    host = None
    for row, rows in host_pieces(version, slab):
        if host is None:
            host = np.empty((slab.stop - slab.start, *rows.shape[1:]), dtype)
        host[row - slab.start : row - slab.start + len(rows)] = rows
    return PinnedRows((slab.start, slab.stop), host, Device())


def host_pieces(version: PinnedRows, slab: Slab) -> Iterator[tuple[int, np.ndarray]]:
    """The rows of a slab in host memory, as pairs of first row and rows.

    A pair has at most the bytes of a staging buffer, or one row. Host memory is not copied.
    """
    (first, last), array = version.rows, version.array
    flat = array.reshape((last - first, -1))
    row_bytes = max(flat.shape[1] * array.dtype.itemsize, 1)
    step = max(header_digests.PIECE_BYTES // row_bytes, 1)
    for row in range(slab.start, slab.stop, step):
        chosen = flat[row - first : min(row + step, slab.stop) - first]
        yield row, np.ascontiguousarray(version.device.to_host(chosen))


def write_part(
    path: Path,
    plan: SavePlan,
    rank: int,
    duty: Sequence[Slab],
    versions: Mapping[Slab, PinnedRows],
    on_written: Callable[[Slab], object] = lambda slab: None,
) -> Record:
    """Write the own file of `rank`, a dataset for its rows of each variable; returns its record.

    `on_written` is called with each slab when its version is no longer needed, before it is
    durable.
    """
    block, facts = (
        header_digests.user_block_size(header_text_bytes(plan.by_name, duty)),
        plan.part_facts(rank),
    )
    offsets: dict[str, int | None] = {}
    with hdf5_datasets.create_file(path, block) as file:
        for slab in duty:
            array = plan.by_name[slab.name]
            shape = (slab.stop - slab.start, *array.shape[1:]) if array.shape else ()
            place = hdf5_datasets.DatasetSpec(plan.paths[slab.name], array.dtype, shape, slab.name)
            offsets[slab.name] = hdf5_datasets.add_dataset(file, place)
        hdf5_datasets.write_description(file, facts, {})
    slabs = []
    fd = os.open(path, os.O_RDWR)
    try:
        for slab in duty:
            offset = offsets[slab.name]
            assert offset is not None
            slabs.append(_write_slab(fd, offset, slab, versions[slab]))
            on_written(slab)
    finally:
        os.close(fd)
    return finish_file(path, {"kind": "part", **facts}, slabs, block)


def _write_slab(fd: int, offset: int, slab: Slab, version: PinnedRows) -> SlabRecord:
    crcs, at = [], offset
    for _, rows in host_pieces(version, slab):
        data = rows.reshape(-1).view(np.uint8).data
        for low in range(0, len(data), header_digests.PIECE_BYTES):  # one row may exceed a piece
            part = data[low : low + header_digests.PIECE_BYTES]
            crcs.append([len(part), zlib.crc32(part)])
            header_digests.write_all(fd, part, at)
            header_digests.start_writeback(fd, at, len(part))
            at += len(part)
    return SlabRecord(name=slab.name, start=slab.start, stop=slab.stop, offset=offset, crcs=crcs)


def create_shared_file(
    path: Path, plan: SavePlan, texts: Mapping[str, str]
) -> dict[str, int | None]:
    """Create the single file of all writers, without rows; returns the offset of each array.

    The file's blocks are allocated before any rank writes.
    """
    offsets = {}
    with hdf5_datasets.create_file(path, plan.block, plan.align) as file:
        for name, array in plan.by_name.items():
            place = hdf5_datasets.DatasetSpec(plan.paths[name], array.dtype, array.shape, name)
            offsets[name] = hdf5_datasets.add_dataset(file, place)
        hdf5_datasets.write_description(file, plan.attributes, texts)
    hdf5_datasets.reserve(path)
    hdf5_datasets.sync(path)
    return offsets


def write_shared(
    path: Path,
    plan: SavePlan,
    duty: Sequence[Slab],
    versions: Mapping[Slab, PinnedRows],
    comm: Any,
) -> list[SlabRecord]:
    """Write this rank's rows of the file that all ranks of `comm` write; returns its slabs.

    Ranks: all writers open and close the file collectively; each writes its rows independently.
    """
    slabs = []
    with hdf5_datasets.open_for_writing(path, comm) as file:
        for slab in duty:
            crcs, array = [], plan.by_name[slab.name]
            for row, rows in host_pieces(versions[slab], slab):
                hdf5_datasets.write_rows(
                    file,
                    plan.paths[slab.name],
                    row,
                    rows.reshape((len(rows), *array.shape[1:])),
                )
                crcs.append([rows.nbytes, zlib.crc32(rows.reshape(-1).view(np.uint8).data)])
            offset = plan.offsets[slab.name]
            assert offset is not None, "a slab has bytes"
            at = offset + slab.start * array.row_bytes
            slabs.append(
                SlabRecord(name=slab.name, start=slab.start, stop=slab.stop, offset=at, crcs=crcs)
            )
    hdf5_datasets.sync(path)
    return slabs


def finish_file(
    path: Path,
    facts: Record,
    slabs: Sequence[SlabRecord],
    block: int,
) -> Record:
    """Digest the bytes that no slab covers, write the user block and fsync the file.

    Returns the record of the file.
    """
    used = [(slab["offset"], slab["offset"] + sum(n for n, _ in slab["crcs"])) for slab in slabs]
    record = {
        "format_version": header_digests.FORMAT_VERSION,
        **facts,
        "file": path.name.removesuffix(".tmp"),
        "size": path.stat().st_size,
        "slabs": list(slabs),
        "rest": [list(piece) for piece in header_digests.uncovered_pieces(path, block, used)],
    }
    header_digests.write_user_block(path, record, block)
    return record


def check_part(path: Path, plan: SavePlan, rank: int, record: Record) -> None:
    """Reopen the finished part of `rank` and check that HDF5 shows what `plan` and `record` say.

    Errors: CheckpointCorruptError.
    """
    facts = {"kind": "index", "arrays": plan.arrays, "paths": plan.paths, "files": [record]}
    check_written(path, {**facts, "slabs": [], "rest": []}, plan.part_facts(rank), {})


def check_file(path: Path, record: Record) -> None:
    """Read a finished file back and check its digests, from the disk if the page cache drops it.

    Errors: CheckpointCorruptError if a byte is not as it was written.
    """
    header_digests.drop_page_cache(path)
    if header_digests.read_user_block(path)["id"] != record["id"]:
        raise header_digests.foreign_file_error(path, "another save wrote it")
    spans = [(offset, nbytes, crc, "its structure") for offset, nbytes, crc in record["rest"]]
    for slab in record["slabs"]:
        spans += [(*piece, slab["name"]) for piece in header_digests.digested_pieces(slab)]
    for i in header_digests.damaged_pieces(
        path, [header_digests.DigestedRange(*row[:3]) for row in spans]
    ):
        raise CheckpointCorruptError(
            f"{path} differs from what was written: {spans[i][3]} differs at byte {spans[i][0]:,}",
            hint="the disk or the memory of this node is at fault; "
            "earlier checkpoints are unchanged",
        )


def header_text_bytes(arrays: Mapping[str, ArraySpec], duty: Sequence[Slab]) -> int:
    """An upper bound on the text bytes in the user block of a file with these slabs."""
    count = 1024
    for slab in duty:
        array = arrays[slab.name]
        nbytes = (slab.stop - slab.start) * array.row_bytes
        row = min(array.row_bytes or 1, header_digests.PIECE_BYTES)
        count += len(json.dumps(slab.name)) + 160
        count += (
            nbytes // max(header_digests.PIECE_BYTES - row, header_digests.PIECE_BYTES // 2) + 3
        ) * 32
        count += 64  # the gap between this dataset and the next
    return count
