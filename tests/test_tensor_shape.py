"""Static shapes as TensorFlow 1's programs use them, which stay tuples of integers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ShapeError

Dimension, TensorShape = hf.Dimension, hf.TensorShape


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def test_the_shape_of_a_tensor_is_a_tuple() -> None:
    x = hf.placeholder(hf.float32, [None, 3, 4])
    assert isinstance(x.shape, tuple) and x.shape == (None, 3, 4) == x.shape
    assert hash(x.shape) == hash((None, 3, 4)) and repr(x.shape) == "(None, 3, 4)"
    batch, rows, columns = x.shape
    assert batch is None and x.shape[0] is None and (rows, columns) == (3, 4)
    assert [type(d) for d in x.shape[1:]] == [int, int] and (7, *x.shape[1:]) == (7, 3, 4)
    assert (*x.shape[1:], 5) == (3, 4, 5) and len(x.shape) == 3 and None in x.shape
    assert x.shape == [None, 3, 4] and x.shape != (None, 3)
    assert hf.placeholder(hf.float32).shape is None
    assert not hf.constant(1.0).shape
    x.set_shape([2, None, None])
    assert x.shape == (2, 3, 4) and x.spec.shape == (2, 3, 4)
    assert {type(d) for d in x.spec.shape} == {int}


def test_idioms_of_programs() -> None:
    """What TensorFlow 1 gives for these."""
    x = hf.placeholder(hf.float32, [None, 3, 4])
    v = hf.Variable(np.zeros((3, 4), np.float32))
    assert x.get_shape().as_list() == x.shape.as_list() == [None, 3, 4]
    assert x.shape[1].value == x.get_shape()[1].value == x.shape[-2].value == 3
    assert x.get_shape()[0].value is None
    assert x.shape[1:].num_elements() == x.get_shape()[1:].num_elements() == 12
    assert x.shape.num_elements() is None
    assert (x.shape.ndims, x.get_shape().ndims, v.get_shape().ndims, v.shape.rank) == (3, 3, 2, 2)
    assert [x.shape.is_fully_defined(), v.shape.is_fully_defined()] == [False, True]
    assert [d.value for d in v.get_shape()] == [3, 4] and np.prod(v.get_shape()) == 12
    total = 1
    for d in v.get_shape():
        total *= d.value
    assert total == 12
    flat = x.get_shape()[1] * x.get_shape()[2]
    assert flat.value == 12 and hf.reshape(x, [-1, flat]).shape == (None, 12)
    assert hf.reshape(x, [-1, x.shape[1] * x.shape[2]]).shape == (None, 12)
    assert hf.zeros(v.get_shape()).shape == hf.zeros(v.shape).shape == (3, 4)
    assert hf.placeholder(hf.float32, x.get_shape()).shape == (None, 3, 4)
    batch = x.get_shape()[0].value or hf.shape(x)[0]
    assert isinstance(batch, hf.Tensor)
    unknown = hf.placeholder(hf.float32)
    assert unknown.get_shape().ndims is None and unknown.get_shape() == None  # noqa: E711
    assert hf.placeholder(hf.float32, unknown.get_shape()).shape is None
    x.get_shape().assert_is_compatible_with([5, 3, 4])
    x.set_shape(x.get_shape().merge_with([8, None, None]))
    assert x.shape == (8, 3, 4)


def test_tensor_shape() -> None:
    a, unknown = TensorShape([None, 3]), TensorShape(None)
    assert isinstance(a, tuple) and a == (None, 3) == a and a == [None, 3]
    assert a == TensorShape([Dimension(None), Dimension(3)]) == TensorShape(a)
    assert hash(a) == hash((None, 3))
    assert (str(a), repr(a)) == ("(?, 3)", "TensorShape([Dimension(None), 3])")
    assert (str(TensorShape([2])), str(unknown)) == ("(2,)", "<unknown>")
    assert TensorShape(5) == (5,) and TensorShape([-1]).as_list() == [None]
    assert bool(TensorShape([])) and not unknown
    assert unknown.dims is None and unknown == TensorShape(None) and unknown != a
    assert a.dims is not None and [d.value for d in a.dims] == [None, 3]
    assert unknown[3].value is None and unknown[1:] == TensorShape(None)
    assert a.concatenate([4]).as_list() == [None, 3, 4] and a.concatenate(None) == unknown
    assert a.merge_with([2, None]) == (2, 3) and unknown.merge_with(a) == a
    assert a.is_compatible_with([9, 3]) and not a.is_compatible_with([9, 4])
    assert a.is_compatible_with(None) and not a.is_compatible_with([3])
    assert unknown.with_rank(2) == (None, None) and a.with_rank(2) == a
    assert a.with_rank_at_least(1) == a.with_rank_at_most(2) == a
    a.assert_same_rank([1, 1]), a.assert_has_rank(2), TensorShape([2]).assert_is_fully_defined()
    for wrong in (
        lambda: unknown.as_list(),
        lambda: len(unknown),
        lambda: list(unknown),
        lambda: a.with_rank(3),
        lambda: a.with_rank([2]),
        lambda: a.with_rank_at_most("2"),
        lambda: a.with_rank_at_least(3),
        lambda: a.with_rank_at_most(1),
        lambda: a.merge_with([2, 4]),
        lambda: a.assert_same_rank([1]),
        lambda: a.assert_is_fully_defined(),
        lambda: a.assert_is_compatible_with([2, 4]),
        lambda: TensorShape([-2]),
        lambda: TensorShape("ab"),
    ):
        with pytest.raises(ShapeError):
            wrong()
    for shape in (a, unknown, hf.zeros([2, 3]).shape, Dimension(3), Dimension(None)):
        for again in (copy.deepcopy(shape), pickle.loads(pickle.dumps(shape))):
            assert repr(again) == repr(shape) and type(again) is type(shape)


def test_dimension() -> None:
    three, unknown = Dimension(3), Dimension(None)
    assert isinstance(three, int) and three == 3 and hash(three) == hash(3)
    assert np.zeros(three).shape == (3,) and list(range(three)) == [0, 1, 2]
    sums: list[tuple[Any, int]] = [
        (three + 2, 5),
        (2 + three, 5),
        (three * 4, 12),
        (4 * three, 12),
        (three - 1, 2),
        (7 - three, 4),
        (three // 2, 1),
        (7 // three, 2),
        (three % 2, 1),
        (7 % three, 1),
    ]
    assert [(made.value, isinstance(made, Dimension)) for made, _ in sums] == [
        (value, True) for _, value in sums
    ]
    for made in (
        unknown + 1,
        1 + unknown,
        three * unknown,
        unknown * three,
        unknown // 2,
        9 % unknown,
    ):
        assert made.value is None
    assert (unknown == 3) is None and (unknown > 3) is None and not unknown
    assert (str(unknown), repr(unknown), str(three)) == ("?", "Dimension(None)", "3")
    assert Dimension(three) is three and Dimension(unknown) is unknown
    assert three.is_compatible_with(None) and three.is_compatible_with(3)
    assert not three.is_compatible_with(4)
    assert three.merge_with(None) == unknown.merge_with(3) == 3
    for wrong in (
        lambda: three.merge_with(4),
        lambda: three.assert_is_compatible_with(4),
        lambda: Dimension(-2),
        lambda: Dimension("x"),
    ):
        with pytest.raises(ShapeError):
            wrong()


def test_attributes_hold_plain_integers() -> None:
    """A plan is kept and sent as plain data, whatever made its shapes."""
    x = hf.placeholder(hf.float32, [2, 3])
    made = hf.placeholder(hf.float32, [x.shape[0], x.get_shape()[1], None])
    shape = made.op.attrs["shape"]
    assert type(shape) is tuple and [type(d) for d in shape] == [int, int, type(None)]
    v = hf.Variable(hf.zeros([x.shape[0], 2]))
    assert [type(d) for d in v.op.attrs["shape"]] == [int, int]
    y = hf.reshape(x, [x.shape[1], x.shape[0]]) * 2.0
    with hf.Session() as session:
        session.run(v.initializer)
        assert session.run(y, {x: np.ones((2, 3), np.float32)}).shape == (3, 2)
