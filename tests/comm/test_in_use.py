"""One job at a time in a run directory and in a folder of checkpoints; a dead one does not hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcflow.cli.main import main
from hpcflow.errors import LaunchError
from hpcflow.launch import launcher_detection
from hpcflow.monitoring import run_directory_lock
from tests.comm.threads import until

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)
TRAIN = """
import os, sys, time
import hpcflow as hf

x = hf.placeholder(hf.float32, [None])
w = hf.Variable(hf.zeros([1]))
train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.square(x - w)))
with hf.train.TrainingSession(checkpoints=sys.argv[1] or None, resume=True) as sess:
    sess.step(train, {x: [1.0]})
    if sess.is_chief:
        open("begun", "w").close()
    while len(sys.argv) > 2 and not os.path.exists("end"):
        time.sleep(0.02)
"""


def words(*given: str) -> list[str]:
    return [sys.executable, "-m", "hpcflow", "run", *given]


def environ() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HPCFLOW_", "SLURM_"))}
    return {**clean, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


class Running:
    """A job in `folder` that trains until the file `end` is there."""

    def __init__(self, folder: Path, *options: str, saved: str = "") -> None:
        self.folder = folder
        argv = words(*options, "train.py", saved, "stay")
        self.process = subprocess.Popen(argv, cwd=folder, env=environ(), stderr=subprocess.PIPE)
        until((folder / "begun").exists, 100)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        (self.folder / "end").touch()
        self.process.communicate(timeout=220)


def started(folder: Path, *options: str, saved: str = "") -> subprocess.CompletedProcess[str]:
    argv = words(*options, "train.py", saved)
    return subprocess.run(
        argv, cwd=folder, env=environ(), capture_output=True, text=True, timeout=220
    )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(), ("-n", "2")])
def test_a_second_job_in_a_run_directory_refuses_and_names_the_first(
    folder: Path, ranks: tuple[str, ...]
) -> None:
    with Running(folder, "--run-dir", "run") as first:
        before = {path: path.read_bytes() for path in (folder / "run").iterdir()}
        done = started(folder, *ranks, "--run-dir", "run")
        assert done.returncode == 2
        assert "the run directory run is in use by another job" in done.stderr
        assert f"process {first.process.pid} on {os.uname().nodename}" in done.stderr
        assert {path: path.read_bytes() for path in (folder / "run").iterdir()} == before
        assert started(folder, *ranks, "--run-dir", "other").returncode == 0
    assert not (folder / "run" / run_directory_lock.NAME).exists()
    assert started(folder, *ranks, "--run-dir", "run").returncode == 0


@pytest.mark.slow
def test_ranks_of_a_launcher_refuse_too(folder: Path) -> None:
    with Running(folder, "--run-dir", "run"):
        start = launcher_detection.start_command(2, words("--run-dir", "run", "train.py", ""))
        env = {**start.env, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            start.argv, cwd=folder, env=env, capture_output=True, text=True, timeout=220
        )
        assert done.returncode != 0 and "is in use by another job" in done.stderr


def test_a_job_that_was_killed_does_not_hold_its_folders(folder: Path) -> None:
    with Running(folder, "--run-dir", "run", saved="saved") as first:
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        assert (folder / "run" / run_directory_lock.NAME).exists()
        done = started(folder, "--run-dir", "run", saved="saved")
        assert done.returncode == 0, done.stderr
    assert not list(folder.glob(f"*/{run_directory_lock.NAME}*"))


@pytest.mark.slow
def test_a_folder_of_checkpoints_is_one_jobs_whatever_its_run_directory(folder: Path) -> None:
    with Running(folder, "--run-dir", "a", saved="saved"):
        for ranks in ((), ("-n", "2")):
            done = started(folder, *ranks, "--run-dir", "b", saved="saved")
            assert done.returncode != 0
            assert "the folder of checkpoints saved is in use by another job" in done.stderr
    assert started(folder, "--run-dir", "b", saved="saved").returncode == 0


def test_a_folder_that_nothing_was_saved_in_is_not_left_behind(folder: Path) -> None:
    script = TRAIN.replace("    sess.step(train, {x: [1.0]})\n", "")
    (folder / "train.py").write_text(script)
    assert started(folder, saved="saved").returncode == 0
    assert not (folder / "saved").exists()


EVALUATE = """
import hpcflow as hf

w = hf.Variable(hf.zeros([1]))
hf.train.get_or_create_global_step()
with hf.train.SingularMonitoredSession(checkpoint_dir="saved") as sess:
    print("read", sess.run(w))
"""


def test_who_only_restores_does_so_beside_a_job_that_saves(folder: Path) -> None:
    with Running(folder, saved="saved"):
        (folder / "saved" / "step-9.tmp").mkdir()  # of a save that goes on
        (folder / "train.py").write_text(EVALUATE)
        done = started(folder)
        assert done.returncode == 0 and "read" in done.stdout, done.stderr
        assert (folder / "saved" / "step-9.tmp").exists()
        assert not (folder / "saved" / "starts.json").exists()


def test_a_job_script_is_told_before_it_writes_anything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    with Running(folder, "--run-dir", "run"):
        assert main(["check-job", "--run-dir", "run", "train.py", "--epochs", "3"]) == 2
        assert "in use by another job" in capsys.readouterr().err
    assert main(["check-job", "--run-dir", "run", "train.py", "--epochs", "3"]) == 0


# -- whether the first one lives

SCONTROL = """#!/bin/sh
case "$2 $3" in
  "job 7") echo "JobId=7 JobState=$STATE";;
  "step 7.0")
    if [ "$STEP" ]; then echo "StepId=7.0 State=$STEP"; else echo "step 7.0 not found"; exit 1; fi;;
  *) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;;
esac
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `scontrol` that knows job 7, in the state STATE; this process is job 8."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "scontrol"
    program.write_text(SCONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    monkeypatch.setenv("STATE", "RUNNING")
    return tmp_path / "run"


def written(folder: Path, silent_s: float = 0, **more: Any) -> None:
    """What a process of another host has left in the folder."""
    folder.mkdir(exist_ok=True)
    elsewhere = {
        "boot": "another",
        "processes": "pid:[1]",
        "host": "node9",
        "pid": 4711,
        "begun": 5,
    }
    facts = {**run_directory_lock.this_job({}), **elsewhere, "job": "7", **more}
    (folder / run_directory_lock.NAME).write_text(json.dumps(facts))
    then = time.time() - silent_s
    os.utime(folder / run_directory_lock.NAME, (then, then))


def is_refused(folder: Path) -> bool:
    try:
        run_directory_lock.claim_directory(folder, run_directory_lock.RUN_DIR)
    except LaunchError as error:
        assert not run_directory_lock.is_free(folder) and run_directory_lock.NAME in str(error)
        return True
    run_directory_lock.release_directory(folder)
    return False


LONG = 2 * run_directory_lock.DEAD_S


@pytest.mark.parametrize(
    ("state", "more", "refused"),
    [
        ("RUNNING", {"silent_s": LONG}, True),
        ("SUSPENDED", {"silent_s": LONG}, True),
        ("COMPLETING", {}, True),
        ("COMPLETED", {}, False),
        ("PENDING", {}, False),  # it is to come back; when it does it is the second
        ("RUNNING", {"job": "6"}, False),  # of which SLURM knows no more
        ("RUNNING", {"step": "0"}, False),  # its step is over
        ("RUNNING", {"job": "8", "restarts": "1"}, False),  # this job, before it was requeued
        ("RUNNING", {"cluster": "elsewhere"}, True),
        ("RUNNING", {"cluster": "elsewhere", "silent_s": LONG}, False),
        ("RUNNING", {"job": None}, True),
        ("RUNNING", {"job": None, "silent_s": LONG}, False),
    ],
)
def test_slurm_or_the_time_tells_whether_a_job_elsewhere_lives(
    slurm: Path, monkeypatch: pytest.MonkeyPatch, state: str, more: dict[str, Any], refused: bool
) -> None:
    monkeypatch.setenv("STATE", state)
    written(slurm, **more)
    assert is_refused(slurm) is refused


def test_a_step_that_runs_is_asked_for(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEP", "RUNNING")
    written(slurm, step="0", silent_s=LONG)
    assert is_refused(slurm)


def test_without_slurms_answer_the_time_tells(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    written(slurm)
    assert is_refused(slurm)
    written(slurm, silent_s=LONG)
    assert not is_refused(slurm)


def test_a_process_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    mine = run_directory_lock.this_job({})
    parent = {**mine, "pid": os.getppid()}
    (tmp_path / run_directory_lock.NAME).write_text(json.dumps(parent))
    assert not is_refused(tmp_path)
    (tmp_path / run_directory_lock.NAME).write_text(json.dumps({**parent, "begun": None}))
    assert is_refused(tmp_path)
    (tmp_path / run_directory_lock.NAME).write_text(
        json.dumps(mine)
    )  # this process, before it was replaced
    assert not is_refused(tmp_path)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"pid": "x", "begun": {}}', "\udcff"])
def test_a_file_of_nonsense_holds_for_a_while(tmp_path: Path, text: str) -> None:
    (tmp_path / run_directory_lock.NAME).write_text(text, errors="surrogateescape")
    assert is_refused(tmp_path)
    then = time.time() - LONG
    os.utime(tmp_path / run_directory_lock.NAME, (then, then))
    assert not is_refused(tmp_path)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_something_else_in_the_place_of_the_file_is_named(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / run_directory_lock.NAME)
    with pytest.raises(
        LaunchError, match=f"{run_directory_lock.NAME} cannot be read: .*\n.*remove "
    ):
        run_directory_lock.claim_directory(tmp_path, run_directory_lock.RUN_DIR)
    run_directory_lock.refuse_directory(
        tmp_path, run_directory_lock.RUN_DIR
    )  # who only looks is not held up


@pytest.mark.slow
def test_what_is_held_is_touched_and_ends_with_its_last_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory_lock, "TOUCH_S", 0.01)
    folder = tmp_path / "new"
    run_directory_lock.claim_directory(folder, run_directory_lock.RUN_DIR)
    run_directory_lock.claim_directory(
        tmp_path / "." / "new", run_directory_lock.RUN_DIR
    )  # the same one
    mark = folder / run_directory_lock.NAME
    os.utime(mark, (0, 0))
    until(lambda: mark.stat().st_mtime > 0)
    run_directory_lock.release_directory(folder)
    assert mark.exists()
    run_directory_lock.release_directory(folder)
    assert not folder.exists()


def test_a_forked_child_does_not_let_go(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, sys
from hpcflow.monitoring import run_directory_lock
folder = pathlib.Path({str(tmp_path)!r})
run_directory_lock.claim_directory(folder, "the folder")
if os.fork() == 0:
    sys.exit(0)
os.wait()
assert (folder / run_directory_lock.NAME).exists()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environ(), check=True)
    assert not (tmp_path / run_directory_lock.NAME).exists()


CLAIMS = """
import pathlib, sys, time
from hpcflow.monitoring import run_directory_lock
from hpcflow.errors import LaunchError

won = []
print("ready", flush=True)
sys.stdin.readline()
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    try:
        run_directory_lock.claim_directory(folder, "the folder")
        won.append(folder.name)
    except LaunchError:
        pass
print(" ".join(won), flush=True)
sys.stdin.readline()
"""


def test_of_many_that_take_a_dead_ones_place_at_once_one_does(tmp_path: Path) -> None:
    names = [f"{n:03d}" for n in range(150)]
    for name in names:
        written(tmp_path / name, job=None, silent_s=LONG)
    argv = [sys.executable, "-c", CLAIMS, str(tmp_path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(argv, env=environ(), **pipes) for _ in range(4)]
    won: list[str] = []
    for turn in range(2):
        for one in processes:
            assert turn or one.stdout.readline() == "ready\n"
        if not turn:
            for one in processes:
                one.stdin.write("\n")
                one.stdin.flush()
        else:
            for one in processes:
                won += one.stdout.readline().split()
    for one in processes:
        one.communicate("\n", timeout=100)
    assert sorted(won) == names


def test_who_takes_a_dead_ones_place_overwrites_nobody_else(tmp_path: Path) -> None:
    """It has read the dead one's file, and another job takes the place before it goes on."""
    written(tmp_path, job=None, silent_s=LONG)
    mark = tmp_path / run_directory_lock.NAME
    dead, own_job = mark.read_text(), run_directory_lock.this_job()
    draft = tmp_path / "draft"
    draft.write_text(json.dumps(own_job))
    mark.write_text("another job's")
    assert not run_directory_lock._take_over(draft, mark, dead, own_job)
    assert mark.read_text() == "another job's" and draft.exists()
    mark.write_text(dead)
    taking = tmp_path / run_directory_lock.TAKING
    taking.write_text(json.dumps({**own_job, "pid": os.getppid(), "begun": None}))
    assert not run_directory_lock._take_over(draft, mark, dead, own_job), "its parent is at it"
    assert mark.read_text() == dead
    taking.write_text(dead)  # who was at it is dead, too
    os.utime(taking, (0, 0))
    assert not run_directory_lock._take_over(draft, mark, dead, own_job)
    assert run_directory_lock._take_over(draft, mark, dead, own_job)
    assert json.loads(mark.read_text())["pid"] == os.getpid()
    assert [file.name for file in tmp_path.iterdir()] == [run_directory_lock.NAME]
