"""Sparse tensors against dense NumPy arrays: every function, fed and fetched, bad places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import AssertError, DTypeError, FeedError, GraphError, RangeError, ShapeError


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def run(fetches: Any, feeds: Any = None) -> Any:
    with hf.Session() as session:
        return session.run(fetches, feeds)


def some(shape: tuple[int, ...], seed: int = 0, full: float = 0.4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < full, rng.standard_normal(shape), 0)


def of(array: np.ndarray, shuffled: bool = False) -> hf.SparseTensorValue:
    places = np.argwhere(array)
    if shuffled:
        places = np.random.default_rng(1).permutation(places)
    return hf.SparseTensorValue(places, array[tuple(places.T)], np.array(array.shape))


def sparse(array: np.ndarray, shuffled: bool = False) -> hf.SparseTensor:
    return hf.SparseTensor(*of(array, shuffled))


def whole(value: hf.SparseTensorValue, default: float = 0) -> np.ndarray:
    array = np.full(value.dense_shape, default, value.values.dtype)
    np.add.at(array, tuple(value.indices.T), value.values)
    return array


def in_order(value: hf.SparseTensorValue) -> bool:
    places = [tuple(p) for p in value.indices.tolist()]
    return places == sorted(set(places))


def test_fed_and_fetched_as_triples() -> None:
    a, other = some((3, 4)), some((5, 2), 3)
    sp = hf.sparse_placeholder(hf.float64)
    twice = sp.with_values(sp.values * 2.0)
    for array in (a, other, some((2, 2, 2))):
        found = run(twice, {sp: of(array)})
        assert isinstance(found, hf.SparseTensorValue)
        np.testing.assert_array_equal(whole(found), 2 * array)
    known = hf.sparse_placeholder(hf.float64, [3, 4])
    assert known.shape == (3, 4) and known.get_shape() == (3, 4)
    dense = hf.sparse_tensor_to_dense(known)
    np.testing.assert_array_equal(run(dense, {known: tuple(of(a))}), a)
    with pytest.raises(FeedError, match=r"\[3, 4\]"):
        run(dense, {known: of(other)})
    with pytest.raises(FeedError, match="SparseTensorValue"):
        run(dense, {known: a})
    part = hf.sparse_placeholder(hf.float64, [None, 4])
    assert part.shape == (None, 4) and hf.sparse_tensor_to_dense(part).shape == (None, 4)
    np.testing.assert_array_equal(run(hf.sparse_tensor_to_dense(part), {part: of(a)}), a)
    for wrong in ((2, 2, 2), (3,), (3, 5)):
        with pytest.raises(FeedError, match=r"'sparse.*/shape.*:0' is \[\?, 4\], but"):
            run(hf.sparse_tensor_to_dense(part), {part: of(some(wrong))})
    assert run({"a": [sparse(a)]})["a"][0].dense_shape.tolist() == [3, 4]


def test_to_dense() -> None:
    a = some((4, 5))
    np.testing.assert_array_equal(run(hf.sparse_tensor_to_dense(sparse(a))), a)
    found = run(hf.sparse_tensor_to_dense(sparse(a), 7.0))
    np.testing.assert_array_equal(found, np.where(a == 0, 7, a))
    dense = hf.sparse_to_dense([1, 3], [5], 2.0)
    np.testing.assert_array_equal(run(dense), [0, 2, 0, 2, 0])
    np.testing.assert_array_equal(run(hf.sparse_to_dense(2, [4], 1)), [0, 0, 1, 0])
    shuffled = hf.sparse_tensor_to_dense(sparse(a, True), validate_indices=False)
    np.testing.assert_array_equal(run(shuffled), a)


def test_places_that_are_wrong_name_the_op_and_the_line() -> None:
    for places, said in [
        ([[0], [5]], "5 is outside"),
        ([[-1], [2]], "-1 is outside"),
        ([[2], [1]], "out of order"),
        ([[2], [2]], "repeated"),
    ]:
        dense = hf.sparse_to_dense(places, [5], [1.0, 2.0])
        with pytest.raises(RangeError, match=said) as caught:
            run(dense)
        assert caught.value.op and "test_sparse.py" in str(caught.value.line)
    b = np.ones((4, 2))
    for place in ([3, 0], [0, 4], [0, -1]):
        product = hf.sparse_tensor_dense_matmul(
            hf.SparseTensor([place], [1.0], [3, 4]), hf.cast(b, hf.float32)
        )
        with pytest.raises(RangeError, match="is outside"):
            run(product)


def test_what_is_no_sparse_tensor() -> None:
    a = sparse(some((3, 4)))
    with pytest.raises(ShapeError, match="dense_shape"):
        hf.SparseTensor([0, 1], [1.0, 2.0], [3])
    with pytest.raises(ShapeError):
        hf.SparseTensor([[0, 1]], [1.0, 2.0], [3, 4])
    with pytest.raises(ShapeError):
        hf.SparseTensor([[0, 1]], [1.0], [3, 4, 5])
    with pytest.raises(DTypeError, match="integers"):
        hf.SparseTensor([[0.5, 1]], [1.0], [3, 4])
    with pytest.raises(GraphError, match="sparse_tensor_to_dense"):
        hf.reduce_sum(a)
    with pytest.raises(ShapeError, match="multiplied"):
        hf.sparse_tensor_dense_matmul(a, np.ones((3, 2)))
    assert hf.convert_to_tensor_or_sparse_tensor(a) is a
    assert hf.convert_to_tensor_or_sparse_tensor(of(some((2, 2)))).shape == (2, 2)
    with pytest.raises(ShapeError, match="sparse_add"):
        hf.sparse_add(hf.ones([2]), hf.ones([2]))
    for value in ([[0, 0]], [[0, 2]]):
        with pytest.raises(ShapeError, match="perm"):
            hf.sparse_transpose(a, value[0])


@pytest.mark.parametrize("adjoint_a", [False, True])
@pytest.mark.parametrize("adjoint_b", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_matmul_and_its_gradients(adjoint_a: bool, adjoint_b: bool, dtype: str) -> None:
    rng = np.random.default_rng(2)
    a = some((4, 3)).astype(dtype)
    b = rng.standard_normal((2, 4) if adjoint_a else (2, 3)).astype(dtype)
    if dtype == "complex128":
        a, b = a * (1 + 2j), b * (1 - 1j)
    b = b if adjoint_b else b.T
    full_a, full_b = a.conj().T if adjoint_a else a, b.conj().T if adjoint_b else b
    sp, dense = sparse(a, True), hf.constant(b)
    product = hf.sparse_tensor_dense_matmul(sp, dense, adjoint_a, adjoint_b)
    np.testing.assert_allclose(run(product), full_a @ full_b)
    g = rng.standard_normal(product.shape).astype(dtype)  # type: ignore[arg-type]
    of_values, of_b = run(hf.gradients(product, [sp.values, dense], [hf.constant(g)]))
    dense_a = hf.constant(a)
    other = hf.matmul(
        hf.conj(hf.transpose(dense_a)) if adjoint_a else dense_a,
        hf.conj(hf.transpose(dense)) if adjoint_b else dense,
    )
    expected_a, expected_b = run(hf.gradients(other, [dense_a, dense], [hf.constant(g)]))
    np.testing.assert_allclose(of_b, expected_b)
    places = of(a, True).indices
    np.testing.assert_allclose(of_values, expected_a[tuple(places.T)])


def test_a_large_product_in_blocks() -> None:
    a = some((300, 200), full=0.2)
    b = np.random.default_rng(0).standard_normal((200, 64))
    found = run(hf.sparse_tensor_dense_matmul(sparse(a, True), hf.constant(b)))
    np.testing.assert_allclose(found, a @ b, atol=1e-12)


def test_orders_and_parts() -> None:
    a = some((4, 3, 2))
    ordered = run(hf.sparse_reorder(sparse(a, True)))
    assert in_order(ordered)
    np.testing.assert_array_equal(whole(ordered), a)
    kept = run(hf.sparse_retain(sparse(a), of(a).values > 0))
    np.testing.assert_array_equal(whole(kept), np.maximum(a, 0))
    turned = run(hf.sparse_transpose(sparse(a), [2, 0, 1]))
    assert in_order(turned)
    np.testing.assert_array_equal(whole(turned), a.transpose(2, 0, 1))
    np.testing.assert_array_equal(whole(run(hf.sparse_transpose(sparse(a)))), a.T)
    np.testing.assert_array_equal(
        whole(run(hf.sparse_reshape(sparse(a), [6, -1]))), a.reshape(6, 4)
    )
    np.testing.assert_array_equal(
        whole(run(hf.sparse_slice(sparse(a), [1, 0, 1], [2, 5, 1]))), a[1:3, 0:5, 1:2]
    )
    b = some((4, 5, 2), 5)
    joined = run(hf.sparse_concat(1, [sparse(a), sparse(b), sparse(a)]))
    assert in_order(joined)
    np.testing.assert_array_equal(whole(joined), np.concatenate([a, b, a], 1))


def test_sums() -> None:
    a, b = some((4, 5)), some((4, 5), 1)
    total = run(hf.sparse_add(sparse(a, True), sparse(b)))
    assert in_order(total)
    np.testing.assert_allclose(whole(total), a + b)
    cut = run(hf.sparse_add(sparse(a), sparse(b), 0.5))
    np.testing.assert_allclose(whole(cut), np.where(abs(a + b) >= 0.5, a + b, 0))
    for both in ((sparse(a), b), (b, sparse(a))):
        np.testing.assert_allclose(run(hf.sparse_add(*both)), a + b)
    c = some((3, 4, 2), 2)
    for axis in (None, 0, -1, [0, 2], [0, 1, 2]):
        for keep in (False, True):
            given = tuple(axis) if isinstance(axis, list) else axis
            found = run(hf.sparse_reduce_sum(sparse(c, True), axis, keep))
            np.testing.assert_allclose(found, c.sum(given, keepdims=keep), atol=1e-12)
    np.testing.assert_allclose(whole(run(sparse(a) * b)), a * b)
    np.testing.assert_allclose(
        whole(run(2.0 * -sparse(a) / np.arange(1.0, 6))), -2 * a / np.arange(1, 6)
    )


def test_gradients_go_through_sums_and_orders() -> None:
    a, b = some((4, 5)), some((4, 5), 1)
    left, right = sparse(a, True), sparse(b)
    weights = np.random.default_rng(3).standard_normal((4, 5))
    total = hf.sparse_tensor_to_dense(hf.sparse_add(left, right)) * weights
    found = run(hf.gradients(total, [left.values, right.values]))
    np.testing.assert_allclose(found[0], weights[tuple(of(a, True).indices.T)])
    np.testing.assert_allclose(found[1], weights[tuple(of(b).indices.T)])
    (g,) = hf.gradients(hf.sparse_reduce_sum(left, 1) * np.arange(4.0), [left.values])
    np.testing.assert_allclose(run(g), of(a, True).indices[:, 0])


def test_empty_rows_softmax_and_indicator() -> None:
    a = some((5, 3))
    a[[1, 4]] = 0
    filled, empty = run(hf.sparse_fill_empty_rows(sparse(a), 9.0))
    expected = a.copy()
    expected[~a.any(1), 0] = 9
    assert in_order(filled)
    np.testing.assert_array_equal(whole(filled), expected)
    np.testing.assert_array_equal(empty, ~a.any(1))
    soft = run(hf.sparse_softmax(sparse(a)))
    raised = np.where(a != 0, np.exp(a), 0)
    below = raised.sum(1, keepdims=True)
    np.testing.assert_allclose(whole(soft), raised / np.where(below == 0, 1, below))
    marked = hf.sparse_to_indicator(hf.SparseTensor([[0, 0], [0, 1], [1, 0]], [2, 0, 1], [2, 2]), 4)
    np.testing.assert_array_equal(run(marked), [[1, 0, 1, 0], [0, 1, 0, 0]])
    rows = hf.IndexedSlices(np.arange(6.0).reshape(3, 2), [4, 1, 7], [9, 2])
    left = run(hf.sparse_mask(rows, [1, 8]))
    np.testing.assert_array_equal(left.indices, [4, 7])
    np.testing.assert_array_equal(left.values, [[0, 1], [4, 5]])


def test_identity_passes_a_sparse_tensor() -> None:
    a = some((2, 3))
    np.testing.assert_array_equal(whole(run(hf.identity(sparse(a)))), a)


def test_sums_and_reshapes_of_other_shapes_are_refused() -> None:
    a, b = sparse(some((2, 3))), sparse(some((2, 2)))
    with pytest.raises(ShapeError, match=r"\[2, 3\] and \[2, 2\] do not agree"):
        hf.sparse_add(a, b)
    told = hf.placeholder("int64", [2])
    c = hf.SparseTensor(b.indices, b.values, told)
    np.testing.assert_allclose(
        whole(run(hf.sparse_add(b, c), {told: [2, 2]})), 2 * whole(run(b)), rtol=1e-12
    )
    with pytest.raises(AssertError, match="sparse_add: shapes"):
        run(hf.sparse_add(b, c), {told: [2, 3]})
    with pytest.raises(AssertError, match="sparse_reshape: number of elements"):
        run(hf.sparse_reshape(c, [5]), {told: [2, 2]})
