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
    with pytest.raises(RangeError, match="its shape is not known"):
        hf.Session().run(other.read(0), {value: [[4.0, 5.0]]})


def test_gradients_go_to_what_was_written() -> None:
    x = hf.constant([1.0, 2.0])
    whole = hf.TensorArray("float32", size=3).write(2, x).stack()
    (g,) = hf.gradients(whole, x, [[[1.0, 1.0], [2.0, 2.0], [3.0, 5.0]]])
    assert hf.Session().run(g).tolist() == [3.0, 5.0]


def test_a_split_has_a_length_for_each_element() -> None:
    value = hf.constant(np.arange(6.0).reshape(3, 2))
    with pytest.raises(ShapeError, match="2 lengths for a TensorArray of 3 elements"):
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
