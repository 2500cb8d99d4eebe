"""What users of Keras, TensorFlow 2, PyTorch and NumPy write out of habit works, or is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    """A graph for each test."""
    with hf.Graph().as_default():
        yield


X = np.random.default_rng(1).standard_normal((2, 4, 4, 3)).astype(np.float32)


@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid", "softmax", "elu", "selu", "gelu"])
def test_activations_by_name(name: str) -> None:
    x = hf.constant(X[:, 0, 0])
    ones = hf.ones_initializer()
    given = getattr(hf.nn, name)
    pair = [hf.layers.dense(x, 5, activation=a, kernel_initializer=ones) for a in (name, given)]
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        found, expected = session.run(pair)
    np.testing.assert_array_equal(found, expected)


def test_activations_of_convolutions_and_linear_ones() -> None:
    ones = hf.ones_initializer()
    calls = [
        hf.layers.conv2d(hf.constant(X), 2, 3, activation=a, kernel_initializer=ones)
        for a in ("relu", "linear")
    ]
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        found, plain = session.run(calls)
    np.testing.assert_array_equal(found, np.maximum(plain, 0))
    assert plain.min() < 0


def test_an_unknown_activation_is_answered_with_the_nearest() -> None:
    with pytest.raises(GraphError, match="did you mean 'relu'"):
        hf.layers.dense(hf.constant(X[:, 0, 0]), 5, activation="rellu")


def test_pooling_steps_by_its_windows() -> None:
    pooled = hf.layers.max_pooling2d(hf.constant(X), 2)
    with hf.Session() as session:
        found = session.run(pooled)
    np.testing.assert_array_equal(found, X.reshape(2, 2, 2, 2, 2, 3).max((2, 4)))


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (float, TypeError),
        (int, TypeError),
        (lambda t: t.numpy(), AttributeError),
        (lambda t: t.item(), AttributeError),
        (lambda t: t.detach(), AttributeError),
    ],
    ids=["float", "int", "numpy", "item", "detach"],
)
def test_values_of_tensors_are_asked_of_a_session(call: Any, kind: type) -> None:
    with pytest.raises(kind, match=r"session\.run\(tensor\)"):
        call(hf.constant(1.0))


def test_a_dtype_is_changed_by_cast() -> None:
    with pytest.raises(AttributeError, match=r"hf\.cast"):
        hf.constant(1.0).astype("float64")


def test_other_names_of_tensors_are_plainly_missing() -> None:
    t = hf.constant(1.0)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = t.nonsense  # type: ignore[attr-defined]
    assert not hasattr(t, "numpy") and getattr(t, "cuda", 3) == 3


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("keras", "hf.layers.Dense"),
        ("GradientTape", "hf.gradients"),
        ("optim", "hf.train"),
        ("function", "make_callable"),
        ("reduce_summ", "did you mean 'reduce_sum'"),
        ("plceholder", "did you mean 'placeholder'"),
    ],
)
def test_names_of_other_libraries_are_told_their_place(name: str, answer: str) -> None:
    with pytest.raises(AttributeError, match=answer):
        getattr(hf, name)
    assert not hasattr(hf, name)


@pytest.mark.parametrize(
    ("habit", "words"),
    [
        ("hf.train.Adam", "AdamOptimizer"),
        ("hf.train.SGD", "GradientDescentOptimizer"),
        ("hf.nn.Linear", "hf.layers.dense"),
        ("hf.nn.CrossEntropyLoss", "sparse_softmax_cross_entropy"),
        ("hf.data.DataLoader", "hf.data.Dataset"),
        ("hf.constant(1.0).backward()", "minimize"),
        ("hf.train.AdamOptimizer(lr=0.1)", "did you mean learning_rate="),
        ("hf.data.Dataset({}, batch_size=4)", "did you mean batch="),
        ("hf.data.Dataset({}, batch='4')", r"such as int\('4'\)"),
    ],
)
def test_habits_of_pytorch_are_answered(habit: str, words: str) -> None:
    with pytest.raises((AttributeError, hf.errors.HpcflowError), match=words):
        eval(habit)
