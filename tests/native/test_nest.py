"""Kernels that go over a row more than once: sums, largest elements, and what needs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcflow.codegen import kernel_cache
from hpcflow.codegen.fused_loop_ir import (
    COLUMN,
    COLUMN_SUM,
    FULL,
    MAX,
    ONE,
    ROW,
    SUM,
    KernelBody,
    KernelOperand,
)
from hpcflow.codegen.llvm_cpu_codegen import schedule, text, writable
from hpcflow.codegen.row_op_decomposition import EXPANSIONS, StepBuilder

RNG = np.random.default_rng(7)
SHAPES = [(1, 2), (3, 5), (9, 8), (7, 16), (4, 1000), (130, 33), (5, 64), (5, 65), (5, 97)]
F4 = np.dtype("f4")


def f4(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


def run(body: KernelBody, *arrays: np.ndarray) -> None:
    written = text(body, exact=False)
    assert written is not None
    kernel_cache.builtin(written)(*arrays)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalized(x: Any) -> tuple[Any, Any, Any]:
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5), mean, var


def normalize_grad(g: Any, y: Any, var: Any) -> Any:
    along = (g * y).mean(-1, keepdims=True)
    return (g - g.mean(-1, keepdims=True) - y * along) / np.sqrt(var + 1e-5)


def cross_entropy(x: Any, labels: Any) -> tuple[Any, Any]:
    p = softmax(x)
    return -(labels * np.log(p)).sum(-1), p * labels.sum(-1, keepdims=True) - labels


CASES = {  # op -> (ways of inputs, ways of outputs, the same in NumPy, attributes)
    "Softmax": ([FULL], [FULL], softmax, {}),
    "LogSoftmax": ([FULL], [FULL], lambda x: np.log(softmax(x)), {}),
    "SoftmaxGrad": (
        [FULL, FULL],
        [FULL],
        lambda g, y: y * (g - (g * y).sum(-1, keepdims=True)),
        {},
    ),
    "LogSoftmaxGrad": (
        [FULL, FULL],
        [FULL],
        lambda g, y: g - np.exp(y) * g.sum(-1, keepdims=True),
        {},
    ),
    "Normalize": ([FULL], [FULL, COLUMN, COLUMN], normalized, {"epsilon": 1e-5}),
    "NormalizeGrad": ([FULL, FULL, COLUMN], [FULL], normalize_grad, {"epsilon": 1e-5}),
    "Mean": ([FULL], [COLUMN], lambda x: x.mean(-1, keepdims=True), {}),
    "Sum": ([FULL], [COLUMN], lambda x: x.sum(-1, keepdims=True), {"way": COLUMN}),
    "SumToShape": ([FULL], [ROW], lambda x: x.sum(0, keepdims=True), {"way": ROW}),
    "MeanGrad": ([COLUMN], [FULL], lambda g: g / 8, {"count": 8}),
    "SumGrad": ([ROW], [FULL], lambda g: g, {}),
    "BroadcastTo": ([COLUMN], [FULL], lambda g: g, {}),
}


def of(way: str, rows: int, cols: int) -> tuple[int, ...]:
    return {FULL: (rows, cols), COLUMN: (rows, 1), ROW: (1, cols), ONE: ()}[way]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("type", CASES)
def test_an_operation_over_rows(type: str, shape: tuple[int, int]) -> None:
    ways, made, function, attrs = CASES[type]
    given = [f4(*of(way, *shape)) * 3 for way in ways]
    if type == "NormalizeGrad":
        given[2] = np.abs(given[2])
    if type == "LogSoftmaxGrad":
        given[1] = -np.abs(given[1])
    steps = StepBuilder(tuple(KernelOperand(F4, way) for way in ways), shape[1])
    values = EXPANSIONS[type](steps, F4, attrs, *range(len(ways)))
    found = [np.full(of(way, *shape), np.nan, "f4") for way in made]
    run(steps.body(values), *given, *found)
    wanted = function(*(x.astype("f8") for x in given))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for mine, right in zip(found, wanted, strict=True):
        scale = max(1.0, float(np.abs(right).max()))
        np.testing.assert_allclose(mine, np.broadcast_to(right, mine.shape), atol=3e-6 * scale)


@pytest.mark.parametrize("dtype", ["i4", "i8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropies(shape: tuple[int, int], dtype: str) -> None:
    x, rows = f4(*shape) * 5, shape[0]
    labels = RNG.integers(0, shape[1], rows).astype(dtype)
    hot = np.zeros(shape, "f4")
    hot[np.arange(rows), labels] = 1
    loss, grad = cross_entropy(x.astype("f8"), hot)
    given = {
        "SparseSoftmaxCrossEntropy": (labels, KernelOperand(labels.dtype, COLUMN)),
        "SoftmaxCrossEntropy": (hot, KernelOperand(F4, FULL)),
    }
    for type, (array, operand) in given.items():
        steps = StepBuilder((KernelOperand(F4, FULL), operand), shape[1])
        body = steps.body(EXPANSIONS[type](steps, F4, {}, 0, 1))
        found = np.empty(rows, "f4"), np.empty(shape, "f4")
        run(body, x, array, *found)
        np.testing.assert_allclose(found[0], loss, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found[1], grad, atol=1e-6)


def test_what_costs_much_is_computed_once_and_kept() -> None:
    steps = StepBuilder((KernelOperand(F4, FULL),), 64)
    body = steps.body(EXPANSIONS["Softmax"](steps, F4, {}, 0))
    written = text(body, exact=False)
    assert written is not None
    assert written.count("@llvm.floor.f32(float") == 2  # declared, and called in one of three loops
    assert written.count("alloca") == 1 and len(schedule(body).used_values) == 3


def test_a_result_is_taken_from_where_it_was_stored() -> None:
    """The exponentials are a result: no second copy of them is kept."""
    steps = StepBuilder((KernelOperand(F4, FULL),), 64)
    power = steps("Exp", 0)
    share = steps("RealDiv", power, steps(SUM, power))
    body = steps.body((share, power))
    x, found = f4(5, 64), (np.empty((5, 64), "f4"), np.empty((5, 64), "f4"))
    written = text(body, exact=False)
    assert written is not None and "alloca" not in written
    run(body, x, *found)
    np.testing.assert_allclose(found[1], np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(found[0], np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-5)


def test_in_place_only_of_what_has_been_read() -> None:
    """x is read again in the loop behind the one that stores the first result."""
    steps = StepBuilder((KernelOperand(F4, FULL), KernelOperand(F4, FULL)), 8)
    first = steps("Add", 0, 1)
    second = steps("Sub", 0, steps(SUM, first))
    assert schedule(steps.body((first, second))).writable() == [1]
    assert schedule(steps.body((second, first))).writable() == [0, 1]
    x, y = f4(3, 8), f4(3, 8)
    wanted = x - (x + y).sum(1, keepdims=True)
    other = np.empty((3, 8), "f4")
    run(steps.body((second, first)), x, y, x, other)  # in place of x
    np.testing.assert_allclose(x, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("cols", "some"), [(0, [0]), (15, []), (16, [0]), (40, [0])])
def test_rows_shorter_than_a_vector_are_not_in_place(cols: int, some: list[int]) -> None:
    steps = StepBuilder((KernelOperand(F4, FULL),), cols)
    assert writable(steps.body((steps("Square", 0),))) == some


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_numbers_outside_of_a_limit_are_counted_and_nothing_is_done(dtype: str) -> None:
    steps = StepBuilder(
        (KernelOperand(F4, FULL), KernelOperand(np.dtype(dtype), COLUMN, limit=10)), 10
    )
    body = steps.body(EXPANSIONS["SparseSoftmaxCrossEntropy"](steps, F4, {}, 0, 1))
    written = text(body, exact=False)
    assert written is not None
    kernel, x = kernel_cache.builtin(written), f4(40, 10)
    found = np.full(40, 7, "f4"), np.full((40, 10), 7, "f4")
    labels = RNG.integers(0, 10, 40).astype(dtype)
    labels[[3, 17, 39]] = -1, 10, np.iinfo(dtype).max
    assert kernel(x, labels, *found) == 3
    assert all((y == 7).all() for y in found)
    labels[[3, 17, 39]] = 0, 9, 5
    assert kernel(x, labels, *found) is None
    assert not any((y == 7).any() for y in found)


def test_sums_of_columns_beside_the_elements() -> None:
    steps = StepBuilder((KernelOperand(F4, FULL), KernelOperand(F4, FULL)), 40)
    back = steps("ReluGrad", 0, 1)
    body = steps.body((back, steps(COLUMN_SUM, back)))
    g, y = f4(30, 40), f4(30, 40)
    found = np.empty((30, 40), "f4"), np.full(40, np.nan, "f4")
    for _ in range(2):  # from 0 each time
        run(body, g, y, *found)
    np.testing.assert_array_equal(found[0], g * (y > 0))
    np.testing.assert_array_equal(found[1], (g * (y > 0)).sum(0))  # NumPy adds row by row too


def test_nan_and_infinity_stay_in_their_rows() -> None:
    x = f4(4, 50)
    x[1, 7], x[2, 9], x[3, 3] = np.nan, np.inf, -np.inf
    steps = StepBuilder((KernelOperand(F4, FULL),), 50)
    values = EXPANSIONS["Softmax"](steps, F4, {}, 0)
    top, found = np.empty(4, "f4"), np.empty((4, 50), "f4")
    run(steps.body((values[0], steps(MAX, 0))), x, found, top)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, softmax(x), atol=1e-6)
        np.testing.assert_array_equal(top, x.max(1))


def test_no_rows() -> None:
    steps = StepBuilder((KernelOperand(F4, FULL),), 8)
    body = steps.body((steps("Square", 0), steps(COLUMN_SUM, 0)))
    total = np.full(8, 7, "f4")
    run(body, np.empty((0, 8), "f4"), np.empty((0, 8), "f4"), total)
    assert (total == 0).all()
