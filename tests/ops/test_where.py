"""`where` of a vector picks rows, as TensorFlow 1's; the expected values are TensorFlow's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError
from tests.ops.sessions import graph, run  # noqa: F401 - graph is a fixture

X, Y = np.arange(4.0).reshape(2, 2), -np.arange(4.0).reshape(2, 2)
PICKED = [[0, 1], [-2, -3]]


@pytest.mark.parametrize("known", ["shapes", "sizes not", "condition not", "values not", "nothing"])
def test_a_vector_picks_rows(known: str) -> None:
    """Also where the width is that of the batch, in which broadcasting would go through."""
    rank = known != "nothing"
    c = hf.placeholder(hf.bool, [2] if known == "shapes" else [None] if rank else None)
    values = [2, 2] if known == "shapes" else [None, None] if rank else None
    if known == "condition not":
        c = hf.placeholder(hf.bool)
    x, y = (hf.placeholder(hf.float64, None if known == "values not" else values) for _ in "xy")
    z = hf.where(c, x, y)
    feeds = {c: [True, False], x: X, y: Y}
    assert run(z, feeds).tolist() == PICKED
    of_x, of_y = run(
        hf.gradients(z, [x, y], hf.constant([[1.0, 2.0], [3.0, 4.0]], "float64")), feeds
    )
    assert of_x.tolist() == [[1, 2], [0, 0]] and of_y.tolist() == [[0, 0], [3, 4]]


def test_other_ranks_of_the_condition_are_as_before() -> None:
    assert run(hf.where(True, X, Y)).tolist() == X.tolist()
    assert run(hf.where([True, False], X[0], Y[0])).tolist() == [0, -1]
    assert run(hf.where(hf.constant(X > 1), X, Y)).tolist() == [[0, -1], [2, 3]]
    assert run(hf.where([True, False], np.ones((2, 2, 2)), np.zeros((2, 2, 2)))).sum() == 4
    fed = hf.placeholder(hf.bool)
    for value, expected in ((True, X), (X > 1, [[0, -1], [2, 3]]), ([True, False], PICKED)):
        assert run(hf.where(fed, X, Y), {fed: value}).tolist() == np.asarray(expected).tolist()


def test_where_v2_broadcasts() -> None:
    assert run(hf.where_v2([True, False], X, Y)).tolist() == [[0, -1], [2, -3]]


@pytest.mark.parametrize("rows", [3, 4])
def test_another_number_of_rows_is_an_error(rows: int) -> None:
    with pytest.raises(HpcflowError):
        hf.where([True] * rows, np.ones((2, rows)), np.zeros((2, rows)))


CHOICES: list[tuple[Any, list[int]]] = [  # TensorFlow's: numbers alone are compared
    (hf.argmax, [1, 0, 0, 0, 2, 0]),
    (hf.argmin, [1, 0, 0, 0, 0, 0]),
]


@pytest.mark.parametrize("dtype", [hf.float16, hf.float32, hf.float64])
@pytest.mark.parametrize(("function", "expected"), CHOICES)
def test_nan_is_never_the_largest_or_smallest(function: Any, expected: Any, dtype: Any) -> None:
    nan = np.nan
    vectors = [[nan, 1, nan], [1, nan, 1], [nan] * 3, [nan, -np.inf, nan], [1, nan, 2], [2, nan, 2]]
    expected = [*expected[:3], function is hf.argmin, *expected[4:]]
    for vector, at in zip(vectors, expected, strict=True):
        assert run(function(hf.constant(vector, dtype))) == at
    table = hf.constant([[nan, 1], [3, nan], [2, 2]], dtype)
    assert run(function(table)).tolist() == ([1, 2] if function is hf.argmax else [2, 0])


def test_a_condition_of_known_size_picks_rows_of_unknown_number():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with hf.Graph().as_default():
        a, rows = hf.placeholder(hf.float32, [2]), hf.placeholder(hf.float32, [None, 3])
        anything = hf.placeholder(hf.float32)
        session = hf.Session()
        made = session.run(hf.where(a < 1.0, rows, -rows), {a: [0, 2], rows: x})
        np.testing.assert_array_equal(made, [[0, 1, 2], [-3, -4, -5]])
        one = hf.placeholder(hf.float32, [])
        made = session.run(hf.where(one < 1.0, anything, -anything), {one: 2, anything: x})
        np.testing.assert_array_equal(made, -x)
