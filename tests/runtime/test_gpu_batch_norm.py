"""Batch normalization on a GPU's double and on a real one, beside NumPy's formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen import ptx_compiler
from hpcflow.graph.dtypes import as_dtype
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.kernel_selection import kernels_text
from hpcflow.settings import Settings
from tests.runtime.test_gpu import gpus  # noqa: F401

pytestmark = pytest.mark.skipif(
    bool(ptx_compiler.absent()), reason=f"needs llvmlite: {ptx_compiler.absent()}"
)
EPSILON = 1e-3
ROUNDING = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2, "float64": 1e-12}


def by_formula(x: Any, gamma: Any, beta: Any, g: Any) -> list[np.ndarray]:
    """relu(batch_norm(x)) and the gradients of its sum weighted by g, in float64."""
    axes, n = tuple(range(x.ndim - 1)), x.size // x.shape[-1]
    mean, variance = x.mean(axes), x.var(axes)
    r = 1 / np.sqrt(variance + EPSILON)
    z = (x - mean) * r
    y = z * gamma + beta
    g = g * (y > 0)
    gz = g * gamma
    gx = r * (gz - gz.sum(axes) / n - z * (gz * z).sum(axes) / n)
    return [
        np.maximum(y, 0),
        mean,
        variance * n / max(1, n - 1),
        gx,
        (g * z).sum(axes),
        g.sum(axes),
    ]


def arrays(shape: tuple[int, ...], dtype: str, seed: int, center: float) -> list[np.ndarray]:
    """x, gamma, beta and g as they are in this dtype; no sum is near the bend of the relu."""
    rng = np.random.default_rng(seed)
    x, g = (rng.standard_normal(shape) for _ in range(2))
    gamma, beta = rng.uniform(0.5, 1, shape[-1]), rng.choice([-8, 8], shape[-1])
    made = x + center, gamma, beta, g
    return [a.astype(as_dtype(dtype)) for a in made]


def computed(given: list[np.ndarray], **settings: Any) -> tuple[list[np.ndarray], set[str]]:
    """The same by hpcflow on its default device, and the types of the kernels of the step."""
    with use_context(RankContext(Settings(**settings))), hf.Graph().as_default():
        x, gamma, beta, g = (hf.placeholder(a.dtype, a.shape) for a in given)
        y, mean, variance = hf.nn.fused_batch_norm(x, gamma, beta, epsilon=EPSILON)
        y = hf.nn.relu(y)
        fetches = [y, mean, variance, *hf.gradients(y, [x, gamma, beta], grad_ys=[g])]
        session = hf.Session()
        feeds = dict(zip((x, gamma, beta, g), given, strict=True))
        found = session.run(fetches, feeds)
        text = kernels_text(session.plan(fetches, feeds), session.context.devices)
        return found, {line.split()[0] for line in text.split("\n\n")[0].splitlines()[1:]}


def check(shape: tuple[int, ...], dtype: str, center: float = 0.5, more: float = 1) -> set[str]:
    given = arrays(shape, dtype, len(shape), center)
    found, kernels = computed(given)
    right = by_formula(*(a.astype(np.float64) for a in given))
    for mine, its in zip(found, right, strict=True):
        scale = max(1.0, float(np.abs(its).max()))
        mine = mine.astype(np.float64).reshape(its.shape)
        np.testing.assert_allclose(mine, its, rtol=0, atol=more * ROUNDING[dtype] * scale)
    return kernels


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (2, 7, 5, 1), (33, 1, 1, 40), (5, 6, 7, 300)])
def test_batch_norm(gpus: Any, shape: tuple[int, ...], dtype: str) -> None:  # noqa: F811
    kernels = check(shape, dtype)
    if shape[-1] > 1:
        assert kernels.isdisjoint({"Normalize", "NormalizeGrad", "ReluGrad"})


def test_a_large_mean_costs_few_digits(gpus: Any) -> None:  # noqa: F811
    """A difference of sums of squares would be wrong by several percent."""
    check((16, 8, 8, 3), "float32", 1e3, more=50)


def test_float64_and_exact_programs_keep_the_plain_kernel(gpus: Any) -> None:  # noqa: F811
    assert "NormalizeGrad" in check((4, 3, 5, 6), "float64")
    assert "NormalizeGrad" in computed(arrays((4, 3, 5, 6), "float32", 0, 0.5), exact=True)[1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (2, 7, 5, 1), (5, 6, 7, 300), (64, 28, 28, 256)])
def test_batch_norm_on_a_real_gpu(shape: tuple[int, ...], dtype: str) -> None:
    check(shape, dtype)
