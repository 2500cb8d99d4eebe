"""The guards of conftest.py: a hang ends, a lonely failure is printed, CI refuses idle skips."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcflow.launch import launcher_detection

HERE = Path(__file__).parent


def run_pytest(folder: Path, source: str, ranks: int = 0, **env: str) -> tuple[int, str]:
    shutil.copy(HERE / "conftest.py", folder)
    (folder / "test_it.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  limit\n")
    options = ["-q", "-p", "no:cacheprovider", "--color=no"]
    argv = [sys.executable, "-m", "pytest", *options, str(folder)]
    environ = {**os.environ, "PYTHONPATH": str(HERE.parent), "CI": "", **env}
    if ranks:
        start = launcher_detection.start_command(ranks, [*argv, "--with-mpi"], environ)
        argv, environ = start.argv, start.env
    done = subprocess.run(argv, env=environ, cwd=folder, capture_output=True, timeout=220)
    text = (done.stdout + done.stderr).decode(errors="replace")
    return done.returncode, text


@pytest.mark.slow
def test_a_hang_prints_its_stack_and_ends(tmp_path: Path) -> None:
    source = """
import time, pytest
@pytest.mark.limit(1)
def test_it():
    time.sleep(200)
"""
    code, text = run_pytest(tmp_path, source)
    assert code == 1 and "Timeout" in text and "line 5 in test_it" in text


@pytest.mark.slow
@pytest.mark.parametrize("where", ["test", "fixture"])
def test_one_failing_rank_ends_the_job_and_says_why(tmp_path: Path, where: str) -> None:
    source = f"""
import pytest
from mpi4py import MPI
@pytest.fixture
def after():
    yield
    if {where == "fixture"}:
        MPI.COMM_WORLD.Barrier()
@pytest.mark.limit(100)
@pytest.mark.mpi
def test_it(after):
    if MPI.COMM_WORLD.rank == 1:
        assert "apples" == "pears"
    if {where == "test"}:
        MPI.COMM_WORLD.Barrier()
"""
    code, text = run_pytest(tmp_path, source, ranks=2)
    assert code != 0 and "[rank 1]" in text and "apples" in text


@pytest.mark.slow
def test_a_failure_on_all_ranks_lets_the_others_run(tmp_path: Path) -> None:
    source = """
import pytest
@pytest.mark.mpi
@pytest.mark.parametrize("ok", [False, True])
def test_it(ok):
    assert ok
"""
    code, text = run_pytest(tmp_path, source, ranks=2)
    assert code != 0 and text.count("1 failed, 1 passed") == 1  # rank 0 alone tells the story
    assert text.count("[rank 1]") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "ci", "code"),
    [("no time", "true", 1), ("no time", "", 0), ("need --with-mpi option to run", "true", 0)],
)
def test_ci_refuses_a_skip_without_need(tmp_path: Path, reason: str, ci: str, code: int) -> None:
    source = f"import pytest\ndef test_it():\n    pytest.skip({reason!r})\n"
    got, text = run_pytest(tmp_path, source, CI=ci)
    assert got == code, text
    assert ("without need" in text) == (code == 1)


@pytest.mark.slow
def test_ci_refuses_a_module_that_is_not_imported(tmp_path: Path) -> None:
    source = "import pytest\npytest.importorskip('no_such_module')\n"
    got, text = run_pytest(tmp_path, source + "def test_it(): pass\n", CI="true")
    assert got != 0 and "no_such_module" in text
