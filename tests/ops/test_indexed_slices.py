"""Gradients of tables as rows: where they stay rows, where they are made dense and it is said."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.autodiff import gradients
from hpcflow.errors import DTypeError, FeedError, GraphError, ShapeError
from hpcflow.platform import rank_logging

TABLE = np.arange(12.0).reshape(4, 3)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


class Lines(logging.Handler):
    """What hpcflow says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture
def lines() -> Iterator[list[str]]:
    handler, before = Lines(), rank_logging.logger.level
    rank_logging.logger.addHandler(handler)
    rank_logging.logger.setLevel(logging.INFO)
    yield handler.said
    rank_logging.logger.removeHandler(handler)
    rank_logging.logger.setLevel(before)


def table() -> hf.Variable:
    return hf.Variable(TABLE, name="table")


def values(*fetches: object, **feeds: object) -> list:
    with hf.Session() as session:
        session.run([v.initializer for v in hf.global_variables()])
        graph = hf.get_default_graph()
        fed = {graph.get_tensor_by_name(f"{name}:0"): v for name, v in feeds.items()}
        return session.run(list(fetches), fed)


@pytest.mark.parametrize("how", ["gather", "value", "identity", "sparse_read"])
def test_a_table_that_is_gathered_from_has_rows_for_gradient(how: str, lines: list[str]) -> None:
    v = table()
    ids = hf.placeholder(hf.int32, [None], name="ids")
    rows = {
        "gather": lambda: hf.gather(v, ids),
        "value": lambda: hf.gather(v.value(), ids),
        "identity": lambda: hf.gather(hf.identity(v.value()), ids),
        "sparse_read": lambda: v.sparse_read(ids),
    }[how]()
    (g,) = hf.gradients(hf.reduce_sum(rows * rows), [v])
    assert isinstance(g, hf.IndexedSlices) and g.shape == (4, 3) and g.dtype == hf.float64
    (found,) = values(g, ids=[2, 0, 2])
    np.testing.assert_array_equal(found.indices, [2, 0, 2])
    np.testing.assert_array_equal(found.values, 2 * TABLE[[2, 0, 2]])
    np.testing.assert_array_equal(found.dense_shape, [4, 3])
    assert not lines


def test_indices_of_any_rank_and_several_gathers_are_rows_one_after_the_other() -> None:
    v = table()
    a, b = hf.gather(v, [[1, 2], [2, 3]]), hf.gather(v, hf.constant([0], hf.int64))
    (g,) = hf.gradients([a, b, b], [v])
    assert isinstance(g, hf.IndexedSlices)
    found, dense = values(g, g.dense())
    assert sorted(found.indices.tolist()) == [0, 1, 2, 2, 3] and found.indices.dtype == np.int64
    np.testing.assert_array_equal(dense[:, 0], [2, 1, 2, 1])


def test_rows_and_dense_gradients_are_added_and_it_is_said(lines: list[str]) -> None:
    v = table()
    loss = hf.reduce_sum(hf.gather(v, [1, 1])) + hf.reduce_sum(v * v)
    (g,) = hf.gradients(loss, [v])
    assert isinstance(g, hf.Tensor)
    (found,) = values(g)
    np.testing.assert_array_equal(found, 2 * TABLE + np.array([[0], [2], [0], [0]]))
    (line,) = lines
    assert "'table'" in line and "dense" in line and "test_indexed_slices.py" in line


@pytest.mark.parametrize("large", [True, False])
def test_what_cannot_use_rows_gets_a_dense_gradient_and_it_is_said_of_large_ones(
    large: bool, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "LARGE_TABLE", 12 if large else 13)
    v = table()
    (g,) = hf.gradients(hf.gather(v * 2.0, [3]), [v])
    assert isinstance(g, hf.Tensor)
    np.testing.assert_array_equal(values(g)[0][3], [2, 2, 2])
    assert len(lines) == large
    assert all("Mul" in line and "test_indexed_slices.py" in line for line in lines)


def test_conversion_to_a_tensor_is_said(lines: list[str]) -> None:
    rows = hf.IndexedSlices(np.ones((2, 3)), [2, 2], [4, 3])
    assert hf.convert_to_tensor_or_indexed_slices(rows) is rows and not lines
    (found,) = values(hf.convert_to_tensor(rows) + 0.0)
    np.testing.assert_array_equal(found, [[0] * 3, [0] * 3, [2] * 3, [0] * 3])
    assert len(lines) == 1 and "test_indexed_slices.py" in lines[0]
    with pytest.raises(ShapeError, match="dense_shape is unknown"):
        hf.convert_to_tensor(hf.IndexedSlices(np.ones((2, 3)), [2, 2]))


def test_another_tensors_gradient_is_a_tensor() -> None:
    x = hf.placeholder(hf.float64, [None, 3], name="x")
    (g,) = hf.gradients(hf.gather(x, [1, 1]), [x])
    assert isinstance(g, hf.Tensor) and g.shape == (None, 3)
    np.testing.assert_array_equal(values(g, x=np.zeros((3, 3)))[0][:, 0], [0, 2, 0])


def test_gradients_of_gradients_through_rows() -> None:
    """Of sum(w_i^3) over the rows read: 6 w times how often."""
    v = table()
    (g,) = hf.gradients(hf.reduce_sum(hf.gather(v, [1, 1, 3]) ** 3), [v])
    (gg,) = hf.gradients(hf.reduce_sum(g.values), [v])
    (found,) = values(gg.dense())
    np.testing.assert_allclose(found, 6 * TABLE * np.array([[0], [2], [0], [1]]))


def test_identity_passes_rows() -> None:
    rows = hf.identity(hf.IndexedSlices(np.ones((2, 3)), [2, 2], [4, 3]))
    assert isinstance(rows, hf.IndexedSlices) and rows.shape == (4, 3)


def test_rows_are_fed_as_their_parts() -> None:
    at, what = hf.placeholder(hf.int32, [None]), hf.placeholder(hf.float32, [None, 2])
    rows = hf.IndexedSlices(what, at, [3, 2])
    dense = rows.dense()
    part = hf.IndexedSlices(what, at)
    with hf.Session() as session:
        for n in (1, 2, 1):
            fed = {part: (np.ones((n, 2), np.float32), np.zeros(n, np.int32))}
            np.testing.assert_array_equal(session.run(dense, fed), [[n, n], [0, 0], [0, 0]])
        with pytest.raises(FeedError, match="IndexedSlicesValue"):
            session.run(dense, {part: np.ones(2)})


@pytest.mark.parametrize("at", [[[0, 1], [1, 3]], [[2, 2, 2]], 3])
@pytest.mark.parametrize("size", [3, 0])
def test_indices_of_another_rank_name_rows_too(at: list, size: int) -> None:
    values = np.arange(float(np.size(at) * size)).reshape(*np.shape(at), size)
    expected = np.zeros((4, size))
    np.add.at(expected, np.array(at), values)
    rows = hf.IndexedSlices(values, at, [4, size])
    v = hf.get_variable("v", [4, size], hf.float64, hf.zeros_initializer())
    step = hf.train.GradientDescentOptimizer(2.0).apply_gradients([(rows, v)])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(hf.convert_to_tensor(rows)), expected)
        session.run(step)
        np.testing.assert_array_equal(session.run(v), -2 * expected)
        np.testing.assert_array_equal(session.run(v.scatter_add(rows)), -expected)


def test_what_is_no_list_of_rows() -> None:
    with pytest.raises(DTypeError, match="integers"):
        hf.IndexedSlices(np.ones((2, 3)), [0.5, 1.0])
    with pytest.raises(ShapeError):
        hf.IndexedSlices(np.ones((2, 3)), [0])
    with pytest.raises(ShapeError):
        hf.IndexedSlices(np.ones((2, 3)), [[0, 1]])
    with pytest.raises(ShapeError):
        hf.IndexedSlices(np.ones((2, 3)), [0, 1], [4, 2])
    with pytest.raises(GraphError, match="truth"):
        bool(hf.IndexedSlices(np.ones((2, 3)), [0, 1]))
