"""The command itself: alone, on ranks, and on four nodes of which one has a fault."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from hpcflow.launch import launcher_detection

ROOT = pathlib.Path(__file__).resolve().parents[2]
NODE = str(pathlib.Path(__file__).with_name("node.py"))
DOCTOR = [sys.executable, "-m", "hpcflow", "doctor"]
INSIDE_A_JOB = launcher_detection.detect_launcher() is not None
CANNOT = os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("taskset")

pytestmark = pytest.mark.skipif(INSIDE_A_JOB, reason="a job cannot start jobs")


def run(command: list[str], n: int = 0, **more: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `command`, on `n` ranks if told."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    if n:
        start = launcher_detection.start_command(n, command, env)
        command, env = start.argv, start.env
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=220)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "0"], "-n 0: there must be at least one rank"),
        (["-n", "-1"], "-n -1: there must be at least one rank"),
        (["-n", "2", "--topology", ""], "--topology: the name of the file is empty"),
        (["--topology", "t.json"], "describes the ranks of a job, and this is none"),
    ],
)
def test_wrong_arguments_start_nothing(words: list[str], message: str) -> None:
    code, told, errors = run([*DOCTOR, *words])
    assert (code, told) == (2, "") and message in errors


def test_alone_it_prints_a_page_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    code, out, err = run([*DOCTOR, "--run-dir", str(tmp_path / "new" / "run")])
    assert code == 0, out + err
    assert "1 rank on 1 node" in out and "mpi4py maps /" in out and "HDF5" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_blas_is_asked_for_its_own_number_of_threads() -> None:
    code, out, err = run([*DOCTOR, "--json"], HPCFLOW_THREADS="1")
    (facts,) = json.loads(out)["ranks"]
    assert code == 0 and facts["blas"] and facts["threads"] == 1, err
    if "openblas" in facts["blas"]:  # not every library tells
        assert facts["blas_threads"] == 1


def test_an_mpi_that_does_not_start_is_a_finding(tmp_path: pathlib.Path) -> None:
    code, out, err = run(DOCTOR, MPI4PY_LIBMPI=str(tmp_path / "libmpi.so.40"))
    assert code == 1, out + err
    assert "ERROR  packages" in out and "fix: " in out
    assert "a job would not run" in out


@pytest.mark.slow
def test_on_ranks_the_first_one_prints_for_all() -> None:
    code, out, err = run([*DOCTOR, "--json"], n=2)
    assert code == 0, err
    told = json.loads(out)
    assert [facts["rank"] for facts in told["ranks"]] == [0, 1]
    assert told["together"]["allreduce"] > 0


@pytest.mark.slow
def test_it_starts_ranks_itself() -> None:
    code, out, err = run([*DOCTOR, "-n", "2"])
    assert code == 0, err
    assert "2 ranks on 1 node" in out


@pytest.mark.slow(first=False)
@pytest.mark.skipif(CANNOT, reason="needs root, unshare and taskset to play four nodes")
@pytest.mark.parametrize(
    ("fault", "check", "level", "words"),
    [
        ("mask", "cores", "warn", "may use 1 of"),
        ("libmpi", "libmpi", "error", "two MPI libraries"),
        ("tmpdir", "disk", "error", "no space left"),
    ],
)
def test_a_fault_is_named_with_its_node(
    fault: str, check: str, level: str, words: str, tmp_path: pathlib.Path
) -> None:
    if fault == "mask" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU for all does not apply")
    program = [sys.executable, NODE, fault, "2", str(tmp_path), *DOCTOR, "--json"]
    code, out, err = run(program, n=4)
    assert out, err
    told = json.loads(out)
    assert {facts["node"] for facts in told["ranks"]} == {"node0", "node1", "node2", "node3"}
    rows = [row for row in told["findings"] if row["node"] == "node2"]
    row = next(row for row in rows if row["check"] == check)
    assert row["level"] == level and words in row["what"] and row["fix"]
    others = [row for row in told["findings"] if row["check"] == check and row["level"] == level]
    assert [row["node"] for row in others] == ["node2"]
    assert code == (1 if level == "error" else 0)
