"""Segments, the largest, counts, moments, einsum: errors, unknown sizes, what is composed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.special as sp

import hpcflow as hf
from hpcflow.errors import DTypeError, RangeError, ShapeError
from tests.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


# -- running sums


def test_running_sums_of_large_numbers_do_not_overflow() -> None:
    x = np.array([1000.0, 1000, -1000, 1001])
    got = evaluate(hf.math.cumulative_logsumexp(hf.constant(x)))
    np.testing.assert_allclose(got, [sp.logsumexp(x[: i + 1]) for i in range(4)])
    before = evaluate(hf.math.cumulative_logsumexp(hf.constant(x), exclusive=True))
    np.testing.assert_allclose(before, [-np.inf, *(sp.logsumexp(x[: i + 1]) for i in range(3))])


def test_gradients_of_an_exclusive_running_log_sum() -> None:
    x = hf.placeholder(hf.float64, [4])
    y = hf.math.cumulative_logsumexp(x, exclusive=True, reverse=True)
    (g,) = hf.gradients(hf.reduce_sum(y[:-1]), x)
    a = np.array([0.5, -1, 2, 0.3])
    expected = np.zeros(4)
    for i in range(3):
        expected[i + 1 :] += sp.softmax(a[i + 1 :])
    np.testing.assert_allclose(evaluate(g, {x: a}), expected)


def test_an_axis_that_is_not_there() -> None:
    with pytest.raises(ShapeError, match="axis 2"):
        hf.cumsum(hf.zeros([3, 4]), 2)


def test_second_derivatives_of_running_products() -> None:
    x = hf.placeholder(hf.float64, [3])
    (g,) = hf.gradients(hf.reduce_sum(hf.cumprod(x)), x)
    (h,) = hf.gradients(g[0], x)
    a, b, c = 2.0, 3.0, 5.0  # a + ab + abc: by a it is 1 + b + bc
    np.testing.assert_allclose(evaluate(h, {x: [a, b, c]}), [0, 1 + c, b])


# -- the largest


def test_the_first_of_equal_ones_comes_first() -> None:
    values, indices = hf.nn.top_k(hf.constant([1.0, 3.0, 2.0, 3.0, np.nan]), 4)
    assert indices.dtype == hf.int32
    assert evaluate(indices).tolist() == [4, 1, 3, 2]
    assert np.isnan(evaluate(values)[0])


def test_more_than_there_are() -> None:
    with pytest.raises(ShapeError, match="fewer than k = 4"):
        hf.nn.top_k(hf.zeros([2, 3]), 4)


# -- segments


def test_segments_of_unknown_sizes() -> None:
    x, ids = hf.placeholder(hf.float64, [None, 2]), hf.placeholder(hf.int64, [None])
    total = hf.segment_sum(x, ids)
    mean = hf.segment_mean(x, ids)
    assert total.shape == (None, 2)
    for rows in (1, 5, 70):
        a, i = np.random.default_rng(rows).random((rows, 2)), np.arange(rows) // 2
        expected = np.array([a[i == k].sum(0) for k in range(i[-1] + 1)])
        count = np.bincount(i)[:, None]
        found = evaluate([total, mean], {x: a, ids: i})
        np.testing.assert_allclose(found[0], expected)
        np.testing.assert_allclose(found[1], expected / count)


def test_segment_numbers_that_are_not_sorted_or_negative() -> None:
    x, ids = hf.zeros([3]), hf.placeholder(hf.int32, [3])
    for wrong in ([0, 2, 1], [-1, 0, 0]):
        with pytest.raises(RangeError, match="not sorted"):
            evaluate(hf.segment_sum(x, ids), {ids: wrong})


def test_a_segment_number_too_large() -> None:
    x, ids = hf.zeros([2]), hf.placeholder(hf.int32, [2])
    with pytest.raises(RangeError, match=r"3 is outside \[0, 3\)"):
        evaluate(hf.unsorted_segment_sum(x, ids, 3), {ids: [0, 3]})
    with pytest.raises(ShapeError, match="at least 0, not -1"):
        hf.unsorted_segment_sum(x, ids, -1)


def test_means_over_unsorted_segments() -> None:
    a, ids = np.array([1.0, 2, 3, 4]), [2, 0, 2, -1]
    x = hf.constant(a)
    np.testing.assert_allclose(evaluate(hf.unsorted_segment_mean(x, ids, 4)), [2, 0, 2, 0])
    root = evaluate(hf.unsorted_segment_sqrt_n(x, ids, 3))
    np.testing.assert_allclose(root, [2, 0, 4 / np.sqrt(2)])
    (g,) = hf.gradients(hf.unsorted_segment_mean(x, ids, 4), x)
    np.testing.assert_allclose(evaluate(g), [0.5, 1, 0.5, 0])


def test_equal_largest_ones_of_a_segment_share_the_gradient() -> None:
    x = hf.constant(np.array([1.0, 1, 0, 5]))
    (g,) = hf.gradients(hf.segment_max(x, [0, 0, 0, 1]), x)
    assert evaluate(g).tolist() == [0.5, 0.5, 0, 1]


def test_gradients_over_segments_of_unknown_rank() -> None:
    x, ids = hf.placeholder(hf.float64, None), hf.placeholder(hf.int32, None)
    (g,) = hf.gradients(hf.square(hf.unsorted_segment_sum(x, ids, 2)), x)
    got = evaluate(g, {x: [[1.0, 2], [3, 4]], ids: [1, -1]})
    assert got.tolist() == [[2, 4], [0, 0]]


# -- counts


def test_count_nonzero() -> None:
    a = np.array([[0, 1, 2], [0, 0, 3]])
    assert evaluate(hf.count_nonzero(hf.constant(a))) == 3
    assert evaluate(hf.count_nonzero(hf.constant(a > 1), 1)).tolist() == [1, 1]
    assert hf.count_nonzero(hf.constant(a), dtype=hf.int32).dtype == hf.int32


def test_bincount_errors() -> None:
    x = hf.placeholder(hf.int32, [None])
    with pytest.raises(RangeError, match="0 or more, not -2"):
        evaluate(hf.bincount(x), {x: [1, -2]})
    with pytest.raises(DTypeError):
        hf.bincount(hf.constant([0.5]))
    with pytest.raises(ShapeError):
        hf.bincount(hf.constant([1, 2]), [1.0])


def test_confusion_matrix() -> None:
    truth, guess = hf.placeholder(hf.int32, [None]), hf.placeholder(hf.int32, [None])
    a, b = np.array([1, 2, 4, 2]), np.array([2, 2, 4, 0])
    expected = np.zeros((5, 5))
    np.add.at(expected, (a, b), 1)
    fed = {truth: a, guess: b}
    got = evaluate(hf.confusion_matrix(truth, guess), fed)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, expected)
    more = evaluate(hf.confusion_matrix(truth, guess, 6, dtype=hf.float32, weights=a * 1.0), fed)
    assert more.shape == (6, 6) and more[1, 2] == 1 and more[4, 4] == 4
    assert evaluate(hf.confusion_matrix(truth, guess), {truth: [], guess: []}).shape == (0, 0)
    for wrong in ([1, 2, 5, 0], [1, -1, 0, 0]):
        with pytest.raises(RangeError):
            evaluate(hf.confusion_matrix(truth, guess, 5), {truth: wrong, guess: b})


def test_histograms() -> None:
    values = np.array([-1.0, 0.0, 1.5, 2.0, 5.0, 15])
    bins = evaluate(hf.histogram_fixed_width_bins(hf.constant(values), [0.0, 5.0], 5))
    assert bins.tolist() == [0, 0, 1, 2, 4, 4]
    got = evaluate(hf.histogram_fixed_width(hf.constant(values), [0.0, 5.0], nbins=5))
    assert got.tolist() == [2, 1, 1, 0, 2]
    with pytest.raises(ShapeError, match="at least 1, not 0"):
        hf.histogram_fixed_width(values, [0.0, 5.0], 0)


def test_arg_max_and_arg_min() -> None:
    x = hf.constant([[1.0, 3.0], [4.0, 2.0]])
    assert evaluate(hf.arg_max(x, 1)).tolist() == [1, 0]
    assert evaluate(hf.arg_min(x, 0, hf.int32)).tolist() == [0, 1]


# -- moments


def test_variance_deviation_and_norm() -> None:
    a = np.random.default_rng(1).standard_normal((3, 4, 2))
    x = hf.constant(a)
    for axis in (None, 0, (0, 2), -1):
        for keep in (False, True):
            found = [
                f(x, axis, keep)
                for f in (
                    hf.math.reduce_variance,
                    hf.math.reduce_std,
                    hf.math.reduce_euclidean_norm,
                )
            ]
            expected = [
                a.var(axis, keepdims=keep),
                a.std(axis, keepdims=keep),
                np.sqrt((a * a).sum(axis, keepdims=keep)),
            ]
            for f, e in zip(evaluate(found), expected, strict=True):
                np.testing.assert_allclose(f, e)
    z = a[..., 0] + 1j * a[..., 1]
    got = hf.math.reduce_variance(hf.constant(z), 0)
    assert got.dtype == hf.float64
    np.testing.assert_allclose(evaluate(got), z.var(0))


def test_moments() -> None:
    a = np.random.default_rng(2).standard_normal((5, 3)) + 100
    x = hf.placeholder(hf.float64, [None, 3])
    mean, variance = hf.nn.moments(x, [0])
    assert mean.shape == variance.shape == (3,)
    found = evaluate([mean, variance], {x: a})
    np.testing.assert_allclose(found[0], a.mean(0))
    np.testing.assert_allclose(found[1], a.var(0))
    kept = evaluate(hf.nn.moments(x, [1], keep_dims=True)[0], {x: a})
    assert kept.shape == (5, 1)
    (g,) = hf.gradients(variance, x)
    np.testing.assert_allclose(evaluate(g, {x: a}), 2 * (a - a.mean(0)) / 5, atol=1e-12)
    half = hf.nn.moments(hf.constant(a.astype(np.float16)), [0])
    assert {t.dtype for t in half} == {hf.float16}


def test_weighted_moments() -> None:
    a = np.random.default_rng(3).standard_normal((4, 3))
    w = np.array([[1.0], [0], [2], [3]])
    mean, variance = hf.nn.weighted_moments(hf.constant(a), [0], w)
    repeated = np.repeat(a, w[:, 0].astype(int), axis=0)
    found = evaluate([mean, variance])
    np.testing.assert_allclose(found[0], repeated.mean(0))
    np.testing.assert_allclose(found[1], repeated.var(0))


def test_sufficient_statistics() -> None:
    a = np.random.default_rng(4).standard_normal((4, 3))
    for shift in (None, 0.7):
        count, total, squares, told = hf.nn.sufficient_statistics(hf.constant(a), [0], shift)
        assert evaluate(count) == 4
        mean, variance = hf.nn.normalize_moments(count, total, squares, told)
        np.testing.assert_allclose(evaluate(mean), a.mean(0))
        np.testing.assert_allclose(evaluate(variance), a.var(0))


# -- einsum and tensordot


def test_einsum_without_an_arrow() -> None:
    a, b = np.random.default_rng(5).random((2, 3, 3))
    x, y = hf.constant(a), hf.constant(b)
    np.testing.assert_allclose(evaluate(hf.einsum("ij,jk", x, y)), a @ b)
    np.testing.assert_allclose(evaluate(hf.einsum("ba", x)), a.T)
    np.testing.assert_allclose(evaluate(hf.einsum("ii", x)), np.trace(a))
    np.testing.assert_allclose(evaluate(hf.einsum("... , ...", x, 2.0)), 2 * a)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3)]),
        ("ij->ik", [(2, 3)]),
        ("ij->ii", [(2, 2)]),
        ("i,i->i", [(2,), (3,)]),
        ("ij->i", [(2,)]),
        ("i->i", [(2, 3)]),
        ("i+->i", [(2, 3)]),
        ("...i...->i", [(2, 3)]),
    ],
)
def test_equations_that_do_not_fit(equation: str, shapes: list) -> None:
    with pytest.raises(ShapeError):
        hf.einsum(equation, *(hf.zeros(s) for s in shapes))


def test_einsum_of_unknown_sizes_and_its_second_derivative() -> None:
    x, y = hf.placeholder(hf.float64, None), hf.placeholder(hf.float64, [None, 3])
    z = hf.einsum("...i,ij->...j", x, y)
    (g,) = hf.gradients(hf.square(z), x)
    (h,) = hf.gradients(g, y)
    rng = np.random.default_rng(6)
    a, b = rng.random((4, 2, 5)), rng.random((5, 3))
    np.testing.assert_allclose(evaluate(g, {x: a, y: b}), 2 * (a @ b) @ b.T)
    flat = 2 * a.reshape(-1, 5)  # sum of 2 x y y^T over rows and columns
    ones = np.ones((8, 5))
    expected = flat.T @ (ones @ b) + ones.T @ (flat @ b)
    np.testing.assert_allclose(evaluate(h, {x: a, y: b}), expected)


@pytest.mark.parametrize("axes", [0, 1, 2, [[1], [0]], [[0, 2], [1, 0]], [-1, 0]])
def test_tensordot(axes: object) -> None:
    rng = np.random.default_rng(7)
    shapes = {"[[1], [0]]": ((2, 3, 4), (3, 5)), "[[0, 2], [1, 0]]": ((2, 3, 4), (4, 2, 5))}
    first, second = shapes.get(str(axes), ((2, 3, 4), (4, 5)))
    if axes == 2:
        second = (3, 4, 5)
    a, b = rng.random(first), rng.random(second)
    got = evaluate(hf.tensordot(hf.constant(a), hf.constant(b), axes))
    np.testing.assert_allclose(got, np.tensordot(a, b, axes))


def test_tensordot_errors() -> None:
    x, y = hf.zeros([2, 3]), hf.zeros([3, 4])
    for axes in (3, [[0, 1], [0]], [[5], [0]], [[0], [0]]):
        with pytest.raises(ShapeError):
            hf.tensordot(x, y, axes)
    with pytest.raises(ShapeError, match="at least 0, not -1"):
        hf.tensordot(hf.placeholder(hf.float32), y, -1)
