"""Functions of TensorFlow 1's `tf.math`, `tf.nn` and `tf.losses` made of others, by formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.special as sp

import hpcflow as hf
from hpcflow.errors import ArgumentError, ShapeError
from tests.ops.evaluate import evaluate

RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def test_zero_times_a_logarithm_is_zero() -> None:
    x, y = np.array([0.0, 0.0, 0.0, 2.0]), np.array([0.0, -1.0, np.nan, 3.0])
    a, b = hf.constant(x), hf.constant(y)
    made = hf.math.xlogy(a, b)
    np.testing.assert_allclose(evaluate(made), [0, 0, 0, 2 * np.log(3)])
    by_x, by_y = evaluate(hf.gradients(made, [a, b]))
    np.testing.assert_allclose(by_x, [0, 0, 0, np.log(3)])
    np.testing.assert_allclose(by_y, [0, 0, 0, 2 / 3])


def test_zero_over_zero_is_zero() -> None:
    a, b = hf.constant([0.0, 0.0, 3.0]), hf.constant([0.0, 2.0, 4.0])
    made = hf.math.xdivy(a, b)
    np.testing.assert_allclose(evaluate(made), [0, 0, 0.75])
    by_x, by_y = evaluate(hf.gradients(made, [a, b]))
    np.testing.assert_allclose(by_x, [0, 0, 0.25])
    np.testing.assert_allclose(by_y, [0, 0, -3 / 16])


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.complex128])
def test_polynomials(dtype: Any) -> None:
    x = RNG.integers(-3, 4, (2, 3)).astype(dtype)
    coefficients = [3, -1, 4, 2]
    made = hf.math.polyval([np.array(c, dtype) for c in coefficients], x)
    np.testing.assert_allclose(evaluate(made), np.polyval(coefficients, x))
    np.testing.assert_array_equal(evaluate(hf.math.polyval([], x)), np.zeros((2, 3)))
    with pytest.raises(ArgumentError, match="a list"):
        hf.math.polyval(np.ones(3), x)


def test_complex_quotients_without_nan() -> None:
    x, y = np.array([1 + 2j, 3j, 2]), np.array([0, 1 - 1j, 4])
    a, b = hf.constant(x), hf.constant(y)
    made = hf.div_no_nan(a, b)
    np.testing.assert_allclose(evaluate(made), [0, 3j / (1 - 1j), 0.5])
    by_x, by_y = evaluate(hf.gradients(made, [a, b], grad_ys=hf.constant(np.ones(3) + 0j)))
    np.testing.assert_allclose(by_x, [0, np.conj(1 / y[1]), 0.25])
    np.testing.assert_allclose(by_y, [0, np.conj(-x[1] / y[1] ** 2), -2 / 16])
    means = hf.segment_mean(hf.constant(np.array([1j, 3.0, 2.0])), [0, 0, 1])
    np.testing.assert_allclose(evaluate(means), [1.5 + 0.5j, 2])


def test_pairs_of_errors() -> None:
    z, p = RNG.standard_normal((2, 4, 5))
    weights = np.array([0.5, 2.0, 0.0, 1.0])
    error = p - z
    pairs = [
        np.mean([(e[i] - e[j]) ** 2 for i in range(5) for j in range(5) if i != j]) for e in error
    ]
    for w, want in (
        (1.0, sum(pairs)),
        (weights, weights @ pairs),
        (weights[:, None], weights @ pairs),
    ):
        loss = hf.losses.mean_pairwise_squared_error(z, p, w)
        np.testing.assert_allclose(evaluate(loss), want, rtol=1e-5)
    assert len(hf.losses.get_losses()) == 3


TABLE = RNG.standard_normal((4, 3))
AT = [[0, 0], [0, 1], [1, 0], [3, 0], [3, 2]]
IDS, WEIGHTS = np.array([0, 1, -1, 2, 3]), np.array([1.0, 2.0, 1.0, -1.0, 3.0])


def ids(values: np.ndarray, shape: tuple[int, ...] = (4, 3)) -> hf.SparseTensor:
    places = np.stack(np.unravel_index(np.array(AT) @ [3, 1], shape), 1)
    return hf.SparseTensor(places, values, shape)


@pytest.mark.parametrize("default", [None, 2])
def test_ids_that_are_none_are_left_out(default: int | None) -> None:
    empty = np.zeros(3) if default is None else TABLE[default]
    plain = hf.nn.safe_embedding_lookup_sparse(TABLE, ids(IDS), default_id=default)
    want = [TABLE[:2].mean(0), empty, empty, TABLE[2:].mean(0)]
    np.testing.assert_allclose(evaluate(plain), want)
    weighted = hf.nn.safe_embedding_lookup_sparse(TABLE, ids(IDS), ids(WEIGHTS), default_id=default)
    want = [(TABLE[0] + 2 * TABLE[1]) / 3, empty, empty, TABLE[3]]
    np.testing.assert_allclose(evaluate(weighted), want)
    added = hf.nn.safe_embedding_lookup_sparse(TABLE, ids(IDS), ids(WEIGHTS), "sum", default)
    want = [TABLE[0] + 2 * TABLE[1], empty, empty, 3 * TABLE[3] - TABLE[2]]
    np.testing.assert_allclose(evaluate(added), want)
    high = hf.nn.safe_embedding_lookup_sparse(TABLE, ids(IDS, (2, 2, 3)), default_id=default)
    assert evaluate(high).shape == (2, 2, 3)
    np.testing.assert_allclose(evaluate(high).reshape(4, 3), evaluate(plain))


def test_an_identity_by_its_older_name() -> None:
    assert evaluate(hf.guarantee_const(sp.factorial(4))) == 24


@pytest.mark.parametrize("where", [hf.where, hf.where_v2])
@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i4", "f4", "f8", "c16"])
def test_numbers_are_true_unless_they_are_zero(where: Any, dtype: str) -> None:
    x = (RNG.random((3, 4)) < 0.5).astype(dtype)
    for given in (x, hf.constant(x)):
        np.testing.assert_array_equal(evaluate(where(given)), np.argwhere(x))
    np.testing.assert_array_equal(evaluate(where(x, 1, 2)), np.where(x != 0, 1, 2))


def test_noise_of_the_shape_of_rows_or_columns() -> None:
    x = hf.constant(np.ones((40, 30)))
    for noise in ([None, 1], [40, 1], hf.constant([40, 1])):
        kept = evaluate(hf.nn.dropout(x, 0.5, noise_shape=noise))
        assert set(np.unique(kept)) == {0, 2} and (kept == kept[:, :1]).all()
    columns = evaluate(hf.nn.dropout(x, 0.5, noise_shape=[30]))
    assert set(np.unique(columns)) == {0, 2} and (columns == columns[:1]).all()
    free = hf.placeholder(hf.int32)
    assert hf.nn.dropout(x, 0.5, noise_shape=free).shape == (40, 30)
    for bad in ([40], [43], [40, 30, 5], [2, 40, 30], [None]):
        with pytest.raises(ShapeError):
            hf.nn.dropout(x, 0.5, noise_shape=bad)
    assert hf.nn.dropout(x, rate=0) is x
    with pytest.raises(ValueError, match="keep_prob"):
        hf.nn.dropout(x, 1.5)


def test_leaky_relu_of_integers() -> None:
    made = evaluate(hf.nn.leaky_relu(np.array([-2, 0, 3])))
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, [-0.4, 0, 3], rtol=1e-6)


def test_delimiters_may_be_constants() -> None:
    words = evaluate(hf.string_split(["a|b", "c"], hf.constant("|")).values)
    assert words.tolist() == [b"a", b"b", b"c"]
    with pytest.raises(ArgumentError, match="must be a constant string"):
        hf.string_split(["a"], hf.placeholder(hf.string))
    with pytest.raises(ArgumentError, match="must be a constant string"):
        hf.string_split(["a"], 3)


def test_one_dot_is_no_ellipsis() -> None:
    with pytest.raises(ShapeError, match="dots that are no"):
        hf.einsum("i.j->ij", np.eye(2))


def test_integers_are_not_written_as_floating_point() -> None:
    for option in ({"scientific": True}, {"shortest": True}, {"precision": 2}):
        with pytest.raises(ShapeError, match="floating-point"):
            hf.as_string([1, 2], **option)
