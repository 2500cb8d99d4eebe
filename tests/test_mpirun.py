"""Signals to `hpcflow run -n` while its ranks train, and the death of a rank or of itself."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.errors import ABORTED
from hpcflow.launch import launcher_detection
from tests.comm.threads import until
from tests.processes import is_running

ROOT = Path(__file__).parents[1]
END_S = 200  # a busy machine needs some of it
STOPPED = 75  # EX_TEMPFAIL: the same command goes on
SCRIPT = """
    import sys, time
    import numpy as np
    import hpcflow as hf

    x = hf.placeholder(hf.float32, [None, 1])
    count = hf.train.get_or_create_global_step().assign_add(1)
    data = hf.data.Dataset({x: np.ones((64, 1), "float32")}, batch=8)
    every = 10 if "often" in sys.argv else 10**6
    saves = {"checkpoints": "saved", "save_every": every, "resume": True}
    with hf.train.TrainingSession(**(saves if "save" in sys.argv else {})) as session:
        pids = [report["pid"] for report in session.context.reports() or ()]
        if session.is_chief:
            print("PIDS", *pids, flush=True)
        for batch in data.epochs(100_000):
            session.step(count, batch)
            time.sleep(0.01)
            if session.is_chief:
                print("STEP", session.steps, flush=True)
"""
pytestmark = pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)


class Job:
    """A job of three ranks in a session of its own, at its tenth step."""

    def __init__(self, where: Path, *words: str) -> None:
        self.where = where
        (where / "script.py").write_text(textwrap.dedent(SCRIPT))
        options = ["-n", "3", "--run-dir", "run", "script.py", *words]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hpcflow", "run", *options],
            cwd=where,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if line == "STEP 10\n":
                break
        self.pids = [int(pid) for pid in re.search(r"PIDS (.*)", self.said)[1].split()]

    def end(self) -> tuple[int, str]:
        """Its exit code and all that it printed; no process of it is left."""
        more, _ = self.process.communicate(timeout=END_S)
        self.said += more
        until(lambda: not any(map(is_running, self.pids)))
        return self.process.returncode, self.said

    def steps(self) -> int:
        """The last step that was made."""
        return int(re.findall(r"^STEP (\d+)", self.said, re.MULTILINE)[-1])

    def saved(self) -> list[int]:
        """The steps of the checkpoints."""
        return [
            found.facts["step"]
            for found in checkpoint_directory.find_checkpoints(self.where / "saved")
        ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_the_first_signal_saves_and_stops_all_ranks(tmp_path, name):
    """As a batch system sends it, to one process, and a terminal's Ctrl-C, to its group."""
    job = Job(tmp_path, "save")
    number = getattr(signal, name)
    (os.killpg if name == "SIGINT" else os.kill)(job.process.pid, number)
    code, said = job.end()
    assert code == STOPPED, said
    assert f"hpcflow: {name}: all ranks save and stop" in said and f"{name}: stopped" in said
    assert "SIGUSR1" not in said and "failed" not in said and "PMIX" not in said
    assert f"hpcflow: the job was stopped by {name}\n  next  saved; start again with" in said
    assert job.saved() == [job.steps()]
    assert not (tmp_path / "run" / "failure.json").exists() and "has died" not in said


@pytest.mark.slow
def test_without_checkpoints_the_job_says_so_and_stops(tmp_path):
    job = Job(tmp_path)
    os.kill(job.process.pid, signal.SIGTERM)
    code, said = job.end()
    assert code == STOPPED, said
    assert "without checkpoints" in said


@pytest.mark.slow
def test_the_second_interrupt_ends_all_ranks_at_once(tmp_path):
    job = Job(tmp_path, "save")
    os.kill(job.pids[1], signal.SIGSTOP)  # no step ends
    os.killpg(job.process.pid, signal.SIGINT)
    until(lambda: "SIGINT: all" in job.process.stdout.readline())
    os.killpg(job.process.pid, signal.SIGINT)
    code, said = job.end()
    assert code == 128 + signal.SIGINT and "SIGINT again" in said


@pytest.mark.slow
def test_the_ranks_end_with_the_process_that_has_started_them(tmp_path):
    job = Job(tmp_path, "save")
    os.kill(job.process.pid, signal.SIGKILL)
    assert job.end()[0] == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_is_named_in_a_file(tmp_path, rank):
    job = Job(tmp_path, "save")
    os.kill(job.pids[rank], signal.SIGKILL)
    code, said = job.end()
    assert code not in (0, STOPPED) and said.count("has died") == 1, said
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (facts["kind"], facts["rank"], facts["host"]) == ("death", rank, os.uname().nodename)
    assert facts["task"] == f"/job:worker/task:{rank}" and "gone without a word" in facts["cause"]
    assert facts["step"] >= 0 and facts["checkpoint"] is None, "it had saved nothing"


@pytest.mark.slow
def test_the_failure_of_a_killed_rank_has_its_step_and_the_newest_checkpoint(tmp_path):
    """As its ledger has it, which is a second old at most."""
    job = Job(tmp_path, "save", "often")
    for line in job.process.stdout:
        job.said += line
        if line == "STEP 300\n":
            break
    (newest,) = re.findall(r"saved step-(\d+)", job.said)[-1:]
    os.kill(job.pids[1], signal.SIGKILL)
    job.end()
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert int(facts["checkpoint"].rpartition("step-")[2]) >= int(newest) > 0
    assert Path(facts["checkpoint"]).parent == (tmp_path / "saved").resolve()
    assert 100 <= facts["step"] <= job.steps() + 1


START = """
    import contextlib, glob, os, re, signal, sys, time

    def parent(pid):
        with open(f"/proc/{{pid}}/status") as file:
            return int(re.search(r"PPid:\\t(\\d+)", file.read())[1])

    def watched(pid):  # the processes of which `pid` has a descriptor
        found = set()
        for path in glob.glob(f"/proc/{{pid}}/fdinfo/*"):
            with contextlib.suppress(OSError), open(path) as file:
                found |= set(re.findall(r"^Pid:\\t([1-9]\\d*)", file.read(), re.M))
        return found

    if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        print("STARTS", flush=True)
        while len(watched(parent(os.getppid()))) < 3:  # until the launcher has found all ranks
            time.sleep(0.01)
        os.kill(os.getpid(), {number})
    time.sleep(400)
"""


def starting(where: Path, number: int, *times: str) -> subprocess.Popen[str]:
    """A job of which rank 1 gets a signal before it has joined the job; the others wait for it."""
    (where / "planted").mkdir()
    (where / "planted" / "mpi4py.py").write_text(textwrap.dedent(START.format(number=number)))
    (where / "script.py").touch()
    words = ["-n", "3", "--run-dir", "run", *times, "script.py"]
    return subprocess.Popen(
        [sys.executable, "-m", "hpcflow", "run", *words],
        cwd=where,
        env={**os.environ, "PYTHONPATH": f"{where / 'planted'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGUSR1"])
def test_a_rank_that_dies_before_it_has_joined_is_named(tmp_path, name):
    job = starting(tmp_path, getattr(signal, name))
    said = job.communicate(timeout=END_S)[0]
    assert job.returncode == 128 + getattr(signal, name), said
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (facts["kind"], facts["rank"], facts["step"]) == ("death", 1, 0)
    assert facts["host"] == os.uname().nodename
    assert facts["cause"].endswith(f"was killed by {name}") and facts["message"] in said


@pytest.mark.slow
def test_a_rank_that_hangs_before_it_has_joined_is_named_and_ends_the_job(tmp_path):
    job = starting(tmp_path, signal.SIGSTOP, "--set=stall_s=1", "--set=stall_abort_s=3")
    said = job.communicate(timeout=END_S)[0]
    assert job.returncode == ABORTED, said
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (facts["kind"], facts["rank"], facts["step"]) == ("stall", 1, 0)
    assert "is stopped (T; kill -CONT" in facts["cause"] and facts["message"] in said
    assert said.count("rank 1 on") == 2, "once when it is late, once at the end"


@pytest.mark.slow
def test_a_rank_that_hangs_at_the_end_is_named_and_ends_the_job(tmp_path):
    """The others have left, and wait for it in the end of MPI."""
    script = """
        import os, signal, time
        import hpcflow as hf
        from hpcflow.runtime.job.rank_monitoring import RankMonitoring

        def ends(watching, end=RankMonitoring.end):
            end(watching)
            if session.context.rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)

        RankMonitoring.end = ends
        count = hf.train.get_or_create_global_step().assign_add(1)
        with hf.train.TrainingSession() as session:
            session.run(count)
            time.sleep(6)  # the launcher sees the ranks before they leave
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    times = ["--set=stall_s=4", "--set=stall_abort_s=12"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "hpcflow",
            "run",
            "-n",
            "3",
            "--run-dir",
            "run",
            *times,
            "script.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=END_S,
    )
    assert done.returncode == ABORTED, done.stdout
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (facts["kind"], facts["rank"], facts["task"]) == ("stall", 1, "/job:worker/task:1")
    assert "is stopped (T" in facts["cause"] and facts["host"] == os.uname().nodename


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SIGTERM", "SIGTERM: the ranks, which still start, end at once"),
        ("SIGUSR1", "the ranks have ended at once, unsaved"),  # its default action
    ],
)
def test_a_signal_before_the_ranks_have_joined_ends_the_job_at_once(tmp_path, name, words):
    """Nothing can be saved yet."""
    job = starting(tmp_path, signal.SIGCONT)
    until(lambda: "STARTS" in job.stdout.readline())
    job.send_signal(getattr(signal, name))
    said = job.communicate(timeout=END_S)[0]
    assert job.returncode == 128 + getattr(signal, name), said
    assert words in said
    assert not (tmp_path / "run" / "failure.json").exists()


@pytest.mark.slow
def test_an_mpirun_that_is_killed_is_named(tmp_path):
    job = Job(tmp_path, "save")
    status = Path(f"/proc/{job.pids[0]}/status").read_text()
    os.kill(int(re.search(r"PPid:\t(\d+)", status)[1]), signal.SIGKILL)
    code, said = job.end()
    assert code == 128 + signal.SIGKILL and "mpirun was killed by SIGKILL" in said


@pytest.mark.slow
def test_the_launcher_names_a_dead_rank_where_the_others_cannot(tmp_path):
    """The others are stopped before, as by a launcher that kills all at once."""
    job = Job(tmp_path, "save")
    for pid in (job.pids[0], job.pids[2]):
        os.kill(pid, signal.SIGSTOP)
    os.kill(job.pids[1], signal.SIGKILL)
    code, said = job.end()
    assert code not in (0, STOPPED)
    assert said.count("rank 1 (/job:worker/task:1)") == 1, said
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert facts["rank"] == 1 and facts["message"].startswith("rank 1 ")
