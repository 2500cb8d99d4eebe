"""Products over an axis of one element are multiplications, in the loops of their neighbours."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.ir.program import Partition

SHAPES = [
    *[((5, 1), (1, 7)), ((3, 5, 1), (3, 1, 7)), ((2, 1, 5, 1), (3, 1, 7)), ((4, 1), (2, 1, 3))],
    ((1, 1), (1, 1)),
]


def types(fetches: Any, feeds: Any) -> Counter:
    with hf.Session() as session:
        part: Partition
        (part,) = session.plan(fetches, feeds).parts.values()
    return Counter(node.type for node in part.nodes.values())


@pytest.mark.parametrize("left", SHAPES, ids=str)
@pytest.mark.parametrize("turn_a", [False, True])
@pytest.mark.parametrize("turn_b", [False, True])
def test_they_equal_numpys_products(left: Any, turn_a: bool, turn_b: bool) -> None:
    rng = np.random.default_rng(2)
    turned = lambda x: x.swapaxes(-1, -2)  # noqa: E731
    x, y = map(rng.standard_normal, left)
    given = (turned(x) if turn_a else x), (turned(y) if turn_b else y)
    with hf.Graph().as_default():
        a, b = (hf.placeholder("float64", v.shape) for v in given)
        product = hf.matmul(a, b, transpose_a=turn_a, transpose_b=turn_b)
        feeds = dict(zip((a, b), given, strict=True))
        kept = turn_a and x.ndim == y.ndim == 2  # as the gradient of weights
        assert types(product, feeds)["MatMul"] == kept
        with hf.Session() as session:
            np.testing.assert_array_equal(session.run(product, feeds), np.matmul(x, y))


def test_the_gradient_of_a_layer_of_one_unit_is_in_the_loop_of_the_layer_below() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((64, 80)), rng.standard_normal((80, 1))
    with hf.Graph().as_default():
        a, b = hf.placeholder("float64", x.shape), hf.placeholder("float64", w.shape)
        loss = hf.reduce_sum(hf.square(hf.matmul(hf.tanh(a), b)))
        (slope,) = hf.gradients(loss, [a])
        feeds = {a: x, b: w}
        assert types(slope, feeds)["MatMul"] == 1  # forward
        with hf.Session() as session:
            found = session.run(slope, feeds)
    wanted = 2 * (np.tanh(x) @ w) @ w.T * (1 - np.tanh(x) ** 2)
    np.testing.assert_allclose(found, wanted, 1e-12, 1e-12)


def test_sums_of_more_elements_and_unknown_sizes_stay_products() -> None:
    with hf.Graph().as_default():
        a, b = hf.placeholder("float32", [None, 1]), hf.placeholder("float32", [1, 3])
        c = hf.placeholder("float32", [4, 2])
        feeds = {a: np.ones((2, 1), "f4"), b: np.ones((1, 3), "f4"), c: np.ones((4, 2), "f4")}
        assert types(hf.matmul(c, hf.constant(np.ones((2, 3), "f4"))), feeds)["MatMul"] == 1
        assert types(hf.matmul(a, b), feeds)["MatMul"] == 0  # the plan is of the fed shapes
