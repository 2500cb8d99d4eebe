"""Validation of a user block's facts, before anything is allocated, opened or read by them.

A digest shows that a text is as it was written, not that hpcflow wrote it. So no file name may lead
out of the checkpoint, and no number may ask for more memory than the files have bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

from hpcflow.graph.dtypes import NUMERIC, bool_, text_of

DTYPES = {text_of(dtype): dtype for dtype in (*NUMERIC, bool_)}
MAX_VALUE = 1 << 62  # limit of bytes, rows and offsets
MAX_DIMENSIONS = 32  # the limit of HDF5 and of NumPy
COUNTS = ("serial", "step", "ranks", "servers", "replicas", "tasks_per_replica")


class InvalidHeader(Exception):
    """The reason why the facts are not valid."""


def check_header(facts: Any, start: int) -> None:
    """Raise Wrong unless `facts` are valid for a file whose HDF5 data begins at byte `start`."""
    _require(isinstance(facts, dict), "they are no table")
    kind = facts.get("kind")
    _require(kind in ("part", "index", "whole"), f"their kind is {kind!r}")
    _record(facts)
    _cover(facts, start)
    if kind == "part":
        return
    for name in COUNTS:
        _count(facts.get(name), name)
    for name in ("saved", "mode", "form"):
        _require(isinstance(facts.get(name), str), f"{name} is no text")
    _files(facts)
    arrays = _array_specs(facts)
    records = [facts] if kind == "whole" else facts["files"]
    _rows(arrays, [slab for record in records for slab in record["slabs"]])
    _state(facts)


def plain_name(name: Any) -> bool:
    """Whether `name` is the name of a file in the same directory, without path separators."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\\", "\0"} & {*name}


def _require(holds: bool, said: str) -> None:
    if not holds:
        raise InvalidHeader(said)


def _count(value: Any, label: str) -> None:
    _require(type(value) is int and 0 <= value < MAX_VALUE, f"{label} is {value!r}")


def _list(value: Any, label: str) -> Any:
    _require(isinstance(value, list), f"{label} is no list")
    return value


def _record(record: Any) -> None:
    """Validate a file's record, as the file itself and the index have it."""
    _require(isinstance(record, dict), "a file's record is no table")
    name = record.get("file")
    _require(plain_name(name), f"{name!r} is no name of a file beside it")
    _require(isinstance(record.get("id"), str), "there is no id")
    _count(record.get("step"), "step")
    _count(record.get("size"), "size")
    for slab in _list(record.get("slabs"), "slabs"):
        _require(isinstance(slab, dict) and isinstance(slab.get("name"), str), "a slab has no name")
        for key in ("start", "stop", "offset"):
            _count(slab.get(key), key)
        for piece in _list(slab.get("crcs"), "crcs"):
            _piece(piece, 2)
    for piece in _list(record.get("rest"), "rest"):
        _piece(piece, 3)


def _piece(piece: Any, words: int) -> None:
    _require(isinstance(piece, list) and len(piece) == words, f"{piece!r} is no piece of a file")
    for value in piece:
        _count(value, "a piece of a file")
    _require(piece[-2] > 0 and piece[-1] < 1 << 32, f"{piece!r} is no piece of a file")


def _cover(record: Mapping[str, Any], start: int) -> None:
    """Check that every byte of the file after its user block has exactly one digest."""
    ranges = [(s["offset"], s["offset"] + sum(n for n, _ in s["crcs"])) for s in record["slabs"]]
    ranges += [(offset, offset + nbytes) for offset, nbytes, _ in record["rest"]]
    for low, high in sorted(ranges):
        _require(low == start, f"byte {min(low, start):,} has not one digest")
        start = high
    _require(start == record["size"], f"the bytes from {start:,} on have no digest")


def _files(facts: Mapping[str, Any]) -> None:
    """Check that the parts of an index belong to its save and that each is listed once."""
    if facts["kind"] == "whole":
        _require("files" not in facts, "one file has no parts")
        return
    names = set()
    for record in _list(facts.get("files"), "files"):
        _record(record)
        _require(record.get("kind") == "part", f"{record['file']} is no part")
        same = (record["id"], record["step"]) == (facts["id"], facts["step"])
        _require(same, f"{record['file']} is of another save")
        names.add(record["file"])
    _require(len(names) == len(facts["files"]), "a part is named twice")
    _require(facts["file"] not in names and not facts["slabs"], "the index is a part")


def _array_specs(facts: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Validate the arrays; returns name -> (number of rows, bytes of one row)."""
    specs = {}
    for array in _list(facts.get("arrays"), "arrays"):
        _require(isinstance(array, list) and len(array) == 3, f"{array!r} is no array")
        name, dtype, shape = array
        _require(isinstance(name, str) and name not in specs, f"{name!r} is no name of an array")
        _require(isinstance(dtype, str) and dtype in DTYPES, f"{name!r} is of dtype {dtype!r}")
        for size in _list(shape, f"the shape of {name!r}"):
            _count(size, f"a size of {name!r}")
        _require(len(shape) <= MAX_DIMENSIONS, f"{name!r} has {len(shape)} dimensions")
        row = DTYPES[dtype].itemsize * math.prod(shape[1:])
        most = 16 * math.prod(size or 1 for size in shape)  # NumPy limits it even if a size is 0
        _require(most < MAX_VALUE, f"{name!r} is of shape {shape}")
        specs[name] = (shape[0] if shape else 1, row)
    paths = facts.get("paths")
    _require(isinstance(paths, dict), "paths is no table")
    assert isinstance(paths, dict)
    _require(paths.keys() == specs.keys(), "not each array has its path")
    _require(all(isinstance(path, str) and path for path in paths.values()), "a path is no text")
    return specs


def _rows(arrays: Mapping[str, tuple[int, int]], slabs: Sequence[Mapping[str, Any]]) -> None:
    """Check that every row of every array is in one slab, and that the slabs' bytes fit."""
    rows: dict[str, list[tuple[int, int]]] = {name: [] for name in arrays}
    for slab in slabs:
        name, start, stop = slab["name"], slab["start"], slab["stop"]
        _require(name in arrays, f"{name!r} is no array of it")
        nbytes = sum(n for n, _ in slab["crcs"])
        _require(nbytes == (stop - start) * arrays[name][1] > 0, f"{name!r} has {nbytes:,} bytes")
        rows[name].append((start, stop))
    for name, (count, row) in arrays.items():
        at = 0
        for start, stop in sorted(rows[name]):
            _require(start == at, f"row {min(at, start)} of {name!r} is not there once")
            at = stop
        _require(at == count or not row or not count, f"{name!r} has {at} of {count} rows")


def _state(facts: Mapping[str, Any]) -> None:
    """Validate the draws of random operations, the dataset positions and the metrics."""
    draws = facts.get("draws")
    _require(isinstance(draws, dict) and isinstance(draws.get("tasks"), dict), "draws is no table")
    assert isinstance(draws, dict)
    _draws([draws.get("most"), *draws["tasks"].values()])
    seed = _list(facts.get("random_seed", [0, 0]), "random_seed")
    _require(len(seed) == 2, "random_seed is no seed")
    for number in seed:
        _count(number, "random_seed")
    for place in _list(facts.get("position", []), "position"):
        _require(isinstance(place, dict), "a position is no table")
        _check_position(place)
    if "samples" in facts:
        _count(facts["samples"], "samples")
    metrics = facts.get("metrics", {})
    _require(isinstance(metrics, dict), "metrics is no table")
    for name, value in metrics.items():
        _require(type(value) in (int, float, NoneType), f"metric {name!r} is {value!r}")
    best = facts.get("keep_best")
    _require(best is None or _is_policy(best), f"keep_best is {best!r}")


def _is_policy(best: Any) -> bool:
    kinds = [type(word) for word in best] if isinstance(best, list) else []
    return kinds == [str, str, int] and best[1] in ("min", "max") and best[2] > 0


def _check_position(position: Mapping[str, Any]) -> None:
    """Validate the position of a dataset."""
    for name in ("epoch", "taken", "batch"):
        _count(position.get(name, 0), name)
    _require("epoch" in position, "a position has no epoch")
    for name in ("left", "begun_with"):
        _require(isinstance(position.get(name, {}), dict), f"{name} is no table")
        _require(
            all(epoch.isdecimal() for epoch in position.get(name, {})), f"{name} is not by epochs"
        )
    for ranges in position.get("left", {}).values():
        for pair in _list(ranges, "left"):
            _require(isinstance(pair, list) and len(pair) == 2, f"{pair!r} is no range")
            _count(pair[0], "left")
            _count(pair[1], "left")
    for size in position.get("begun_with", {}).values():
        _count(size, "begun_with")


def _draws(lists: Iterable[Any]) -> None:
    for some in lists:
        for draw in _list(some, "draws"):
            _require(isinstance(draw, list) and len(draw) == 3, f"{draw!r} is no draw")
            _require(all(isinstance(text, str) for text in draw[:2]), f"{draw!r} is no draw")
            _count(draw[2], "draws")
