"""What the tests of `hf.layers` share: a graph for each test, random values, comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from tests.ops.evaluate import evaluate

RNG = np.random.default_rng(14)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def filled() -> dict[str, np.ndarray]:
    """Random values for all variables."""
    return {v.op.name: draw(*v.shape) for v in hf.global_variables()}


def check(t: hf.Tensor, expected: np.ndarray, w: dict, feeds: Any = None) -> None:
    got = evaluate(t, feeds, w)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)
