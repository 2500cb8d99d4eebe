"""Initializers: their numbers are distributed as the papers say, whatever makes them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, ShapeError
from hpcflow.ops.variables.partitioned_variable import PartitionInfo
from tests.ops.evaluate import evaluate

CUT_STD = 0.87962566103423978  # of a normal cut at two standard deviations (scipy.stats.truncnorm)


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with hf.Graph(seed=3).as_default():
        yield


def drawn(initializer: Any, *shape: int, **facts: Any) -> np.ndarray:
    return evaluate(initializer(list(shape), **facts))


@pytest.mark.parametrize(
    ("initializer", "shape", "variance", "limit"),
    [
        (hf.glorot_uniform_initializer(), (60, 140), 2 / 200, np.sqrt(6 / 200)),
        (hf.glorot_normal_initializer(), (60, 140), 2 / 200, 2 * np.sqrt(2 / 200) / CUT_STD),
        (hf.glorot_uniform_initializer(), (3, 3, 20, 40), 2 / 540, np.sqrt(6 / 540)),
        (hf.initializers.he_uniform(), (90, 100), 2 / 90, np.sqrt(6 / 90)),
        (hf.initializers.he_normal(), (90, 100), 2 / 90, 2 * np.sqrt(2 / 90) / CUT_STD),
        (hf.initializers.lecun_uniform(), (90, 100), 1 / 90, np.sqrt(3 / 90)),
        (hf.initializers.lecun_normal(), (90, 100), 1 / 90, 2 * np.sqrt(1 / 90) / CUT_STD),
        (hf.variance_scaling_initializer(3.0, "fan_out", "uniform"), (80, 90), 1 / 30, 0.3163),
        (hf.variance_scaling_initializer(distribution="untruncated_normal"), (80, 90), 1 / 80, 9),
        (hf.uniform_unit_scaling_initializer(1.5), (5, 20, 90), 2.25 / 100, 1.5 * np.sqrt(0.03)),
        (hf.truncated_normal_initializer(0.0, 0.5), (90, 90), (0.5 * CUT_STD) ** 2, 1.0),
        (hf.random_normal_initializer(0.0, 0.5), (90, 90), 0.25, 9.0),
        (hf.random_uniform_initializer(-1, 1), (90, 90), 1 / 3, 1.0),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, object) and callable(x) else "",
)
def test_variance_and_limit(initializer: Any, shape: Any, variance: float, limit: float) -> None:
    values = drawn(initializer, *shape)
    assert values.shape == shape and values.dtype == np.float32
    assert np.abs(values).max() <= limit * (1 + 1e-6)
    assert abs(values.mean()) < 5 * np.sqrt(variance / values.size)
    assert values.var() == pytest.approx(variance, rel=0.06)


def test_plain_values() -> None:
    assert drawn(hf.zeros_initializer(), 2, 3).tolist() == np.zeros((2, 3)).tolist()
    assert drawn(hf.ones_initializer("int32"), 2).tolist() == [1, 1]
    assert drawn(hf.ones_initializer(), 2, dtype="float64").dtype == np.float64
    assert drawn(hf.random_uniform_initializer(0, 5, dtype="int32"), 9).max() < 5
    eye = drawn(hf.initializers.identity(2.0), 2, 3)
    assert eye.tolist() == (2 * np.eye(2, 3)).tolist()
    with pytest.raises(ShapeError, match="needs a variable of rank 2"):
        drawn(hf.initializers.identity(), 2)
    with pytest.raises(ShapeError, match="partitioned variable"):
        hf.initializers.identity()([1, 2], partition_info=PartitionInfo((2, 2), (0, 0)))


def test_constants() -> None:
    """The last value is repeated where there are fewer than elements."""
    assert drawn(hf.constant_initializer(2), 2, 2).tolist() == [[2, 2], [2, 2]]
    values = hf.constant_initializer(range(8))
    assert drawn(values, 2, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert drawn(values, 3, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [7, 7, 7, 7]]
    with pytest.raises(ShapeError, match="8 values do not fill"):
        values([2, 3])
    exact = hf.constant_initializer([1, 2], verify_shape=True)
    assert drawn(exact, 2).tolist() == [1, 2]
    with pytest.raises(ShapeError, match="the values have shape"):
        exact([3])


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (2, 3, 4)])
def test_orthogonal(shape: Any) -> None:
    made = drawn(hf.orthogonal_initializer(2.0, dtype="float64"), *shape)
    matrix = made.reshape(-1, shape[-1])
    small = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-12)
    with pytest.raises(ShapeError, match="needs rank 2 or more"):
        drawn(hf.orthogonal_initializer(), 3)


def test_orthogonal_matrices_are_even() -> None:
    """Neither sign of an entry is more likely."""
    first = [drawn(hf.orthogonal_initializer(), 3, 3)[0, 0] for _ in range(60)]
    assert 15 < np.sum(np.array(first) > 0) < 45


def test_seeds() -> None:
    same = [drawn(hf.glorot_normal_initializer(seed=s), 50).tobytes() for s in (1, 1, 2)]
    assert same[0] == same[1] != same[2]
    free = hf.glorot_normal_initializer()
    assert drawn(free, 50).tobytes() != drawn(free, 50).tobytes()
    pieces = [hf.get_variable(n, [50]).initial_value for n in "ab"]
    a, b = evaluate(pieces)
    assert a.tobytes() != b.tobytes()


def test_a_piece_is_scaled_as_the_whole() -> None:
    info = PartitionInfo((1000, 50), (0, 0))
    values = drawn(hf.initializers.lecun_uniform(), 100, 50, partition_info=info)
    assert values.var() == pytest.approx(1 / 1000, rel=0.06)


def test_errors() -> None:
    for wrong in ({"scale": 0.0}, {"mode": "fan"}, {"distribution": "gamma"}):
        with pytest.raises(ValueError, match=r"scale|mode|distribution"):
            hf.variance_scaling_initializer(**wrong)
    with pytest.raises(DTypeError, match="draws floats"):
        hf.glorot_uniform_initializer(dtype="int32")


def test_an_array_as_a_constant_is_not_taken_apart() -> None:
    """A table of many rows is a few copies, not a list of Python numbers."""
    table = np.arange(12.0).reshape(4, 3)
    made = hf.constant_initializer(table)([4, 3])
    assert made.dtype == hf.float32
    np.testing.assert_array_equal(made.op.attrs["value"], table)
    large = np.zeros(300_000, "f4")
    tracemalloc.start()
    hf.constant_initializer(large)([300_000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * large.nbytes
