"""The public functions: operators, dtypes, what is known before running, errors."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import hpcflow as hf
from hpcflow.errors import (
    ArgumentError,
    DTypeError,
    GraphError,
    NumericError,
    RangeError,
    ShapeError,
)
from tests.ops.evaluate import evaluate

QUICK = settings(max_examples=60)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


# -- operators


def test_operators_are_numpys() -> None:
    a, b = np.array([3.0, -2.0, 0.5]), np.array([2.0, 3.0, -1.5])
    x, y = hf.constant(a), hf.constant(b)
    pairs = [
        *[(x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (x // y, a // b)],
        *[(x % y, a % b), (abs(x) ** y, abs(a) ** b), (-x, -a), (abs(x), abs(a)), (x**2, a * a)],
        *[(x < y, a < b), (x <= y, a <= b), (x > y, a > b), (x >= y, a >= b), (x[1:], a[1:])],
        *[(2 + x, 2 + a), (2 - x, 2 - a), (2 * x, 2 * a), (2 / x, 2 / a), (b + x, a + b)],
        *[
            (7 // x, 7 // a),
            (7 % y, 7 % b),
            (2**x, 2**a),
            (np.float32(2) * x, 2 * a),
            ([1, 2, 3] * x, np.array([1, 2, 3]) * a),
        ],
    ]
    for tensor, expected in pairs:
        got = evaluate(tensor)
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_logic_and_matrix_operators() -> None:
    a, b = np.array([True, True, False]), np.array([True, False, False])
    x, y = hf.constant(a), hf.constant(b)
    for tensor, expected in [(x & y, a & b), (x | y, a | b), (x ^ y, a ^ b), (~x, ~a)]:
        assert (evaluate(tensor) == expected).all()
    m = np.arange(6.0).reshape(2, 3)
    assert (evaluate(hf.constant(m) @ hf.constant(m.T)) == m @ m.T).all()
    assert (evaluate(m @ hf.constant(m.T)) == m @ m.T).all()


def test_variables_in_operators() -> None:
    """Each operator of `a` and `v`, which are the same array, on either side."""
    a = np.array([1.0, 2.0])
    v = hf.Variable(a)
    state: dict = {}
    evaluate(v.initializer, state=state)
    pairs: list[Any] = [(-v, -a), (abs(v), a), (v[1:], a[1:]), (v[None] @ v[:, None], [[5]])]
    pairs += [(a[None] @ v[:, None], [[5]])]
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge"):
        both = getattr(operator, name)
        pairs += [(both(v, 1.5), both(a, 1.5)), (both(3.0, v), both(3.0, a))]
        pairs += [(both(v, a[::-1]), both(a, a[::-1])), (both(a[::-1], v), both(a[::-1], a))]
    for tensor, expected in pairs:
        np.testing.assert_allclose(evaluate(tensor, state=state), expected, rtol=1e-12)
    bits = hf.Variable(np.array([1, 6]), name="bits")
    evaluate(bits.initializer, state=state)
    for tensor, expected in [(bits & 3, [1, 2]), (8 | bits, [9, 14]), (bits ^ 1, [0, 7])]:
        assert evaluate(tensor, state=state).tolist() == expected
    assert evaluate(~bits, state=state).tolist() == [-2, -7]
    assert evaluate(hf.add(v, v), state=state).tolist() == [2, 4]


# -- dtypes


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
def test_python_values_take_the_tensors_dtype(dtype: str) -> None:
    x = hf.placeholder(dtype, [3])
    for y in (x + 1, 2 * x, hf.maximum(x, 0), x + np.array([1, 2, 3]), hf.where([True] * 3, x, 0)):
        assert y.dtype == dtype


def test_python_values_that_do_not_fit() -> None:
    for dtype, value in [("int32", 0.5), ("uint8", 300), ("uint8", -1), ("float32", 1j)]:
        with pytest.raises(DTypeError, match=re.escape(str(value))) as info:
            hf.placeholder(dtype, [3], name="x") * value
        assert dtype in str(info.value) and "hf.cast" in str(info.value)


def test_no_silent_promotion() -> None:
    x, y = hf.placeholder("float32", [3], "x"), hf.placeholder("float64", [3], "y")
    for make in (hf.add, hf.matmul, hf.equal, lambda x, y: hf.where([True], x, y)):
        with pytest.raises(DTypeError, match="'x:0' is float32 and 'y:0' is float64"):
            make(x, y)
    with pytest.raises(DTypeError, match="float64"):
        hf.add_n([x, y])
    with pytest.raises(DTypeError, match="float64"):
        hf.concat([x, y], 0)


def test_dtypes_an_op_does_not_take() -> None:
    n, b = hf.placeholder("int32", [3], "n"), hf.placeholder("bool", [3], "b")
    check = lambda x: hf.check_numerics(x, "x")  # noqa: E731
    for make in (hf.exp, hf.reduce_logsumexp, hf.nn.relu, hf.nn.softmax, check):
        with pytest.raises(DTypeError, match="int32") as info:
            make(n)
        assert info.value.op and "test_functions.py" in str(info.value.line)
    with pytest.raises(DTypeError, match="booleans"):
        hf.logical_and(n, n)
    with pytest.raises(DTypeError, match="bool"):
        b + b
    with pytest.raises(DTypeError, match="integers"):
        hf.gather(n, hf.constant([0.5]))


def test_divide_of_integers() -> None:
    assert hf.divide(hf.constant([1, 2]), 4).dtype == hf.float64
    assert evaluate(hf.constant([1, 2]) / 4).tolist() == [0.25, 0.5]
    assert evaluate(hf.constant([-7, 7]) // 2).tolist() == [-4, 3]


def test_constants() -> None:
    for value, dtype in [
        *[(1.5, "float32"), (1, "int32"), (2**40, "int64"), (True, "bool"), ([1.0], "float32")],
        *[(np.float64(1), "float64"), (np.arange(3), "int64")],
    ]:
        assert hf.constant(value).dtype == dtype
    assert evaluate(hf.constant(2, "float32", [2, 3])).tolist() == [[2] * 3] * 2
    assert hf.constant([1, 2, 3, 4], shape=[2, 2]).shape == (2, 2)
    for value, dtype in [(1.5, "int32"), (300, "uint8"), ("text", "float32")]:
        with pytest.raises(DTypeError):
            hf.constant(value, dtype)
    with pytest.raises(ArgumentError, match="None is not a tensor"):
        hf.constant(None)
    with pytest.raises(ShapeError, match="3 values"):
        hf.constant([1, 2, 3], shape=[2])
    assert evaluate(hf.constant([1, 2, 3], shape=[2, 2])).tolist() == [[1, 2], [3, 3]]


def test_a_constant_keeps_its_own_copy() -> None:
    a = np.zeros(3)
    x = hf.constant(a)
    a[0] = 9
    assert evaluate(x)[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        x.op.attrs["value"][0] = 1


def test_tensors_inside_lists_are_stacked() -> None:
    x = hf.constant(3)
    assert evaluate(hf.convert_to_tensor([x, 1])).tolist() == [3, 1]
    assert hf.reshape(hf.zeros([6]), [x, -1]).shape == (3, 2)


# -- shapes: our rules against NumPy's

SIDES = st.integers(0, 3)


@st.composite
def hidden(draw, shape: tuple[int, ...]) -> list[int | None]:
    """A shape with some sizes unknown."""
    return [None if draw(st.booleans()) else d for d in shape]


@pytest.mark.slow
@QUICK
@given(shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_side=3), data=st.data())
def test_broadcasting(shapes, data) -> None:
    a, b = (np.ones(s, "f4") for s in shapes.input_shapes)
    with hf.Graph().as_default():
        x, y = (hf.placeholder("float32", data.draw(hidden(v.shape))) for v in (a, b))
        z = x + y
        got = evaluate(z, {x: a, y: b})  # also checks it against the static shape
        gx, gy = evaluate(hf.gradients(z, [x, y]), {x: a, y: b})
    assert got.shape == shapes.result_shape
    assert gx.shape == a.shape and gy.shape == b.shape
    repeats = np.broadcast_to(np.ones(a.shape), got.shape).sum()
    assert gx.sum() == gy.sum() == repeats


@QUICK
@given(a=hnp.array_shapes(min_dims=0, max_side=3), b=hnp.array_shapes(min_dims=0, max_side=3))
def test_shapes_that_do_not_broadcast(a, b) -> None:
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        expected = None
    with hf.Graph().as_default():
        x, y = hf.placeholder("float32", a), hf.placeholder("float32", b)
        if expected is None:
            with pytest.raises(ShapeError, match="cannot be broadcast"):
                x * y
        else:
            assert (x * y).shape == expected


@QUICK
@given(data=st.data(), shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
def test_indexing(data, shape) -> None:
    a = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    with hf.Graph().as_default():
        x = hf.placeholder("float32", data.draw(hidden(shape)))
        y = x[key]
        got = evaluate(y, {x: a})
        np.testing.assert_array_equal(got, a[key])
        grad = evaluate(hf.gradients(y, x)[0], {x: a})
    expected = np.zeros_like(a)
    expected[key] = 1
    np.testing.assert_array_equal(grad, expected)


@QUICK
@given(data=st.data(), shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
def test_reductions(data, shape) -> None:
    a = np.arange(np.prod(shape), dtype="f8").reshape(shape)
    axes = st.lists(st.sampled_from(range(-len(shape), len(shape))) if shape else st.nothing())
    axis = data.draw(st.none() | axes.filter(lambda v: len({i % len(shape) for i in v}) == len(v)))
    keep = data.draw(st.booleans())
    with hf.Graph().as_default():
        x = hf.placeholder("float64", data.draw(hidden(shape)))
        y = hf.reduce_sum(x, axis, keep)
        got, grad = evaluate([y, hf.gradients(y, x)[0]], {x: a})
    np.testing.assert_array_equal(got, a.sum(None if axis is None else tuple(axis), keepdims=keep))
    np.testing.assert_array_equal(grad, np.ones(shape))


def test_shape_arithmetic_stays_static() -> None:
    x = hf.placeholder("float32", [None, 28, 28])
    known = hf.placeholder("float32", [4, 6])
    assert hf.reshape(x, [-1, 28 * 28]).shape == (None, 784)
    assert hf.reshape(x, [hf.shape(x)[0], 784]).shape == (None, 784)
    assert hf.reshape(x, hf.stack([hf.shape(x)[0], -1])).shape == (None, None)
    rows, columns = hf.unstack(hf.shape(known))
    assert hf.reshape(known, [rows * columns // 2, -1]).shape == (12, 2)
    assert hf.zeros(hf.concat([hf.shape(known)[:1], [5]], 0)).shape == (4, 5)
    assert hf.zeros_like(x).shape == (None, 28, 28)
    assert hf.fill(hf.shape(x), 1.0).shape == (None, 28, 28)
    assert hf.range(hf.size(known) - 20).shape == (4,)
    assert hf.expand_dims(known, -1).shape == (4, 6, 1)
    assert hf.squeeze(hf.placeholder("float32", [1, None, 1]), [0, 2]).shape == (None,)
    assert hf.transpose(x, [2, 0, 1]).shape == (28, None, 28)
    assert hf.one_hot(hf.placeholder("int32", [None]), 10).shape == (None, 10)
    assert hf.matmul(hf.placeholder("float32", [None, 3]), hf.zeros([3, 4])).shape == (None, 4)
    assert hf.rank(x).constant == 3 and hf.size(known).constant == 24


def test_known_results_need_no_node() -> None:
    x = hf.placeholder("float32", [2, 3])
    for t in (hf.shape(x), hf.size(x), hf.rank(x), hf.range(4), hf.ones_like(hf.constant(1.0))):
        assert t.op.type == "Const"
    assert hf.cast(x, "float32") is x
    assert hf.add_n([x]) is x


def test_dynamic_shapes_when_it_runs() -> None:
    x = hf.placeholder("float32")
    a = np.arange(6, dtype="f4").reshape(2, 3)
    values = evaluate(
        [
            *[hf.shape(x), hf.size(x), hf.rank(x), hf.zeros_like(x), hf.reshape(x, [-1])],
            *[hf.fill(hf.shape(x), 2.0), hf.broadcast_to(x, hf.concat([[2], hf.shape(x)], 0))],
            *[hf.range(hf.size(x)), hf.slice(x, [0, 1], hf.shape(x) - 1), x[..., 0]],
        ],
        {x: a},
    )
    assert [v.shape for v in values] == [
        *[(2,), (), (), (2, 3), (6,), (2, 3), (2, 2, 3), (6,), (1, 2), (2,)],
    ]


# -- errors of shape


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda x: x + hf.zeros([4]), r"\[2, 3\] and \[4\] cannot be broadcast"),
        (lambda x: x @ x, r"\[2, 3\] and \[2, 3\]: inner sizes 3 and 2 differ"),
        (lambda x: hf.matmul(x, x, transpose_a=True, transpose_b=True), "transposed"),
        (lambda x: x @ hf.zeros([3]), "rank 2 or more"),
        (lambda x: hf.reshape(x, [4, 2]), r"6 elements\) cannot be reshaped"),
        (lambda x: hf.reshape(x, [-1, -1]), "only one size"),
        (lambda x: hf.reshape(x, [-1, 4]), "cannot be reshaped"),
        (lambda x: hf.reduce_sum(x, 2), "axis 2 is out of range for rank 2"),
        (lambda x: hf.reduce_sum(x, [0, -2]), "twice"),
        (lambda x: hf.argmax(x, 5), "axis 5"),
        (lambda x: hf.expand_dims(x, 4), "axis 4"),
        (lambda x: hf.squeeze(x, 0), "size 2, not 1"),
        (lambda x: hf.transpose(x, [0, 0]), "each axis"),
        (lambda x: hf.concat([x, hf.zeros([4, 4])], 0), "do not agree"),
        (lambda x: hf.stack([x, hf.zeros([3])]), "different ranks"),
        (lambda x: hf.split(x, 2, 1), "cannot be split into 2 equal parts"),
        (lambda x: hf.split(x, [1, 1], 1), "do not add up"),
        (lambda x: x[2], "index 2 is out of range"),
        (lambda x: x[0, 0, 0], "3 indices"),
        (lambda x: x[..., ...], "one '...'"),
        (lambda x: x[::0], "step 0"),
        (lambda x: hf.slice(x, [0, 2], [1, 2]), "outside"),
        (lambda x: hf.pad(x, [[0, 1]]), "1 pairs"),
        (lambda x: hf.tile(x, [2]), "1 multiples"),
        (lambda x: hf.broadcast_to(x, [3]), "ranks"),
        (lambda x: hf.zeros([None, 2]), "must be known"),
        (lambda x: hf.add_n([x, hf.zeros([3])]), "different ranks"),
        (lambda x: hf.add_n([]), "at least one tensor"),
        (lambda x: hf.nn.bias_add(x, hf.zeros([2])), "do not agree"),
        (lambda x: hf.nn.bias_add(x, x), "rank 1"),
        (
            lambda x: hf.nn.sparse_softmax_cross_entropy_with_logits(labels=[1, 2, 0], logits=x),
            "do not agree",
        ),
        (lambda x: hf.nn.softmax(x, 2), "axis 2"),
        (lambda x: hf.placeholder("float32", [-3]), "negative"),
    ],
)
def test_shape_errors_are_found_when_the_op_is_made(make, says: str) -> None:
    x = hf.placeholder("float32", [2, 3], name="x")
    with pytest.raises(ShapeError, match=says):
        make(x)


@pytest.mark.parametrize("index", ["a", slice(1.5, None), True], ids=str)
def test_other_indices_are_errors_of_type(index: Any) -> None:
    x = hf.placeholder("float32", [2, 3], name="x")
    with pytest.raises(TypeError, match="cannot index") as found:
        x[index]
    assert isinstance(found.value, ArgumentError)


def test_an_error_names_the_op_and_the_users_line() -> None:
    with pytest.raises(ShapeError) as info:
        hf.add(hf.zeros([2]), hf.zeros([3]), name="total")
    assert info.value.op == "total"
    assert re.search(r"test_functions\.py:\d+$", str(info.value.line))


def test_tensors_are_not_values() -> None:
    x = hf.placeholder("float32", [2])
    for use in (bool, list, len):
        with pytest.raises(GraphError):
            use(x)


# -- errors when it runs


def test_check_numerics() -> None:
    x = hf.placeholder("float32", [4])
    y = hf.check_numerics(x, "the loss")
    assert evaluate(y, {x: [1, 2, 3, 4]}).tolist() == [1, 2, 3, 4]
    with pytest.raises(NumericError, match=r"the loss: 3 of 4 .*\(1 NaN, 2 infinite\)"):
        evaluate(y, {x: [np.nan, np.inf, 1, -np.inf]})


def test_indices_out_of_range() -> None:
    labels = hf.placeholder("int32", [2])
    logits = hf.zeros([2, 3])
    loss = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    rows = hf.gather(hf.zeros([3, 2]), labels)
    for wrong in (-1, 3):
        for t in (loss, rows):
            with pytest.raises(RangeError, match=rf"{wrong} is outside \[0, 3\) \(1 of 2 are\)"):
                evaluate(t, {labels: [0, wrong]})


def test_extremes_do_not_overflow() -> None:
    """No NaN and no infinity; exp may overflow to infinity where its reciprocal is 0."""
    x = hf.constant([[-1e4, 0.0, 1e4]])
    sparse = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=[0], logits=x)
    dense = hf.nn.softmax_cross_entropy_with_logits(labels=[[1.0, 0, 0]], logits=x)
    binary = hf.nn.sigmoid_cross_entropy_with_logits(labels=[[1.0, 1.0, 0.0]], logits=x)
    made = [hf.sigmoid(x), hf.tanh(x), hf.nn.softmax(x), hf.nn.log_softmax(x), hf.nn.softplus(x)]
    made += [hf.nn.elu(x), hf.reduce_logsumexp(x), sparse, dense, binary]
    for t in [*made, *(hf.gradients(t, x)[0] for t in made)]:
        with np.errstate(over="ignore"):
            assert np.isfinite(evaluate(t)).all(), t
    assert evaluate([sparse, dense])[0].tolist() == evaluate([sparse, dense])[1].tolist() == [2e4]


def test_an_empty_batch() -> None:
    """Its loss is NaN, its gradient exactly zero, and nothing warns."""
    x, y = hf.placeholder("float32", [None, 4]), hf.placeholder("int32", [None])
    w, b = hf.constant(np.ones((4, 3), "f4")), hf.constant(np.ones(3, "f4"))
    logits = hf.nn.relu(hf.nn.bias_add(x @ w, b))
    loss = hf.reduce_mean(hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    total, gw, gb = evaluate(
        [loss, *hf.gradients(loss, [w, b])], {x: np.zeros((0, 4)), y: np.zeros(0)}
    )
    assert np.isnan(total)
    assert gw.tobytes() == bytes(48) and gb.tobytes() == bytes(12)


# -- the rest


def test_unstack_split_and_clip() -> None:
    a = np.arange(12.0).reshape(3, 4)
    x = hf.constant(a)
    assert [t.shape for t in hf.unstack(x, axis=1)] == [(3,)] * 4
    assert [t.shape for t in hf.split(x, [1, 3], 1)] == [(3, 1), (3, 3)]
    assert evaluate(hf.clip_by_value(x, 2, 5)).max() == 5
    with pytest.raises(ShapeError, match="needs num"):
        hf.unstack(hf.placeholder("float32", [None]))


def test_dropout() -> None:
    x = hf.constant(np.ones(10000, "f4"))
    y = evaluate(hf.nn.dropout(x, 0.8, seed=1))
    assert set(np.unique(y)) == {np.float32(0), np.float32(1) / np.float32(0.8)}
    assert abs(y.mean() - 1) < 0.02
    rate = hf.placeholder("float32", [])
    for t in (hf.nn.dropout(x, seed=1, rate=0.2), hf.nn.dropout(x, seed=1, rate=rate)):
        np.testing.assert_allclose(evaluate(t, {rate: 0.2}), y, rtol=1e-6)
    rows = evaluate(hf.nn.dropout(hf.reshape(x, [100, 100]), 0.5, noise_shape=[100, 1]))
    assert ((rows == rows[:, :1]).all()) and {0, 2} == set(rows[:, 0])
    (g,) = hf.gradients(hf.nn.dropout(x, 0.8, seed=1), x)
    np.testing.assert_array_equal(evaluate(g), y)
    assert evaluate(hf.nn.dropout(x, 1.0)).tolist() == [1] * 10000
    for wrong in (
        {"keep_prob": 0.0},
        {"keep_prob": 1.5},
        {"rate": 1.0},
        {},
        {"rate": 0, "keep_prob": 1},
    ):
        with pytest.raises(GraphError, match=r"keep_prob|rate"):
            hf.nn.dropout(x, **wrong)


def test_gather_by_a_tensor_index() -> None:
    x, i = hf.constant([[1.0, 2], [3, 4]]), hf.placeholder("int32", [])
    assert evaluate(x[i], {i: 1}).tolist() == [3, 4]


def test_placeholder_with_default() -> None:
    x = hf.placeholder_with_default([1.0, 2.0], [None])
    assert x.shape == (None,)
    assert evaluate(x + 1).tolist() == [2, 3]
    assert evaluate(x + 1, {x: [5.0]}).tolist() == [6]
