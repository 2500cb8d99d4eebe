"""Kernels for GPUs, in an emulator of blocks and threads, beside NumPy's formulas; their PTX."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcflow.codegen import kernel_cache, ptx_codegen, ptx_compiler
from hpcflow.codegen.elementwise_formulas import CLOSE, EXACT
from hpcflow.codegen.fused_loop_ir import (
    COLUMN,
    COLUMN_SUM,
    FULL,
    JOIN,
    JOINED,
    MAX,
    ONE,
    ROUND,
    ROW,
    SUM,
    KernelBody,
    KernelOperand,
)
from hpcflow.codegen.row_op_decomposition import EXPANSIONS, StepBuilder
from hpcflow.graph.dtypes import as_dtype
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels import llvm_fused_loop
from hpcflow.kernels.kernel_registry import KernelNode
from tests.native import emulated
from tests.native.test_nest import CASES, F4, RNG, cross_entropy, f4, of, softmax

SHAPES = [(1, 2), (3, 5), (70, 16), (2, 300)]
GUARD, POISON = 64, -77  # elements around each result that nothing may touch, and what they hold
pytestmark = pytest.mark.skipif(
    bool(ptx_compiler.absent()), reason=f"needs llvmlite: {ptx_compiler.absent()}"
)

DOUBLE = emulated.XP


@pytest.fixture(params=[4, 32, 256])
def threads(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    emulated.install(monkeypatch, request.param)
    return request.param


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few threads, so that each has several elements, rows and slices."""
    emulated.install(monkeypatch, 16)
    for name, value in (("BLOCKS", 3), ("DEEP", 2)):
        monkeypatch.setattr(ptx_codegen, name, value)


def results(
    body: KernelBody,
    shapes: list[Any],
    *given: np.ndarray,
    big: bool = False,
    size: int = 0,
    xp: Any = DOUBLE,
) -> list[Any]:
    """What the kernel of a body makes, by the row of the kernel table; nothing beside it."""
    text = ptx_codegen.text(body, not big)
    assert text is not None
    size = size or max([x.size for x in given] + [int(np.prod(shape)) for shape, _ in shapes])
    empty = [np.full(int(np.prod(s)) + 2 * GUARD, POISON, kind) for s, kind in shapes]
    rooms = [xp.asarray(room) for room in empty]
    made = [r[GUARD:-GUARD].reshape(s) for r, (s, _) in zip(rooms, shapes, strict=True)]
    attrs = {"body": body, "loose": (), "text": text, "size": size}
    specs = [[Spec(x.dtype, x.shape) for x in some] for some in (given, made)]
    inputs = [xp.asarray(x) for x in given]
    llvm_fused_loop._fused_on_gpu(xp, KernelNode("Fused", attrs, *specs))(*inputs, *made)
    made = [xp.asnumpy(x) for x in made]
    for room in map(xp.asnumpy, rooms):
        poison = np.array(POISON).astype(room.dtype)
        assert (room[:GUARD] == poison).all() and (room[-GUARD:] == poison).all()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("number", [70, 80, 90])
def test_code_for_gpus_calls_nothing_and_needs_no_memory_of_a_thread(number: int) -> None:
    texts = []
    for dtype in (F4, np.dtype("f8")):
        for type, (ways, _, _, attrs) in CASES.items():
            steps = StepBuilder(tuple(KernelOperand(dtype, way) for way in ways), 40)
            body = steps.body(EXPANSIONS[type](steps, dtype, attrs, *range(len(ways))))
            texts.append(ptx_codegen.text(body, True))
    of_bits = re.compile("Bitwise|Logical|Invert|Select")
    formulas = [type for type in {**EXACT, **CLOSE} if not of_bits.match(type)]
    for type, dtype in product(formulas, (F4, np.dtype("f8"))):
        for many in (1, 2, 3):
            with suppress(TypeError):
                steps = StepBuilder(tuple(KernelOperand(dtype, FULL) for _ in range(many)), 0)
                texts.append(
                    ptx_codegen.text(steps.body((steps(type, *range(many), dtype=F4),)), True)
                )
    made = [text.replace(kernel_cache.NAME, f"@k{i}") for i, text in enumerate(texts) if text]
    assert len(made) > 100
    code = ptx_compiler.assembled(made, number).decode()
    emulated.check(code)
    assert code.count(".entry") >= len(made) and f".target sm_{number}" in code


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (3000, 1000), (70_000, 33), (5, 30_000)], ids=str)
@pytest.mark.parametrize("type", CASES)
def test_on_a_real_gpu(type: str, shape: tuple[int, int]) -> None:
    import cupy

    over_rows(type, shape, xp=cupy)


def near(found: Any, wanted: Any, factor: float = 4e-6) -> None:
    scale = max(1.0, float(np.nanmax(np.abs(wanted))))
    np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), atol=factor * scale)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("type", CASES)
def test_an_operation_over_rows(type: str, shape: tuple[int, int], threads: int) -> None:
    over_rows(type, shape)


def over_rows(type: str, shape: tuple[int, int], xp: Any = DOUBLE) -> None:
    """An operation of `CASES` beside its formula in 64 bits."""
    ways, made, function, attrs = CASES[type]
    inputs = [f4(*of(way, *shape)) * 3 for way in ways]
    if type == "NormalizeGrad":
        inputs[2] = np.abs(inputs[2])
    if type == "LogSoftmaxGrad":
        inputs[1] = -np.abs(inputs[1])
    steps = StepBuilder(tuple(KernelOperand(F4, way) for way in ways), shape[1])
    values = EXPANSIONS[type](steps, F4, attrs, *range(len(ways)))
    found = results(steps.body(values), [(of(way, *shape), "f4") for way in made], *inputs, xp=xp)
    wanted = function(*(x.astype("f8") for x in inputs))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for mine, right in zip(found, wanted, strict=True):
        near(mine, right)


@pytest.mark.parametrize("dtype", ["i4", "i8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cross_entropies(shape: tuple[int, int], dtype: str, few: None) -> None:
    x, rows = f4(*shape) * 5, shape[0]
    labels = RNG.integers(0, shape[1], rows).astype(dtype)
    hot = np.zeros(shape, "f4")
    hot[np.arange(rows), labels] = 1
    loss, grad = cross_entropy(x.astype("f8"), hot)
    wrong = np.arange(rows) % 3 == 2  # labels outside of the classes
    labels[wrong] = np.where(np.arange(rows) % 2, -1, shape[1])[wrong]
    loss[wrong], grad[wrong] = np.nan, np.nan
    steps = StepBuilder((KernelOperand(F4, FULL), KernelOperand(labels.dtype, COLUMN)), shape[1])
    values = EXPANSIONS["SparseSoftmaxCrossEntropy"](steps, F4, {"device": "gpu"}, 0, 1)
    found = results(steps.body(values), [((rows,), "f4"), (shape, "f4")], x, labels)
    np.testing.assert_allclose(found[0], loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], grad, atol=1e-6)


@pytest.mark.parametrize("big", [False, True], ids=["32 bits", "64 bits"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
def test_elements_of_all_ways(dtype: str, big: bool, few: None) -> None:
    """More than there are threads; rows, columns and scalars go with them as they should."""
    ways = {FULL: (37, 11), ROW: (11,), COLUMN: (37,), ONE: ()}
    inputs = [np.asarray(RNG.integers(-9, 9, shape)).astype(dtype) for shape in ways.values()]
    steps = StepBuilder(
        tuple(KernelOperand(x.dtype, w) for x, w in zip(inputs, ways, strict=True)), 11
    )
    sum = steps("Add", steps("Mul", steps("Sub", 0, 1), 2), 3)
    body = steps.body((sum, steps("Less", 0, 1), 0))
    shapes = [((37, 11), dtype), ((37, 11), "?"), ((37, 11), dtype)]
    found = results(body, shapes, *inputs, big=big)
    x, row, column, one = inputs
    assert np.array_equal(found[0], (x - row) * column[:, None] + one)
    assert np.array_equal(found[1], x < row) and np.array_equal(found[2], x)


def test_rows_of_any_length(few: None) -> None:
    steps = StepBuilder((KernelOperand(F4, FULL), KernelOperand(F4, FULL)), 0)
    x, y = f4(1001), f4(1001)
    (found,) = results(steps.body((steps("Add", 0, steps("Tanh", 1)),)), [((1001,), "f4")], x, y)
    np.testing.assert_allclose(found, x + np.tanh(y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 7, 100])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_sums_of_columns(rows: int, dtype: str, threads: int) -> None:
    """Beside the elements that are summed, and beside sums of rows."""
    g, y = (RNG.standard_normal((rows, 45)).astype(dtype) for _ in range(2))
    kinds = tuple(KernelOperand(g.dtype, FULL) for _ in range(2))
    shapes = [((rows, 45), dtype), ((45,), dtype)]
    for of_rows in (False, True):
        steps = StepBuilder(kinds, 45)
        back = steps("ReluGrad", 0, 1)
        if of_rows:
            back = steps("Sub", back, steps(SUM, back))
        body = steps.body((back, steps(COLUMN_SUM, back)))
        found = results(body, shapes, g, y)
        wanted = g * (y > 0)
        wanted = wanted - wanted.sum(1, keepdims=True) if of_rows else wanted
        near(found[0], wanted)
        near(found[1], wanted.sum(0), 1e-5)
        again = results(body, shapes, g, y)
        assert found[1].tobytes() == again[1].tobytes()


def test_nan_and_infinity_stay_in_their_rows(few: None) -> None:
    x = f4(4, 50)
    x[1, 7], x[2, 9], x[3, 3] = np.nan, np.inf, -np.inf
    steps = StepBuilder((KernelOperand(F4, FULL),), 50)
    values = EXPANSIONS["Softmax"](steps, F4, {}, 0)
    found, top = results(steps.body((values[0], steps(MAX, 0))), [((4, 50), "f4"), ((4,), "f4")], x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, softmax(x), atol=1e-6)
        np.testing.assert_array_equal(top, x.max(1))


def test_in_place(few: None) -> None:
    """x is read again in the loop behind the one that stores the first result: it stays."""
    steps = StepBuilder((KernelOperand(F4, FULL), KernelOperand(F4, FULL)), 9)
    first = steps("Add", 0, 1)
    body = steps.body((first, steps("Sub", 0, steps(SUM, first))))
    assert ptx_codegen.schedule(body).writable() == [1]
    body = steps.body((steps("Sub", 0, steps(SUM, first)), first))
    assert ptx_codegen.schedule(body).writable() == [0, 1]
    x, y = f4(30, 9), f4(30, 9)
    wanted, other = x - (x + y).sum(1, keepdims=True), np.empty_like(x)
    run, how = (
        kernel_cache.on_gpu(emulated.cuda, str(ptx_codegen.text(body, True))),
        ptx_codegen.launch(body, x.size),
    )
    run(how.grid, how.block, (x, y, x, other, how.length))
    near(x, wanted)


def barriers(text: str) -> Iterator[str]:
    """The text without one of its barriers, for each of them."""
    call = f"  call void @{ptx_codegen.BARRIER}()\n"
    parts = text.split(call)
    for k in range(1, len(parts)):
        yield call.join(parts[:k]) + call.join(parts[k:])


def test_a_barrier_less_is_noticed(few: None) -> None:
    steps = StepBuilder((KernelOperand(F4, FULL),), 50)
    high = steps("Sub", 0, steps(MAX, 0))
    body = steps.body((steps("Mul", high, steps(SUM, high)),))
    x, how = f4(200, 50), ptx_codegen.launch(body, 10000)
    wanted = x - x.max(1, keepdims=True)
    wanted = wanted * wanted.sum(1, keepdims=True)
    text = str(ptx_codegen.text(body, True))
    without = list(barriers(text))
    assert len(without) == 12
    for one in (text, *without):
        found = np.full_like(x, np.nan)
        kernel_cache.on_gpu(emulated.cuda, one)(how.grid, how.block, (x, found, how.length))
        assert np.allclose(found, wanted, 1e-4, 1e-4) == (one is text)


def test_threads_at_different_barriers_are_noticed(few: None) -> None:
    steps = StepBuilder((KernelOperand(F4, FULL),), 50)
    body = steps.body((steps(SUM, 0),))
    text = str(ptx_codegen.text(body, True)).replace(
        f"  call void @{ptx_codegen.BARRIER}()\n", "", 1
    )
    text = text.replace("store float", f"call void @{ptx_codegen.BARRIER}()\n  store float")
    with pytest.raises(AssertionError, match="same barriers"):
        kernel_cache.on_gpu(emulated.cuda, text)((1, 1), (16, 1), (f4(3, 50), f4(3), 3))


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 5000), cols=st.integers(1, 40000))
def test_launches_fit_a_gpu(rows: int, cols: int) -> None:
    for way in (FULL, SUM, COLUMN_SUM):
        steps = StepBuilder((KernelOperand(F4, FULL),), cols)
        body = steps.body((steps("Square" if way == FULL else way, 0),))
        how = ptx_codegen.launch(body, rows * cols)
        assert how.block[0] * how.block[1] == ptx_codegen.THREADS and how.grid[1] < 65536
        assert (
            how.slices <= ptx_codegen.SLICES
            and how.length * (1 if way == FULL else cols) == rows * cols
        )


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("rows", [1, 6, 50])
def test_rows_where_they_lie(rows: int, sums: bool, few: None) -> None:
    """x[:, 1] + mask[i % 2, i // 2], then that and x[:, 0] as the halves of rows."""
    cols = 18
    x, mask = f4(rows, 3, cols), f4(2, -(-rows // 2))
    operands = (
        KernelOperand(F4, FULL, 0, (cols, ((1, 0, 3 * cols),))),
        KernelOperand(F4, COLUMN, 0, (0, ((1, 2, mask.shape[1]), (2, 0, 1)))),
        KernelOperand(F4, FULL, 0, (0, ((1, 0, 3 * cols),))),
    )
    steps = StepBuilder(operands, cols)
    total = steps("Add", 0, 1)
    total = steps("Sub", total, steps(SUM, total)) if sums else total
    body = steps.body((steps.add(JOIN, (total, 2), {}, JOINED),))._replace(size=rows * cols)
    (found,) = results(body, [((rows, 2, cols), "f4")], x, mask, x, size=rows * cols)
    i = np.arange(rows)
    wanted = x[:, 1] + mask[i % 2, i // 2][:, None]
    wanted = wanted - wanted.sum(1, keepdims=True) * sums
    near(found[:, 0], wanted)
    np.testing.assert_array_equal(found[:, 1], x[:, 0])


def over_elements(xp: Any, size: int, cols: int, offset: int) -> None:
    """(x - row) * column + one of four dtypes, and its sum with y, stored as two dtypes."""
    rng = np.random.default_rng(size + offset)
    rows = size // cols
    shapes = {FULL: (rows, cols), ROW: (cols,), COLUMN: (rows,), ONE: ()}
    for dtype in ("f4", "f8", "bfloat16", "f2"):
        kind = as_dtype(dtype) if len(dtype) > 2 else np.dtype(dtype)
        inputs = []
        for shape in [*shapes.values(), (rows, cols)]:
            values = rng.integers(-4, 4, shape).astype(kind)
            room = xp.empty(int(np.prod(shape)) + offset, kind)
            room[offset:] = xp.asarray(values.reshape(-1))
            inputs.append((values, room[offset:].reshape(shape)))
        ways = [*shapes, FULL]
        steps = StepBuilder(tuple(KernelOperand(kind, way) for way in ways), cols)
        wide = [steps("Cast", i, dtype=F4) if kind.itemsize == 2 else i for i in range(5)]
        total = steps("Add", steps("Mul", steps("Sub", wide[0], wide[1]), wide[2]), wide[3])
        more = steps("Add", total, wide[4])
        kept = steps(ROUND, total, storage=kind.name) if kind.itemsize == 2 else total
        body = steps.body((kept, more))
        result = F4 if kind.itemsize == 2 else kind
        x, row, column, one, y = (values.astype("f8") for values, _ in inputs)
        wanted = (x - row) * column[:, None] + one
        shapes_made = [((rows, cols), kind), ((rows, cols), result)]
        found = results(body, shapes_made, *(on for _, on in inputs), xp=xp)
        assert np.array_equal(found[0].astype("f8"), wanted)
        assert np.array_equal(found[1].astype("f8"), wanted + y)


@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 2, 37])
def test_vectors_of_elements(rows: int, offset: int, few: None) -> None:
    """Arrays that begin at an aligned address or not; small integers are exact in all dtypes."""
    for cols in (8, 12, 5):
        over_elements(DOUBLE, rows * cols, cols, offset)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_vectors_of_elements_on_a_real_gpu(offset: int) -> None:
    import cupy

    for rows, cols in ((4096, 64), (3000, 100), (70_001, 5), (999, 4000)):
        over_elements(cupy, rows * cols, cols, offset)
