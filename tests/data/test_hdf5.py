"""HDF5 files: rows as h5py reads them, within a bound of memory; what cannot be read is told."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.data import Blocks, Dataset, hdf5
from hpcflow.errors import DataError, DTypeError, FeedError, HpcflowError, ShapeError
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

ROWS = 1000
IMAGES = np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 2, 3)
LABELS = np.arange(ROWS, dtype=np.int32)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def alone() -> RankContext:
    return RankContext(Settings())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.h5"
    with h5py.File(path, "w", userblock_size=1024) as file:
        file["images"], file["labels"] = IMAGES, LABELS
        file["big_endian"] = IMAGES.astype(">f4")
        file["flags"] = LABELS % 3 == 0
        file["few"], file["none"], file["one"] = LABELS[:7], IMAGES[:0], np.float32(1)
        file["group/deep"] = IMAGES.astype(np.float64)
        file["complex"] = IMAGES.astype(np.complex64)
        options: dict[str, Any] = {"chunks": (64, 2, 3), "compression": "gzip", "shuffle": True}
        file.create_dataset("packed", data=IMAGES, **options)
        file["text"] = ["a", "bc"] * (ROWS // 2)
    return path


FIELDS = ("images", "packed", "big_endian", "group/deep", "flags", "labels")
numbers = st.lists(st.integers(0, ROWS - 1), max_size=80)


@given(field=st.sampled_from(FIELDS), wanted=numbers)
def test_rows_are_those_of_h5py(path: Path, field: str, wanted: list[int]) -> None:
    source = hdf5(path, field)
    source.open()
    with h5py.File(path) as file:
        np.testing.assert_array_equal(source.rows(np.array(wanted, int)), file[field][:][wanted])
    source.close()


@given(
    start=st.integers(-ROWS, ROWS),
    stop=st.one_of(st.none(), st.integers(-ROWS, 2 * ROWS)),
    step=st.integers(1, 300),
)
def test_parts_of_a_file(path: Path, start: int, stop: int | None, step: int) -> None:
    part = slice(start, stop, step)
    source = hdf5(path, "labels", rows=part)
    source.open()
    assert len(source) == len(LABELS[part])
    np.testing.assert_array_equal(source.rows(np.arange(len(source))), LABELS[part])
    source.close()


@pytest.mark.parametrize("shuffle", [True, False, Blocks(rows=64, window=4), Blocks(7, 3)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_batches_are_rows_of_the_file(path: Path, shuffle: Any, ranks: int) -> None:
    def body(context: RankContext) -> list[list[int]]:
        x = hf.placeholder(hf.float32, [None, 2, 3], name="x")
        y = hf.placeholder(hf.int64, [None], name="y")
        data = Dataset(
            {x: hdf5(path, "packed"), y: hdf5(path, "labels")},
            batch=32,
            shuffle=shuffle,
            seed=3,
            context=context,
        )
        drawn: list[list[int]] = []
        for batch in data.epochs(2):
            np.testing.assert_array_equal(batch[x], IMAGES[batch.indices])
            np.testing.assert_array_equal(batch[y], batch.indices)
            assert batch[y].dtype == np.int64 and batch[x].flags.c_contiguous
            drawn.append(batch.indices.tolist())
        assert data.input_wait_seconds > 0
        return drawn

    together = run_ranks(ranks, body)
    joined = [list(itertools.chain(*parts)) for parts in zip(*together, strict=True)]
    (alone,) = run_ranks(1, body)
    assert joined == alone
    half = len(joined) // 2
    for epoch in (joined[:half], joined[half:]):
        assert sorted(itertools.chain(*epoch)) == list(range(ROWS))


def test_arrays_that_are_kept_stay_as_they_are(path: Path, alone: RankContext) -> None:
    x = hf.placeholder(hf.float32, [None, 2, 3])
    data = Dataset({x: hdf5(path, "images")}, batch=16, memory=40_000, context=alone)
    kept = list(data.epochs(5))
    for batch in kept:
        np.testing.assert_array_equal(batch[x], IMAGES[batch.indices])


def test_a_map_makes_what_placeholders_take(path: Path, alone: RankContext) -> None:
    x = hf.placeholder(hf.float32, [None, 6], name="x")

    def scale(batch: hf.data.Batch) -> dict[hf.Tensor, np.ndarray]:
        return {x: (batch[x] / 2).reshape(-1, 6).astype(np.float32)}

    data = Dataset({x: hdf5(path, "group/deep")}, batch=64, map=scale, context=alone)
    for batch in data.epoch(0):
        np.testing.assert_array_equal(batch[x], IMAGES[batch.indices].reshape(-1, 6) / 2)


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (lambda b, x: {x: b[x][:-1]}, ShapeError, "returned 7 rows for .*, not 8"),
        (lambda b, x: {x: b[x].astype(np.complex64)}, DTypeError, "complex64"),
        (lambda b, x: {x: 1 / 0}, DataError, "ZeroDivisionError"),
        (lambda b, x: None, DataError, "NoneType"),
    ],
)
def test_what_a_map_does_wrong_is_told(
    path: Path, alone: RankContext, made: Any, error: type[HpcflowError], words: str
) -> None:
    x = hf.placeholder(hf.float32, [None, 2, 3], name="x")
    data = Dataset(
        {x: hdf5(path, "images")}, batch=8, map=lambda batch: made(batch, x), context=alone
    )
    with pytest.raises(error, match=words) as caught:
        next(data.epoch(0))
    assert "epoch 0, step 0" in str(caught.value)


def test_netcdf_is_hdf5(tmp_path: Path, alone: RankContext) -> None:
    path = tmp_path / "weather.nc"
    with h5py.File(path, "w") as file:  # as netCDF-4 lays a file out
        file["time"] = np.arange(20.0)
        file["t2m"] = np.ones((20, 4, 5), np.float32)
        file["time"].make_scale("time")
        file["t2m"].dims[0].attach_scale(file["time"])
        file["t2m"].attrs["_FillValue"] = np.float32([-999])
    x = hf.placeholder(hf.float32, [None, 4, 5])
    data = Dataset({x: hdf5(path, "t2m")}, batch=6, context=alone)
    assert sum(batch[x].sum() for batch in data.epoch(0)) == 400


# -- memory


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, Blocks(rows=256, window=8)])
def test_a_large_file_needs_little_memory(tmp_path: Path, alone: RankContext, shuffle: Any) -> None:
    path, rows, budget = tmp_path / "large.h5", 50_000, 10 << 20
    with h5py.File(path, "w") as file:
        stored = file.create_dataset("x", (rows, 1024), np.float32)
        for start in range(0, rows, 5000):
            stored[start : start + 5000] = np.repeat(
                np.arange(start, start + 5000, dtype=np.float32)[:, None], 1024, axis=1
            )
    assert path.stat().st_size > 200e6
    x = hf.placeholder(hf.float32, [None, 1024])
    data = Dataset({x: hdf5(path, "x")}, batch=50, shuffle=shuffle, memory=budget, context=alone)
    next(iter(data.epoch(1)))
    gc.collect()
    tracemalloc.start()
    before, count = resident(), 0
    for batch in data.epoch(0):
        assert (batch[x][:, 5] == batch.indices).all()
        count += batch.size
    grown, (_, peak) = resident() - before, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == rows and peak < budget + (4 << 20) and grown < budget + (16 << 20)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- what cannot be read


def wrong(context: RankContext, source: Any, error: type[HpcflowError] = DataError) -> str:
    x = hf.placeholder(hf.float32, [None, 2, 3], name="x")
    with pytest.raises(error) as caught:
        Dataset({x: source}, batch=4, context=context)
    assert caught.value.rank == context.rank or error is not DataError
    return str(caught.value)


def test_fields_that_do_not_fit_are_told(path: Path, alone: RankContext) -> None:
    text = wrong(alone, hdf5(path, "image"))
    assert str(path) in text and "'image'" in text and "images, labels" in text and "rank" in text
    assert "no dataset 'group'" in wrong(alone, hdf5(path, "group"))
    assert "no rows" in wrong(alone, hdf5(path, "one"))
    assert "variable length" in wrong(alone, hdf5(path, "text"))
    text = wrong(alone, hdf5(path, "complex"), DTypeError)
    assert "complex64" in text and "map" in text and "test_hdf5.py" in text and str(path) in text
    assert "[1000]" in wrong(alone, hdf5(path, "flags"), ShapeError)
    wrong(alone, hdf5(path, "none"), ShapeError)


def test_rows_are_cast_as_feeds_are(path: Path, alone: RankContext) -> None:
    x = hf.placeholder(hf.float32, [None, 2, 3], name="x")
    data = Dataset({x: hdf5(path, "group/deep")}, batch=64, context=alone)
    batch = next(data.epoch(0))
    assert batch[x].dtype == np.float32
    np.testing.assert_array_equal(batch[x], IMAGES[batch.indices])
    large = Dataset({x: IMAGES.astype(np.float64) + 1e300}, batch=64, context=alone)
    with pytest.raises(FeedError, match=r"'x:0' is float32 and cannot hold float64 1e\+300"):
        next(large.epoch(0))


def test_unequal_lengths_are_told(path: Path, alone: RankContext) -> None:
    x, y = hf.placeholder(hf.float32, [None, 2, 3]), hf.placeholder(hf.int32, [None])
    with pytest.raises(ShapeError, match=r"1,000 for .* 7 for"):
        Dataset({x: hdf5(path, "images"), y: hdf5(path, "few")}, batch=4, context=alone)


def test_files_that_are_none_are_told(path: Path, tmp_path: Path, alone: RankContext) -> None:
    text = wrong(alone, hdf5(tmp_path / "absent.h5", "x"))
    assert "absent.h5" in text and os.uname().nodename in text and "every node" in text
    whole = path.read_bytes()
    bad = tmp_path / "bad.h5"
    cases = [
        (b"", "empty"),
        (b"CDF\x01" + b"\0" * 100, "nccopy"),
        (b"PK\x03\x04" + b"\0" * 100, "npz"),
        (b"\x93NUMPY" + b"\0" * 100, "mmap_mode"),
        (b"hello, world" * 20, "not an HDF5 file"),
        (whole[: len(whole) // 2], "truncated"),
        (whole[:3000], "bad.h5"),
    ]
    for content, words in cases:
        bad.write_bytes(content)
        assert words in wrong(alone, hdf5(bad, "images"))
    assert "cannot be read" in wrong(alone, hdf5(tmp_path, "x"))


@pytest.mark.skipif(os.geteuid() == 0, reason="needs an ordinary user")
def test_a_forbidden_file_is_told(path: Path, tmp_path: Path, alone: RankContext) -> None:
    bad = tmp_path / "bad.h5"
    bad.write_bytes(path.read_bytes())
    bad.chmod(0)
    assert "chmod" in wrong(alone, hdf5(bad, "images"))


def test_damage_met_while_reading_names_file_and_rows(path: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.h5"
    with h5py.File(path) as file:
        chunk = file["packed"].id.get_chunk_info(9)
    content = bytearray(path.read_bytes())
    content[1024 + chunk.byte_offset : 1024 + chunk.byte_offset + 20] = b"\xff" * 20
    content[chunk.byte_offset : chunk.byte_offset + 20] = b"\xff" * 20
    bad.write_bytes(content)

    def body(context: RankContext) -> str:
        x = hf.placeholder(hf.float32, [None, 2, 3])
        data = Dataset({x: hdf5(bad, "packed")}, batch=10, shuffle=False, context=context)
        with pytest.raises(DataError) as caught:
            for _ in data.epoch(0):
                pass
        return str(caught.value)

    (text,) = run_ranks(1, body)
    assert "bad.h5:packed" in text and "rows" in text and "rank  0" in text


def test_a_file_cut_off_while_it_is_read(path: Path, tmp_path: Path, alone: RankContext) -> None:
    bad = tmp_path / "bad.h5"
    bad.write_bytes(path.read_bytes())
    source = hdf5(bad, "images")
    source.open()
    os.truncate(bad, 3000)
    with pytest.raises(DataError, match=r"rows 0 to 999 cannot be read.*shorter"):
        source.rows(np.arange(ROWS))
    source.close()


def test_a_file_missing_on_one_rank_names_the_rank(path: Path, tmp_path: Path) -> None:
    def body(context: RankContext) -> None:
        x = hf.placeholder(hf.float32, [None, 2, 3])
        mine = path if context.rank != 2 else tmp_path / "absent.h5"
        Dataset({x: hdf5(mine, "images")}, batch=4, context=context)
        context.barrier()

    with pytest.raises(DataError, match=r"absent\.h5") as caught:
        run_ranks(3, body)
    assert caught.value.rank == 2


@pytest.mark.parametrize("places", [dict(n=9), dict(n=10, ps=2)], ids=["sums", "servers"])
def test_fewer_samples_than_workers_are_an_error(path: Path, places: dict[str, int]) -> None:
    def body(context: RankContext) -> None:
        x = hf.placeholder(hf.int32, [None])
        with pytest.raises(DataError, match=r"7 samples are too few for [89] workers") as caught:
            Dataset({x: hdf5(path, "few")}, batch=64, context=context)
        assert caught.value.rank == context.rank and "at most 7 workers" in str(caught.value)
        with pytest.raises(DataError, match="3 samples"):
            hf.data.Stream(x, lambda _: range(3), batch=64, per_epoch=3, context=context)

    run_ranks(body=body, **places)


def test_small_batches_that_leave_ranks_idle_are_said(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def body(context: RankContext) -> list[int]:
        x = hf.placeholder(hf.int32, [None])
        data = Dataset({x: hdf5(path, "few")}, batch=3, context=context)
        return [batch.size for batch in data.epochs(2)]

    with caplog.at_level("INFO", logger="hpcflow"):
        found = run_ranks(5, body)
    assert found == [[1, 1, 1] * 2] + [[1, 1, 0] * 2] * 2 + [[0, 0, 0] * 2] * 2
    (said,) = [r.getMessage() for r in caplog.records if "without samples" in r.getMessage()]
    assert "2 of 5 workers" in said


def test_types_that_numpy_does_not_have_are_converted(tmp_path: Path) -> None:
    """Also where the first and the last row look the same in either way."""
    odd = h5py.h5t.NATIVE_INT32.copy()
    odd.set_precision(16)
    odd.set_offset(8)
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        h5py.h5d.create(file.id, b"x", odd, h5py.h5s.create_simple((4,)))
        file["x"][...] = [0, 2, 3, 0]
    source = hdf5(tmp_path / "odd.h5", "x")
    source.open()
    assert source.rows(np.arange(4)).tolist() == [0, 2, 3, 0]
    source.close()


def test_a_missing_part_of_a_virtual_dataset_is_told(tmp_path: Path, alone: RankContext) -> None:
    """HDF5 itself reads it as zeros."""
    (tmp_path / "parts").mkdir()
    layout = h5py.VirtualLayout((4, 2, 3), "f4")
    for i in range(2):
        with h5py.File(tmp_path / f"parts/{i}.h5", "w") as file:
            file["x"] = np.full((2, 2, 3), i + 1, "f4")
        layout[2 * i : 2 * i + 2] = h5py.VirtualSource(f"parts/{i}.h5", "x", shape=(2, 2, 3))
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    x = hf.placeholder(hf.float32, [None, 2, 3])
    data = Dataset({x: hdf5(tmp_path / "all.h5", "x")}, batch=4, context=alone)
    assert [batch[x].sum() for batch in data.epoch(0)] == [36]
    data.close()
    (tmp_path / "parts/1.h5").unlink()
    assert "parts/1.h5 is missing" in wrong(alone, hdf5(tmp_path / "all.h5", "x"))


def test_h5py_is_not_needed_for_arrays() -> None:
    import subprocess

    code = (
        "import sys, numpy as np, hpcflow as hf; x = hf.placeholder(hf.float32, [None]);"
        "list(hf.data.Dataset({x: np.zeros(9, np.float32)}, batch=2).epoch(0));"
        "assert 'h5py' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
