"""Generated kernels of batch, group and instance norm against their formulas."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from hpcflow.codegen import thread_team
from hpcflow.codegen.llvm_cpu_compiler import absent
from hpcflow.graph.dtypes import bfloat16
from hpcflow.kernels.llvm_normalization import layout_of
from tests.kernels.against_plain import both, chosen, run_all

pytestmark = pytest.mark.skipif(bool(absent()), reason=absent())
CASES = [
    ((4, 6, 6, 32), (0, 1, 2)),  # batch norm: rows side by side
    ((3, 5, 7, 48), (0, 1, 2)),  # an odd number of rows
    ((2, 9, 9, 300), (0, -3, 2)),  # many lanes
    ((40, 64), (0,)),
    ((640, 4), (0,)),  # few channels
    ((3, 12, 12, 16), (1, 2)),  # instance norm
    ((2, 8, 8, 4, 6), (1, 2, 4)),  # group norm, channels last
    ((1, 33, 1, 40), (0, 1, 2)),  # axes of size 1
    ((4001, 17), (0,)),  # several blocks, the last one short
]
EPSILON = 1e-3


def formulas(x: np.ndarray, axis: tuple[int, ...]) -> list[np.ndarray]:
    """Normalized x, mean and variance, with more digits than those of the kernels."""
    wide = x.astype(np.longdouble)
    mean, variance = wide.mean(axis, keepdims=True), wide.var(axis, keepdims=True)
    return [(wide - mean) / np.sqrt(variance + EPSILON), mean, variance]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_the_formulas(case, dtype):
    """Far from 0, where a variance from the mean of squares would be wrong."""
    shape, axis = case
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(shape) * 0.5 + 200.0 * rng.standard_normal(shape[-1])).astype(dtype)
    choice, node = chosen("Normalize", {"axis": axis, "epsilon": EPSILON}, [x])
    assert choice.kernel.provider == "llvm"
    y, mean, variance = run_all(choice, node, [x])
    unit = np.finfo(dtype).eps
    for value, wanted, room in zip(
        (y, mean, variance), formulas(x, axis), (4000, 4, 2000), strict=True
    ):
        assert value.dtype == x.dtype
        scale = np.maximum(np.abs(wanted), 1.0)
        assert (np.abs(value - wanted) <= room * unit * scale).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_gradient_is_that_of_the_formula(case, dtype):
    shape, axis = case
    rng = np.random.default_rng(4)
    g, x = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    y, _, variance = (value.astype(dtype) for value in formulas(x, axis))
    attrs = {"axis": axis, "epsilon": EPSILON}
    choice, node = chosen("NormalizeGrad", attrs, [g, y, variance])
    assert choice.kernel.provider == "llvm"
    (value,) = run_all(choice, node, [g, y, variance])
    wide, y = g.astype(np.float64), y.astype(np.float64)
    centered = wide - wide.mean(axis, keepdims=True) - y * (wide * y).mean(axis, keepdims=True)
    wanted = centered / np.sqrt(variance.astype(np.float64) + EPSILON)
    assert (np.abs(value - wanted) <= 60 * np.finfo(dtype).eps * np.abs(wanted).max()).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bfloat16_has_statistics_in_float32(case):
    shape, axis = case
    rng = np.random.default_rng(8)
    x, g = (rng.standard_normal(shape).astype(bfloat16) for _ in range(2))
    attrs = {"axis": axis, "epsilon": EPSILON}
    choice, node = chosen("Normalize", attrs, [x])
    assert choice.kernel.provider == "llvm" and choice.kernel.scratch(node), "it is not widened"
    y, mean, variance = run_all(choice, node, [x])
    wanted = formulas(x, axis)
    assert y.dtype == bfloat16 and mean.dtype == variance.dtype == np.float32
    assert (np.abs(y.astype("f8") - wanted[0]) <= 2.0**-8 * (np.abs(wanted[0]) + 1e-3)).all()
    for value, exact in zip((mean, variance), wanted[1:], strict=True):
        assert (np.abs(value - exact) <= 2000 * np.finfo("f4").eps).all()
    choice, node = chosen("NormalizeGrad", attrs, [g, y, variance])
    assert choice.kernel.provider == "llvm" and choice.kernel.scratch(node)
    (value,) = run_all(choice, node, [g, y, variance])
    wide, of = g.astype("f8"), y.astype("f8")
    centered = wide - wide.mean(axis, keepdims=True) - of * (wide * of).mean(axis, keepdims=True)
    wanted = centered / np.sqrt(variance.astype("f8") + EPSILON)
    assert value.dtype == bfloat16
    assert (np.abs(value.astype("f8") - wanted) <= 2.0**-8 * (np.abs(wanted) + 1e-3)).all()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_a_special_value_spoils_its_own_channel_alone(special):
    x = np.random.default_rng(5).standard_normal((6, 8, 8, 32)).astype("f4")
    x[2, 3, 4, 7] = special
    attrs = {"axis": (0, 1, 2), "epsilon": EPSILON}
    with np.errstate(invalid="ignore"):
        provider, value, plain = both("Normalize", attrs, [x])
    assert provider == "llvm"
    assert np.isnan(value[..., 7]).all() and np.isnan(plain[..., 7]).all()
    assert np.isfinite(np.delete(value, 7, axis=-1)).all()


def test_arrays_that_are_not_contiguous_are_read_as_such():
    x = np.random.default_rng(6).standard_normal((32, 9, 8, 4)).astype("f4").transpose(3, 1, 2, 0)
    attrs = {"axis": (0, 1, 2), "epsilon": EPSILON}
    provider, value, plain = both("Normalize", attrs, [x])
    assert provider == "llvm" and np.abs(value - plain).max() < 1e-5
    inputs = [
        x,
        x[::-1].copy().transpose(0, 2, 1, 3).transpose(0, 2, 1, 3),
        np.ones((1, 1, 1, 32), "f4"),
    ]
    provider, value, plain = both("NormalizeGrad", attrs, inputs)
    assert provider == "llvm" and np.abs(value - plain).max() < 1e-5


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_do_not_depend_on_the_number_of_threads(case):
    shape, axis = case
    try:
        openmp = ctypes.CDLL("libgomp.so.1")
    except OSError:
        pytest.skip("no OpenMP library")
    rng = np.random.default_rng(7)
    g, x = (rng.standard_normal((*shape[:-1], shape[-1])).astype("f4") for _ in range(2))
    attrs, before, values = {"axis": axis, "epsilon": EPSILON}, thread_team.size(), []
    thread_team.use(openmp)
    try:
        for threads in (1, 2, 3):
            thread_team.resize(threads)
            y, mean, variance = run_all(*chosen("Normalize", attrs, [x]), [x])
            inputs = [g, y, variance]
            back = run_all(*chosen("NormalizeGrad", attrs, inputs), inputs)
            values.append([v.tobytes() for v in (y, mean, variance, *back)])
    finally:
        thread_team.resize(before)
    assert values[0] == values[1] == values[2]


@pytest.mark.parametrize(
    ("shape", "axis", "why"),
    [
        ((64, 64), (1,), "axes"),  # the last axis alone: fused loops
        ((4, 8, 4, 8, 4), (0, 2, 4), "axes"),
        ((1001, 3), (0,), "axes"),  # three lanes
        ((4, 4), (0,), "few elements"),
    ],
)
def test_others_are_left_to_other_kernels(shape, axis, why):
    choice, _ = chosen("Normalize", {"axis": axis, "epsilon": EPSILON}, [np.ones(shape, "f4")])
    assert choice.kernel.provider != "llvm"
    assert why in dict(choice.refused)["llvm"]


def test_the_layout_has_all_elements_once():
    """Blocks of nearly equal heights, none empty."""
    for rows in (2, 7, 64, 1000, 12345):
        layout = layout_of((rows, 24), (0,), 4)
        assert layout is not None and layout.rows * layout.sides == rows
        height = -(-layout.rows // layout.blocks)
        assert 0 < layout.rows - height * (layout.blocks - 1) <= height
