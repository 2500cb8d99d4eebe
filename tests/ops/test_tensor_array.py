"""TensorArrays: what is not written, lengths of pieces, arguments that change nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import RangeError, ShapeError


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with hf.Graph().as_default():
        yield


def test_what_is_not_written_is_zeros_of_the_known_shape() -> None:
    told = hf.TensorArray("float32", size=3, element_shape=[1, 2])
    learned = hf.TensorArray("float32", size=3)
    one = [[4.0, 5.0]]
    for array in (told, learned):
        some = array.write(1, one)
        first, whole, joined = hf.Session().run([some.read(0), some.stack(), some.concat()])
        assert first.tolist() == [[0.0, 0.0]] and first.dtype == np.float32
        np.testing.assert_array_equal(whole, [[[0, 0]], one, [[0, 0]]])
        np.testing.assert_array_equal(joined, [[0, 0], one[0], [0, 0]])
    assert hf.Session().run(told.read(2)).tolist() == [[0.0, 0.0]]


def test_the_shape_of_what_is_not_written_may_be_known_only_in_the_step() -> None:
    value = hf.placeholder("float32")
    some = hf.TensorArray("float32", size=3).write(1, value)
    assert hf.Session().run(some.read(0), {value: [[4.0, 5.0]]}).tolist() == [[0.0, 0.0]]
    other = hf.TensorArray("float32", size=3, infer_shape=False).write(1, value)
    with pytest.raises(RangeError, match="its shape is unknown"):
        hf.Session().run(other.read(0), {value: [[4.0, 5.0]]})


def test_gradients_go_to_what_was_written() -> None:
    x = hf.constant([1.0, 2.0])
    whole = hf.TensorArray("float32", size=3).write(2, x).stack()
    (g,) = hf.gradients(whole, x, [[[1.0, 1.0], [2.0, 2.0], [3.0, 5.0]]])
    assert hf.Session().run(g).tolist() == [3.0, 5.0]


def test_a_split_has_a_length_for_each_element() -> None:
    value = hf.constant(np.arange(6.0).reshape(3, 2))
    with pytest.raises(ShapeError, match="2 lengths do not fit a TensorArray of 3 elements"):
        hf.Session().run(hf.TensorArray("float64", size=3).split(value, [2, 1]).read(0))
    grown = hf.TensorArray("float64", size=3, dynamic_size=True).split(value, [2, 1, 0, 0])
    assert hf.Session().run(grown.size()) == 4


def test_equal_lengths_tell_the_shape_of_the_elements() -> None:
    value = hf.placeholder("float32", [6, 2])
    assert hf.TensorArray("float32", size=3).split(value, [2, 2, 2]).read(0).shape == (2, 2)
    assert hf.TensorArray("float32", size=2).split(value, [2, 4]).read(0).shape == (None, 2)
    told = hf.placeholder("int32", [3])
    assert hf.TensorArray("float32", size=3).split(value, told).read(0).shape == (None, 2)


def test_elements_stay_when_they_are_read() -> None:
    array = hf.TensorArray("float32", size=2, clear_after_read=False).unstack([3.0, 4.0])
    first = array.read(0)
    with hf.control_dependencies([first]):
        again = array.read(0)
    assert hf.Session().run([first, again]) == [3.0, 3.0]


def test_an_array_can_be_closed() -> None:
    array = hf.TensorArray("float32", size=2)
    assert hf.Session().run([array.close(), array.write(0, 1.0).close()]) == [None, None]


def test_the_number_of_elements_is_known_where_it_cannot_change() -> None:
    """The shapes that TensorFlow tells."""
    value = hf.placeholder("float32", [None, None])
    fixed = hf.TensorArray("float32", size=3, element_shape=[2])
    assert fixed.stack().shape == (3, 2) and fixed.concat().shape == (6,)
    assert hf.TensorArray("float32", size=3).stack().shape is None
    assert hf.TensorArray("float32", size=3).unstack(value).stack().shape == (3, None)
    some = hf.TensorArray("float32", size=3).write(0, [1.0, 2.0])
    assert some.stack().shape == (3, 2) and some.concat().shape == (6,)
    free = hf.TensorArray("float32", size=3, infer_shape=False, element_shape=[2])
    assert free.stack().shape == (3, 2) and free.concat().shape == (None,)
    grows = hf.TensorArray("float32", size=3, dynamic_size=True, element_shape=[2])
    assert grows.stack().shape == (None, 2) and grows.concat().shape == (None,)
    told = hf.TensorArray("float32", size=hf.placeholder("int32", []), element_shape=[2])
    assert told.stack().shape == (None, 2)
    session = hf.Session()
    assert session.run(fixed.write(1, [1.0, 2.0]).concat()).tolist() == [0, 0, 1, 2, 0, 0]
    assert session.run(fixed.stack()).shape == (3, 2)


def test_shapes_in_and_behind_a_loop() -> None:
    array, inner = hf.TensorArray("float32", size=3), []

    def body(i: hf.Tensor, a: hf.TensorArray) -> tuple[hf.Tensor, hf.TensorArray]:
        a = a.write(i, [1.0, 2.0])
        inner.append(a.stack().shape)
        return i + 1, a

    _, filled = hf.while_loop(lambda i, a: i < 3, body, [0, array])
    assert inner == [(3, 2)]
    whole, joined = filled.stack(), filled.concat()
    assert filled.read(0).shape == (2,) and whole.shape == (3, 2) and joined.shape == (6,)
    found = hf.Session().run([whole, joined])
    assert found[0].tolist() == [[1, 2]] * 3 and found[1].tolist() == [1, 2] * 3


def test_a_piece_of_another_length_than_was_learned_is_an_error() -> None:
    value, lengths = hf.constant(np.arange(4.0)), hf.placeholder("int32", [2])
    array = hf.TensorArray("float64", size=2, element_shape=[2]).split(value, lengths)
    assert array.concat().shape == (4,)
    shorter = hf.TensorArray("float64", size=2, element_shape=[2]).split(value[:3], lengths)
    joined = shorter.concat()
    with pytest.raises(ShapeError, match="3 rows, not the expected 4"):
        hf.Session().run(joined, {lengths: [1, 2]})


def test_an_array_of_gradients_sums_what_is_written() -> None:
    array = hf.TensorArray("float32", size=3).unstack([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    made = array.grad("g").write(0, [1.0, 1.0]).write(0, [2.0, 3.0]).write(2, [7.0, 7.0])
    assert made.stack().shape == (3, 2)
    found = hf.Session().run([made.stack(), made.read(1), array.stack()])
    assert found[0].tolist() == [[3, 4], [0, 0], [7, 7]] and found[1].tolist() == [0, 0]
    assert found[2].tolist() == [[1, 2], [3, 4], [5, 6]]
