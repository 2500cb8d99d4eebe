"""Large kernels on several threads: bits of one, sums over ranges, one pool a process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen import (
    einsum_codegen,
    kernel_cache,
    max_pooling_codegen,
    row_gather_scatter_codegen,
    thread_team,
    variable_update_codegen,
)
from hpcflow.codegen.fused_loop_ir import (
    COLUMN,
    COLUMN_SUM,
    FULL,
    ONE,
    ROW,
    KernelBody,
    KernelOperand,
    KernelStep,
)
from hpcflow.codegen.llvm_cpu_codegen import text
from hpcflow.codegen.llvm_cpu_compiler import machine

F4 = np.dtype("f4")
TWO = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Maximum": np.maximum}
FIELDS = ("threads", "start", "count", "number")
JOB = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Threads:
    """An OpenMP whose threads take turns, in another order each time; `given` are fewer than asked
    for, if that is set."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.given, self.now, self.team = 0, 0, 1
        self.rng = np.random.default_rng(3)
        whole = ctypes.CFUNCTYPE(ctypes.c_int)
        start = ctypes.CFUNCTYPE(None, JOB, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self.library = SimpleNamespace(
            GOMP_parallel=start(self.run),
            omp_get_num_threads=whole(lambda: self.team),
            omp_get_thread_num=whole(lambda: self.now),
        )

    def run(self, job: Any, what: int, number: int, flags: int) -> None:
        self.asked.append(number)
        self.team = self.given or number
        for k in self.rng.permutation(self.team):
            self.now = int(k)
            job(what)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    machine()  # which uses the process's own OpenMP
    monkeypatch.setattr(thread_team, "_barred", set())
    before = {name: getattr(thread_team._team, name) for name in FIELDS}
    made = Threads()
    thread_team.use(made.library)
    yield made
    for name, value in before.items():
        setattr(thread_team._team, name, value)


def f4(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype("f4")


def program(
    rng: np.random.Generator, size: int, cols: int
) -> tuple[KernelBody, list[Any], list[Any]]:
    """Random operations on arrays of `size` elements, their arguments, and NumPy's results."""
    count = size // cols if cols else 1
    given = {FULL: f4(rng, count, cols or size), ONE: f4(rng, 1, 1)}
    if cols:
        given |= {ROW: f4(rng, 1, cols), COLUMN: f4(rng, count, 1)}
    operands = tuple(KernelOperand(F4, way) for way in given)
    values = list(given.values())
    steps: list[KernelStep] = []
    for _ in range(6):
        i, j = len(values) - 1 if steps else 0, int(rng.integers(len(values)))
        type = str(rng.choice(list(TWO)))
        steps.append(KernelStep(type, (i, j), {}))
        values.append(TWO[type](values[i], values[j]))
    results = (len(values) - 1, len(operands) + 1)
    return KernelBody(operands, tuple(steps), results, cols), list(given.values()), values


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3, 5])
def test_elements_and_rows_have_the_bits_of_numpy(threads: Threads, number: int) -> None:
    rng = np.random.default_rng(number)
    for size in (
        thread_team.MIN_GIL_RELEASE_ELEMENTS - 1,
        thread_team.MIN_GIL_RELEASE_ELEMENTS,
        thread_team.MIN_GIL_RELEASE_ELEMENTS + 1,
        5 * thread_team.MIN_RANGE_ELEMENTS,
        50_021,
        2 * thread_team.MIN_GIL_RELEASE_ELEMENTS,
    ):
        for cols in (0, 0, 1 + int(rng.integers(60)), size // 2):
            thread_team.resize(number)
            body, given, values = program(rng, size, cols)
            outs = [np.full_like(given[0], np.nan) for _ in body.results]
            written = text(body, exact=True)
            assert written is not None
            threads.asked.clear()
            kernel_cache.builtin(written)(*given, *outs)
            large = given[0].size >= max(
                thread_team.MIN_GIL_RELEASE_ELEMENTS, number * thread_team.MIN_RANGE_ELEMENTS
            )
            assert threads.asked == [number] * large, (size, cols)
            for out, value in zip(outs, body.results, strict=True):
                assert out.tobytes() == values[value].tobytes(), (size, cols)


@pytest.mark.parametrize("given", [0, 1, 2])
def test_sums_of_columns_are_of_all_threads_there_are(threads: Threads, given: int) -> None:
    rng = np.random.default_rng(5)
    steps = (
        KernelStep("Mul", (0, 1), {}),
        KernelStep(COLUMN_SUM, (2,), {}, ROW),
        KernelStep(COLUMN_SUM, (0,), {}, ROW),
    )
    body = KernelBody((KernelOperand(F4, FULL), KernelOperand(F4, FULL)), steps, (2, 3, 4), 37)
    written = text(body, exact=False)
    assert written is not None
    x, y = f4(rng, 1001, 37), f4(rng, 1001, 37)
    product, sums, others = np.empty_like(x), np.full(37, np.nan, "f4"), np.full(37, np.nan, "f4")
    threads.given = given
    thread_team.resize(4)
    kernel_cache.builtin(written)(x, y, product, sums, others)
    assert threads.asked == [4] and (product == x * y).all()
    np.testing.assert_allclose(sums, (x * y).astype(float).sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(others, x.astype(float).sum(0), rtol=1e-4, atol=1e-4)


def test_sums_that_are_too_large_for_the_stack_are_made_by_one_thread(threads: Threads) -> None:
    cols = thread_team.MOST_SUMS // 4
    body = KernelBody(
        (KernelOperand(F4, FULL),), (KernelStep(COLUMN_SUM, (0,), {}, ROW),), (1,), cols
    )
    written = text(body, exact=False)
    assert written is not None
    x, sums = np.ones((3, cols), "f4"), np.empty(cols, "f4")
    for number in (2, 3):
        thread_team.resize(number)
        kernel_cache.builtin(written)(x, sums)
        assert (sums == 3).all()
    assert threads.asked == [2]


def test_updates_count_once_for_all_threads_and_ranges(threads: Threads) -> None:
    """Adam as its paper has it: Kingma and Ba, algorithm 1."""
    rng, size = np.random.default_rng(9), 3 * thread_team.MIN_GIL_RELEASE_ELEMENTS + 17
    targets = (
        *(variable_update_codegen.UpdateTarget(F4) for _ in range(3)),
        variable_update_codegen.UpdateTarget(np.dtype("i8"), counts=True),
    )
    operands = (*(KernelOperand(F4, ONE) for _ in range(4)), KernelOperand(F4, FULL))
    adam = variable_update_codegen.VariableChange("ApplyAdam", (0, 1, 2, 3), (0, 1, 2, 3, 4), {})
    update = variable_update_codegen.UpdateKernel(targets, operands, (adam,), ())
    written = variable_update_codegen.text(update, exact=True)
    assert written is not None
    w, m, v, count = f4(rng, size), np.zeros(size, "f4"), np.zeros(size, "f4"), np.zeros(1, "i8")
    numbers = [np.full(1, x, "f4") for x in (0.01, 0.9, 0.999, 1e-8)]
    wide = [a.astype(float) for a in (w, m, v)]
    thread_team.resize(3)
    for step, cuts in enumerate(
        [
            (0, size),
            (0, thread_team.MIN_GIL_RELEASE_ELEMENTS, size),
            (0, 5, 2 * thread_team.MIN_GIL_RELEASE_ELEMENTS, size),
        ],
        1,
    ):
        g = f4(rng, size)
        for first, last in pairwise(cuts):
            arrays = [a for one in (w, m, v, count) for a in (one, one)]
            kernel_cache.builtin(written)(first, last, *arrays, *numbers, g)
        wide[1] = 0.9 * wide[1] + 0.1 * g
        wide[2] = 0.999 * wide[2] + 0.001 * g.astype(float) ** 2
        rate = 0.01 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        wide[0] -= rate * wide[1] / (np.sqrt(wide[2]) + 1e-8)
        assert count[0] == step
        np.testing.assert_allclose(w, wide[0], rtol=1e-3, atol=2e-5)
    assert threads.asked == [3] * 5


@pytest.mark.parametrize("number", [2, 7])
def test_rows_are_taken_and_changed_as_by_numpy(threads: Threads, number: int) -> None:
    rng = np.random.default_rng(number)
    table, indices = f4(rng, 500, 72), rng.integers(0, 500, 1003)
    out, changes = np.full((1003, 72), np.nan, "f4"), rng.integers(-9, 9, (1003, 72)).astype("f4")
    thread_team.resize(number)
    assert not kernel_cache.builtin(row_gather_scatter_codegen.gather_kernel(4, "int64", 0, 3))(
        table, indices, out
    )
    assert (out == table[indices]).all()
    sums = np.zeros((500, 72), "f4")
    add = kernel_cache.builtin(row_gather_scatter_codegen.change("Add", "float32", "int64", 0, 5))
    assert not add(sums, indices, changes)
    wanted = np.zeros((500, 72))
    np.add.at(wanted, indices, changes)
    assert (sums == wanted).all() and threads.asked == [number] * 2
    indices[-2:] = 500, -1
    assert add(sums, indices, changes) == 2 and (sums == wanted).all()
    assert threads.asked == [number] * 2


def test_rows_of_a_formula_are_changed_once(threads: Threads) -> None:
    rng = np.random.default_rng(11)
    operands, steps = (
        (KernelOperand(F4, ONE), KernelOperand(F4, FULL)),
        (KernelStep("Mul", (1, 2), {}),),
    )
    body = row_gather_scatter_codegen.RowUpdateFormula(F4, "int64", operands, steps, (("Sub", 3),))
    table, rate, g = f4(rng, 900, 40), np.full(1, 0.5, "f4"), f4(rng, 700, 40)
    indices, before = rng.permutation(900)[:700], table.copy()
    written = row_gather_scatter_codegen.formula(body, 3, exact=True)
    assert written is not None
    thread_team.resize(3)
    kernel_cache.builtin(written)(table, indices, rate, g)
    before[indices] -= 0.5 * g
    assert (table == before).all() and threads.asked == [3]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("bi,bi->b", [(903, 40), (903, 40)]), ("bki,bi->bk", [(101, 9, 40), (101, 40)]),
     ("bk,bi->bki", [(101, 9), (101, 40)]), ("ki,i->k", [(903, 40), (40,)]),
     ("i,i->", [(40_000,), (40_000,)])],
)  # fmt: skip
def test_products_of_vectors(threads: Threads, equation: str, shapes: list[Any]) -> None:
    rng = np.random.default_rng(12)
    x, y = (f4(rng, *shape) for shape in shapes)
    wanted = np.einsum(equation, x.astype(float), y.astype(float))
    left, _, right = equation.partition("->")
    out = np.full(wanted.shape, np.nan, "f4")
    thread_team.resize(3)
    kernel_cache.builtin(einsum_codegen.text(left.split(","), right, "float32"))(x, y, out)
    assert threads.asked == [3]
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("given", [0, 2])
def test_pooling(threads: Threads, given: int) -> None:
    rng = np.random.default_rng(13)
    pool = max_pooling_codegen.PoolShape(11, (20, 20), 8, (10, 10), (2, 2), (2, 2), (0, 0))
    x, g = f4(rng, 11, 20, 20, 8), f4(rng, 11, 10, 10, 8)
    y, back, sums = np.full_like(g, np.nan), np.full_like(x, np.nan), np.full(8, np.nan, "f4")
    threads.given = given
    thread_team.resize(5)
    kernel_cache.builtin(max_pooling_codegen.largest(pool))(x, y)
    windows = x.reshape(11, 10, 2, 10, 2, 8)
    assert (y == windows.max((2, 4))).all()
    kernel_cache.builtin(max_pooling_codegen.gradient(pool, relu=True, bias=True))(
        x, y, g, back, sums
    )
    whole = y[:, :, None, :, None]
    wanted = np.where((windows == whole) & (whole > 0), g[:, :, None, :, None], 0)
    assert (back.reshape(windows.shape) == wanted).all() and threads.asked == [5, 5]
    np.testing.assert_allclose(
        sums, wanted.astype(float).sum((0, 1, 2, 3, 4)), rtol=1e-4, atol=1e-4
    )


def test_one_thread_asks_for_no_others(threads: Threads) -> None:
    thread_team.resize(1)
    assert adds(1 << 16) and not threads.asked


def test_there_are_no_others_beside_blas_that_has_some(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_team, "_is_only", False)
    monkeypatch.setattr(thread_team, "_barred", set())
    x = np.full((80, 80), 2.0)
    with hf.Session() as session:
        assert (session.run(hf.constant(x) + 1.0) == 3).all()
        thread_team.resize(2)
        assert thread_team.size() == 2
        assert (session.run(hf.matmul(hf.constant(x), x)) == 320).all()  # of 64 bits
    thread_team.use(threads.library)
    thread_team.resize(2)
    assert thread_team.size() == 1 and adds(1 << 16) and not threads.asked
    thread_team.blas_is_single_threaded()
    thread_team.beside_blas()
    thread_team.resize(2)
    assert adds(1 << 16) and threads.asked == [2]


def adds(size: int) -> bool:
    """Whether a kernel adds rightly."""
    body = KernelBody((KernelOperand(F4, FULL),), (KernelStep("Add", (0, 0), {}),), (1,), 0)
    written = text(body, exact=True)
    assert written is not None
    x = np.arange(size, dtype="f4")
    y = np.full_like(x, np.nan)
    kernel_cache.builtin(written)(x, y)
    return bool((y == x + x).all())


REAL = """
import os, sys, signal, threading
import hpcflow
from hpcflow.codegen import thread_team
from tests.native.test_team import adds

signal.alarm(180)  # of what hangs
assert adds(10) and thread_team.size() == 2, thread_team.size()
found = []
work = lambda: found.append(all(adds(1 << 16) for _ in range(50)))
running = [threading.Thread(target=work) for _ in range(3)]
for one in running: one.start()
work()
for one in running: one.join()
assert found == [True] * 4, found
child = os.fork()
if child == 0:
    signal.alarm(180)
    os._exit(0 if adds(1 << 16) and thread_team.size() == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
assert adds(1 << 16)
"""


def test_threads_of_openmp_with_threads_of_python_and_in_a_process_that_was_forked() -> None:
    environ = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    environ |= {"HPCFLOW_THREADS": "2"}
    subprocess.run([sys.executable, "-c", REAL], env=environ, check=True, timeout=400)
