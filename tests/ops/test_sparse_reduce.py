"""Sparse tensors reduced, merged, joined place by place and under other shapes, by NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import AssertError, ShapeError
from tests.ops.evaluate import evaluate

RNG = np.random.default_rng(4)
DENSE = np.where(RNG.random((3, 4, 2)) < 0.5, RNG.integers(-5, 6, (3, 4, 2)), 0).astype(np.float32)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def value(dense: np.ndarray) -> hf.SparseTensorValue:
    return hf.SparseTensorValue(np.argwhere(dense), dense[dense != 0], np.array(dense.shape))


def sparse(dense: np.ndarray) -> hf.SparseTensor:
    return hf.SparseTensor.from_value(value(dense))


def dense(sp: Any) -> np.ndarray:
    return evaluate(hf.sparse_tensor_to_dense(sp))


AXES: list[Any] = [None, 0, [1], -1, [0, 2], [2, -3], [0, 1, 2]]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axis", AXES)
def test_sums_and_extremes_of_the_values_that_are_there(axis: Any, keep: bool) -> None:
    over = None if axis is None else tuple(np.atleast_1d(axis))
    total = DENSE.sum(over, keepdims=keep)
    there = np.where(DENSE == 0, -np.inf, DENSE).max(over, keepdims=keep)
    most = np.where(np.isinf(there), 0, there)
    for x in (sparse(DENSE), value(DENSE)):
        np.testing.assert_array_equal(evaluate(hf.sparse_reduce_sum(x, axis, keep)), total)
        np.testing.assert_array_equal(evaluate(hf.sparse_reduce_max(x, axis, keep)), most)
        np.testing.assert_array_equal(dense(hf.sparse_reduce_sum_sparse(x, axis, keep)), total)
        np.testing.assert_array_equal(dense(hf.sparse_reduce_max_sparse(x, axis, keep)), most)


def test_a_missing_place_is_zero_in_the_larger_and_the_smaller() -> None:
    other = np.roll(DENSE, 1, 1)
    a, b = sparse(DENSE), sparse(other)
    np.testing.assert_array_equal(dense(hf.sparse_maximum(a, b)), np.maximum(DENSE, other))
    np.testing.assert_array_equal(dense(hf.sparse_minimum(a, b)), np.minimum(DENSE, other))
    places = evaluate(hf.sparse_maximum(a, b).indices)
    np.testing.assert_array_equal(places, np.argwhere((DENSE != 0) | (other != 0)))


def test_ids_become_the_last_index() -> None:
    at = np.array([[0, 0], [1, 1], [1, 0], [2, 0]])
    ids, values = np.array([4, 0, 3, 2]), np.array([1.0, 2.0, 3.0, 4.0])
    sp_ids, sp_values = (hf.SparseTensor(at, v, [3, 2]) for v in (ids, values))
    want = np.zeros((3, 6))
    want[at[:, 0], ids] = values
    np.testing.assert_array_equal(dense(hf.sparse_merge(sp_ids, sp_values, 6)), want)
    as_given = evaluate(hf.sparse_merge(sp_ids, sp_values, 6, already_sorted=True).values)
    np.testing.assert_array_equal(as_given, values)
    many = hf.sparse_merge([sp_ids, sp_ids], sp_values, [6, 5])
    both = np.zeros((3, 6, 5))
    both[at[:, 0], ids, ids] = values
    np.testing.assert_array_equal(dense(many), both)


def test_a_dense_shape_is_set_anew() -> None:
    x = sparse(np.array([[0.0, 2, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]))
    assert evaluate(hf.sparse_reset_shape(x).dense_shape).tolist() == [2, 2]
    assert evaluate(hf.sparse_reset_shape(x, [5, 4]).dense_shape).tolist() == [5, 4]
    empty = hf.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0, np.float32), [3, 4])
    assert evaluate(hf.sparse_reset_shape(empty).dense_shape).tolist() == [0, 0]
    for bad in ([5, 3], [3, 4, 1]):
        with pytest.raises(ShapeError, match="does not fit"):
            hf.sparse_reset_shape(x, bad)
    told = hf.placeholder(hf.int64)
    made = hf.sparse_reset_shape(x, told)
    with hf.Session() as session:
        assert session.run(made, {told: [3, 9]}).dense_shape.tolist() == [3, 9]
        for bad in ([5, 3], [3, 4, 1]):
            with pytest.raises((AssertError, ShapeError)):
                session.run(made, {told: bad})


@pytest.mark.parametrize(("count", "axis"), [(1, 0), (3, 1), (2, -1), (3, 0)])
def test_parts_of_an_axis(count: int, axis: int) -> None:
    parts = hf.sparse_split(sp_input=sparse(DENSE), num_split=count, axis=axis)
    for got, want in zip(parts, np.array_split(DENSE, count, axis), strict=True):
        np.testing.assert_array_equal(dense(got), want)


def test_filled_rows_keep_the_order_of_their_values() -> None:
    x = hf.SparseTensor([[2, 3], [2, 2], [0, 1], [0, 0]], [1, 2, 3, 4], [3, 5])
    filled, empty = hf.sparse_fill_empty_rows(x, -1)
    assert evaluate(filled.indices).tolist() == [[0, 1], [0, 0], [1, 0], [2, 3], [2, 2]]
    assert evaluate(filled.values).tolist() == [3, 4, -1, 1, 2]
    assert evaluate(empty).tolist() == [False, True, False]


def test_a_mask_of_another_length_is_an_error() -> None:
    with pytest.raises(ShapeError):
        hf.sparse_retain(sparse(np.eye(3)), [True, False])
