"""Functions that move elements, against formulas of their own; what bad input gets."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.errors import DTypeError, HpcflowError, RangeError, ShapeError
from tests.ops.sessions import both_ways, check_slope, fed, graph, run, slope  # noqa: F401 - graph is a fixture

X = np.arange(24.0).reshape(2, 3, 4)


# -- x[...]

KEYS: list[Any] = [
    0,
    -1,
    (1, 2, 3),
    np.s_[1:],
    np.s_[..., 1],
    np.s_[:, ::-1, 1:3],
    np.s_[..., None, ::2],
    np.s_[None, 1, ..., -3:-1],
    np.s_[:, 2:0:-1],
    np.s_[1:1],
    np.s_[:, [2, 0, 2]],
    np.s_[..., np.array([[0, 1], [3, 3]])],
    np.s_[np.array([1, 0]), np.array([2, 2])],
    np.s_[np.array([1, 0]), np.array([2, 2]), ::2],
    np.s_[X[:, :, 0] > 3],
    np.s_[:, np.array([True, False, True])],
    np.s_[1:, :, np.array([True, False, True, False])],
    np.s_[X > 5],
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_is_numpys(key: Any) -> None:
    assert both_ways(lambda t: t[key], X).tolist() == X[key].tolist()
    check_slope(lambda t: t[key], X)


def test_limits_may_be_tensors() -> None:
    i, j = hf.placeholder(hf.int32, []), hf.placeholder(hf.int64, [])
    t = hf.constant(X)
    found = [t[i], t[:, i], t[..., :j], t[i:, 1, ::-2], t[:, i : i + 2, j], t[0, j:i:-1]]
    (g,) = hf.gradients(found[4], t)
    for a, b in [(1, 2), (0, 3), (-1, 1)]:
        expected = [X[a], X[:, a], X[..., :b], X[a:, 1, ::-2], X[:, a : a + 2, b], X[0, b:a:-1]]
        *values, grad = run([*found, g], {i: a, j: b})
        for value, e in zip(values, expected, strict=True):
            assert value.tolist() == e.tolist()
        ones = np.zeros(X.shape)
        ones[:, a : a + 2, b] = 1
        assert grad.tolist() == ones.tolist()


def test_an_index_outside_is_an_error_now_or_when_it_runs() -> None:
    t = hf.constant(X)
    with pytest.raises(ShapeError, match="index 2 is out of range for axis 0"):
        t[2]
    unknown = hf.placeholder(hf.float64, [None])
    with pytest.raises(ShapeError, match="5") as caught:
        run(unknown[5], {unknown: np.zeros(3)})
    assert "test_arrays.py" in (caught.value.line or "")
    i = hf.placeholder(hf.int32, [])
    with pytest.raises(RangeError, match=r"outside shape \[2, 3, 4\]"):
        run(t[i], {i: 2})


def test_what_cannot_index() -> None:
    t = hf.constant(X)
    for key in (1.5, "a", (..., 0, ...), slice(0, 1, 0), hf.constant(1.0)):
        with pytest.raises(HpcflowError):
            t[key]
    with pytest.raises(ShapeError, match="must be adjacent and come first"):
        t[:, [0], [1]]


def test_newaxis() -> None:
    assert hf.constant(X)[hf.newaxis, ..., hf.newaxis].shape == (1, 2, 3, 4, 1)


def test_strided_slice() -> None:
    t = hf.constant(X)
    assert run(hf.strided_slice(t, [0, 2, 1], [2, 0, 4], [1, -1, 2])).tolist() == (
        X[0:2, 2:0:-1, 1:4:2].tolist()
    )
    masked = hf.strided_slice(t, [0, 7, 1, 1], [9, 9, 9, 2], None, 0, 0b100, 0, 0b10, 0b1)
    assert run(masked).tolist() == X[0, None, 1:, 1:2].tolist()
    dots = hf.strided_slice(t, [0, 0, 1], [1, 0, 2], ellipsis_mask=0b10, begin_mask=1)
    assert run(dots).tolist() == X[:1, ..., 1:2].tolist()
    b = hf.placeholder(hf.int32, [2])
    told = hf.strided_slice(t, b, b + 2)
    assert run(told, {b: [0, 1]}).tolist() == X[0:2, 1:3].tolist()
    with pytest.raises(ShapeError, match="different lengths: 2, 1 and"):
        hf.strided_slice(t, [0, 1], [1])


def test_a_size_that_is_known_is_a_constant() -> None:
    x = hf.placeholder(hf.float32, [None, 7])
    assert hf.shape(x)[1].constant == 7
    assert hf.shape(x)[-1].constant == 7
    assert hf.shape(x)[0].constant is None


def test_slice_outside_is_an_error_also_where_sizes_are_unknown() -> None:
    x = hf.placeholder(hf.float32, [None])
    y = hf.slice(x, [1], [3])
    assert run(y, {x: [0, 1, 2, 3.5]}).tolist() == [1, 2, 3.5]
    with pytest.raises((RangeError, ShapeError), match="outside"):
        run(y, {x: [0, 1, 2]})
    b = hf.placeholder(hf.int32, [1])
    z = hf.slice(hf.constant([1.0, 2, 3]), b, [2])
    assert run(z, {b: [1]}).tolist() == [2, 3]
    for wrong in ([-1], [2]):
        with pytest.raises((RangeError, ShapeError), match="outside"):
            run(z, {b: wrong})


# -- gathering and scattering


def test_gather_and_its_errors() -> None:
    t = hf.constant(X)
    i = hf.placeholder(hf.int32, [None])
    y = hf.gather(t, i, axis=1)
    assert run(y, {i: [2, 0]}).tolist() == X[:, [2, 0]].tolist()
    for wrong in ([0, 3], [-1, 0]):
        with pytest.raises(RangeError, match=r"gather: index (3|-1) is outside \[0, 3\)") as caught:
            run(y, {i: wrong})
        assert caught.value.op == y.op.name
        assert "test_arrays.py" in (caught.value.line or "")
    with pytest.raises(RangeError, match=r"outside \[0, 2\)"):
        hf.gather(t, [-1])
    with pytest.raises(DTypeError):
        hf.gather(t, [0.5])


def test_batch_gather() -> None:
    i = np.array([[2, 0], [1, 1]])
    expected = np.stack([X[g][i[g]] for g in range(2)])
    assert run(hf.gather(hf.constant(X), i, batch_dims=1)).tolist() == expected.tolist()
    assert run(hf.batch_gather(hf.constant(X), i)).tolist() == expected.tolist()
    t = hf.placeholder(hf.float64, None)
    assert run(hf.gather(t, i, batch_dims=1), {t: X}).tolist() == expected.tolist()
    other = hf.gather(hf.constant(X), i, axis=2, batch_dims=1)
    assert run(other).tolist() == np.stack([X[g][:, i[g]] for g in range(2)]).tolist()
    with pytest.raises(RangeError):
        run(hf.gather(t, i + 1, batch_dims=1), {t: X})
    with pytest.raises(ShapeError):
        hf.gather(hf.constant(X), i, axis=0, batch_dims=1)


def test_gather_nd() -> None:
    i = np.array([[[0, 2], [1, 0]]])
    assert run(hf.gather_nd(hf.constant(X), i)).tolist() == [[X[0, 2].tolist(), X[1, 0].tolist()]]
    check_slope(lambda t: hf.gather_nd(t, i), X)
    j = np.array([[[2, 3], [0, 0]], [[1, 1], [1, 2]]])
    expected = [[X[g][tuple(v)] for v in j[g]] for g in range(2)]
    assert both_ways(lambda t: hf.gather_nd(t, j, batch_dims=1), X).tolist() == expected
    with pytest.raises(RangeError, match="index 3 is outside"):
        run(hf.gather_nd(hf.constant(X), [[0, 3]]))
    with pytest.raises(ShapeError):
        hf.gather_nd(hf.constant(X), [[0, 0, 0, 0]])


def test_scatter_nd() -> None:
    y = hf.scatter_nd([[4], [3], [1], [4]], [9.0, 10, 11, 12], [8])
    assert run(y).tolist() == [0, 11, 0, 10, 21, 0, 0, 0]
    n = hf.placeholder(hf.int32, [1])
    y = hf.scatter_nd([[1]], [5], n)
    assert run(y, {n: [3]}).tolist() == [0, 5, 0]
    with pytest.raises(RangeError):
        run(y, {n: [1]})
    with pytest.raises(ShapeError):
        hf.scatter_nd([[1]], [5.0, 6], [3])


def test_tensor_scatter() -> None:
    t, i = hf.constant([1.0, 2, 3]), [[2], [0], [2]]
    assert run(hf.tensor_scatter_add(t, i, [10, 20, 30])).tolist() == [21, 2, 43]
    assert run(hf.tensor_scatter_sub(t, i, [10, 20, 30])).tolist() == [-19, 2, -37]
    assert run(hf.tensor_scatter_update(t, i, [10, 20, 30])).tolist() == [20, 2, 30]
    with pytest.raises(RangeError):
        run(hf.tensor_scatter_add(t, [[-1]], [1]))


def test_one_hot() -> None:
    assert run(hf.one_hot([1, 3], 3)).tolist() == [[0, 1, 0], [0, 0, 0]]
    assert hf.one_hot([0], 2).dtype == hf.float32
    assert hf.one_hot([0], 2, on_value=5, off_value=-5).dtype == hf.int32
    assert run(hf.one_hot([1], 2, 5.5, -1.0, axis=0)).tolist() == [[-1], [5.5]]
    depth = hf.placeholder(hf.int32, [])
    assert run(hf.one_hot([1, 0], depth), {depth: 2}).tolist() == [[0, 1], [1, 0]]
    assert run(hf.one_hot([1, 0], depth), {depth: 3}).shape == (2, 3)
    on = hf.constant(2.0, hf.float64)
    y = hf.one_hot([1], 2, on_value=on)
    assert run([y, hf.gradients(y, on)[0]])[0].tolist() == [[0, 2]]


# -- positions and values


def test_where_without_values_and_boolean_mask() -> None:
    m = np.array([[True, False], [True, True]])
    assert run(hf.where(hf.constant(m))).tolist() == [[0, 0], [1, 0], [1, 1]]
    t = hf.placeholder(hf.bool, [None])
    places = hf.where(t)
    with hf.Session() as session:
        for n in (0, 1, 5, 3):
            value = np.arange(n) % 2 == 0
            assert session.run(places, {t: value}).tolist() == [[i] for i in range(0, n, 2)]
    x = np.arange(8.0).reshape(2, 2, 2)
    check_slope(lambda t: hf.boolean_mask(t, m), x)
    assert both_ways(lambda t: hf.boolean_mask(t, m), x).tolist() == x[m].tolist()
    assert both_ways(lambda t: hf.boolean_mask(t, m, axis=1), x).tolist() == x[:, m].tolist()
    with pytest.raises(ShapeError):
        hf.boolean_mask(hf.constant(x), [True, False, True])
    with pytest.raises(ShapeError, match="rank"):
        hf.boolean_mask(hf.constant(x), hf.placeholder(hf.bool))
    with pytest.raises(ShapeError, match="neither"):
        hf.where(hf.constant(m), 1.0)


def test_unique_and_setdiff() -> None:
    x = hf.constant([1, 1, 2, 4, 4, 4, 7, 8, 8, 2])
    y, idx, count = run(list(hf.unique_with_counts(x)))
    assert y.tolist() == [1, 2, 4, 7, 8]
    assert idx.tolist() == [0, 0, 1, 2, 2, 2, 3, 4, 4, 1]
    assert count.tolist() == [2, 2, 3, 1, 2]
    assert [v.dtype for v in hf.unique(x, out_idx=hf.int64)] == [hf.int32, hf.int64]
    out, at = run(list(hf.setdiff1d([1, 2, 3, 4, 5, 6], [1, 3, 5])))
    assert (out.tolist(), at.tolist()) == ([2, 4, 6], [1, 3, 5])
    with pytest.raises(ShapeError):
        hf.unique([[1]])


def test_invert_permutation() -> None:
    p = hf.placeholder(hf.int32, [None])
    y = hf.invert_permutation(p)
    assert run(y, {p: [3, 4, 0, 2, 1]}).tolist() == [2, 4, 3, 0, 1]
    for wrong, what in (([0, 0], "0 occurs 2 times"), ([1, 2], "outside"), ([-1, 0], "outside")):
        with pytest.raises(RangeError, match=what):
            run(y, {p: wrong})


def test_searchsorted() -> None:
    row = [[0, 3, 9, 9, 10], [1, 2, 3, 4, 5]]
    values = [[2, 4, 9], [0, 2, 6]]
    assert run(hf.searchsorted(row, values)).tolist() == [[1, 2, 2], [0, 1, 5]]
    assert run(hf.searchsorted(row, values, "right")).tolist() == [[1, 2, 4], [0, 2, 5]]
    with pytest.raises(ShapeError, match="side"):
        hf.searchsorted(row, values, "middle")


# -- many shapes, and shapes that only data tell


@pytest.mark.slow
def test_a_thousand_shapes_train_without_new_plans_or_growing_memory() -> None:
    """A net over the rows that are kept: each step another number of them."""
    x = hf.placeholder(hf.float32, [None, 4])
    w = hf.Variable(np.ones((4, 1), np.float32))
    kept = hf.boolean_mask(x, hf.reduce_sum(x, 1) > 0)
    ids, which = hf.unique(hf.cast(kept[:, 0] * 10, hf.int32))
    loss = hf.reduce_sum(hf.square(hf.matmul(kept, w)))
    step = w.assign_sub(0.0001 * hf.gradients(loss, w)[0])
    seen = hf.reduce_max(hf.concat([which, [0]], 0)) + 1
    rng = np.random.default_rng(0)
    expected = np.ones((4, 1), np.float32)
    sizes: list[int] = []
    with hf.Session() as session:
        session.run(w.initializer)
        for i in range(1000):
            a = rng.standard_normal((1 + i, 4)).astype(np.float32)
            _, values, count = session.run([step, ids, seen], {x: a})
            rows = a[a.sum(1) > 0]
            expected -= 0.0001 * 2 * rows.T @ (rows @ expected)
            assert len(values) == len(np.unique((rows[:, 0] * 10).astype(np.int32)))
            assert count == max(len(values), 1)
            if i == 500:
                tracemalloc.start()
                tracemalloc.reset_peak()
            if i in (700, 999):
                del values
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        np.testing.assert_allclose(session.run(w), expected, rtol=1e-3)
        assert sum(len(family._steps) for family in session._families.values()) <= 10
    assert sizes[1] < sizes[0] + 100_000, sizes


@settings(max_examples=40)
@given(st.data())
def test_any_slice_of_any_array(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    x = np.arange(float(np.prod(shape))).reshape(shape)
    limit = st.one_of(st.none(), st.integers(-5, 5))
    key = tuple(
        slice(data.draw(limit), data.draw(limit), data.draw(limit.filter(lambda v: v != 0)))
        for _ in shape
    )
    with hf.Graph().as_default():
        known = hf.constant(x)[key]
        t = fed(x)
        unknown = t[key]
        assert known.shape == x[key].shape
        assert run(known).tolist() == run(unknown, {t: x}).tolist() == x[key].tolist()


def test_ensure_shape() -> None:
    x = hf.placeholder(hf.float32)
    y = hf.ensure_shape(x, [None, 3])
    assert y.shape == (None, 3)
    with hf.Session() as session:
        assert session.run(y, {x: np.ones((2, 3), "f4")}).shape == (2, 3)
        for wrong in ((2, 4), (3,), (1, 2, 3)):
            with pytest.raises(ShapeError, match=r"\[\?, 3\]"):
                session.run(y, {x: np.ones(wrong, "f4")})
    with pytest.raises(ShapeError):
        hf.ensure_shape(hf.zeros([2, 4]), [None, 3])


def test_squeeze_without_axes_named_takes_all() -> None:
    """TensorFlow's shape: an empty list of axes is none given."""
    assert hf.squeeze(hf.zeros([1, 3, 1]), []).shape == (3,)


@pytest.mark.parametrize("sizes", [[4, 6], [None, None], None])
def test_split_of_a_size_that_only_the_step_knows(sizes: Any) -> None:
    x, value = hf.placeholder(hf.float32, sizes), np.arange(24, dtype="f4").reshape(4, 6)
    equal, rest = hf.split(x, 3, 1), hf.split(x, [1, -1, 2], 1)
    told = hf.split(x, hf.constant([-1, 2]), 1)
    with hf.Session() as session:
        for parts, at in ((equal, [2, 4]), (rest, [1, 4]), (told, [4])):
            found = session.run(parts, {x: value})
            for part, expected in zip(found, np.split(value, at, 1), strict=True):
                np.testing.assert_array_equal(part, expected)
    if sizes is not None:
        assert [p.shape[1] for p in rest] == ([1, 3, 2] if sizes[1] else [1, None, 2])
    (g,) = hf.gradients(rest[1] * 2.0, x)
    assert run(g, {x: value}).tolist() == [[0, 2, 2, 2, 0, 0]] * 4


def test_parts_that_do_not_fill_the_axis() -> None:
    x = hf.placeholder(hf.float32, [None])
    parts = [hf.split(x, 3)[0], hf.split(x, [3, -1, 3])[1]]
    with hf.Session() as session:
        for part in parts:
            with pytest.raises(HpcflowError):
                session.run(part, {x: np.zeros(4, "f4")})
    for wrong in ([-1, -1], [-2, 6], [5, -1], [1, 2]):
        with pytest.raises(ShapeError):
            hf.split(hf.zeros([4]), wrong)


def test_top_k_names_its_parts() -> None:
    found = hf.nn.top_k([3.0, 5.0, 1.0], 2)
    assert run(found.values).tolist() == [5, 3] and run(found.indices).tolist() == [1, 0]


def test_roll_of_nothing() -> None:
    for known in (True, False):
        x = fed(np.zeros((0, 2)), known)
        assert run(hf.roll(x, 1, 0), {x: np.zeros((0, 2))}).shape == (0, 2)


def test_float_is_float32() -> None:
    """TensorFlow's names of data types, not NumPy's."""
    assert hf.placeholder("float").dtype == hf.placeholder(float).dtype == hf.float32
    assert hf.placeholder("double").dtype == hf.float64
    assert hf.cast(hf.constant([1]), float).dtype == hf.float32
