"""Generated log(sum(exp(x))), maxima and minima, over last and over middle axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.kernel_selection import selected_kernels
from hpcflow.settings import Settings
from tests.kernels.against_plain import both, chosen

SHAPES: list[tuple[tuple[int, ...], Any]] = [
    *[
        ((32, 24, 24), 1),
        ((32, 24, 24), -1),
        ((7, 5, 3, 8), (1, 2)),
        ((300, 40), 0),
        ((5, 40), None),
    ],
    *[
        ((4, 9, 1), 1),
        ((16, 33), 1),
        ((2, 40, 40), (0, 1)),
        ((6, 7, 8), (0, 2)),
        ((5, 1, 70, 1), 2),
    ],
]


def wanted(x: np.ndarray, axis: Any) -> np.ndarray:
    """In longer floats, about the maximum where it is finite."""
    wide = x.astype("longdouble")
    top = wide.max(axis, keepdims=True)
    about = np.where(np.isfinite(top), top, 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.log(np.exp(wide - about).sum(axis, keepdims=True)) + about


def special(x: np.ndarray, which: str) -> np.ndarray:
    x = x.copy()
    if which == "minus infinity":  # and a whole row of it
        x.flat[::7] = -np.inf
        x.reshape(-1)[: x.shape[-1]] = -np.inf
    if which == "infinity and NaN":
        x.flat[3], x.flat[-1] = np.nan, np.inf
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("which", ["finite", "minus infinity", "infinity and NaN"])
def test_over_any_axes(dtype: str, which: str) -> None:
    rng = np.random.default_rng(4)
    with hf.Graph().as_default(), hf.Session() as session:
        for shape, axis in SHAPES:
            x = special((5 * rng.standard_normal(shape)).astype(dtype), which)
            fed = hf.placeholder(dtype, shape)
            of = [fed, fed * 1.0]  # alone, and in the loop of its neighbour
            sums = [hf.reduce_logsumexp(v, axis, keepdims=True) for v in of]
            ends = [reduce(v, axis) for v in of for reduce in (hf.reduce_max, hf.reduce_min)]
            *found, top, least, top_2, least_2 = session.run([*sums, *ends], {fed: x})
            for value in found:
                tolerance = {"float32": 1e-6, "float64": 2e-15}[dtype]
                np.testing.assert_allclose(value, wanted(x, axis), tolerance, 4 * tolerance)
            for value, end in ((top, x.max), (top_2, x.max), (least, x.min), (least_2, x.min)):
                np.testing.assert_array_equal(value, end(axis))


@pytest.mark.parametrize(("axis", "types"), [(2, ["Fused"]), (1, ["Fused", "LogSumExp"])])
def test_they_are_generated(axis: int, types: list[str]) -> None:
    """A sum over last axes is in the loop of what it sums."""
    with use_context(RankContext(Settings())) as context, hf.Graph().as_default():
        a, b = hf.placeholder("float32", [32, 24, 1]), hf.placeholder("float32", [24, 24])
        y, session = hf.reduce_logsumexp(a + b, axis), hf.Session()
        feeds = {a: np.zeros([32, 24, 1], "f4"), b: np.zeros([24, 24], "f4")}
        plan = session.plan(y, feeds)
        rows = list(selected_kernels(plan.parts[plan.driver], context.devices))
        assert [row.type.split(":")[0] for row in rows] == types
        assert {row.provider for row in rows} == {"llvm"}
        np.testing.assert_allclose(session.run(y, feeds), np.full((32, 24), np.log(24)), 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("which", ["finite", "minus infinity", "infinity and NaN"])
@pytest.mark.parametrize("reduce", ["reduce_max", "reduce_min"])
def test_equal_extremes_share_the_gradient(dtype: str, which: str, reduce: str) -> None:
    """TensorFlow's definition: g / (number of equal ones) for each of them, 0 for the others."""
    rng = np.random.default_rng(5)
    with hf.Graph().as_default(), hf.Session() as session:
        for shape, axis in SHAPES:
            x = special(rng.integers(0, 4, shape).astype(dtype), which)
            fed = hf.placeholder(dtype, shape)
            for of in (fed, fed * 1.0):
                y = getattr(hf, reduce)(of, axis, keepdims=True)
                g = rng.standard_normal(y.shape.as_list()).astype(dtype)
                (slope,) = hf.gradients(y, [of], [hf.constant(g)])
                found = session.run(slope, {fed: x})
                ends = getattr(np, reduce.removeprefix("reduce_"))(x, axis, keepdims=True)
                equal = x == ends
                share = g / np.maximum(equal.sum(axis, keepdims=True), 1)
                np.testing.assert_allclose(found, np.where(equal, share, 0), 1e-6)


@pytest.mark.parametrize("type", ["Max", "Min", "LogSumExp"])
def test_few_sizes_and_orders_are_refused_with_a_reason(type: str) -> None:
    """The plain kernel then gives the same values."""
    rng = np.random.default_rng(6)
    attrs = {"axis": (1,), "keepdims": False}
    for shape, word in (((4, 4, 4), "few"), ((50, 9, 3), "last"), ((50, 40, 8), "")):
        x = rng.standard_normal(shape)
        choice, _ = chosen(type, attrs, [x])
        reasons = dict(choice.refused)
        assert (word in reasons["llvm"]) if word else choice.kernel.provider == "llvm"
        provider, found, plain = both(type, attrs, [x])
        assert provider == ("plain" if word else "llvm")
        np.testing.assert_allclose(found, plain, 1e-14)
