"""Readers of files whose names come out of a queue; keys and records as TensorFlow 1 gives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DataError, DTypeError, GraphError, OutOfRangeError, ShapeError


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "a").write_bytes(b"head\none\r\ntwo")
    (tmp_path / "b").write_bytes(b"head\n\nthree\n")
    (tmp_path / "c").write_bytes(b"")
    return [str(tmp_path / name) for name in "abc"]


def filled(names: list[str]) -> tuple[hf.FIFOQueue, hf.Operation]:
    """A queue of names, and what puts them in and closes it."""
    queue = hf.FIFOQueue(10, [hf.string], [()])
    with hf.control_dependencies([queue.enqueue_many([names])]):
        return queue, queue.close()


def records(session: hf.Session, wanted: Any) -> list[Any]:
    found = []
    while True:
        try:
            found.append([np.asarray(x).tolist() for x in session.run(wanted)])
        except OutOfRangeError:
            return found


def named(files: list[str], *keys: str) -> list[bytes]:
    return [f"{files['abc'.index(key[0])]}{key[1:]}".encode() for key in keys]


def test_lines(files: list[str]) -> None:
    queue, fill = filled(files)
    reader = hf.TextLineReader(skip_header_lines=1)
    record = reader.read(queue)
    counts = [reader.num_records_produced(), reader.num_work_units_completed()]
    with hf.Session() as session:
        session.run(fill)
        first = [x for x in session.run(record)]
        assert first == [*named(files, "a:2"), b"one"]
        assert session.run(counts) == [1, 0]
        rest = records(session, record)
        assert [key for key, _ in rest] == named(files, "a:3", "b:2", "b:3")
        assert [value for _, value in rest] == [b"two", b"", b"three"]
        assert session.run(counts) == [4, 3]
        session.run(reader.reset())
        assert session.run(counts) == [0, 0]


def test_several_records(files: list[str]) -> None:
    """Of one file at a time."""
    queue, fill = filled(files)
    some = hf.TextLineReader().read_up_to(queue, hf.constant(2, hf.int64))
    with hf.Session() as session:
        session.run(fill)
        found = records(session, some)
    assert [keys for keys, _ in found] == [
        named(files, "a:1", "a:2"),
        named(files, "a:3"),
        named(files, "b:1", "b:2"),
        named(files, "b:3"),
    ]
    assert [values for _, values in found] == [
        [b"head", b"one"],
        [b"two"],
        [b"head", b""],
        [b"three"],
    ]


def test_other_readers(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"HHaabbccF")
    name = str(tmp_path / "r")
    cases: list[tuple[Any, list[str], list[Any]]] = [
        (hf.WholeFileReader(), files[2:], [[files[2].encode(), b""]]),
        (hf.IdentityReader(), ["x", "y"], [[b"x", b"x"], [b"y", b"y"]]),
        (
            hf.FixedLengthRecordReader(2, header_bytes=2, footer_bytes=1),
            [name],
            [[f"{name}:{i}".encode(), text] for i, text in enumerate([b"aa", b"bb", b"cc"])],
        ),
        (
            hf.FixedLengthRecordReader(3, 2, 1, hop_bytes=2),
            [name],
            [[f"{name}:{i}".encode(), text] for i, text in enumerate([b"aab", b"bbc"])],
        ),
    ]
    for reader, names, expected in cases:
        queue, fill = filled(names)
        record = reader.read(queue)
        with hf.Session() as session:
            session.run(fill)
            assert records(session, record) == expected


def test_the_classic_pipeline(tmp_path: Path) -> None:
    """Names, lines, columns, batches: a program of TensorFlow 1."""
    for name, rows in (("a.csv", "1,2\n3,4\n"), ("b.csv", "5,6\n")):
        (tmp_path / name).write_text("x,y\n" + rows)
    names = hf.train.string_input_producer(
        sorted(map(str, tmp_path.iterdir())), num_epochs=2, shuffle=False
    )
    _, line = hf.TextLineReader(skip_header_lines=1).read(names)
    columns = hf.decode_csv(line, [[0.0], [0]])
    x, y = hf.train.batch(columns, 2, allow_smaller_final_batch=True)
    start, coord = hf.local_variables_initializer(), hf.train.Coordinator()
    with hf.Session() as session:
        session.run(start)
        threads = hf.train.start_queue_runners(session, coord)
        found = records(session, [x, y])
        coord.request_stop()
        coord.join(threads)
    assert found == [[[1, 3], [2, 4]], [[5, 1], [6, 2]], [[3, 5], [4, 6]]]


def test_a_read_waits_for_a_name(files: list[str]) -> None:
    queue = hf.FIFOQueue(4, [hf.string], [()])
    name = hf.placeholder(hf.string, [])
    put, record = queue.enqueue([name]), hf.TextLineReader().read(queue)
    found: list[bytes] = []
    with hf.Session() as session:
        thread = threading.Thread(target=lambda: found.append(session.run(record)[1]))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not found
        session.run(put, {name: files[1]})
        thread.join(60)
        assert found == [b"head"]
        assert session.run(record)[1] == b""


def test_readers_of_several_threads_share_a_file(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"{i}\n" for i in range(60)))
    queue, fill = filled([str(tmp_path / "lines")])
    record = hf.TextLineReader().read(queue)
    found: list[bytes] = []
    with hf.Session() as session:
        session.run(fill)
        threads = [
            threading.Thread(target=lambda: found.extend(v for _, v in records(session, record)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(map(int, found)) == list(range(60))


def test_what_is_refused(tmp_path: Path) -> None:
    reader = hf.TextLineReader()
    with pytest.raises(GraphError, match="queue of file names"):
        reader.read(hf.FIFOQueue(1, [hf.int32], [()]))
    with pytest.raises(GraphError, match="is not a queue"):
        reader.read("file")  # type: ignore[arg-type]
    with pytest.raises(ShapeError):
        hf.TextLineReader(skip_header_lines=-1)
    with pytest.raises(ShapeError):
        hf.FixedLengthRecordReader(0)
    with pytest.raises(DTypeError):
        reader.read_up_to(filled(["x"])[0], 1.5)
    assert not reader.supports_serialize
    queue, fill = filled([str(tmp_path / "none")])
    record = reader.read(queue)
    with hf.Session() as session:
        session.run(fill)
        with pytest.raises(DataError, match=r"none.*cannot be read"):
            session.run(record)
        with pytest.raises(OutOfRangeError):
            session.run(record)
