"""Datasets of datasets, numbers that are tensors, files: the elements are TensorFlow's."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DataError, DTypeError, GraphError, OutOfRangeError, ShapeError

Dataset = hf.data.Dataset


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(plain(v) for v in value)
    return np.asarray(value).tolist()


def elements(dataset: Any, feeds: dict[Any, Any] | None = None) -> list[Any]:
    iterator = dataset.make_initializable_iterator()
    following, found = iterator.get_next(), []
    with hf.Session() as session:
        session.run(iterator.initializer, feeds)
        while True:
            try:
                found.append(plain(session.run(following)))
            except OutOfRangeError:
                return found


def times(x: Any) -> Any:
    """`x`, x times."""
    return Dataset.from_tensors(x).repeat(x)


def test_flat_map() -> None:
    assert elements(Dataset.range(4).flat_map(times)) == [1, 2, 2, 3, 3, 3]
    rows = Dataset.from_tensor_slices(np.arange(6).reshape(3, 2))
    assert elements(rows.flat_map(Dataset.from_tensor_slices)) == [0, 1, 2, 3, 4, 5]
    pairs = Dataset.from_tensor_slices(([1, 2], ["a", "b"]))
    found = pairs.flat_map(lambda x, y: Dataset.range(hf.to_int64(x)).map(lambda i: (i, y)))
    assert elements(found) == [(0, b"a"), (0, b"b"), (1, b"b")]


def test_functions_inside_of_functions_use_what_is_outside() -> None:
    offset = hf.placeholder("int64", [])
    found = Dataset.range(3).flat_map(
        lambda x: Dataset.range(5).filter(lambda y: y < x).map(lambda y: y + x * 10 + offset)
    )
    assert elements(found, {offset: 100}) == [110, 120, 121]
    deeper = Dataset.range(3).flat_map(
        lambda x: Dataset.range(2).flat_map(lambda y: Dataset.from_tensors((x, y)))
    )
    assert elements(deeper) == [(x, y) for x in range(3) for y in range(2)]


@pytest.mark.parametrize(
    "cycle, block, found",
    [
        (1, 1, [1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5]),
        (2, 1, [1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 4, 5, 5, 5, 5]),
        (3, 2, [1, 2, 2, 3, 3, 4, 4, 3, 4, 4, 5, 5, 5, 5, 5]),
        (2, 3, [1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5]),
        (5, 1, [1, 2, 3, 4, 5, 2, 3, 4, 5, 3, 4, 5, 4, 5, 5]),
        (None, 1, [1, 2, 3, 4, 5, 2, 3, 4, 5, 3, 4, 5, 4, 5, 5]),
    ],
)
def test_interleave(cycle: int | None, block: int, found: list[int]) -> None:
    """Read off TensorFlow."""
    numbers = Dataset.range(1, 6)
    assert elements(numbers.interleave(times, cycle, block, num_parallel_calls=2)) == found


def test_interleave_of_empty_ones() -> None:
    """Read off TensorFlow."""
    counts = Dataset.from_tensor_slices(np.array([3, 0, 0, 2, 0, 1]))
    assert elements(counts.interleave(times, cycle_length=3)) == [3, 3, 2, 3, 2, 1]
    down = Dataset.range(6).interleave(lambda x: Dataset.from_tensors(x).repeat(5 - x), 2, 2)
    assert elements(down) == [0, 0, 1, 1, 0, 0, 1, 1, 0, 2, 2, 3, 3, 2, 4]


def test_rows_numbers_and_the_first_ones() -> None:
    assert elements(Dataset.range(6).batch(4).unbatch()) == [0, 1, 2, 3, 4, 5]
    assert elements(Dataset.range(5, 8).enumerate()) == [(0, 5), (1, 6), (2, 7)]
    named = Dataset.from_tensor_slices({"a": [7, 8]}).enumerate(start=3)
    assert elements(named) == [(3, {"a": 7}), (4, {"a": 8})]
    assert elements(Dataset.from_tensor_slices([1, 5, 2]).take_while(lambda x: x < 3)) == [1]
    listed = Dataset.range(2).map(lambda x: [x, x + 1])
    assert elements(listed) == [(0, 1), (1, 2)] and isinstance(listed.output_types, tuple)


def test_numbers_may_be_tensors() -> None:
    n, m = hf.placeholder("int64", []), hf.placeholder("int32", [])
    numbers = Dataset.range(n)
    feeds = {n: 5, m: 2}
    assert elements(numbers.batch(m).prefetch(m), feeds) == [[0, 1], [2, 3], [4]]
    assert elements(numbers.batch(m, drop_remainder=True), feeds) == [[0, 1], [2, 3]]
    assert elements(numbers.take(m).repeat(m), feeds) == [0, 1, 0, 1]
    assert elements(numbers.skip(m), feeds) == [2, 3, 4]
    assert elements(numbers.shard(m, 1), feeds) == [1, 3]
    assert sorted(elements(numbers.shuffle(n), feeds)) == [0, 1, 2, 3, 4]
    padded = numbers.map(lambda x: hf.fill([hf.to_int32(x)], x)).padded_batch(
        m, [None], hf.constant(-1, hf.int64)
    )
    assert elements(padded, {n: 3, m: 2}) == [[[-1], [0 + 1]], [[2, 2]]]
    assert numbers.batch(hf.constant(3), drop_remainder=True).output_shapes == (3,)
    with pytest.raises(ShapeError, match=r"batch\(0\)"):
        elements(numbers.batch(m), {n: 3, m: 0})
    with pytest.raises(DTypeError, match="integer scalar"):
        numbers.batch(hf.placeholder("float32", []))


def test_generators_take_tensors() -> None:
    def count(n: Any, text: bytes) -> Iterator[tuple[int, bytes]]:
        assert isinstance(n, np.integer) and text == b"a"
        yield from ((i, text * (i + 1)) for i in range(n))

    x = hf.placeholder("int32", [])
    made = Dataset.from_generator(count, (hf.int32, hf.string), ([], []), args=(x, "a"))
    assert elements(made, {x: 2}) == [(0, b"a"), (1, b"aa")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "c.csv"):
        (tmp_path / name).write_text(f"{name}\nmore of {name}\n")
    return tmp_path


def test_files_are_listed(folder: Path) -> None:
    def names(*patterns: str, **more: Any) -> list[str]:
        given = [str(folder / p) for p in patterns]
        found = elements(Dataset.list_files(given[0] if len(given) == 1 else given, **more))
        return [Path(name.decode()).name for name in found]

    assert names("*.txt", shuffle=False) == ["a.txt", "b.txt"]
    assert names("*.txt", "c*", shuffle=False) == ["a.txt", "b.txt", "c.csv"]
    assert sorted(names("*", seed=3)) == ["a.txt", "b.txt", "c.csv"]
    with pytest.raises(DataError, match="no file matches"):
        names("*.none")
    with pytest.raises(DTypeError, match="pattern"):
        Dataset.list_files([1, 2])


def test_lines_of_files_in_turn(folder: Path) -> None:
    files = Dataset.list_files(str(folder / "*.txt"), shuffle=False)
    lines = [b"a.txt", b"b.txt", b"more of a.txt", b"more of b.txt"]
    assert elements(files.interleave(hf.data.TextLineDataset, cycle_length=2)) == lines
    names = [str(folder / "a.txt"), str(folder / "b.txt")]
    both = hf.data.TextLineDataset(names, buffer_size=99, num_parallel_reads=2)
    assert elements(both) == lines
    assert elements(files.flat_map(lambda f: hf.data.TextLineDataset(f).skip(1))) == lines[2:]


def test_compressed_lines(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    (tmp_path / "a.z").write_bytes(zlib.compress(b"three\n"))
    assert elements(hf.data.TextLineDataset(str(tmp_path / "a.gz"), "GZIP")) == [b"one", b"two"]
    assert elements(hf.data.TextLineDataset(str(tmp_path / "a.z"), "ZLIB")) == [b"three"]
    for kind, name in (("GZIP", "a.z"), ("ZLIB", "a.gz")):
        with pytest.raises(DataError, match="cannot be read"):
            elements(hf.data.TextLineDataset(str(tmp_path / name), kind))
    with pytest.raises(GraphError, match="compression_type='LZ4'"):
        hf.data.TextLineDataset(str(tmp_path / "a.gz"), "LZ4")


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(GraphError, match="returned 3, which is not a dataset"):
        Dataset.range(3).flat_map(lambda x: 3)
    with pytest.raises(ShapeError, match="unbatch"):
        Dataset.range(3).unbatch()
    with pytest.raises(ShapeError):
        Dataset.range(3).interleave(times, 0)
    with pytest.raises(GraphError, match="is not a constant"):
        Dataset.range(3).padded_batch(2, [], hf.to_int64(hf.random_normal([])))
