"""What this rank writes: its rows of the variables, straight from where they lie."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.checkpoint import h5, stamp
from hpcflow.checkpoint.layout import Array, Slab
from hpcflow.graph.dtypes import text_of
from hpcflow.runtime.state import Store, VariableState

Record = dict[str, Any]  # what the index says of a file: its slabs, where they are, their digests


def held(store: Store, wanted: Mapping[str, str]) -> list[Record]:
    """What this rank has of the variables `wanted` (variable -> name in the checkpoint).

    The first copy of a slot that each piece has for itself stands for all.
    """
    found = []
    for state in store.states.values():
        if state.variable in wanted and state.array is not None:
            found.append(
                {
                    "name": wanted[state.variable],
                    "dtype": text_of(state.dtype),
                    "shape": list(state.whole),
                    "start": state.rows[0],
                    "stop": state.rows[1],
                    "copy": state.copied[0] if state.copied else 0,
                }
            )
    return found


@contextlib.contextmanager
def snapshots(store: Store, names: Mapping[str, str]) -> Iterator[dict[str, list[Any]]]:
    """name -> [(state, its version, kept unchanged inside)] for the variables `names`."""
    pinned: list[tuple[VariableState, Any]] = []
    found: dict[str, list[Any]] = {}
    try:
        for state in store.states.values():
            if state.variable in names and state.array is not None:
                pinned.append((state, state.pin()))
                found.setdefault(names[state.variable], []).append(pinned[-1])
        yield found
    finally:
        for state, array in pinned:
            state.unpin(array)


def pieces(versions: Sequence[Any], slab: Slab) -> Iterator[tuple[int, np.ndarray]]:
    """The rows of a slab as host bytes, at most a staging buffer at once, with the row each begins.

    Host memory is not copied.
    """
    state, array = next(v for v in versions if v[0].rows[0] <= slab.start < v[0].rows[1])
    first = state.rows[0]
    flat = array.reshape((state.rows[1] - first, -1))
    row_bytes = max(flat.shape[1] * state.dtype.itemsize, 1)
    step = max(stamp.PIECE_BYTES // row_bytes, 1)
    for row in range(slab.start, slab.stop, step):
        chosen = flat[row - first : min(row + step, slab.stop) - first]
        yield row, np.ascontiguousarray(state.device.to_host(chosen))


def write_part(
    path: Path, told: Record, arrays: Mapping[str, Array], duty: Sequence[Slab], versions: Any
) -> Record:
    """Write this rank's own file: a dataset for its rows of each variable; the record of it."""
    block = stamp.room(text_bytes(arrays, duty))
    offsets: dict[str, int | None] = {}
    with h5.created(path, block) as file:
        for slab in duty:
            array = arrays[slab.name]
            shape = (slab.stop - slab.start, *array.shape[1:]) if array.shape else ()
            place = h5.Place(told["paths"][slab.name], array.dtype, shape, slab.name)
            offsets[slab.name] = h5.add(file, place)
        h5.describe(file, {"id": told["id"], "step": told["step"], "part": told["part"]}, {})
    slabs = []
    fd = os.open(path, os.O_RDWR)
    try:
        for slab in duty:
            offset = offsets[slab.name]
            assert offset is not None
            slabs.append(_write_slab(fd, offset, slab, versions[slab.name]))
    finally:
        os.close(fd)
    return finish(path, {"kind": "part", **_own(told)}, slabs, arrays, block)


def _own(told: Record) -> Record:
    return {name: told[name] for name in ("id", "step", "part")}


def _write_slab(fd: int, offset: int, slab: Slab, versions: Sequence[Any]) -> Record:
    crcs, at = [], offset
    for _, rows in pieces(versions, slab):
        data = rows.reshape(-1).view(np.uint8).data
        for low in range(0, len(data), stamp.PIECE_BYTES):  # one row may be larger
            part = data[low : low + stamp.PIECE_BYTES]
            crcs.append([len(part), zlib.crc32(part)])
            stamp.write_all(fd, part, at)
            stamp.send_off(fd, at, len(part))
            at += len(part)
    return {**slab._asdict(), "offset": offset, "crcs": crcs}


def lay_out(path: Path, told: Record, arrays: Mapping[str, Array]) -> dict[str, int | None]:
    """Make the one file of all writers, without their rows; where each array begins in it.

    Space is taken before anyone writes.
    """
    offsets = {}
    with h5.created(path, told["block"], told["align"]) as file:
        for name, array in arrays.items():
            place = h5.Place(told["paths"][name], array.dtype, array.shape, name)
            offsets[name] = h5.add(file, place)
        h5.describe(file, told["attrs"], told["texts"])
    h5.reserve(path)
    h5.sync(path)
    return offsets


def write_shared(
    path: Path,
    told: Record,
    arrays: Mapping[str, Array],
    duty: Sequence[Slab],
    versions: Any,
    comm: Any,
) -> list[Record]:
    """Write this rank's rows of the one file of all writers (of the MPI comm); its slabs.

    Ranks: all writers open and close it together; each writes its rows independently.
    """
    slabs = []
    with h5.joined(path, comm) as file:
        for slab in duty:
            crcs = []
            for row, rows in pieces(versions[slab.name], slab):
                h5.write_rows(
                    file,
                    told["paths"][slab.name],
                    row,
                    rows.reshape((len(rows), *arrays[slab.name].shape[1:])),
                )
                crcs.append([rows.nbytes, zlib.crc32(rows.reshape(-1).view(np.uint8).data)])
            at = told["offsets"][slab.name] + slab.start * arrays[slab.name].row_bytes
            slabs.append({**slab._asdict(), "offset": at, "crcs": crcs})
    h5.sync(path)
    return slabs


def finish(
    path: Path,
    facts: Record,
    slabs: Sequence[Record],
    arrays: Mapping[str, Array],
    block: int,
    more: Mapping[str, Any] | None = None,
) -> Record:
    """Digest what no slab covers, write the user block, and bring the file to the disk.

    The record of the file; `more` stands in the user block alone.
    """
    used = [(slab["offset"], slab["offset"] + sum(n for n, _ in slab["crcs"])) for slab in slabs]
    record = {
        "format_version": stamp.FORMAT_VERSION,
        **facts,
        "file": path.name.removesuffix(".tmp"),
        "size": path.stat().st_size,
        "slabs": list(slabs),
        "rest": [list(piece) for piece in stamp.rest_pieces(path, block, used)],
    }
    stamp.write(path, {**record, **(more or {})}, block)
    return record


def text_bytes(arrays: Mapping[str, Array], duty: Sequence[Slab]) -> int:
    """At most so long is the text of the user block of a file with these slabs."""
    count = 1024
    for slab in duty:
        array = arrays[slab.name]
        nbytes = (slab.stop - slab.start) * array.row_bytes
        row = min(array.row_bytes or 1, stamp.PIECE_BYTES)
        count += len(json.dumps(slab.name)) + 160
        count += (nbytes // max(stamp.PIECE_BYTES - row, stamp.PIECE_BYTES // 2) + 3) * 32
        count += 64  # what lies between this dataset and the next
    return count
