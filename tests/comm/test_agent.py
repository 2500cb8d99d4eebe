"""The parent of a rank under srun: signals, exit codes, and the report of a death."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.comm.threads import until
from tests.processes import is_running

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux"),
]
END_S = 100  # a job needs seconds, one that hangs any time
UNDER_SRUN = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
SCRIPT = """
import os, pathlib, signal, sys, time
import numpy as np
import hpcflow as hf
{body}
"""
TRAINS = """
w = hf.Variable(0., name="w")
x = hf.placeholder(hf.float32, [None], name="x")
up = w.assign_add(hf.reduce_sum(x))
data = hf.data.Dataset({x: np.ones(4, "float32")}, batch=1)
with hf.train.TrainingSession(checkpoints="saved", save_every=1) as session:
    for step, batch in enumerate(data.epochs(100000)):
        session.step(up, batch)
        if step == 0:
            pathlib.Path("pid").write_text(str(os.getpid()))
        time.sleep(0.02)
"""
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    """Starts a script as the one task of a step."""
    started = []

    def start(body: str) -> subprocess.Popen[str]:
        (tmp_path / "script.py").write_text(SCRIPT.format(body=body))
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "SLURM"))}
        job = subprocess.Popen(
            [sys.executable, "-m", "hpcflow", "run", "--run-dir", "run", "script.py"],
            cwd=tmp_path,
            env={**clean, **UNDER_SRUN},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(job)
        return job

    yield start
    for job in started:
        job.kill()
        job.wait()
        assert job.stderr is not None
        job.stderr.close()


def saved_steps(folder: pathlib.Path) -> list[int]:
    names = [path.name for path in (folder / "saved").glob("step-*")]
    return [int(name[5:]) for name in names if name[5:].isdigit()]


def child_of(job: subprocess.Popen[str], folder: pathlib.Path) -> int:
    """The process of the rank, once it trains and knows of a checkpoint."""
    file, late, pid = folder / "pid", time.monotonic() + END_S, ""
    while not (pid and max(saved_steps(folder), default=0) > 2):
        assert job.poll() is None and time.monotonic() < late, job.communicate()
        time.sleep(0.02)
        pid = file.read_text() if file.exists() else ""
    return int(pid)


@pytest.mark.slow
def test_a_killed_rank_is_named_with_its_task_host_cause_and_checkpoint(
    start: Start, tmp_path: pathlib.Path
) -> None:
    job = start(TRAINS)
    child = child_of(job, tmp_path)
    assert child != job.pid
    os.kill(child, signal.SIGKILL)
    said = job.communicate(timeout=END_S)[1]
    assert job.returncode == 86, said
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (facts["kind"], facts["rank"], facts["task"]) == ("death", 0, "/job:worker/task:0")
    assert facts["host"] == os.uname().nodename
    assert facts["cause"] == f"process {child} was killed by SIGKILL"
    assert pathlib.Path(facts["checkpoint"]).parent == tmp_path / "saved"
    assert facts["message"] in said


@pytest.mark.slow
def test_a_rank_that_dies_before_it_joins_the_job_is_named(
    start: Start, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "mpi4py.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    job = start("")
    said = job.communicate(timeout=END_S)[1]
    assert job.returncode == 86, said
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert facts["rank"] == 0 and facts["cause"].endswith("was killed by SIGSEGV")


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 3, 75])
def test_the_exit_code_is_that_of_the_rank(start: Start, tmp_path: pathlib.Path, code: int) -> None:
    job = start(f"sys.exit({code})")
    assert job.communicate(timeout=END_S) and job.returncode == code
    assert not (tmp_path / "run" / "failure.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
def test_a_signal_to_the_task_alone_has_the_rank_save_and_stop(
    start: Start, tmp_path: pathlib.Path, name: str
) -> None:
    """SLURM with cgroups signals the tasks, not their children."""
    job = start(TRAINS)
    child_of(job, tmp_path)
    job.send_signal(getattr(signal, name))
    said = job.communicate(timeout=END_S)[1]
    assert job.returncode == 75 and "saved step-" in said, said
    assert not (tmp_path / "run" / "failure.json").exists()


def test_a_rank_does_not_outlive_its_parent(start: Start, tmp_path: pathlib.Path) -> None:
    job = start(TRAINS)
    child = child_of(job, tmp_path)
    job.kill()
    job.communicate(timeout=END_S)
    until(lambda: not is_running(child))
