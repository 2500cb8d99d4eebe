"""Arguments of functions of arrays that TensorFlow 1's programs give; values by NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, GraphError, ShapeError
from tests.ops.evaluate import evaluate

X = np.arange(24.0).reshape(2, 3, 4)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def test_an_axis_of_none_is_the_default() -> None:
    mask = np.array([True, False])
    np.testing.assert_array_equal(evaluate(hf.boolean_mask(X, mask, axis=None)), X[mask])
    got = evaluate(hf.gather(X, [2, 0], axis=1, batch_dims=None))
    np.testing.assert_array_equal(got, X[:, [2, 0]])


@pytest.mark.parametrize("shape", [[0], [3, 0], [2, 0, 4]])
def test_a_constant_of_no_elements_has_the_shape_asked_for(shape: list[int]) -> None:
    made = hf.constant([], shape=shape, dtype=hf.int32)
    assert made.shape == tuple(shape) and evaluate(made).shape == tuple(shape)


def test_none_is_no_tensor() -> None:
    with pytest.raises(ValueError, match="None is not a tensor"):
        hf.losses.mean_squared_error([1.0], [2.0], weights=None)


def rows() -> hf.IndexedSlices:
    return hf.IndexedSlices(np.array([[1.0, -4.0], [6.0, 2.0]]), [2, 0], [5, 2])


def test_functions_of_values_keep_the_places() -> None:
    values = np.array([[1.0, -4.0], [6.0, 2.0]])
    for made, want in (
        (hf.cast(rows(), hf.float32), values.astype(np.float32)),
        (hf.clip_by_value(rows(), -2.0, 3.0), values.clip(-2, 3)),
        (hf.scalar_mul(-3.0, rows()), -3 * values),
    ):
        assert isinstance(made, hf.IndexedSlices)
        got = evaluate(made.values)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
        assert evaluate(made.indices).tolist() == [2, 0]
    sparse = hf.cast(hf.SparseTensor([[1]], [2.5], [4]), hf.int32)
    assert isinstance(sparse, hf.SparseTensor) and evaluate(sparse.values).tolist() == [2]


def test_bounds_do_not_make_a_tensor_larger() -> None:
    x = hf.constant(np.ones((2, 3, 1)))
    with pytest.raises(ShapeError, match="clip_by_value"):
        hf.clip_by_value(x, 0.0, [1.0, 2.0])
    with pytest.raises(ShapeError, match="clip_by_norm"):
        hf.clip_by_norm(x, [1.0, 2.0])


def test_elements_become_the_dtype_asked_for() -> None:
    narrow, whole = hf.constant([1.0, 2.0]), hf.constant([3, 4])
    made = hf.convert_to_tensor([narrow, whole, [5, 6]], dtype=hf.float64)
    assert made.dtype == hf.float64
    np.testing.assert_array_equal(evaluate(made), [[1, 2], [3, 4], [5, 6]])
    with pytest.raises(DTypeError):
        hf.convert_to_tensor([narrow, whole])


def test_static_shapes_are_integers() -> None:
    for shape in ([], [1, 2, 3]):
        made = hf.convert_to_tensor(hf.TensorShape(shape))
        assert made.dtype == hf.int32 and evaluate(made).tolist() == shape
    size = hf.convert_to_tensor(hf.TensorShape([4, 7])[1], dtype=hf.int64)
    assert size.dtype == hf.int64 and evaluate(size) == 7
    for unknown in (hf.TensorShape(None), hf.TensorShape([1, None]), hf.TensorShape([None])[0]):
        with pytest.raises(ShapeError, match="not fully known"):
            hf.convert_to_tensor(unknown)
    with pytest.raises(DTypeError):
        hf.convert_to_tensor(hf.TensorShape([1]), dtype=hf.float32)


def test_a_shape_is_known_in_part() -> None:
    free = hf.placeholder(hf.int32)
    vector = hf.placeholder(hf.int32, [2])
    x = hf.placeholder(hf.float32)
    assert hf.reshape(x, [free, 37]).shape == (None, 37)
    assert hf.reshape(x, hf.concat([vector, [37, 42]], 0)).shape == (None, None, 37, 42)
    wide = hf.cast(hf.shape(hf.placeholder(hf.float32, [None, 5])), hf.int64)
    assert hf.reshape(x, wide).shape == (None, 5)
    square = hf.zeros([4, 4])
    assert hf.pad(square, [[1, 2], free]).shape == (7, None)
    assert hf.pad(square, [[free, 0], [1, 2]]).shape == (None, 7)


def test_a_size_beside_zeros_is_deduced() -> None:
    assert evaluate(hf.reshape(np.zeros((0, 6)), [0, -1, 3])).shape == (0, 2, 3)


def test_new_axes_by_a_list_of_one() -> None:
    assert hf.expand_dims(X, [1]).shape == (2, 1, 3, 4)
    with pytest.raises(ShapeError, match="one axis"):
        hf.expand_dims(X, [0, 1])
    with pytest.raises(ShapeError, match="scalar"):
        hf.diag(3.0)


def test_values_of_one_hot_have_one_dtype() -> None:
    with pytest.raises(DTypeError, match="on_value, float64, and off_value, float32, differ"):
        hf.one_hot([0], 2, np.float64(1), np.float32(0))


def test_strings_are_padded_and_counted() -> None:
    text = hf.constant([["a", ""], ["b", "c"]])
    padded = evaluate(hf.pad(text, [[1, 0], [0, 1]], constant_values="x"))
    assert padded.tolist() == [[b"x"] * 3, [b"a", b"", b"x"], [b"b", b"c", b"x"]]
    assert evaluate(hf.pad(text, [[0, 0], [0, 1]])).tolist()[0] == [b"a", b"", b""]
    assert evaluate(hf.count_nonzero(text, axis=1)).tolist() == [1, 2]


def test_extremes_of_booleans() -> None:
    x = np.array([[False, True, True], [False, False, False]])
    np.testing.assert_array_equal(evaluate(hf.argmax(x, 1)), x.argmax(1))
    np.testing.assert_array_equal(evaluate(hf.argmin(x, 0)), x.argmin(0))


def run(fetch: hf.Tensor, axis: hf.Tensor, value: object) -> np.ndarray:
    with hf.Session() as session:
        result: np.ndarray = session.run(fetch, {axis: value})
        return result


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("over", [0, -1, [1], [2, 0], [-3, 1, 2], []])
def test_reductions_over_axes_that_the_step_tells(over: object, keep: bool, known: bool) -> None:
    axis = hf.placeholder(hf.int32)
    x = hf.constant(X) if known else hf.placeholder_with_default(X, None)
    axes = tuple(np.atleast_1d(np.array(over, int)))
    for function, want in (
        (hf.reduce_sum, X.sum(axes, keepdims=keep)),
        (hf.reduce_mean, X.mean(axes, keepdims=keep)),
        (hf.reduce_max, X.max(axes, keepdims=keep)),
        (hf.reduce_logsumexp, np.log(np.exp(X).sum(axes, keepdims=keep))),
    ):
        made = function(x, axis, keep)
        assert made.shape == ((None,) * 3 if keep and known else None)
        np.testing.assert_allclose(run(made, axis, over), want)


def test_gradients_over_axes_that_the_step_tells() -> None:
    x, axis, weights = hf.constant(X), hf.placeholder(hf.int32), np.arange(3.0)
    (slope,) = hf.gradients(hf.reduce_sum(x, axis) * weights, x)
    want = np.broadcast_to(weights[:, None], X.shape)
    np.testing.assert_allclose(run(slope, axis, [0, -1]), want)


def test_axes_that_the_step_tells_may_be_wrong() -> None:
    axis = hf.placeholder(hf.int32)
    made = [hf.reduce_sum(X, axis), hf.reverse(X, axis), hf.concat([X, X], axis)]
    made += [hf.gather(X, [0], axis=axis), hf.split(X, 2, axis)[0]]
    for fetch in made:
        for bad in (3, -4):
            given = [bad] if fetch is made[1] else bad
            with pytest.raises(ShapeError, match="out of range"):
                run(fetch, axis, given)
    with pytest.raises(ShapeError, match="twice"):
        run(hf.reduce_sum(X, axis), axis, [0, -3])


@pytest.mark.parametrize("at", [0, 1, 2, -1, -3])
def test_joins_and_parts_along_an_axis_that_the_step_tells(at: int) -> None:
    axis = hf.placeholder(hf.int32, [])
    x, free = hf.constant(X), hf.placeholder_with_default(X, None)
    joined = hf.concat([x, free, x], axis)
    np.testing.assert_array_equal(run(joined, axis, at), np.concatenate([X, X, X], at))
    assert joined.shape == (None, None, None)
    second = hf.split(hf.concat([x, x], axis), 2, axis)[1]
    np.testing.assert_array_equal(run(second, axis, at), X)
    np.testing.assert_array_equal(run(hf.reverse(x, [axis]), axis, at), np.flip(X, at))
    for indices in (1, [1, 0, 1], [[0, 1], [1, 1]]):
        taken = hf.gather(x, indices, axis=axis)
        assert taken.shape == (None,) * (2 + np.ndim(indices))
        np.testing.assert_array_equal(run(taken, axis, at), np.take(X, indices, at))
    (slope,) = hf.gradients(hf.reduce_sum(hf.gather(x, [1, 1], axis=axis)), x)
    want = np.zeros(X.shape)
    want[(slice(None),) * (at % 3) + (1,)] = 2
    np.testing.assert_array_equal(run(slope, axis, at), want)


def test_reversed_and_transposed_as_the_step_tells() -> None:
    axes = hf.placeholder(hf.int64)
    np.testing.assert_array_equal(run(hf.reverse(X, axes), axes, [0, -1]), X[::-1, :, ::-1])
    turned = hf.transpose(X, axes)
    assert turned.shape == (None, None, None)
    np.testing.assert_array_equal(run(turned, axes, [2, 0, 1]), X.transpose(2, 0, 1))
    with pytest.raises(ShapeError, match="once"):
        run(turned, axes, [0, 0, 1])


def test_ranks_that_do_not_fit_are_an_error_before_the_axis_is_known() -> None:
    with pytest.raises(ShapeError):
        hf.concat([X, np.ones((2, 3))], hf.placeholder(hf.int32))


def test_sizes_of_sparse_tensors_are_those_of_the_dense_ones() -> None:
    value = hf.SparseTensorValue(((0, 1), (1, 0)), (42, 24), (2, 3))
    for given in (value, hf.SparseTensor.from_value(value)):
        made = hf.shape(given, out_type=hf.int64)
        assert made.dtype == hf.int64 and evaluate(made).tolist() == [2, 3]
        assert evaluate(hf.size(given)) == 6 and evaluate(hf.rank(given)) == 2


def test_only_numbers_have_conjugates() -> None:
    with pytest.raises(DTypeError, match="conj"):
        hf.conj(hf.constant("text"))


def test_a_tensor_is_no_condition_of_python() -> None:
    for given in (hf.constant(True), rows()):
        with pytest.raises(TypeError, match="truth value"):
            bool(given)


def test_strings_are_added() -> None:
    """TensorFlow's `+` joins strings."""
    a = hf.constant(["a", "b"])
    with hf.Session() as session:
        found = session.run([a + "c", "z" + a, hf.add(a, a), hf.add(a, [["x"], ["y"]])])
    assert [one.tolist() for one in found[:3]] == [
        [b"ac", b"bc"],
        [b"za", b"zb"],
        [b"aa", b"bb"],
    ]
    assert found[3].tolist() == [[b"ax", b"bx"], [b"ay", b"by"]]
    assert hf.add(a, [["x"], ["y"]]).shape == (2, 2)
    for bad in (lambda: a - "b", lambda: a * "b", lambda: a + 1):
        with pytest.raises(DTypeError):
            bad()


def test_the_next_number() -> None:
    """TensorFlow's values."""
    x = hf.constant([1.0, 0.0, -1.0, 3.0])
    y = hf.math.nextafter(x, [2.0, 2.0, 2.0, 3.0])
    with hf.Session() as session:
        found, wide = session.run([y, hf.math.nextafter(hf.constant(1.0, hf.float64), 0.0)])
        slope = session.run(hf.gradients(y, x)[0])
    assert found.tolist() == [1.00000011920928955, 1.401298464324817e-45, -0.99999994039535522, 3]
    assert wide == 0.99999999999999989 and slope.tolist() == [1, 1, 1, 1]


def test_one_tensor_joined_is_itself() -> None:
    """Whatever the axis, a scalar too, as TensorFlow's."""
    with hf.Session() as session:
        assert session.run(hf.concat(1, 0)) == 1
        assert session.run(hf.concat([1], 0)) == 1
        assert session.run(hf.concat([[1]], 1)).tolist() == [1]
    with pytest.raises(ShapeError, match="rank 0"):
        hf.concat([1, 2], 0)
    for axis in (hf.constant([0]), [0], 0.5):
        with pytest.raises(GraphError, match="axis"):
            hf.concat([1], axis)


def test_begin_and_size_of_a_slice_have_an_entry_for_each_axis() -> None:
    x, told = hf.constant([[1, 2, 3]]), hf.placeholder(hf.int32, [None])
    for begin, size in (([0], [1, 1]), ([0, 0], [1])):
        with pytest.raises(ShapeError, match=r"begin \[0.* are of different lengths"):
            hf.slice(x, begin, size)
    hidden = hf.where(hf.placeholder_with_default(told, [None]) >= 0)[:, 0]
    with hf.Session() as session:
        for begin in ([0], [0, 0, 0]):
            with pytest.raises(ShapeError, match=r"begin of shape \[[13]\] and size"):
                session.run(hf.slice(x, told, [1, 1]), {told: begin})
            with pytest.raises(ShapeError, match=r"begin \[0.*\] and size \[.*, .*\] do not fit"):
                session.run(hf.slice(x, hidden, [1, 1]), {told: begin})
