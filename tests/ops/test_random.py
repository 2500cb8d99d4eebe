"""Random ops: what is drawn follows from the seed, the name and the number of the draw."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Graph, Tensor
from hpcflow.kernels.kernel_registry import KernelNode, find_plain_kernel
from hpcflow.ops.array.array_ops import placeholder, shape
from hpcflow.ops.random.random_ops import (
    random_normal,
    random_uniform,
    set_random_seed,
    truncated_normal,
)
from hpcflow.ops.random.shuffle_multinomial import random_shuffle
from hpcflow.ops.variables.initializer_functions import (
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
)
from tests.ops.evaluate import evaluate

DRAWS = [random_uniform, random_normal, truncated_normal]


def draws(t: Tensor, times: int, xp: Any = np) -> list[np.ndarray]:
    """What one kernel, as a plan has it, draws in `times` runs; other inputs are constants."""
    specs = [x.spec for x in t.op.inputs]
    kernel = find_plain_kernel(t.op.type, "cpu").make(
        xp, KernelNode(t.op.type, t.op.attrs, specs, [t.spec])
    )
    outs = [np.empty(t.shape, t.dtype) for _ in range(times)]
    for out in outs:
        kernel(*(x.constant for x in t.op.inputs), out)
    return outs


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_same_graph_draws_the_same(draw, dtype: str) -> None:
    values = []
    for _ in range(2):
        with Graph(seed=3).as_default():
            values.append(draws(draw([50], dtype=dtype), 2))
    assert values[0][0].dtype == dtype
    assert all((a == b).all() for a, b in zip(*values, strict=True))


@pytest.mark.parametrize("draw", DRAWS)
def test_seed_name_and_run_make_a_difference(draw) -> None:
    with Graph(seed=3).as_default():
        x, y, seeded, again = draw([50]), draw([50]), draw([50], seed=7), draw([50], seed=7)
        named = draw([50], name="RandomThing")
    with Graph(seed=4).as_default():
        other = draw([50])
    first, second = draws(x, 2)
    kinds = [first, second, *(draws(t, 1)[0] for t in (y, seeded, named, other))]
    for i, a in enumerate(kinds):
        assert all((a != b).any() for b in kinds[:i])
    assert (draws(seeded, 1)[0] == draws(again, 1)[0]).all()


def test_the_key_is_fixed() -> None:
    """Never Python's hash: these numbers are the same in every process and release."""
    with Graph(seed=1).as_default():
        x = random_uniform([3], name="x")
    assert x.op.attrs["key"] == 0x4201DDB569707C53D221D42593D7543
    np.testing.assert_allclose(draws(x, 1)[0], [0.5308885, 0.6018206, 0.7039787], rtol=1e-6)


def test_distributions() -> None:
    with Graph(seed=5).as_default():
        uniform = random_uniform([20000], -2, 3)
        normal = random_normal([20000], 1.0, 2.0)
        cut = truncated_normal([20000], 1.0, 2.0)
        whole = random_uniform([20000], 3, 6, dtype="int32")
    assert stats.kstest(draws(uniform, 1)[0], stats.uniform(-2, 5).cdf).pvalue > 0.001
    assert stats.kstest(draws(normal, 1)[0], stats.norm(1, 2).cdf).pvalue > 0.001
    assert stats.kstest(draws(cut, 1)[0], stats.truncnorm(-2, 2, 1, 2).cdf).pvalue > 0.001
    assert set(draws(whole, 1)[0].tolist()) == {3, 4, 5}


def test_shapes() -> None:
    with Graph().as_default():
        x = placeholder("float32", [None, 4])
        y = random_uniform(shape(x))
        assert y.shape == (None, 4)
        assert evaluate(y, {x: np.zeros((3, 4))}).shape == (3, 4)
        assert evaluate(random_normal([])).shape == ()
        assert evaluate(truncated_normal([0, 2])).shape == (0, 2)
        with pytest.raises(ShapeError, match="must be known"):
            random_uniform([None, 3])


def test_dtypes() -> None:
    with Graph().as_default():
        with pytest.raises(DTypeError, match="int32"):
            random_normal([3], dtype="int32")
        with pytest.raises(DTypeError, match="maxval"):
            random_uniform([3], dtype="int32")


def test_set_random_seed() -> None:
    values = []
    for seed in (1, 2, 1):
        with Graph().as_default():
            set_random_seed(seed)
            values.append(draws(random_uniform([5]), 1)[0])
    assert (values[0] == values[2]).all() and (values[0] != values[1]).any()


@pytest.mark.parametrize(
    ("make", "variance", "of_a_filter"),
    [
        (glorot_uniform, 2 / 500, 2 / (9 * 50)),
        (glorot_normal, 2 / 500, 2 / (9 * 50)),
        (he_uniform, 2 / 200, 2 / (9 * 20)),
        (he_normal, 2 / 200, 2 / (9 * 20)),
    ],
)
def test_initializers(make, variance: float, of_a_filter: float) -> None:
    with Graph(seed=2).as_default():
        value = evaluate(make([200, 300]))
        assert value.dtype == float32
        np.testing.assert_allclose(value.var(), variance, rtol=0.03)
        assert abs(value.mean()) < 3 * np.sqrt(variance / value.size)
        np.testing.assert_allclose(evaluate(make([3, 3, 20, 30])).var(), of_a_filter, rtol=0.1)
        with pytest.raises(ShapeError, match="scalar"):
            make([])


def test_rows_are_shuffled_fairly_and_anew_each_time() -> None:
    with Graph(seed=3).as_default():
        order = random_shuffle(np.zeros((4, 3))).op.inputs[1]
        found = [tuple(one.tolist()) for one in draws(order, 600)]
        assert all(sorted(one) == [0, 1, 2, 3] for one in found)
        counts = collections.Counter(found)
        assert len(counts) == 24 and max(counts.values()) < 60
        rows = np.arange(12.0).reshape(4, 3)
        mixed = evaluate(random_shuffle(rows, seed=7))
        assert sorted(mixed[:, 0].tolist()) == [0, 3, 6, 9]
        assert (mixed == evaluate(random_shuffle(rows, seed=7))).all()
        assert (mixed != evaluate(random_shuffle(rows, seed=9))).any()
        assert evaluate(random_shuffle(np.zeros((0, 2)))).shape == (0, 2)
        x = placeholder("float32", [None, 2])
        assert random_shuffle(x).shape == (None, 2)
        assert evaluate(random_shuffle(x), {x: np.ones((5, 2))}).shape == (5, 2)
        with pytest.raises(ShapeError, match="scalar"):
            random_shuffle(1.0)
