"""Losses and metrics of `Model.compile` against NumPy, and against Keras's values, written here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError
from tests.runtime.ranks import run_ranks

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4], [0.0, 1.0, 0.0]], np.float32)
CLASSES = np.array([0, 2, 1, 0])
ONE_HOT = np.eye(3, dtype=np.float32)[CLASSES]
CLIPPED = np.clip(P.astype(np.float64), 1e-7, 1 - 1e-7)
LOGITS = np.array([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0], [0.1, 0.2, 0.3], [-4.0, 2.0, 2.0]], "f4")


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z.astype(np.float64)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z.astype(np.float64)))


ERROR = np.abs(P - ONE_HOT)
INNER = np.clip(P, 0.01, 0.99)
YES = -(ONE_HOT * np.log(INNER) + (1 - ONE_HOT) * np.log(1 - INNER))
CASES: list[tuple[str, Any, Any, float]] = [
    ("mse", P, ONE_HOT, (ERROR**2).mean()),
    ("mean_absolute_error", P, ONE_HOT, ERROR.mean()),
    ("huber", 3 * P, ONE_HOT, np.where(np.abs(3 * P - ONE_HOT) <= 1,
        0.5 * (3 * P - ONE_HOT) ** 2, np.abs(3 * P - ONE_HOT) - 0.5).mean()),
    ("poisson", P, ONE_HOT, (P - ONE_HOT * np.log(P + 1e-7)).mean()),
    ("kl_divergence", P, ONE_HOT, (np.clip(ONE_HOT, 1e-7, 1) * np.log(
        np.clip(ONE_HOT, 1e-7, 1) / np.clip(P, 1e-7, 1))).sum(1).mean()),
    ("binary_crossentropy", INNER, ONE_HOT, YES.mean()),
    ("categorical_crossentropy", P, ONE_HOT, -(ONE_HOT * np.log(CLIPPED)).sum(1).mean()),
    ("sparse_categorical_crossentropy", P, CLASSES,
        -np.log(CLIPPED / CLIPPED.sum(1, keepdims=True))[np.arange(4), CLASSES].mean()),
    ("softmax_cross_entropy", LOGITS, ONE_HOT, -(ONE_HOT * log_softmax(LOGITS)).sum(1).mean()),
    ("sparse_softmax_cross_entropy", LOGITS, CLASSES,
        -log_softmax(LOGITS)[np.arange(4), CLASSES].mean()),
    ("sigmoid_cross_entropy", LOGITS, ONE_HOT, -(ONE_HOT * np.log(sigmoid(LOGITS))
        + (1 - ONE_HOT) * np.log(1 - sigmoid(LOGITS))).mean()),
]  # fmt: skip


def identity_model(loss: Any, metrics: Any = None, width: int = 3) -> hf.Model:
    """A model whose output is its input."""
    x = hf.Input([width])
    scale = hf.get_variable("scale", [], initializer=hf.ones_initializer())
    model = hf.Model(x, x * scale)
    model.compile("sgd", loss, metrics=metrics)
    return model


@pytest.mark.parametrize(("name", "output", "labels", "expected"), CASES, ids=lambda v: str(v)[:30])
def test_losses(name: str, output: Any, labels: Any, expected: float) -> None:
    with hf.Graph().as_default():
        found = identity_model(name).evaluate(output, labels, batch_size=3, verbose=0)
    assert found == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("name", ["sparse_categorical_crossentropy", "binary_crossentropy"])
def test_losses_behind_a_softmax_or_a_sigmoid_are_finite_far_out(name: str) -> None:
    is_sparse = name.startswith("sparse")
    with hf.Graph().as_default():
        x = hf.Input([2])
        w = hf.get_variable("w", [], initializer=hf.ones_initializer())
        model = hf.Model(x, (hf.nn.softmax if is_sparse else hf.sigmoid)(x * w))
        model.compile("sgd", name)
        labels = np.array([1]) if is_sparse else np.array([[0.0, 1.0]])
        found = model.evaluate(np.array([[60.0, -60.0]]), labels, verbose=0)
    assert found == pytest.approx(120 if is_sparse else 60, rel=1e-5)


def test_functions_as_losses() -> None:
    per_sample = lambda t, y: hf.reduce_sum(hf.abs(t - y), 1)  # noqa: E731
    for function, expected in [
        (per_sample, ERROR.sum(1).mean()),
        (hf.losses.mean_squared_error, (ERROR**2).mean()),  # one value for a batch
        (hf.losses.sparse_softmax_cross_entropy, -log_softmax(P)[np.arange(4), CLASSES].mean()),
    ]:
        labels = CLASSES if "sparse" in getattr(function, "__name__", "") else ONE_HOT
        with hf.Graph().as_default():
            found = identity_model(function).evaluate(P, labels, batch_size=3, verbose=0)
        assert found == pytest.approx(expected, rel=1e-5)


BINARY = np.array([[0.9], [0.2], [0.6], [0.4], [0.7]], np.float32)
TRUE = np.array([1, 0, 0, 1, 1])


@pytest.mark.parametrize("ranks", [1, 3])
def test_metrics_count_the_samples_of_all_ranks(ranks: int) -> None:
    """tp 2, fp 1, fn 1, tn 1."""
    names = ["accuracy", "precision", "recall", "f1", "mae", "rmse", "auc"]

    def body(context: Any) -> dict[str, float]:
        model = identity_model("binary_crossentropy", names, width=1)
        return model.evaluate(BINARY, TRUE, batch_size=2, verbose=0, return_dict=True)

    error = np.abs(BINARY[:, 0] - TRUE)
    pairs = [(p > n) for p in BINARY[TRUE == 1, 0] for n in BINARY[TRUE == 0, 0]]
    expected = {"accuracy": 3 / 5, "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3}
    expected |= {"mae": error.mean(), "rmse": np.sqrt((error**2).mean()), "auc": np.mean(pairs)}
    for found in run_ranks(ranks, body):
        for name, value in expected.items():
            tolerance = 0.02 if name == "auc" else 1e-5  # hf.metrics.auc has 200 thresholds
            assert found[name] == pytest.approx(value, rel=tolerance), name


def test_metrics_of_logits_and_of_one_hot_labels() -> None:
    with hf.Graph().as_default():
        model = identity_model("sigmoid_cross_entropy", ["accuracy", "f1"], width=1)
        logits = np.log(BINARY / (1 - BINARY))
        found = model.evaluate(logits, TRUE, verbose=0, return_dict=True)
    assert found["accuracy"] == pytest.approx(3 / 5) and found["f1"] == pytest.approx(2 / 3)
    with hf.Graph().as_default():
        model = identity_model("categorical_crossentropy", ["accuracy"])
        assert model.evaluate(P, ONE_HOT, verbose=0)[1] == pytest.approx(2 / 4)


def test_functions_and_names_of_metrics() -> None:
    given = {"far": lambda t, y: hf.abs(t - y) > 0.5, "error": hf.metrics.mean_absolute_error}
    with hf.Graph().as_default():
        model = identity_model("mse", given)
        found = model.evaluate(P, ONE_HOT, batch_size=3, verbose=0, return_dict=True)
    assert list(found) == ["loss", "far", "error"]
    assert found["far"] == pytest.approx((ERROR > 0.5).mean())
    assert found["error"] == pytest.approx(ERROR.mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("sgd", "sparse_categorical_crosentropy"), "sparse_categorical_crossentropy"),
        (("sdg", "mse"), "adam"),
        (("sgd", None), "loss"),
        (("sgd", 3), "neither a name nor a function"),
        (("sgd", "mse", ["acuracy"]), "did you mean 'accuracy'"),
        (("sgd", "mse", ["mae", "mae"]), "two metrics"),
    ],
    ids=str,
)
def test_unknown_names_are_answered_with_the_nearest(arguments: Any, match: str) -> None:
    with hf.Graph().as_default():
        x = hf.Input([3])
        model = hf.Model(x, hf.layers.dense(x, 3))
        with pytest.raises(GraphError, match=match):
            model.compile(*arguments)
            model.evaluate(P, ONE_HOT, verbose=0)


def test_probabilities_are_asked_for_where_the_output_is_none(caplog: Any) -> None:
    with hf.Graph().as_default():
        x = hf.Input([3])
        model = hf.Model(x, hf.layers.dense(x, 3))
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.evaluate(P, CLASSES, verbose=0)
    assert "sparse_softmax_cross_entropy" in caplog.text
