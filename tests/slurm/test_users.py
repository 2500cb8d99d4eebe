"""Jobs of an ordinary user with a script of his own, by the job scripts as they are."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, Job, Place
from users import SCRIPT

from hpcflow.launch import slurm_requeue as asked
from tests.reach import NOBODY

pytestmark = pytest.mark.limit(400)
LOOP = """
import time
import hpcflow as hf
x = hf.placeholder(hf.float32, [None])
w = hf.Variable(hf.zeros([1]))
train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.square(x - w)))
with hf.Session() as sess:
    sess.run(hf.global_variables_initializer())
    for step in range(20):
        sess.run(train, {x: [1.0]})
"""


@pytest.fixture
def user() -> Iterator[Place]:
    """A folder of a user without rights, with his scripts; pytest's own are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="hf-user-", dir="/tmp"))
    folder.chmod(0o755)
    place = Place(folder, owner=NOBODY)
    for name, text in (("train.py", SCRIPT), ("loop.py", LOOP)):
        (folder / name).write_text(text)
    yield place
    shutil.rmtree(folder)


def weights(job: Job) -> list[str]:
    return re.findall(r"end w=(\w+)", job.output)


@pytest.mark.parametrize("script", ["train", "ps", "hetero"])
def test_a_users_script_is_saved_requeued_and_resumed(
    slurm: Cluster, user: Place, script: str
) -> None:
    job = slurm.sbatch(user, f"jobs/slurm/{script}.sbatch", "train.py", "--slow")
    job.says("ready")
    slurm.ask(*user.as_owner, "scancel", "--signal=USR1", job.number)
    assert set(job.wait()) == {"COMPLETED"}, job.output
    assert set(job.facts("Restarts")) == {"1"} and "Traceback" not in job.output, job.output
    stopped = re.findall(r"SIGUSR1: stopped before step (\d+); saved", job.output)
    resumed = re.findall(r"resumed step=(\d+)", job.output)
    assert len(stopped) == len(resumed) == len(weights(job)) == 1, job.output
    chief = {"train": "0/4", "ps": r"\d/4", "hetero": "2/6"}[script]
    assert re.search(rf"hpcflow \[{chief}\] saved step-", job.output), job.output
    run = user.folder / "runs" / job.number
    assert (run / "checkpoints" / "latest").stat().st_uid == NOBODY
    assert not (run / ".running.json").exists()
    if script == "train":
        assert stopped == resumed
        whole = slurm.sbatch(user, f"jobs/slurm/{script}.sbatch", "train.py")
        assert whole.wait() == ["COMPLETED"] and weights(whole) == weights(job)


@pytest.mark.parametrize("script", ["train", "ps", "hetero"])
def test_a_users_rank_that_is_killed_is_named_and_its_job_goes_on(
    slurm: Cluster, user: Place, script: str
) -> None:
    """In its second life, after the job was saved, queued again and resumed."""
    words = (f"jobs/slurm/{script}.sbatch", "train.py", "--epochs", "40")
    job = slurm.sbatch(user, *words, "--slow", "--slow", RUN="night")
    job.says("ready")
    slurm.ask(*user.as_owner, "scancel", "--signal=USR1", job.number)
    job.says("resumed step=")
    job.says("(?s)resumed step=.*ready")
    time.sleep(8)  # on each node someone has trained, and told its watchdog
    rank = 3
    os.kill(rank_of(job, rank), signal.SIGKILL)
    assert "FAILED" in job.wait(), job.output
    run = user.folder / "runs" / "night"
    facts = json.loads((run / "failure.json").read_text())
    assert (facts["kind"], facts["rank"]) == ("death", rank), facts
    assert facts["task"].startswith("/job:worker/task:") or script == "ps", facts
    assert facts["host"].startswith("node") and facts["cause"].endswith("was killed by SIGKILL")
    assert facts["step"] > 0 and f"rank {rank} ({facts['task']}) on {facts['host']}" in job.output
    (resumed,) = re.findall(r"resumed step=(\d+)", job.output)
    newest = (run / "checkpoints" / f"step-{resumed}").resolve()
    assert facts["checkpoint"] == str(newest)
    assert os.stat(run / "failure.json").st_uid == NOBODY
    job.until(lambda: not job.processes(), "end its processes", 60)
    again = slurm.sbatch(user, *words, RUN="night")
    assert set(again.wait()) == {"COMPLETED"} and len(weights(again)) == 1, again.output
    assert f"resumed step={resumed} " in again.output
    if script == "train":
        whole = slurm.sbatch(user, *words)
        assert whole.wait() == ["COMPLETED"] and weights(whole) == weights(again)


def rank_of(job: Job, rank: int) -> int:
    """The process of a rank: the child of SLURM's task."""
    found = job.processes(f"SLURM_PROCID={rank}\0")
    parents = {pid: parent_of(pid) for pid in found}
    tasks = [pid for pid, parent in parents.items() if parent not in parents]
    (child,) = [pid for pid, parent in parents.items() if parent in tasks]
    return child


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_a_named_job_goes_on_and_is_one_at_a_time(slurm: Cluster, user: Place) -> None:
    words = ("--nodes=1", "jobs/slurm/train.sbatch", "train.py")
    (hold := user.folder / "hold").touch()
    first = slurm.sbatch(user, *words, RUN="night")
    first.says("ready")
    second = slurm.sbatch(user, *words, RUN="night")
    assert second.wait() == ["FAILED"], second.output
    told = "the run directory runs/night is in use by another job: SLURM job " + first.number
    assert told in second.output and first.pending()
    hold.unlink()
    assert first.wait() == ["COMPLETED"], first.output
    more = slurm.sbatch(user, *words, "--epochs", "22", RUN="night")
    assert more.wait() == ["COMPLETED"], more.output
    assert "resumed step=160 " in more.output
    manifest = json.loads((user.folder / "runs/night/manifest.json").read_text())
    assert len(manifest["earlier"]) == 1


def test_a_named_job_that_was_killed_does_not_hold_its_folder(slurm: Cluster, user: Place) -> None:
    words = ("--nodes=1", "jobs/slurm/train.sbatch", "train.py")
    first = slurm.sbatch(user, *words, "--slow", RUN="night")
    first.says("ready")
    slurm.ask("scancel", "--full", "--signal=KILL", first.number)
    first.wait()
    second = slurm.sbatch(user, *words, RUN="night")
    assert second.wait() == ["COMPLETED"] and len(weights(second)) == 1, second.output


@pytest.mark.parametrize("script", ["train", "hetero"])
def test_slurm_says_whether_a_job_and_its_step_run(
    slurm: Cluster, user: Place, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.environ["SLURM_CONF"])
    job = slurm.sbatch(user, f"jobs/slurm/{script}.sbatch", "train.py", "--slow")
    job.says("ready")
    mark = json.loads((user.folder / "runs" / job.number / ".running.json").read_text())
    assert mark["job"] == job.number and mark["step"] is not None
    assert asked.is_job_running(job.number) and asked.is_job_running(job.number, mark["step"])
    assert asked.is_job_running(job.number, "77") is False
    slurm.ask("scancel", "--full", "--signal=KILL", job.number)
    job.wait()
    assert asked.is_job_running(job.number) is False and asked.is_job_running("999999") is False


def test_survive_under_srun_is_refused_with_the_way_that_works(slurm: Cluster, user: Place) -> None:
    line = "srun --mpi=pmix -K1 hpcflow run --survive train.py"
    job = slurm.sbatch(user, "-N2", "-n2", "-o", "run-%j.out", "--wrap", line)
    assert job.wait() == ["FAILED"], job.output
    assert "leave srun out" in job.output and "hpcflow run -n 2 --survive" in job.output
    assert "end w=" not in job.output


def test_a_signal_that_comes_at_once_is_told_by_the_job_itself(slurm: Cluster, user: Place) -> None:
    job = slurm.sbatch(user, "--time=2", "jobs/slurm/train.sbatch", "train.py", "--epochs", "1")
    states = job.wait()
    # SLURM sends it at its next look, which may find the ranks starting; at first srun names it
    named = ("was killed by SIGUSR1", "User defined signal 1")
    assert "COMPLETED" in states or any(name in job.output for name in named), job.output
    assert "it comes at once, so the job saves, is queued again" in job.output


def test_a_loop_over_a_plain_session_is_told_that_nothing_saves_it(
    slurm: Cluster, user: Place
) -> None:
    job = slurm.sbatch(user, "jobs/slurm/train.sbatch", "loop.py")
    assert job.wait() == ["COMPLETED"], job.output
    assert re.search(r"this job ends in \w+.*, and hf.Session saves nothing by itself", job.output)


def test_the_users_own_folder_is_his(slurm: Cluster, user: Place) -> None:
    text = SCRIPT.replace('"--slow"', '"--checkpoints")\nparser.add_argument("--slow"')
    named = text.replace("TrainingSession()", "TrainingSession(checkpoints=args.checkpoints)")
    (user.folder / "named.py").write_text(named)
    job = slurm.sbatch(user, "jobs/slurm/train.sbatch", "named.py", "--checkpoints", "mine")
    assert job.wait() == ["COMPLETED"], job.output
    assert (user.folder / "mine" / "latest").exists()
    assert not (user.folder / "runs" / job.number / "checkpoints").exists()
    assert os.stat(user.folder / "mine").st_uid == NOBODY
