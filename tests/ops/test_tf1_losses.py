"""Weights and labels with a last axis of size 1, as TensorFlow 1's losses take them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.special as sp

import hpcflow as hf
from hpcflow.errors import ShapeError
from tests.ops.evaluate import evaluate

LOGITS = np.array([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 0.0, 5.0]], np.float32)
CLASSES = np.array([2, 0, 2])
EACH = -sp.log_softmax(LOGITS, -1)[np.arange(3), CLASSES]
WEIGHTS = np.array([0.5, 0.0, 3.0], np.float32)
MEAN = (EACH * WEIGHTS).sum() / 2  # over those with a weight


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


@pytest.mark.parametrize("labels", [CLASSES, CLASSES[:, None]])
@pytest.mark.parametrize("weights", [WEIGHTS, WEIGHTS[:, None]])
def test_a_last_axis_of_one_is_left_out_of_labels_and_weights(
    labels: np.ndarray, weights: np.ndarray
) -> None:
    loss = hf.losses.sparse_softmax_cross_entropy(labels, LOGITS, weights)
    np.testing.assert_allclose(evaluate(loss), MEAN, rtol=1e-5)


@pytest.mark.parametrize("shapes", [(None, None, None), ((None, 3), (None, 1), None)])
@pytest.mark.parametrize("column", [False, True])
def test_the_same_where_only_the_step_knows_the_ranks(shapes: tuple, column: bool) -> None:
    x, z, w = (
        hf.placeholder(dtype, shape)
        for dtype, shape in zip((hf.float32, hf.int64, hf.float32), shapes, strict=True)
    )
    loss = hf.losses.sparse_softmax_cross_entropy(z, x, w)
    weights = WEIGHTS[:, None] if column else WEIGHTS
    with hf.Session() as session:
        got = session.run(loss, {x: LOGITS, z: CLASSES[:, None], w: weights})
    np.testing.assert_allclose(got, MEAN, rtol=1e-5)


def test_weights_of_each_class_are_refused() -> None:
    with pytest.raises(ShapeError):
        hf.losses.sparse_softmax_cross_entropy(CLASSES, LOGITS, np.ones((3, 3)))


def test_a_loss_is_called_value_under_its_scope() -> None:
    loss = hf.losses.softmax_cross_entropy(np.eye(3), LOGITS)
    assert loss.op.name == "softmax_cross_entropy_loss/value"
    assert hf.losses.mean_squared_error([1.0], [2.0]).op.name == "mean_squared_error/value"
