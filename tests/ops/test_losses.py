"""`hf.losses`: each loss by its formula, weights and reductions, the collections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.special as sp

import hpcflow as hf
from hpcflow.errors import ShapeError
from tests.ops.evaluate import evaluate

RNG = np.random.default_rng(9)
P, Z = RNG.random((4, 3)), RNG.random((4, 3))
BITS = RNG.integers(0, 2, (4, 3)).astype(float)
losses = hf.losses


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def xent(z: np.ndarray, x: np.ndarray) -> np.ndarray:
    return -(z * sp.log_softmax(x, -1)).sum(-1)


ROWS: list[tuple[Any, Any, Any, Any]] = [
    (losses.absolute_difference, Z, P, abs(P - Z)),
    (losses.mean_squared_error, Z, P, (P - Z) ** 2),
    (losses.hinge_loss, BITS, P, np.maximum(0, 1 - (2 * BITS - 1) * P)),
    (losses.log_loss, BITS, P, -np.log(np.where(BITS == 1, P, 1 - P) + 1e-7)),
    (
        losses.sigmoid_cross_entropy,
        BITS,
        P,
        -np.log(np.where(BITS == 1, sp.expit(P), sp.expit(-P))),
    ),
    (losses.softmax_cross_entropy, np.eye(3)[[0, 2, 1, 1]], P, xent(np.eye(3)[[0, 2, 1, 1]], P)),
    (
        losses.sparse_softmax_cross_entropy,
        np.array([0, 2, 1, 1]),
        P,
        xent(np.eye(3)[[0, 2, 1, 1]], P),
    ),
]


@pytest.mark.parametrize("function, labels, given, expected", ROWS)
def test_by_formula(function: Any, labels: Any, given: Any, expected: Any) -> None:
    p = hf.constant(given)
    np.testing.assert_allclose(evaluate(function(labels, p)), expected.mean())
    each = function(labels, p, reduction=losses.Reduction.NONE)
    np.testing.assert_allclose(evaluate(each), expected)
    w = np.array([0.0, 2.0, 1.0, 0.0])
    if expected.ndim == 2:
        w = w[:, None]
    weighted = (expected * w).sum()
    some = 2 * expected[0].size  # two of four samples have a weight
    for reduction, value in [
        (losses.Reduction.SUM, weighted),
        (losses.Reduction.SUM_OVER_BATCH_SIZE, weighted / expected.size),
        (losses.Reduction.MEAN, weighted / (3 * expected[0].size)),
        (losses.Reduction.SUM_BY_NONZERO_WEIGHTS, weighted / some),
        (losses.Reduction.SUM_OVER_NONZERO_WEIGHTS, weighted / some),
    ]:
        np.testing.assert_allclose(evaluate(function(labels, p, w, reduction=reduction)), value)
    assert evaluate(function(labels, p, 0.0)) == 0
    np.testing.assert_allclose(evaluate(function(labels, p, 3.0)), 3 * expected.mean())
    assert hf.gradients(function(labels, p), p)[0].shape == p.shape
    (name,) = {t.op.name.split("/")[0].rstrip("_0123456789") for t in losses.get_losses()}
    assert name in (function.__name__, f"{function.__name__}_loss")


def test_huber() -> None:
    error = np.array([0.1, -0.5, 0.9, -3.0])
    for delta in (0.3, 1.0):
        expected = np.where(abs(error) <= delta, error**2 / 2, delta * (abs(error) - delta / 2))
        loss = losses.huber_loss(np.zeros(4), hf.constant(error), delta=delta)
        np.testing.assert_allclose(evaluate(loss), expected.mean())


def test_cosine_distance() -> None:
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (P, Z))
    angles = [np.dot(x, y) for x, y in zip(a, b, strict=True)]
    loss = losses.cosine_distance(a, hf.constant(b), 1)
    np.testing.assert_allclose(evaluate(loss), 1 - np.mean(angles))


def test_label_smoothing() -> None:
    x = hf.constant(P)
    smooth = losses.sigmoid_cross_entropy(BITS, x, label_smoothing=0.2)
    z = 0.8 * BITS + 0.1
    np.testing.assert_allclose(
        evaluate(smooth), -(z * sp.log_expit(P) + (1 - z) * sp.log_expit(-P)).mean()
    )
    hot = np.eye(3)[[0, 1, 2, 0]]
    smooth = losses.softmax_cross_entropy(hot, x, label_smoothing=0.3)
    np.testing.assert_allclose(evaluate(smooth), xent(0.7 * hot + 0.1, P).mean())


def test_labels_of_other_dtypes_and_a_column() -> None:
    x = hf.placeholder("float32", [None, 3])
    y = hf.placeholder("int64", [None, 1])
    loss = losses.sparse_softmax_cross_entropy(y, x)
    got = evaluate(loss, {x: P, y: [[0], [2], [1], [1]]})
    np.testing.assert_allclose(got, xent(np.eye(3)[[0, 2, 1, 1]], P).mean(), rtol=1e-5)
    counts = hf.placeholder("int32", [None, 3])
    loss = losses.mean_squared_error(counts, x)
    assert loss.dtype == hf.float32
    assert evaluate(loss, {x: np.zeros((0, 3)), counts: np.zeros((0, 3))}) == 0


def test_total() -> None:
    assert evaluate(losses.get_total_loss()) == 0
    a = losses.mean_squared_error(Z, hf.constant(P), scope="first")
    b = losses.absolute_difference(Z, hf.constant(P), scope="second")
    losses.absolute_difference(Z, hf.constant(P), loss_collection=None)
    hf.add_to_collection("regularization_losses", hf.constant(2.5, "float64"))
    assert losses.get_losses() == [a, b] and losses.get_losses("second") == [b]
    expected = ((P - Z) ** 2).mean() + abs(P - Z).mean()
    np.testing.assert_allclose(evaluate(losses.get_total_loss()), expected + 2.5)
    np.testing.assert_allclose(evaluate(losses.get_total_loss(False)), expected)
    assert evaluate(losses.get_regularization_loss()) == 2.5


def test_errors() -> None:
    p = hf.placeholder("float64", [4, 3])
    with pytest.raises(ShapeError, match=r"weights \[3\] do not fit values \[4, 3\]") as info:
        losses.mean_squared_error(Z, p, np.ones(3))
    assert "test_losses.py" in str(info.value.line)
    with pytest.raises(ShapeError, match=r"\[2, 3\] and \[4, 3\] do not agree"):
        losses.mean_squared_error(Z[:2], p)
    with pytest.raises(ShapeError, match="reduction 'median'"):
        losses.mean_squared_error(Z, p, reduction="median")


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(hf.losses.absolute_difference, 2.0), (hf.losses.mean_squared_error, 5.0)],
)
def test_losses_of_integers_are_floats(loss: Any, expected: float) -> None:
    """TensorFlow casts them to float32."""
    found = loss(hf.constant([1, 2]), hf.constant([4, 1]))
    assert found.dtype == hf.float32
    with hf.Session() as session:
        assert session.run(found) == expected
