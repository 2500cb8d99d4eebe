"""Arguments of functions of arrays that TensorFlow 1's programs give; values by NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from tests.ops.evaluate import evaluate

X = np.arange(24.0).reshape(2, 3, 4)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def test_an_axis_of_none_is_the_default() -> None:
    mask = np.array([True, False])
    np.testing.assert_array_equal(evaluate(hf.boolean_mask(X, mask, axis=None)), X[mask])
    got = evaluate(hf.gather(X, [2, 0], axis=1, batch_dims=None))
    np.testing.assert_array_equal(got, X[:, [2, 0]])


@pytest.mark.parametrize("shape", [[0], [3, 0], [2, 0, 4]])
def test_a_constant_of_no_elements_has_the_shape_asked_for(shape: list[int]) -> None:
    made = hf.constant([], shape=shape, dtype=hf.int32)
    assert made.shape == tuple(shape) and evaluate(made).shape == tuple(shape)


def test_none_is_no_tensor() -> None:
    with pytest.raises(ValueError, match="None is not a tensor"):
        hf.losses.mean_squared_error([1.0], [2.0], weights=None)
