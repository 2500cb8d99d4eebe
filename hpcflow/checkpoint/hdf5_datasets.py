"""HDF5 datasets: allocated without data for writers to fill, and virtual ones for the index."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcflow.comm.polling_backoff import ledger_entry, wait_for_requests
from hpcflow.errors import CheckpointError
from hpcflow.graph.dtypes import bfloat16
from hpcflow.runtime.hdf5_library import library

MARGIN = 16 << 10  # bytes that HDF5 may add to a file
ALIGN_FROM, PAGE = 64 << 10, 4096  # datasets from this size on begin at pages
WAY_S = 50e-6  # pause before a dataset, which takes about a millisecond to create


class DatasetSpec(NamedTuple):
    """A dataset: its path in the file, dtype, shape, and the name of its variable."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    name: str


class VirtualSource(NamedTuple):
    """Rows `start` to `stop` of a virtual dataset, stored in the part `file` beside the index."""

    file: str
    start: int
    stop: int


@contextlib.contextmanager
def create_file(path: Path, block: int, align: int = PAGE) -> Iterator[Any]:
    """A new HDF5 file after a user block of `block` bytes, large datasets at multiples of `align`.

    Errors: OSError with the errno of the system if there is one, else CheckpointError.
    """
    h5py = library()
    with _hdf5_errors(path):
        file = h5py.File(
            path,
            "w",
            userblock_size=block,
            alignment_threshold=max(align, ALIGN_FROM),
            alignment_interval=align,
        )
        try:
            yield file
        finally:
            file.close()


@contextlib.contextmanager
def open_for_writing(path: Path, comm: Any) -> Iterator[Any]:
    """An existing HDF5 file, open for writing; by all ranks of a communicator, if given."""
    options: dict[str, Any] = {} if comm is None else {"driver": "mpio", "comm": comm.handle}
    name = path.name.removesuffix(".tmp")
    with _hdf5_errors(path):
        with _collective_call(comm, f"opening {name}"):
            file = library().File(path, "r+", **options)
        try:
            yield file
        finally:
            with _collective_call(comm, f"closing {name}"):
                file.close()


@contextlib.contextmanager
def _collective_call(comm: Any, label: str) -> Iterator[None]:
    """A context in which all ranks of `comm`, if given, make a collective HDF5 call.

    A barrier precedes the call, because the call holds the interpreter and so stops the stall
    watchdog.
    """
    if comm is None:
        yield
        return
    wait_for_requests(comm.barrier(), label=label)
    with ledger_entry(label):
        yield


@contextlib.contextmanager
def _hdf5_errors(path: Path) -> Iterator[None]:
    """Raise HDF5's errors as CheckpointError; an OSError with an errno stays as it is."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        raise _hdf5_error(path, error) from error
    except (RuntimeError, ValueError, KeyError) as error:
        raise _hdf5_error(path, error) from error


def _hdf5_error(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"HDF5 could not write {path}: {error}",
        hint="check whether the disk is full (df, quota) or was lost; "
        "earlier checkpoints are unchanged",
    )


def release_gil() -> None:
    """Release the interpreter lock, which HDF5 calls hold, so that training threads can run."""
    time.sleep(WAY_S)


def add_dataset(file: Any, spec: DatasetSpec) -> int | None:
    """Create a dataset with allocated, unwritten bytes; returns their offset in the file.

    The offset is None if the dataset has no bytes.

    Errors: OSError beyond the file size limit (an older HDF5 would crash when it closes the file).
    """
    h5py = library()
    nbytes = on_disk(spec.dtype).itemsize * math.prod(spec.shape)
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY and file.id.get_filesize() + nbytes + MARGIN > soft:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), file.filename)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    offset = _create_dataset(file, spec, plist).get_offset()
    return None if offset is None else int(offset)


def _create_dataset(file: Any, spec: DatasetSpec, plist: Any) -> Any:
    """A dataset created with `plist`, with its missing groups and hpcflow's attributes."""
    h5py = library()
    release_gil()
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    kind = h5py.h5t.py_create(on_disk(spec.dtype), logical=True)
    if spec.shape:
        space = h5py.h5s.create_simple(spec.shape)
    else:
        space = h5py.h5s.create(h5py.h5s.SCALAR)
    dataset_id = h5py.h5d.create(file.id, spec.path.encode(), kind, space, plist, links)
    h5py.Dataset(dataset_id).attrs["name"] = spec.name
    if on_disk(spec.dtype) != spec.dtype:
        h5py.Dataset(dataset_id).attrs["dtype"] = spec.dtype
    return dataset_id


def on_disk(dtype: str) -> np.dtype:
    """The dtype of a dataset: HDF5 has no bfloat16, so its bits are stored as uint16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def write_rows(file: Any, path: str, start: int, rows: np.ndarray) -> None:
    """Write rows of a dataset, independently of other ranks (MPI-IO: independent)."""
    dataset = file[path]
    if rows.dtype == bfloat16:
        rows = rows.view(dataset.dtype)
    if dataset.shape == ():
        dataset[()] = rows.reshape(())
    else:
        dataset[start : start + len(rows)] = rows


def write_description(file: Any, facts: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Write `facts` as attributes of the file and `texts` as datasets."""
    for name, value in facts.items():
        file.attrs[name] = value
    for path, text in texts.items():
        file.create_dataset(path, data=as_bytes(text))


def as_bytes(text: str) -> np.ndarray:
    """A text as the bytes of a dataset, at least one byte."""
    return np.frombuffer(text.encode() or b" ", np.uint8)


def add_virtual(file: Any, spec: DatasetSpec, sources: Sequence[VirtualSource]) -> None:
    """Create a virtual dataset of the rows in the parts; unmapped floats read as NaN.

    A scalar is an external link to its part.
    """
    h5py = library()
    if not spec.shape:
        release_gil()
        file[spec.path] = h5py.ExternalLink(sources[0].file, spec.path)
        return
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if sources:
        plist.set_layout(h5py.h5d.VIRTUAL)
        dtype = on_disk(spec.dtype)
        if dtype.kind in "fc":
            plist.set_fill_value(np.array(np.nan, dtype))
    for source in sources:
        rows = (source.stop - source.start, *spec.shape[1:])
        target_space = h5py.h5s.create_simple(spec.shape)
        target_space.select_hyperslab((source.start, *(0 for _ in rows[1:])), rows)
        source_space = h5py.h5s.create_simple(rows)
        plist.set_virtual(target_space, source.file.encode(), spec.path.encode(), source_space)
    _create_dataset(file, spec, plist)


def reserve(path: Path) -> None:
    """Allocate the blocks of a file on the disk, if the file system can.

    A full disk is then a clear error at once, which MPI-IO does not give. The standard library's
    posix_fallocate would write zeros on a file system without fallocate.
    """
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if fallocate is None:
        return
    size = path.stat().st_size
    fd = os.open(path, os.O_RDWR)
    try:
        if fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size)):
            number = ctypes.get_errno()
            if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(fd)


def sync(path: Path) -> None:
    """fsync a file or a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
