"""Gather and scatter of rows on GPUs, emulated and real, beside the plain kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen import ptx_codegen, ptx_compiler
from hpcflow.errors import RangeError
from hpcflow.graph.dtypes import as_dtype
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.kernel_registry import (
    KernelNode,
    choose_kernel,
    find_plain_kernel,
    kernel_preferences,
)
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.native import emulated
from tests.runtime.test_gpu import gpus  # noqa: F401

pytestmark = pytest.mark.skipif(
    bool(ptx_compiler.absent()), reason=f"needs llvmlite: {ptx_compiler.absent()}"
)
KINDS = ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max")


def chosen(type: str, attrs: dict[str, Any], inputs: list[Spec]) -> tuple[Any, KernelNode]:
    node = KernelNode(type, attrs, inputs, lookup_op(type).infer(inputs, attrs))
    return choose_kernel(node, "gpu", kernel_preferences("llvm", exact=True)), node


def gathered(xp: Any, table: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, Any]:
    """The rows, and the object that holds an index outside of the table."""
    specs = [Spec(table.dtype, table.shape), Spec(indices.dtype, indices.shape)]
    choice, node = chosen("Gather", {"axis": 0, "batch_dims": 0}, specs)
    assert choice.kernel.provider == "llvm", choice.refused
    out = xp.asarray(np.full((*indices.shape, *table.shape[1:]), 77).astype(table.dtype))
    run = choice.kernel.make(xp, node)
    run(xp.asarray(table), xp.asarray(indices), out)
    return xp.asnumpy(out), run.wrong_index


def scattered(
    xp: Any, kind: str, table: np.ndarray, indices: np.ndarray, updates: np.ndarray, **more: Any
) -> tuple[np.ndarray, np.ndarray, Any]:
    """The table by the generated kernel and by the plain one of CPUs."""
    attrs = {"dtype": table.dtype, "shape": table.shape, **more}
    handle = Spec(np.dtype("V0"), ())
    specs = [handle, *(Spec(x.dtype, x.shape) for x in (indices, updates))]
    node = KernelNode(f"Scatter{kind}", attrs, specs, [])
    choice = choose_kernel(node, "gpu", kernel_preferences("llvm", exact=True))
    assert choice.kernel.provider == "llvm", choice.refused
    mine, its = xp.asarray(table.copy()), table.copy()
    run = choice.kernel.make(xp, node)
    run(mine, xp.asarray(indices), xp.asarray(updates))
    if indices.min() >= 0 and indices.max() < len(table):
        find_plain_kernel(f"Scatter{kind}", "cpu").make(np, node)(its, indices, updates)
    return xp.asnumpy(mine), its, run.wrong_index


def check_gather(xp: Any) -> None:
    rng = np.random.default_rng(0)
    for dtype in ("float32", "bfloat16", "float64", "int64", "bool"):
        for shape, places, index in (
            ((7, 5), (4, 3), "i4"),
            ((3, 2, 4), (9,), "i8"),
            ((6,), (), "i4"),
        ):
            table = rng.integers(0, 9, shape).astype(as_dtype(dtype))
            indices = rng.integers(0, shape[0], places).astype(index)
            found, wrong = gathered(xp, table, np.asarray(indices))
            assert np.array_equal(found, table[indices])
            assert wrong.error() is None
    for bad in (-1, 7, 2**31 - 1):
        found, wrong = gathered(xp, np.ones((7, 2), "f4"), np.array([1, bad, 2], "i4"))
        assert found.tolist() == [[1, 1], [0, 0], [1, 1]]
        assert f"gather: index {bad} is outside [0, 7)" in str(wrong.error())
        assert wrong.error() is None


def check_scatter(xp: Any, kind: str, width: int = 5) -> None:
    """Equal indices in the order of the updates, to the bit."""
    rng = np.random.default_rng(1)
    for dtype in ("float32", "float64", "int32", "bfloat16"):
        if kind == "Div" and dtype == "int32":
            continue
        for count, index in ((40, "i4"), (3, "i8"), (1, "i4")):
            table = rng.uniform(1, 9, (11, width)).astype(as_dtype(dtype))
            updates = rng.uniform(1, 2, (count, width)).astype(table.dtype)
            indices = rng.integers(0, 11, count).astype(index)
            mine, its, wrong = scattered(xp, kind, table, indices, updates)
            assert mine.tobytes() == its.tobytes()
            assert wrong.error() is None
    table, updates = np.zeros((4, width), "f4"), np.ones((3, width), "f4")
    mine, _, wrong = scattered(xp, "Add", table, np.array([2, 4, 0]), updates)
    assert mine[:, 0].tolist() == [1, 0, 1, 0]
    assert "scatter: index 4 is outside [0, 4)" in str(wrong.error())
    unique = np.array([3, 0, 2], "i4")
    mine, its, _ = scattered(xp, "Sub", table, unique, updates, distinct=True)
    assert np.array_equal(mine, its)


def test_gather(monkeypatch: Any) -> None:
    emulated.install(monkeypatch, 16)
    monkeypatch.setattr(ptx_codegen, "BLOCKS", 2)
    check_gather(emulated.XP)


@pytest.mark.parametrize("kind", KINDS)
def test_scatter(monkeypatch: Any, kind: str) -> None:
    emulated.install(monkeypatch, 4)
    check_scatter(emulated.XP, kind)


@pytest.mark.gpu
def test_gather_on_a_real_gpu() -> None:
    import cupy

    check_gather(cupy)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_scatter_on_a_real_gpu(kind: str) -> None:
    import cupy

    check_scatter(cupy, kind)
    check_scatter(cupy, kind, 600)


def trained_rows(indices: np.ndarray) -> Any:
    """Two steps of descent on an embedding; the table, and the step's function."""
    table = hf.Variable(np.arange(24, dtype="f4").reshape(8, 3), name="table")
    i = hf.placeholder(hf.int32, [None], name="i")
    loss = hf.reduce_sum(hf.square(hf.nn.embedding_lookup(table, i)))
    train = hf.train.GradientDescentOptimizer(0.25).minimize(loss)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    for _ in range(2):
        session.run([loss, train], {i: indices})
    return session.run(table)


def check_embedding() -> None:
    indices = np.array([3, 1, 3, 7], "i4")
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        found = trained_rows(indices)
    wanted = np.arange(24, dtype="f4").reshape(8, 3)
    for _ in range(2):
        before = wanted.copy()
        for i in indices:
            wanted[i] -= np.float32(0.25) * 2 * before[i]
    assert np.array_equal(found, wanted)
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        with pytest.raises(RangeError, match=r"index 8 is outside \[0, 8\)") as caught:
            trained_rows(np.array([3, 8], "i4"))
    assert "embedding_lookup" in caught.value.op and "test_ptx_rows.py" in caught.value.line


def scattered_at(index: int) -> hf.Session:
    """A session that has updated a row, and fetched nothing since."""
    table = hf.Variable(np.zeros((4, 2), "f4"), name="table")
    update = hf.scatter_add(table, np.array([1, index], "i4"), np.ones((2, 2), "f4"))
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    session.run(update.op)
    return session


def test_a_wrong_index_that_no_fetch_has_told_of_is_told_by_close(gpus: Any) -> None:  # noqa: F811
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        with pytest.raises(RangeError, match=r"index 7 is outside \[0, 4\)"):
            scattered_at(7).close()
        scattered_at(3).close()
        with pytest.raises(ZeroDivisionError), scattered_at(8):
            raise ZeroDivisionError


def test_and_by_the_end_of_the_program(gpus: Any, caplog: Any) -> None:  # noqa: F811
    context = RankContext(Settings())
    with use_context(context), hf.Graph().as_default():
        session = scattered_at(9)
    context.leave()
    assert "index 9 is outside [0, 4)" in caplog.text
    session.close()


def test_a_checkpoint_leaves_the_error_to_the_next_fetch(gpus: Any, tmp_path: Any) -> None:  # noqa: F811
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        session = scattered_at(5)
        hf.train.Saver().save(session, str(tmp_path / "model"))
        (table,) = hf.global_variables()
        with pytest.raises(RangeError, match=r"index 5 is outside \[0, 4\)"):
            session.run(table)
        assert session.run(table).sum() == 2


def test_an_embedding_trains_and_a_wrong_index_is_an_error(gpus: Any) -> None:  # noqa: F811
    check_embedding()


@pytest.mark.gpu
def test_an_embedding_on_a_real_gpu() -> None:
    check_embedding()
