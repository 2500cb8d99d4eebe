"""Export of a checkpoint to one file readable without hpcflow: plain HDF5, or NumPy's npz."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.compare_checkpoints import row_blocks
from hpcflow.checkpoint.hdf5_datasets import (
    DatasetSpec,
    add_dataset,
    create_file,
    write_description,
    write_rows,
)
from hpcflow.errors import CheckpointError
from hpcflow.graph.dtypes import bfloat16

SUFFIXES = (".h5", ".hdf5", ".npz")
EXPORTED_FACTS = ("step", "samples", "mode", "ranks", "saved", "id", "graph_digest")


def export_arrays(saved: SavedCheckpoint, path: Path) -> int:
    """Write the arrays of a checkpoint into one file; returns their number.

    The suffix of `path` selects the format. HDF5 has each array at its path in the checkpoint,
    bfloat16 as uint16, and the facts as attributes. An npz file has each under its name, bfloat16
    as float32 with the same values.

    Errors: CheckpointError for another suffix, or for a name that an npz file cannot have; OSError.
    After an error `path` is as it was before.
    """
    if path.suffix not in SUFFIXES:
        raise CheckpointError(f"{path} must end in {', '.join(SUFFIXES)}")
    draft = path.with_name(path.name + ".tmp")
    try:
        _write_npz(saved, draft) if path.suffix == ".npz" else _write_hdf5(saved, draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return len(saved.arrays)


def _write_hdf5(saved: SavedCheckpoint, path: Path) -> None:
    with create_file(path, 0) as file:
        for name, array in saved.arrays.items():
            place = DatasetSpec(saved.facts["paths"][name], array.dtype, array.shape, name)
            add_dataset(file, place)
            for start, stop in row_blocks(array):
                write_rows(file, place.path, start, saved.rows(name, start, stop))
        write_description(file, {k: saved.facts[k] for k in EXPORTED_FACTS if k in saved.facts}, {})


def _write_npz(saved: SavedCheckpoint, path: Path) -> None:
    for name in saved.arrays:
        if name.startswith("/") or {"", ".", ".."} & set(name.split("/")) or "\\" in name:
            raise CheckpointError(
                f"an npz file cannot hold array {name!r}: it might be unpacked outside the folder",
                hint="export it as .h5",
            )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in saved.arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                dtype = np.dtype(array.dtype)
                dtype = np.dtype(np.float32) if dtype == bfloat16 else dtype
                header: dict[str, Any] = {"descr": dtype.str, "fortran_order": False}
                np.lib.format.write_array_header_1_0(file, {**header, "shape": array.shape})
                for start, stop in row_blocks(array):
                    file.write(saved.rows(name, start, stop).astype(dtype).tobytes())
