"""Loops whose variables are sparse tensors or rows: the shapes that they keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, ShapeError


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with hf.Graph().as_default():
        yield


def sparse() -> hf.SparseTensor:
    places = np.array([[0], [3]])
    return hf.SparseTensor(places, np.float32([2.0, 4.0]), np.array([10]))


def few(i: Any, _: Any) -> Any:
    return i < 3


def more(i: Any, x: Any) -> Any:
    """One value more, at place `i`."""
    place = hf.cast(hf.fill([1, 1], i), "int64")
    return i + 1, hf.sparse_add(x, hf.SparseTensor(place, hf.fill([1], 1.0), x.dense_shape))


def deeper(i: Any, x: Any) -> Any:
    """The same values with an axis of one more."""
    zero = hf.zeros_like(x.indices[:, :1])
    shape = hf.concat([x.dense_shape, hf.constant([1], "int64")], 0)
    return i + 1, hf.SparseTensor(hf.concat([x.indices, zero], 1), x.values * 2.0, shape)


def test_the_number_of_values_may_change() -> None:
    _, x = hf.while_loop(few, more, [0, sparse()])
    assert (x.indices.shape, x.values.shape, x.dense_shape.shape) == ((None, 1), (None,), (1,))
    found = hf.Session().run(hf.sparse_tensor_to_dense(x))
    np.testing.assert_array_equal(found, [3, 1, 1, 4, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("shape", [[None], None])
def test_with_an_invariant_the_rank_may_change(shape: Any) -> None:
    with pytest.raises(ShapeError, match="has shape"):
        hf.while_loop(few, deeper, [0, sparse()])
    _, x = hf.while_loop(few, deeper, [0, sparse()], [(), hf.TensorShape(shape)])
    assert (x.indices.shape, x.dense_shape.shape) == ((None, None), (None,))
    found = hf.Session().run(x)
    assert found.dense_shape.tolist() == [10, 1, 1, 1] and found.values.tolist() == [16.0, 32.0]
    with pytest.raises(ShapeError):
        hf.while_loop(few, more, [0, sparse()], [(), hf.TensorShape([5])])


def test_the_invariant_of_rows_is_the_shape_of_their_values() -> None:
    rows = hf.IndexedSlices(hf.ones([2, 2]), hf.constant([0, 3]), hf.constant([10, 2]))

    def twice(i: Any, x: Any) -> Any:
        two = [hf.concat([t, t], 0) for t in (x.values, x.indices)]
        return i + 1, hf.IndexedSlices(*two, x.dense_shape)

    _, x = hf.while_loop(few, twice, [0, rows], [(), hf.TensorShape([None, 2])])
    assert (x.values.shape, x.indices.shape, x.dense_shape.shape) == ((None, 2), (None,), (2,))
    assert hf.Session().run(hf.convert_to_tensor(x))[3].tolist() == [8.0, 8.0]


def test_the_structure_of_one_variable() -> None:
    def loop(**how: Any) -> Any:
        return hf.while_loop(lambda i: i < 3, lambda i: [i + 1], [0], **how)

    assert isinstance(loop(), hf.Tensor) and isinstance(loop(maximum_iterations=9), hf.Tensor)
    for how in ({}, {"maximum_iterations": 9}):
        (last,) = loop(return_same_structure=True, **how)
        assert hf.Session().run(last) == 3


def test_the_predicate_is_no_python_bool() -> None:
    with pytest.raises(DTypeError, match="the Python bool False"):
        hf.cond(False, lambda: 1, lambda: 2)
    assert hf.Session().run(hf.cond(np.bool_(True), lambda: 1, lambda: 2)) == 1
