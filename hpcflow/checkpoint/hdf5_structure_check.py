"""HDF5 structure check: compares what HDF5 readers see with the user blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.checkpoint import hdf5_datasets
from hpcflow.checkpoint.checkpoint_layout import GRAPH, STATE, ArraySpec
from hpcflow.checkpoint.checkpoint_reader import CheckpointFault, SavedCheckpoint
from hpcflow.errors import MALFORMED, CheckpointCorruptError
from hpcflow.runtime.hdf5_library import library


def structure_faults(
    saved: SavedCheckpoint, names: Sequence[str] = ()
) -> Iterator[CheckpointFault]:
    """Faults where HDF5 would read something else than the user blocks record.

    The digests of the bytes have been checked before. The check covers the files `names`, by
    default all. A restore does not use HDF5, but other readers do; so no link and no source may
    lead out of the checkpoint.
    """
    parts = [r["file"] for r in saved.files if r["file"] != saved.index.name]
    for name in names or [saved.index.name, *parts]:
        path = saved.base / name
        try:
            with library().File(path, "r") as file:
                yield from _StructureCheck(saved, name, file).faults()
        except (OSError, RuntimeError, *MALFORMED) as error:
            yield CheckpointFault(
                name, saved.arrays_in(name), f"{path}: HDF5 cannot read it: {error}"
            )


def check_written(
    path: Path,
    facts: Mapping[str, Any],
    attrs: Mapping[str, Any],
    texts: Mapping[str, str],
) -> None:
    """Reopen a file of a draft and compare all that HDF5 has written with what it should contain.

    The digests cannot find such a fault, because they are computed from the file. `facts` are those
    of the index, as far as they concern this file.

    Errors: CheckpointCorruptError if something is missing or different.
    """
    saved = SavedCheckpoint(path if facts["kind"] == "whole" else path.parent, dict(facts))
    faults = [fault.text for fault in structure_faults(saved, [path.name])]
    faults = faults or [f"{path}: {text}" for text in _description_faults(path, attrs, texts)]
    if faults:
        raise CheckpointCorruptError(
            f"{path} differs from what was written: {faults[0]}",
            hint="the disk or the memory of this node is at fault; "
            "earlier checkpoints are unchanged",
        )


def _description_faults(
    path: Path, attrs: Mapping[str, Any], texts: Mapping[str, str]
) -> Iterator[str]:
    """Faults of a file's attributes and texts."""
    try:
        with library().File(path, "r") as file:
            for name, value in attrs.items():
                if name not in file.attrs or file.attrs[name] != value:
                    yield f"its attribute {name!r} is lost"
            for name, text in texts.items():
                if not np.array_equal(file[name][()], hdf5_datasets.as_bytes(text)):
                    yield f"{name} is lost"
    except (OSError, RuntimeError, *MALFORMED) as error:
        yield f"HDF5 cannot read it: {error}"


class _StructureCheck:
    """One file of a checkpoint and what its user block records."""

    def __init__(self, saved: SavedCheckpoint, name: str, file: Any) -> None:
        self.saved, self.name, self.file = saved, name, file
        records = [record for record in saved.files if record["file"] == name]
        self.slabs = {slab["name"]: slab for record in records for slab in record["slabs"]}
        self.is_index, self.is_whole = name == saved.index.name, saved.facts["kind"] == "whole"
        self.paths: dict[str, str] = saved.facts["paths"]
        array_names = set(saved.arrays) if self.is_index else set(self.slabs)
        self.expected = {self.paths[array]: saved.arrays[array] for array in array_names}

    def faults(self) -> Iterator[CheckpointFault]:
        """The faults of this file."""
        links = dict(self._walk(self.file, ""))
        for path, array in self.expected.items():
            hdf5_datasets.release_gil()
            wrong = self._wrong(array, path, links.pop(path, None))
            if wrong:
                text = f"{self.saved.base / self.name}: {array.name}: {wrong}"
                yield CheckpointFault(self.name, (array.name,), text)
        for path in sorted(links.keys() - {GRAPH, STATE}):
            text = f"{self.saved.base / self.name}: {path} is not in the index"
            yield CheckpointFault(self.name, (), text)

    def _walk(self, group: Any, above: str) -> Iterator[tuple[str, Any]]:
        """Path -> link of everything that is not a group; follows hard links only."""
        h5py = library()
        for name in group:
            link = group.get(name, getlink=True)
            path = above + name
            if isinstance(link, h5py.HardLink) and group.get(name, getclass=True) is h5py.Group:
                yield from self._walk(group[name], path + "/")
            else:
                yield path, link

    def _wrong(self, array: ArraySpec, path: str, link: Any) -> str | None:
        h5py = library()
        if link is None:
            return "HDF5 does not show it"
        if isinstance(link, h5py.ExternalLink):
            is_part = self.is_index and not self.is_whole and not array.shape
            if is_part and self._is_source(array, 0, 1, link.filename, link.path):
                return None
            return f"it is a link to {link.path} of {link.filename}"
        if not isinstance(link, h5py.HardLink):
            return "it is a link to something else"
        dataset = self.file[path]
        shape = array.shape
        if not self.is_index and shape:
            slab = self.slabs[array.name]
            shape = (slab["stop"] - slab["start"], *shape[1:])
        if dataset.shape != shape or dataset.dtype != hdf5_datasets.on_disk(array.dtype):
            return f"HDF5 shows {dataset.dtype}{list(dataset.shape)}"
        wrong = self._sources if self.is_index and not self.is_whole else self._bytes
        label = dataset.attrs.get("name")
        return wrong(array, dataset) or (None if label == array.name else f"HDF5 names it {label}")

    def _bytes(self, array: ArraySpec, dataset: Any) -> str | None:
        """An error unless HDF5 reads the bytes whose digests were checked."""
        plist = dataset.id.get_create_plist()
        if plist.get_layout() != library().h5d.CONTIGUOUS or plist.get_external_count():
            return "it is not in one piece in the file" if array.nbytes else None
        if array.nbytes:
            slabs = [slab for slab, _ in self.saved.slabs_of(array.name)]
            local_slabs = [self.slabs[array.name]] if not self.is_whole else slabs
            first = min(local_slabs, key=lambda slab: slab["start"])
            if dataset.id.get_offset() != first["offset"]:
                return f"HDF5 reads it at byte {dataset.id.get_offset()}, not {first['offset']}"
            ends = all(
                s["offset"] - first["offset"] == (s["start"] - first["start"]) * array.row_bytes
                for s in local_slabs
            )
            return None if ends else "its rows do not follow each other"
        return None

    def _sources(self, array: ArraySpec, dataset: Any) -> str | None:
        """An error unless a virtual dataset maps exactly the rows of each part."""
        sources = dataset.virtual_sources() if dataset.is_virtual else []
        count = len(self.saved.slabs_of(array.name))
        if len(sources) != count:
            return f"HDF5 joins it of {len(sources)} parts, not {count}"
        for source in sources:
            low, high = source.vspace.get_select_bounds()
            last_index = tuple(size - 1 for size in array.shape[1:])
            is_full = low[1:] == (0,) * len(last_index) and high[1:] == last_index
            rows = low[0], high[0] + 1
            origin = source.file_name, source.dset_name
            if not is_full or not self._is_source(array, *rows, *origin):
                return f"rows {rows[0]} to {rows[1]} are taken from {origin[1]} of {origin[0]}"
        return None

    def _is_source(self, array: ArraySpec, start: int, stop: int, file: str, path: str) -> bool:
        """Whether this part has these rows at this path."""
        return path.lstrip("/") == self.paths[array.name] and any(
            (slab_file, slab["start"], slab["stop"]) == (file, start, stop)
            for slab, slab_file in self.saved.slabs_of(array.name)
        )
