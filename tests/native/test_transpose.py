"""Matrix transposes on GPUs, in an emulator and on a real one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcflow.codegen import kernel_cache, ptx_compiler, ptx_transpose_codegen
from tests.native import emulated

pytestmark = pytest.mark.skipif(
    bool(ptx_compiler.absent()), reason=f"needs llvmlite: {ptx_compiler.absent()}"
)
SHAPES = [(1, 1), (3, 70), (33, 32), (64, 5), (1, 40), (100, 1), (65, 97)]


def check(xp: Any, cuda: Any, shape: tuple[int, int], dtype: str) -> None:
    """The transpose, and nothing beside it."""
    rows, cols = shape
    x = np.random.default_rng(rows).integers(0, 200, shape).astype(dtype)
    room = xp.asarray(np.full(rows * cols + 128, 7).astype(dtype))
    made = room[64:-64]
    text = ptx_transpose_codegen.transpose(x.itemsize, rows, cols)
    how = ptx_transpose_codegen.launch(rows, cols)
    kernel_cache.on_gpu(cuda, text)(how.grid, how.block, (xp.asarray(x), made, how.length))
    guards = xp.concatenate([room[:64], room[-64:]])
    assert (guards == 7).all()
    assert (made.reshape(cols, rows) == xp.asarray(np.ascontiguousarray(x.T))).all()


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
@pytest.mark.parametrize("threads", [16, 64, 256])
def test_a_transpose(monkeypatch: Any, dtype: str, threads: int) -> None:
    emulated.install(monkeypatch, threads)
    for shape in SHAPES:
        check(np, emulated.cuda, shape, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
def test_on_a_real_gpu(dtype: str) -> None:
    import cupy

    for shape in (*SHAPES, (2048, 1000), (12_345, 67)):
        check(cupy, cupy.cuda, shape, dtype)
