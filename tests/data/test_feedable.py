"""Iterators whose handle is fed: one net, several datasets, as in TensorFlow 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import (
    DTypeError,
    FeedError,
    GraphError,
    OutOfRangeError,
    ShapeError,
    UninitializedError,
)

Dataset = hf.data.Dataset


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def feedable(like: Any) -> tuple[hf.Tensor, Any]:
    """A handle, and an iterator over what is like a dataset."""
    handle = hf.placeholder(hf.string, [])
    types, shapes = hf.data.get_output_types(like), hf.data.get_output_shapes(like)
    return handle, hf.data.Iterator.from_string_handle(handle, types, shapes)


def test_training_and_validation_in_turn() -> None:
    training, validation = Dataset.range(10, 99).repeat(), Dataset.range(3)
    handle, iterator = feedable(training)
    y = iterator.get_next() * 2
    one = training.make_one_shot_iterator()
    other = validation.make_initializable_iterator()
    with hf.Session() as session:
        first, second = session.run(one.string_handle()), session.run(other.string_handle())
        assert isinstance(first, bytes) and first != second
        assert session.run(iterator.string_handle(), {handle: first}) == first
        for epoch in range(2):
            assert session.run(y, {handle: first}) == 2 * (10 + epoch)
            session.run(other.initializer)
            assert [session.run(y, {handle: second}) for _ in range(3)] == [0, 2, 4]
            with pytest.raises(OutOfRangeError):
                session.run(y, {handle: second})


def test_any_iterator_may_be_fed() -> None:
    like = Dataset.from_tensors({"x": np.float32(0), "n": np.int32(0)})
    handle, iterator = feedable(like)
    element = iterator.get_next()
    drawn = hf.random_uniform([2], 3, 4, dtype="int32", seed=1)
    once = Dataset.from_tensor_slices(
        {"x": hf.cast(drawn, "float32"), "n": drawn}
    ).make_one_shot_iterator()
    again = hf.data.Iterator.from_structure(like.output_types, like.output_shapes)
    begin = again.make_initializer(like)
    with hf.Session() as session:
        fed = {handle: session.run(once.string_handle())}
        assert session.run(element, fed) == {"x": 3.0, "n": 3}
        assert session.run(once.get_next()) == {"x": 3.0, "n": 3}
        with pytest.raises(OutOfRangeError):
            session.run(element, fed)
        session.run(begin)
        fed = {handle: session.run(again.string_handle())}
        assert session.run(element, fed) == {"x": 0.0, "n": 0}


def test_sessions_have_iterators_of_their_own() -> None:
    handle, iterator = feedable(Dataset.range(3))
    following, one = iterator.get_next(), Dataset.range(3).make_one_shot_iterator()
    for _ in range(2):
        with hf.Session() as session:
            fed = {handle: session.run(one.string_handle())}
            assert [session.run(following, fed) for _ in range(3)] == [0, 1, 2]
    with (
        hf.Session() as session,
        pytest.raises(FeedError, match="not the handle of an iterator of this session"),
    ):
        session.run(following, fed)


def test_what_does_not_fit_is_refused() -> None:
    handle, iterator = feedable(Dataset.range(3))
    following = iterator.get_next()
    floats = Dataset.from_tensors(1.5).make_one_shot_iterator()
    rows = Dataset.range(3).batch(2).make_one_shot_iterator()
    pairs = Dataset.zip((Dataset.range(3), Dataset.range(3))).make_one_shot_iterator()
    late = Dataset.range(3).make_initializable_iterator()
    with hf.Session() as session:
        for other in (floats, rows, pairs):
            with pytest.raises(ShapeError, match="returned an element of another type"):
                session.run(following, {handle: session.run(other.string_handle())})
        with pytest.raises(UninitializedError, match="has not been initialized"):
            session.run(following, {handle: session.run(late.string_handle())})
        with pytest.raises(FeedError, match="'nobody' is not the handle of an iterator"):
            session.run(following, {handle: "nobody"})
    with pytest.raises(GraphError, match="has no initializer"):
        iterator.initializer  # noqa: B018
    with pytest.raises(GraphError, match="has no initializer"):
        iterator.make_initializer(Dataset.range(3))
    with pytest.raises(DTypeError, match="not the handle"):
        hf.data.Iterator.from_string_handle(hf.placeholder("int64", []), hf.int64)
