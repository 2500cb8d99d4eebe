"""Max pooling on GPUs, in an emulator and on a real one, against the plain kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcflow.codegen import kernel_cache, ptx_codegen, ptx_compiler, ptx_pooling_codegen
from hpcflow.graph.dtypes import as_dtype
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.kernel_registry import (
    KernelNode,
    choose_kernel,
    find_plain_kernel,
    kernel_preferences,
)
from hpcflow.kernels.llvm_max_pooling import pool_shape
from hpcflow.kernels.sliding_window_views import Windows
from tests.native import emulated

pytestmark = pytest.mark.skipif(
    bool(ptx_compiler.absent()), reason=f"needs llvmlite: {ptx_compiler.absent()}"
)
CASES: list[tuple[Any, ...]] = [  # shape, window, strides, dilations, padding
    ((3, 8, 8, 16), (2, 2), (2, 2), (1, 1), "VALID"),
    ((2, 9, 7, 5), (3, 3), (2, 2), (1, 1), "VALID"),
    ((2, 9, 8, 1), (3, 2), (3, 3), (1, 1), "VALID"),
    ((1, 5, 6, 33), (2, 3), (1, 2), (1, 1), "VALID"),
    ((2, 7, 9, 8), (1, 1), (3, 2), (1, 1), "VALID"),
    ((2, 7, 8, 5), (3, 3), (2, 2), (1, 1), "SAME"),
    ((2, 7, 6, 16), (3, 2), (1, 1), (1, 1), "SAME"),
    ((1, 9, 8, 3), (2, 3), (1, 1), (3, 2), "SAME"),
    ((2, 4, 6, 9), (3, 4), (3, 4), (1, 1), ((1, 2), (2, 1))),
    ((1, 6, 1, 4), (5, 3), (2, 1), (1, 1), ((2, 4), (1, 1))),
    ((1, 4, 4, 2), (2, 2), (2, 2), (1, 1), ((2, 2), (3, 1))),  # windows of padding alone
    ((2, 11, 3), (3,), (2,), (2,), "SAME"),
    ((1, 4, 5, 6, 2), (2, 3, 2), (1, 2, 2), (1, 1, 1), "SAME"),
]


def check(case: tuple[Any, ...], first: bool, dtype: str, xp: Any, special: bool = False) -> None:
    """The same bits as the plain kernel's on the CPU, for x with many equal elements."""
    shape, window, strides, dilations, padding = case
    attrs = {"window": window, "strides": strides, "dilations": dilations}
    attrs |= {"padding": padding, "first": first}
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 3, shape).astype(as_dtype(dtype))
    if special:
        x[rng.random(shape) < 0.1] = np.nan
        x[rng.random(shape) < 0.4] = -np.inf
    if first:
        x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    (y,) = both("MaxPool", attrs, [x], xp)
    g = rng.integers(-9, 9, y.shape).astype(x.dtype) / 4
    both("MaxPoolGrad", attrs, [x, y, g.astype(x.dtype)], xp)


def both(type: str, attrs: dict[str, Any], inputs: list[Any], xp: Any) -> list[Any]:
    """The results, equal by the generated kernel and the plain one."""
    specs = [Spec(x.dtype, x.shape) for x in inputs]
    node = KernelNode(type, attrs, specs, lookup_op(type).infer(specs, attrs))
    choice = choose_kernel(node, "gpu", kernel_preferences("llvm", exact=type == "MaxPool"))
    assert choice.kernel.provider == "llvm", choice.refused
    plain = [np.empty(s.shape, s.dtype) for s in node.outputs]
    find_plain_kernel(type, "cpu").make(np, node)(*inputs, *plain)
    made = [np.full(s.shape, np.nan, s.dtype) for s in node.outputs]
    given = [xp.asarray(a) for a in (*inputs, *made)]
    choice.kernel.make(xp, node)(*given)
    found = [xp.asnumpy(a) for a in given[len(inputs) :]]
    for mine, its in zip(found, plain, strict=True):
        assert np.array_equal(mine.view("u1"), its.view("u1")) or np.array_equal(
            mine.astype("f8"), its.astype("f8"), equal_nan=True
        )
    return plain


@pytest.mark.parametrize("first", [False, True], ids=["NHWC", "NCHW"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_largest_and_its_gradient(monkeypatch: Any, case: Any, first: bool) -> None:
    emulated.install(monkeypatch, 32)
    monkeypatch.setattr(ptx_codegen, "BLOCKS", 3)
    check(case, first, "float32", emulated.XP)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats(monkeypatch: Any, dtype: str) -> None:
    emulated.install(monkeypatch, 64)
    check(CASES[5], False, dtype, emulated.XP)


@pytest.mark.parametrize("case", [CASES[5], CASES[8]], ids=str)
def test_nan_and_infinity(monkeypatch: Any, case: Any) -> None:
    emulated.install(monkeypatch, 64)
    check(case, False, "float32", emulated.XP, special=True)


def test_refused_are_integers_large_windows_and_open_sizes(monkeypatch: Any) -> None:
    emulated.install(monkeypatch, 64)
    attrs = {"window": (2,), "strides": (2,), "dilations": (1,), "padding": "VALID", "first": False}
    for spec, more in (
        (Spec(np.dtype("i4"), (2, 8, 3)), {}),
        (Spec(np.dtype("f4"), (None, 8, 3)), {}),
        (Spec(np.dtype("f4"), (2, 800, 3)), {"window": (65,)}),
    ):
        node = KernelNode(
            "MaxPool", attrs | more, [spec], lookup_op("MaxPool").infer([spec], attrs | more)
        )
        choice = choose_kernel(node, "gpu", kernel_preferences("llvm"))
        assert choice.kernel.provider == "plain" and choice.refused[0][1]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_windows_as_rows(monkeypatch: Any, case: Any) -> None:
    """Those of a padded copy, cut out by NumPy."""
    emulated.install(monkeypatch, 32)
    shape, window, strides, dilations, padding = case
    attrs = {"window": window, "strides": strides, "dilations": dilations}
    spec = Spec(np.dtype("f4"), shape)
    (y,) = lookup_op("MaxPool").infer([spec], {**attrs, "padding": padding, "first": False})
    space, out = shape[1:-1], y.shape[1:-1]
    windows = Windows({**attrs, "padding": padding}, space, window, out)
    pool = pool_shape({**attrs, "padding": padding, "first": False}, shape, y.shape, window)
    x = np.random.default_rng(3).standard_normal(shape).astype("f4")
    made = np.full((shape[0], *out, *window, shape[-1]), np.nan, "f4")
    run = kernel_cache.on_gpu(emulated.cuda, ptx_pooling_codegen.rows(pool, "f4"))
    how = ptx_codegen.flat(made.size)
    run(how.grid, how.block, (x, made, made.size))
    pads = [(b, max(0, r)) for b, r in zip(windows.before, windows.reach, strict=True)]
    padded = np.pad(x, [(0, 0), *pads, (0, 0)])
    for place in np.ndindex(*out):
        for tap in np.ndindex(*window):
            steps = zip(place, tap, strides, dilations, strict=True)
            at = tuple(p * s + t * d for p, t, s, d in steps)
            here = (slice(None), *place, *tap)
            assert np.array_equal(made[here], padded[(slice(None), *at)])


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [1, 3])
def test_the_gradient_of_filters_of_few_channels_on_a_real_gpu(channels: int) -> None:
    import cupy

    rng = np.random.default_rng(4)
    for size, strides, padding in ((5, (1, 1), "SAME"), (3, (2, 2), "VALID"), (7, (2, 1), "SAME")):
        attrs: dict[str, Any] = {"strides": strides, "dilations": (1, 1), "padding": padding}
        attrs |= {"first": False, "groups": 1, "shape": (size, size, channels, 16)}
        x = rng.standard_normal((6, 21, 19, channels)).astype("f4")
        w = Spec(x.dtype, attrs["shape"])
        (y,) = lookup_op("Conv").infer([Spec(x.dtype, x.shape), w], attrs)
        g = rng.standard_normal(y.shape).astype("f4")
        specs = [Spec(a.dtype, a.shape) for a in (x, g)]
        outputs = lookup_op("ConvFilterGrad").infer(specs, attrs)
        node = KernelNode("ConvFilterGrad", attrs, specs, outputs)
        choice = choose_kernel(node, "gpu", kernel_preferences())
        assert choice.kernel.provider == "cublaslt", choice.refused
        made, plain = cupy.zeros(w.shape, "f4"), np.zeros(w.shape, "f8")
        choice.kernel.make(cupy, node)(cupy.asarray(x), cupy.asarray(g), made)
        specs = [s._replace(dtype=plain.dtype) for s in specs]
        wide = KernelNode("ConvFilterGrad", attrs, specs, [Spec(plain.dtype, w.shape)])
        right = find_plain_kernel("ConvFilterGrad", "cpu").make(np, wide)
        right(x.astype("f8"), g.astype("f8"), plain)
        np.testing.assert_allclose(made.get(), plain, rtol=0, atol=1e-5 * np.abs(plain).max())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("first", [False, True], ids=["NHWC", "NCHW"])
def test_on_a_real_gpu(first: bool, dtype: str) -> None:
    import cupy

    for case in (*CASES, ((16, 57, 56, 64), (3, 3), (2, 2), (1, 1), "SAME")):
        for special in (False, True):
            check(case, first, dtype, cupy, special)
