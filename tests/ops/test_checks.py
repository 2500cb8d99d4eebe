"""Assertions: what they let pass, what they say, when they say it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import AssertError, DTypeError, ShapeError
from tests.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


PAIRS = [
    (hf.assert_equal, [1, 2], [1, 2], [1, 3]),
    (hf.assert_none_equal, [1, 2], [2, 3], [1, 3]),
    (hf.assert_less, [1, 2], [2, 3], [2, 2]),
    (hf.assert_less_equal, [1, 2], [1, 3], [2, 1]),
    (hf.assert_greater, [1, 2], [0, 1], [1, 1]),
    (hf.assert_greater_equal, [1, 2], [1, 1], [1, 3]),
]


@pytest.mark.parametrize(("function", "x", "good", "bad"), PAIRS)
def test_comparisons(function, x: list, good: list, bad: list) -> None:
    y = hf.placeholder(hf.int32, [None])
    check = function(x, y, message="told so")
    evaluate(check, {y: good})
    with pytest.raises(AssertError, match=r"told so.*does not hold everywhere"):
        evaluate(check, {y: bad})
    function(x, good)
    with pytest.raises(AssertError, match="does not hold"):  # known while the graph is built
        function(x, bad)


def test_the_data_shown() -> None:
    x = hf.placeholder(hf.float32, [None])
    check = hf.assert_less(x, 1.0, data=["seen", hf.reduce_max(x)])
    with pytest.raises(AssertError, match=r"seen.*7"):
        evaluate(check, {x: [0, 7]})


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (hf.assert_positive, [1.0, 2], [1.0, 0]),
        (hf.assert_negative, [-1.0], [0.0]),
        (hf.assert_non_negative, [0.0, 1], [-1.0]),
        (hf.assert_non_positive, [0.0, -1], [1.0]),
    ],
)
def test_signs(function, good: list, bad: list) -> None:
    x = hf.placeholder(hf.float32, [None])
    check = function(x)
    evaluate(check, {x: good})
    evaluate(check, {x: []})
    for wrong in (bad, [np.nan]):
        with pytest.raises(AssertError, match="x is not"):
            evaluate(check, {x: wrong})


def test_nearness() -> None:
    x = hf.placeholder(hf.float32, [1])
    check = hf.assert_near(x, [1.0])
    evaluate(check, {x: [1 + 1e-6]})
    with pytest.raises(AssertError, match="not near"):
        evaluate(check, {x: [1 + 1e-5]})
    evaluate(hf.assert_near(x, [1.0], atol=0.1), {x: [1.05]})


def test_ranks_known_and_unknown() -> None:
    known, unknown = hf.zeros([2, 3]), hf.placeholder(hf.float32)
    evaluate([hf.assert_rank(known, 2), hf.assert_rank_at_least(known, 1)])
    evaluate(hf.assert_rank_in(known, [0, 2]))
    for function, wanted in [
        (hf.assert_rank, 1),
        (hf.assert_rank_at_least, 3),
        (hf.assert_rank_in, [0, 1]),
    ]:
        with pytest.raises(ShapeError, match="not rank"):
            function(known, wanted)
        check = function(unknown, wanted)
        evaluate(check, {unknown: np.zeros((1,) * np.max(wanted))})
        with pytest.raises(AssertError, match="the rank of"):
            evaluate(check, {unknown: np.zeros((1, 1))})


def test_scalars() -> None:
    unknown = hf.placeholder(hf.float32)
    scalar = hf.assert_scalar(unknown)
    assert scalar.shape == ()
    assert evaluate(scalar, {unknown: 3}) == 3
    with pytest.raises(AssertError, match="rank"):
        evaluate(scalar, {unknown: [3]})
    with pytest.raises(ShapeError, match="not rank 0"):
        hf.assert_scalar([1.0])


def test_dtypes() -> None:
    x, n = hf.constant([1.0]), hf.constant([1])
    hf.assert_type(x, hf.float32)
    hf.assert_integer(n)
    for wrong in (lambda: hf.assert_type(x, hf.int32), lambda: hf.assert_integer(x)):
        with pytest.raises(DTypeError, match="is float32, not"):
            wrong()
    assert hf.assert_same_float_dtype([x, x], hf.float32) == hf.float32
    assert hf.assert_same_float_dtype() == hf.float32
    with pytest.raises(DTypeError, match="differ"):
        hf.assert_same_float_dtype([x], hf.float64)
    with pytest.raises(DTypeError, match="not floating"):
        hf.assert_same_float_dtype([n])
    assert hf.is_numeric_tensor(x) and hf.is_numeric_tensor(hf.to_bfloat16(x))
    assert not hf.is_numeric_tensor(hf.constant(True)) and not hf.is_numeric_tensor([1.0])


def test_iterables() -> None:
    hf.assert_proper_iterable([1, 2])
    hf.assert_proper_iterable({"a": 1})
    for wrong in (hf.zeros([2]), np.zeros(2), "text", 3):
        with pytest.raises(TypeError):
            hf.assert_proper_iterable(wrong)


def test_order() -> None:
    x = hf.placeholder(hf.int32)
    checks = [hf.is_non_decreasing(x), hf.is_strictly_increasing(x)]
    for value, expected in [
        ([], [True, True]),
        ([1], [True, True]),
        ([1, 1, 2], [True, False]),
        ([[1, 2], [3, 4]], [True, True]),
        ([2, 1], [False, False]),
    ]:
        assert evaluate(checks, {x: value}) == expected
