"""A job whose start fails on one rank ends within seconds and names the rank and the cause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hpcflow.errors import ABORTED
from hpcflow.launch import launcher_detection
from tests.processes import without_summary

ROOT = Path(__file__).parents[2]
END_S = 150  # a job that fails at its start needs seconds, one that hangs any time
SCRIPT = """
    import errno, os, sys
    import hpcflow as hf
    from hpcflow.launch import launcher_detection
    from hpcflow.monitoring import wait_ledger
    from hpcflow.runtime.job import rank_context

    def fails(*args, **kwargs):
        raise OSError(errno.EIO, os.strerror(errno.EIO), "of the test")

    what, rank = sys.argv[1], int(sys.argv[2])
    if launcher_detection.detect_launcher().rank == rank:
        from hpcflow.comm import mpi_communicator
        from hpcflow.monitoring import srun_rank_supervisor

        owner, name = {
            "ledger": (wait_ledger.WaitLedger, "__init__"),
            "split": (rank_context.RankContext, "_join"),
            "table": (rank_context.RankContext, "table"),
            "share": (srun_rank_supervisor, "share_connection"),
            "world": (mpi_communicator.MpiCommunicator, "__init__"),
        }[what]
        setattr(owner, name, fails)
    count = hf.Variable(1.0)
    with hf.train.TrainingSession() as session:
        print("RUNS", flush=True)
"""
pytestmark = pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)


def run(folder: Path, start: launcher_detection.StartCommand) -> tuple[int, str]:
    """Exit code and output of a job."""
    done = subprocess.run(
        start.argv,
        cwd=folder,
        env={**start.env, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=END_S,
    )
    assert "RUNS" not in done.stdout
    return done.returncode, done.stdout


def a_file(folder: Path) -> str:
    (folder / "run").touch()
    return "run"


def a_file_above(folder: Path) -> str:
    (folder / "file").touch()
    return "file/run"


def folders_in_the_way(folder: Path) -> str:
    (folder / "run" / "failure.json").mkdir(parents=True)
    (folder / "run" / "failure.earlier.json" / "full").mkdir(parents=True)
    return "run"


def a_folder_for_the_manifest(folder: Path) -> str:
    (folder / "run" / "manifest.json").mkdir(parents=True)
    return "run"


def a_folder_for_the_result(folder: Path) -> str:
    (folder / "run" / "result.json").mkdir(parents=True)
    return "run"


def not_for_files(folder: Path) -> str:
    return "/proc/hpcflow"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "options"),
    [
        (a_file, ()),
        (a_file_above, ()),
        (folders_in_the_way, ()),
        (not_for_files, ()),
        (a_folder_for_the_manifest, ()),
        (a_folder_for_the_result, ()),
        (a_file, ("--survive",)),
        (a_file, ("--set", "log_files=1")),
        (a_file, ("--ps", "1")),
    ],
)
def test_a_run_directory_that_cannot_be_written_ends_the_job(tmp_path, place, options):
    where = place(tmp_path)
    (tmp_path / "script.py").write_text("print('RUNS')\n")
    words = ["-m", "hpcflow", "run", "-n", "3", *options, "--run-dir", where, "script.py"]
    start = launcher_detection.StartCommand([sys.executable, *words], dict(os.environ), "")
    code, output = run(tmp_path, start)
    assert code == ABORTED, output
    assert f"[rank 0 on {os.uname().nodename}] the run directory {where!r} cannot" in output
    assert "--run-dir" in output and "Traceback" not in output
    assert without_summary(output).count("cannot be written") == 1


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["0", "1"])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("what", ["world", "share", "ledger", "split", "table"])
def test_an_error_of_one_rank_before_the_first_step_ends_the_job(tmp_path, what, rank, servers):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    settings = {"HPCFLOW_RUN_DIR": "run", "HPCFLOW_PS": servers}
    words = [sys.executable, "script.py", what, str(rank)]
    code, output = run(
        tmp_path, launcher_detection.start_command(3, words, {**os.environ, **settings})
    )
    assert code == ABORTED, output
    assert f"[rank {rank} on {os.uname().nodename}] OSError: [Errno 5]" in output
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (facts["rank"], facts["host"], facts["step"]) == (rank, os.uname().nodename, 0)
    assert facts["error"] == "OSError" and "in fails" in facts["traceback"]


@pytest.mark.slow
def test_an_interrupt_of_one_rank_before_the_watchdog_stands_ends_the_job(tmp_path):
    script = textwrap.dedent(SCRIPT).replace("raise OSError(", "raise KeyboardInterrupt(")
    (tmp_path / "script.py").write_text(script)
    words = [sys.executable, "script.py", "table", "1"]
    code, output = run(
        tmp_path,
        launcher_detection.start_command(3, words, {**os.environ, "HPCFLOW_RUN_DIR": "run"}),
    )
    assert code == ABORTED, output
    assert json.loads((tmp_path / "run" / "failure.json").read_text())["rank"] == 1


@pytest.mark.slow
def test_a_log_that_cannot_be_written_ends_the_job(tmp_path):
    (tmp_path / "run" / "rank-2.log").mkdir(parents=True)
    (tmp_path / "script.py").write_text("print('RUNS')\n")
    words = ["-m", "hpcflow", "run", "-n", "3", "--set", "log_files=1", "--run-dir", "run"]
    start = launcher_detection.StartCommand(
        [sys.executable, *words, "script.py"], dict(os.environ), ""
    )
    code, output = run(tmp_path, start)
    assert code == ABORTED, output
    assert f"[rank 2 on {os.uname().nodename}] the log 'run/rank-2.log' cannot be written" in output
    assert "Traceback" not in output


def test_a_run_directory_that_cannot_be_written_ends_a_single_process(tmp_path):
    (tmp_path / "run").touch()
    (tmp_path / "script.py").write_text("import hpcflow as hf\nhf.train.TrainingSession()\n")
    settings = {"HPCFLOW_RUN_DIR": "run", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert done.returncode == 1
    assert "LaunchError: the run directory 'run' cannot be written" in done.stderr
