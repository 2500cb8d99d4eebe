"""NumPy's functions on tensors and variables: operators make operations, the rest is told hf's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ArgumentError
from hpcflow.graph.numpy_names import OTHER_NAMES, hf_name

A = np.array([1.0, -2.0, 3.0], np.float32)


@pytest.fixture(params=["tensor", "variable"])
def t(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A tensor or a variable with the values 1, 2, 3."""
    with hf.Graph().as_default():
        value = np.array([1.0, 2.0, 3.0], np.float32)
        yield hf.constant(value) if request.param == "tensor" else hf.Variable(value, name="v")


def value_of(tensor: hf.Tensor) -> np.ndarray:
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        return session.run(tensor)


@pytest.mark.parametrize(
    "call",
    [
        lambda a, t: a + t,
        lambda a, t: a - t,
        lambda a, t: a * t,
        lambda a, t: a / t,
        lambda a, t: a // t,
        lambda a, t: a % t,
        lambda a, t: abs(a) ** t,
        lambda a, t: a < t,
        lambda a, t: a >= t,
        lambda a, t: np.float32(2) * t,
        lambda a, t: np.float32(2) - t,
        lambda a, t: np.add(a, t),
        lambda a, t: np.ones((2, 3), np.float32) @ (t * np.eye(3, dtype=np.float32)),
    ],
)
def test_operators_of_arrays_and_tensors_make_operations(
    t: Any, call: Callable[[Any, Any], Any]
) -> None:
    made = call(A, t)
    assert isinstance(made, hf.Tensor)
    np.testing.assert_allclose(value_of(made), call(A, np.array([1, 2, 3], np.float32)), rtol=1e-6)


def test_an_array_is_added_to_in_place(t: Any) -> None:
    total: Any = A.copy()
    total += t
    np.testing.assert_array_equal(value_of(total), A + np.array([1, 2, 3]))


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (np.sqrt, "hf.sqrt"),
        (np.exp, "hf.exp"),
        (np.mean, "hf.reduce_mean"),
        (np.sum, "hf.reduce_sum"),
        (np.max, "hf.reduce_max"),
        (np.isnan, "hf.is_nan"),
        (np.argmax, "hf.argmax"),
        (np.square, "hf.square"),
        (np.arctan, "hf.atan"),
        (lambda t: np.concatenate([A, t]), "hf.concat"),
        (lambda t: np.add(t, t), "hf.add"),
        (lambda t: np.reshape(t, (3, 1)), "hf.reshape"),
        (lambda t: np.where(t, 1, 0), "hf.where"),
        (lambda t: A == t, "hf.equal"),
        (lambda t: np.add(A, t, out=np.zeros(3, np.float32)), "hf.add"),
        (np.add.reduce, "session.run(tensor)"),
        (np.asarray, "session.run(tensor)"),
        (np.array, "session.run(tensor)"),
        (np.float32, "session.run(tensor)"),
        (math.sqrt, "session.run(tensor)"),
        (math.floor, "session.run(tensor)"),
        (lambda t: f"{t:.3f}", "session.run(tensor)"),
    ],
)
def test_other_functions_are_told_the_way(t: Any, call: Callable[[Any], Any], answer: str) -> None:
    with pytest.raises(TypeError) as caught:
        call(t)
    assert isinstance(caught.value, ArgumentError)
    assert answer in str(caught.value) and __file__ in str(caught.value)


def test_shapes_are_read_by_numpy(t: Any) -> None:
    assert np.shape(t) == (3,)


def test_rows_of_a_variable_are_not_iterated_over(t: Any) -> None:
    with pytest.raises(hf.errors.GraphError, match=r"hf\.unstack"):
        list(t)


def test_fetched_values_are_arrays(t: Any) -> None:
    np.testing.assert_array_equal(np.sqrt(value_of(t) ** 2), [1, 2, 3])


@pytest.mark.parametrize("name", sorted(OTHER_NAMES))
def test_names_that_differ_exist(name: str) -> None:
    assert hf_name(name) == OTHER_NAMES[name]


@pytest.mark.parametrize(
    ("compare", "warns"),
    [
        (lambda t, other: t == other, True),
        (lambda t, other: t != other, True),
        (lambda t, other: t == 3, True),
        (lambda t, other: t == A, True),
        (lambda t, other: t in [other, t], False),
        (lambda t, other: [other, t].index(t), False),
        (lambda t, other: {t: 1, other: 2}[t], False),
        (lambda t, other: t == t, False),
        (lambda t, other: t is None or t == None, False),  # noqa: E711
        (lambda t, other: t == "name", False),
    ],
)
def test_comparisons_of_values_are_warned_of(
    t: Any, compare: Callable[[Any, Any], Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    from hpcflow.graph import compared_objects

    compared_objects._warned.clear()
    other = hf.constant(A)
    compare(t, other)
    compare(t, other)
    assert len(caplog.records) == int(warns)
    assert all(__file__ in record.getMessage() for record in caplog.records)
