"""Generated products of float64, against NumPy's in longer floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen import matmul_codegen
from hpcflow.codegen.kernel_cache import builtin
from hpcflow.codegen.matmul_codegen import VectorRegisters
from hpcflow.graph.static_shape import Spec, require_known
from hpcflow.kernels.kernel_registry import KernelNode, choose_kernel, kernel_preferences
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

RNG = np.random.default_rng(3)
SIZES = [  # rows, columns, summed
    *[(1, 1, 1), (7, 9, 5), (33, 12, 17), (64, 64, 64), (100, 1, 20), (20, 3, 200), (16, 200, 3)],
    *[(13, 63, 65), (128, 32, 130), (6, 8, 64), (5, 33, 1)],
]
TURNS = [(False, False), (False, True), (True, False)]


def operands(
    rows: int, columns: int, summed: int, turns: tuple[bool, bool]
) -> tuple[np.ndarray, np.ndarray]:
    a, b = RNG.standard_normal((rows, summed)), RNG.standard_normal((summed, columns))
    return (
        np.ascontiguousarray(a.T) if turns[0] else a,
        np.ascontiguousarray(b.T) if turns[1] else b,
    )


def product(a: np.ndarray, b: np.ndarray, turns: tuple[bool, bool]) -> np.ndarray:
    """The generated kernel's result, in memory that held NaN."""
    rows, columns = a.shape[1 if turns[0] else 0], b.shape[0 if turns[1] else 1]
    out = np.full((rows, columns), np.nan)
    room = [np.empty(b.shape[::-1])] if turns[1] else []
    builtin(matmul_codegen.text(columns, "float64", *turns, rows))(a, b, out, *room)
    return out


@pytest.mark.parametrize("turns", TURNS, ids=["", "right", "left"])
@pytest.mark.parametrize(
    ("sizes", "registers"),
    [
        *((sizes, None) for sizes in SIZES),
        *(((33, 13, 9), r) for r in ((64, 32), (32, 16), (16, 16))),
    ],
    ids=str,
)
def test_products_of_any_sizes(
    sizes: tuple[int, int, int],
    turns: tuple[bool, bool],
    registers: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the vectors of this CPU, and of others."""
    if registers is not None:
        monkeypatch.setattr(matmul_codegen, "vector_registers", lambda: VectorRegisters(*registers))
    a, b = operands(*sizes, turns)
    found = product(a, b, turns)
    left, right = (a.T if turns[0] else a), (b.T if turns[1] else b)
    wanted = left.astype("longdouble") @ right.astype("longdouble")
    size = np.abs(left) @ np.abs(right)
    assert (np.abs(found - wanted) <= sizes[2] * 2.0**-53 * size).all()


@pytest.mark.parametrize("turns", TURNS, ids=["", "right", "left"])
def test_numbers_that_are_not_finite_stay_in_their_rows_and_columns(
    turns: tuple[bool, bool],
) -> None:
    a, b = operands(70, 40, 66, turns)
    a[(3, 5) if not turns[0] else (5, 3)] = np.nan
    b[(7, 11) if not turns[1] else (11, 7)] = np.inf
    found = product(a, b, turns)
    assert np.isnan(found[3]).all() and not np.isfinite(found[:, 11]).any()
    rest = np.delete(np.delete(found, 3, 0), 11, 1)
    assert np.isfinite(rest).all()


def node(sizes: tuple[int, int, int], turns: tuple[bool, bool], dtype: str) -> KernelNode:
    rows, columns, summed = sizes
    a = (summed, rows) if turns[0] else (rows, summed)
    b = (columns, summed) if turns[1] else (summed, columns)
    inputs = [Spec(np.dtype(dtype), a), Spec(np.dtype(dtype), b)]
    attrs = {"transpose_a": turns[0], "transpose_b": turns[1]}
    return KernelNode("MatMul", attrs, inputs, [Spec(np.dtype(dtype), (rows, columns))])


@pytest.mark.parametrize(
    ("of", "is_generated"),
    [
        (((2048, 64, 64), (False, False), "float64"), True),
        (((64, 64, 2048), (True, False), "float64"), True),
        (((2048, 64, 65), (False, False), "float64"), False),  # it does not stay in the L1 cache
        (((65, 64, 2048), (True, False), "float64"), False),
        (((2048, 64, 64), (False, False), "float32"), False),  # oneDNN's are faster
        (((4, 64, 64), (False, True), "float64"), False),  # transposing takes longer
        (((4, 64, 64), (False, False), "float64"), True),
        (((0, 64, 64), (False, False), "float64"), False),
        (((64, 64, 64), (True, True), "float64"), False),
    ],
)
def test_which_products_are_generated(of: Any, is_generated: bool) -> None:
    made = node(*of)
    chosen = choose_kernel(made, "cpu", kernel_preferences()).kernel
    assert (chosen.provider == "llvm") is is_generated
    assert choose_kernel(made, "cpu", kernel_preferences(exact=True)).kernel.provider != "llvm"


def values(threads: int) -> list[np.ndarray]:
    """A layer of a network of float64 with its gradients, of strided operands too."""
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float64, [1500, 40])
        w, v = (hf.placeholder(hf.float64, shape) for shape in ([30, 48], [48, 20]))
        y = hf.matmul(hf.tanh(hf.matmul(x[:, 5:35], w)), v)
        found = [y, *hf.gradients(hf.reduce_sum(hf.square(y)), [x, w, v])]
        rng = np.random.default_rng(5)
        feeds = {t: rng.standard_normal(require_known(t.shape)) for t in (x, w, v)}
        with hf.Session(context=RankContext(Settings(threads=threads))) as session:
            return [np.asarray(value) for value in session.run(found, feeds)]


def test_a_layer_and_its_gradients_with_one_thread_and_with_two() -> None:
    """The bits do not depend on the number of threads; the values are NumPy's."""
    one, two = values(1), values(2)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    rng = np.random.default_rng(5)
    x, w, v = (rng.standard_normal(shape) for shape in ((1500, 40), (30, 48), (48, 20)))
    h = np.tanh(x[:, 5:35] @ w)
    y = h @ v
    back = (2 * y @ v.T) * (1 - h * h)
    dx = np.zeros_like(x)
    dx[:, 5:35] = back @ w.T
    for found, wanted in zip(one, [y, dx, x[:, 5:35].T @ back, h.T @ (2 * y)], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("turns", TURNS, ids=["", "right", "left"])
def test_wide_products_are_not_more_code(turns: tuple[bool, bool]) -> None:
    """Tiles of one shape are a loop: compiling takes as long for any number of columns."""
    few, many = (matmul_codegen.text(n, "float64", *turns, 16) for n in (64, 4096))
    assert len(many) < 1.1 * len(few)
