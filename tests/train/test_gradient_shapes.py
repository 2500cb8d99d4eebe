"""A gradient that has not the shape of its variable is refused, by every optimizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError, ShapeError

from .formulas import FORMULAS

ROWS = [(3,), (3, 1), (1, 1), (1, 3), (2, 1), (2, 2), (3, 3), (2, 3, 1)]
WHOLE = [(3,), (3, 1), (1, 1), (1, 3), (4, 1), (4, 3, 1), (1, 4, 3), ()]


def gradient(values: Any, by_rows: bool) -> Any:
    """Of a variable [4, 3]; of rows 0 and 2 if by rows."""
    return hf.IndexedSlices(values, [0, 2], [4, 3]) if by_rows else values


@pytest.mark.slow
@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("name", FORMULAS)
def test_refused_when_it_is_built_or_in_the_step(name: str, by_rows: bool) -> None:
    with hf.Graph().as_default(), hf.Session() as session:
        v = hf.Variable(np.ones((4, 3), "f4"), name="v")
        values = hf.placeholder(hf.float32)
        train = FORMULAS[name][0]().apply_gradients([(gradient(values, by_rows), v)])
        session.run(hf.global_variables_initializer())
        for shape in ROWS if by_rows else WHOLE:
            wrong = np.ones(shape, "f4")
            with pytest.raises(HpcflowError):
                session.run(train, {values: wrong})
            with pytest.raises(HpcflowError):
                FORMULAS[name][0]().apply_gradients([(gradient(hf.constant(wrong), by_rows), v)])
        np.testing.assert_array_equal(session.run(v), 1)
        session.run(train, {values: np.ones((2, 3) if by_rows else (4, 3), "f4")})
        assert (session.run(v)[[0, 2]] != 1).all()


def test_the_message_names_both_shapes_and_the_line() -> None:
    with hf.Graph().as_default():
        v = hf.Variable(np.ones((4, 3), "f4"), name="v")
        with pytest.raises(ShapeError, match=r"'v' has shape \[3\], not \[4, 3\]") as caught:
            hf.train.AdamOptimizer().apply_gradients([(hf.constant([1.0, 2.0, 3.0]), v)])
    assert "test_gradient_shapes.py" in str(caught.value.line)


def test_another_number_of_indices_than_of_rows() -> None:
    """What generated code would read beyond the rows."""
    with hf.Graph().as_default(), hf.Session() as session:
        taken, indices = hf.placeholder(hf.bool, [4]), hf.placeholder(hf.int32, [None])
        values = hf.boolean_mask(hf.ones([4, 3]), taken)  # as many as the step tells
        v = hf.Variable(np.ones((4, 3), "f4"))
        step = hf.train.AdagradOptimizer(1.0).apply_gradients(
            [(hf.IndexedSlices(values, indices, [4, 3]), v)]
        )
        session.run(hf.global_variables_initializer())
        for rows, at in ((1, [0, 1, 2]), (3, [0])):
            with pytest.raises(ShapeError, match=f"{len(at)} indices do not fit rows"):
                session.run(step, {taken: np.arange(4) < rows, indices: at})
        np.testing.assert_array_equal(session.run(v), 1)
