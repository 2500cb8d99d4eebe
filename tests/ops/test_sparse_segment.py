"""Sums over segments of rows that indices pick: TensorFlow 1's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import RangeError, ShapeError
from tests.ops.sessions import graph, run  # noqa: F401

DATA = np.arange(12.0).reshape(4, 3)
TEN, TWELVE = [9.0, 11.0, 13.0], [12.0, 14.0, 16.0]  # rows 0 + 3, rows 3 + 1
ROOT = 2**0.5
RESULTS = [  # function, the first and the third segment, the gradient of the sum of squares
    (hf.sparse_segment_sum, 1, [[18, 22, 26], [24, 28, 32], [0, 0, 0], [42, 50, 58]]),
    (hf.sparse_segment_mean, 2, [[4.5, 5.5, 6.5], [6, 7, 8], [0, 0, 0], [10.5, 12.5, 14.5]]),
    (hf.sparse_segment_sqrt_n, ROOT, [[9, 11, 13], [12, 14, 16], [0, 0, 0], [21, 25, 29]]),
]


@pytest.mark.parametrize("function, over, slope", RESULTS)
def test_as_tensorflow(function: Any, over: float, slope: list[list[float]]) -> None:
    data = hf.constant(DATA)
    three = function(data, [0, 3, 3, 1], [0, 0, 2, 2])
    four = function(data, [0, 3, 3, 1], [0, 0, 2, 2], num_segments=4)
    rows = np.array([TEN, [0, 0, 0], TWELVE]) / over
    np.testing.assert_allclose(run(three), rows)
    np.testing.assert_allclose(run(four), [*rows, [0, 0, 0]])
    assert four.shape == (4, 3)
    np.testing.assert_allclose(run(hf.gradients(three * three, data)[0]), slope)


def test_gradients_of_a_table_are_rows() -> None:
    table = hf.Variable(DATA)
    (g,) = hf.gradients(hf.sparse_segment_sum(table, [1, 1], [0, 0]), table)
    assert isinstance(g, hf.IndexedSlices)
    with hf.Session() as session:
        session.run(table.initializer)
        assert session.run(g.indices).tolist() == [1, 1]


def test_what_does_not_fit() -> None:
    for indices, ids in (([[0]], [0]), ([0, 1], [0])):
        with pytest.raises(ShapeError):
            hf.sparse_segment_sum(DATA, indices, ids)
    for indices, ids in (([4], [0]), ([0, 1], [1, 0])):
        with pytest.raises(RangeError):
            run(hf.sparse_segment_mean(DATA, hf.constant(indices), hf.constant(ids)))
