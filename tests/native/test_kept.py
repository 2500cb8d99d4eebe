"""What one process compiles others load; nothing that is not whole, or not the user's own, runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcflow.codegen import kernel_cache
from hpcflow.codegen.fused_loop_ir import FULL, KernelBody, KernelOperand, KernelStep
from hpcflow.codegen.llvm_cpu_codegen import text
from hpcflow.codegen.llvm_cpu_compiler import CpuCompiler
from hpcflow.platform import artifact_cache

ACROSS = """
import sys, time
import numpy as np
sys.path.insert(0, sys.argv[2])
from test_kept import doubling
from hpcflow.codegen import kernel_cache
from hpcflow.codegen.llvm_cpu_compiler import CpuCompiler
built = []
build = CpuCompiler.build
CpuCompiler.build = lambda *a: built.append(time.sleep(0.5)) or build(*a)
kernel_cache.use(sys.argv[1])
x, y = np.arange(5.0), np.empty(5)
kernel_cache.builtin(doubling("f8"))(x, y)
assert y.tolist() == [0, 2, 4, 6, 8], y
print(len(built))
"""


def doubling(dtype: str) -> str:
    """A kernel that adds an array to itself."""
    body = KernelBody(
        (KernelOperand(np.dtype(dtype), FULL),), (KernelStep("Add", (0, 0), {}),), (1,), 0
    )
    made = text(body, exact=True)
    assert made is not None
    return made


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many kernels were compiled each time; the process has none, and no folder, at first."""
    found: list[int] = []
    build = CpuCompiler.build

    def counted(self: CpuCompiler, texts: object) -> bytes:
        given = list(texts)  # type: ignore[call-overload]
        found.append(len(given))
        return build(self, given)

    monkeypatch.setattr(CpuCompiler, "build", counted)
    monkeypatch.setattr(kernel_cache, "folder", None)
    forget(monkeypatch)
    return found


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(kernel_cache, "_loaded", set())
    kernel_cache.builtin.cache_clear()


def runs(dtype: str) -> bool:
    x = np.arange(100).astype(dtype)
    y = np.empty_like(x)
    kernel_cache.builtin(doubling(dtype))(x, y)
    return bool((y == x + x).all())


def test_kernels_of_a_plan_are_compiled_together_and_loaded_from_one_file(
    built: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_cache.use(str(tmp_path / "kernels"))
    texts = [doubling(dtype) for dtype in ("f4", "f8", "i4")]
    kernel_cache.prepare(texts)
    assert built == [3] and len(list((tmp_path / "kernels").iterdir())) == 1
    kernel_cache.prepare(texts[::-1])
    forget(monkeypatch)
    kernel_cache.prepare(texts[::-1])
    assert built == [3] and runs("f4") and runs("f8") and runs("i4")


@pytest.mark.parametrize("damage", ["cut", "empty", "bit"])
def test_a_damaged_file_is_compiled_again(
    built: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    kernel_cache.use(str(tmp_path))
    assert runs("f8")
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes({"cut": data[:-100], "empty": b"", "bit": data}[damage])
    forget(monkeypatch)
    assert runs("f8") and built == [1, 1]
    forget(monkeypatch)
    assert runs("f8") and built == [1, 1]


def test_code_under_the_name_of_other_code_is_not_used(
    built: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_cache.use(str(tmp_path))
    assert runs("f8")
    (first,) = tmp_path.iterdir()
    code = first.read_bytes()
    assert runs("f4")
    (second,) = set(tmp_path.iterdir()) - {first}
    second.write_bytes(code)
    forget(monkeypatch)
    assert runs("f4") and built == [1, 1, 1]
    forget(monkeypatch)
    assert runs("f4") and runs("f8") and built == [1, 1, 1]


def test_code_of_another_processor_is_not_used(
    built: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_cache.use(str(tmp_path))
    assert runs("f8")
    forget(monkeypatch)
    monkeypatch.setattr(kernel_cache.machine(), "identity", "another")
    assert runs("f8") and built == [1, 1]


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_where_others_may_write_is_not_used(
    built: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    tmp_path.chmod(mode)
    kernel_cache.use(str(tmp_path))
    assert kernel_cache.folder is None and "others may write there" in caplog.text
    assert runs("f8") and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_said_and_done_without(
    built: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    kernel_cache.use(str(tmp_path / "file" / "kernels"))
    assert "Not a directory" in caplog.text and "HPCFLOW_KERNEL_CACHE" in caplog.text
    assert runs("f8") and built == [1]


def test_none_is_no_folder_and_no_warning(
    built: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel_cache.use("none")
    assert kernel_cache.folder is None and not caplog.text


def test_the_oldest_files_go(
    built: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = artifact_cache.KERNELS._replace(most=8)
    monkeypatch.setattr(artifact_cache, "KERNELS", few)
    for i in range(8):
        (tmp_path / f"{i:064x}.o").write_bytes(b"")
        os.utime(tmp_path / f"{i:064x}.o", (i, i))
    kernel_cache.use(str(tmp_path))
    assert runs("f8")
    left = {file.name for file in tmp_path.iterdir()}
    assert len(left) == 7 and not left & {f"{i:064x}.o" for i in range(2)}


def test_of_several_processes_one_compiles_and_the_others_wait(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", ACROSS, str(tmp_path / "folder"), os.path.dirname(__file__)]
    jobs = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE) for _ in range(3)]
    counts = [int(job.communicate(timeout=400)[0]) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0] and sum(counts) == 1
