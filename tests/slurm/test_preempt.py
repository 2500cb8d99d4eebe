"""Signals and pre-emption of real jobs: they save, come back by themselves and go on."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest
from cluster import HERE, Cluster, Job, Place

pytestmark = pytest.mark.limit(400)


@pytest.fixture(scope="module")
def undisturbed(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a synchronous run that nothing interrupts, as hexadecimal digits."""
    place = Place(tmp_path_factory.mktemp("undisturbed"))
    (place.folder / "steps.py").symlink_to(HERE / "steps.py")
    job = slurm.sbatch(place, "jobs/slurm/train.sbatch", "steps.py")
    assert job.wait() == ["COMPLETED"], job.output
    (weights,) = re.findall(r"end w=(\w+)", job.output)
    return weights


def came_back(job: Job) -> None:
    """It was stopped and requeued once, went on where it was, and trained to its end."""
    assert set(job.wait()) == {"COMPLETED"}, job.output
    assert set(job.facts("Restarts")) == {"1"}, job.output
    stopped = re.findall(r"(SIG\w+): stopped before step (\d+); saved", job.output)
    resumed = re.findall(r"resumed step=(\d+) samples=(\d+)", job.output)
    assert len(stopped) == 1 and len(resumed) == 1, job.output
    assert "Traceback" not in job.output and job.output.count("end w=") == 1, job.output


def test_one_ranks_signal_requeues_a_synchronous_job(
    slurm: Cluster, steps: Place, undisturbed: str
) -> None:
    words = ("steps.py", "--signal-rank", "3", "--wait")
    job = slurm.sbatch(steps, "jobs/slurm/train.sbatch", *words)
    came_back(job)
    ((step, samples),) = re.findall(r"resumed step=(\d+) samples=(\d+)", job.output)
    assert 20 <= int(step) < 160 and int(samples) == 8 * int(step)
    assert f"stopped before step {step};" in job.output
    assert f"end w={undisturbed}" in job.output


@pytest.mark.parametrize("script", ["ps", "hetero"])
def test_one_ranks_signal_requeues_a_job_with_servers(
    slurm: Cluster, steps: Place, script: str
) -> None:
    """Rank 3 is a worker; the servers of `hetero` are the ranks 0 and 1."""
    rank = {"ps": "2", "hetero": "3"}[script]
    words = ("steps.py", "--signal-rank", rank, "--wait", "--epochs", "80")
    came_back(slurm.sbatch(steps, f"jobs/slurm/{script}.sbatch", *words))


def test_scancel_with_a_signal_requeues(slurm: Cluster, steps: Place, undisturbed: str) -> None:
    job = slurm.sbatch(steps, "jobs/slurm/train.sbatch", "steps.py", "--wait")
    job.says("ready 0")
    slurm.ask("scancel", "--signal=USR1", job.number)
    came_back(job)
    assert f"end w={undisturbed}" in job.output


def test_a_pre_empted_job_comes_back(slurm: Cluster, steps: Place, undisturbed: str) -> None:
    """A job of a higher partition takes the nodes; SLURM itself requeues the victim."""
    job = slurm.sbatch(steps, "jobs/slurm/train.sbatch", "steps.py", "--wait")
    job.says("ready 0")
    options = ("-p", "high", "--exclusive", "-N4", "-o", "high-%j.out")
    high = slurm.sbatch(steps, *options, "--wrap", "sleep 3")
    assert high.wait() == ["COMPLETED"]
    came_back(job)
    assert "SIGTERM: stopped" in job.output
    assert f"end w={undisturbed}" in job.output


def test_an_operators_requeue_saves_first(slurm: Cluster, steps: Place, undisturbed: str) -> None:
    job = slurm.sbatch(steps, "jobs/slurm/train.sbatch", "steps.py", "--wait")
    job.says("ready 0")
    slurm.ask("scontrol", "requeue", job.number)
    came_back(job)
    assert "SIGTERM: stopped" in job.output
    assert f"end w={undisturbed}" in job.output


def test_a_job_out_of_time_is_told_before_and_comes_back(slurm: Cluster, steps: Place) -> None:
    """By SLURM, which looks at the time every half a minute, or by its own clock."""
    limit = ("--time=00:02:00", "--signal=USR1@60")
    words = ("steps.py", "--wait", "--epochs", "100")
    job = slurm.sbatch(steps, *limit, "jobs/slurm/train.sbatch", *words)
    assert job.wait(300) == ["COMPLETED"], job.output
    reason = r"(?:SIGUSR1|the end of the job's time): stopped before step (\d+); saved"
    stopped = re.findall(reason, job.output)
    resumed = re.findall(r"resumed step=(\d+)", job.output)
    assert stopped == resumed and job.facts("Restarts") == [str(len(resumed))], job.output
    assert resumed and job.output.count("end w=") == 1, job.output


def test_a_job_comes_back_on_fewer_ranks(slurm: Cluster, steps: Place, undisturbed: str) -> None:
    """Two where there were four: the same batches, so the same weights but for rounding.

    sbatch fixes SLURM_NTASKS when a job is submitted, so this one counts its nodes.
    """
    line = "srun --mpi=pmix --kill-on-bad-exit=1 -n $((2 * SLURM_NNODES)) hpcflow run steps.py "
    line += "--wait --checkpoints saved --resume"
    words = ("--partition=cpu", "--nodes=1-2", "--cpus-per-task=2", "--output=job-%j.out")
    job = slurm.sbatch(steps, *words, "--requeue", "--open-mode=append", "--wrap", line)
    job.says("ready 0")
    try:
        slurm.ask("scontrol", "update", "nodename=node2", "state=drain", "reason=rehearsal")
        slurm.ask("scontrol", "requeue", job.number)
        came_back(job)
    finally:
        slurm.run("scontrol", "update", "nodename=node2", "state=resume")
    assert re.findall(r"\[0/(\d)\] collective mode", job.output) == ["4", "2"], job.output
    (weights,) = re.findall(r"end w=(\w+)", job.output)
    mine, theirs = (np.frombuffer(bytes.fromhex(w), np.float32) for w in (weights, undisturbed))
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_cancelled_job_saves_and_stays_away(slurm: Cluster, steps: Place) -> None:
    job = slurm.sbatch(steps, "jobs/slurm/train.sbatch", "steps.py", "--wait")
    job.says("ready 0")
    slurm.ask("scancel", job.number)
    assert job.wait() == ["CANCELLED"], job.output
    assert re.search(r"SIGTERM: stopped before step \d+; saved", job.output), job.output
    assert list((steps.folder / "runs" / job.number / "checkpoints").glob("latest"))
    time.sleep(6)  # a requeued job would be back by now
    assert job.facts("JobState") == ["CANCELLED"] and job.facts("Restarts") == ["0"]


def test_a_job_stops_while_a_last_save_fits_in_its_time(slurm: Cluster, steps: Place) -> None:
    """No signal comes before the end: SLURM has told the chief when that is."""
    options = ("--time=2", "--signal=CONT@10")
    words = ("steps.py", "--wait", "--epochs", "80")
    job = slurm.sbatch(steps, *options, "jobs/slurm/train.sbatch", *words)
    assert set(job.wait()) == {"COMPLETED"}, job.output
    assert job.facts("Restarts") == ["1"] and "Traceback" not in job.output, job.output
    assert "this job ends in" in job.output
    (stopped,) = re.findall(r"the end of the job's time: stopped before step (\d+)", job.output)
    assert f"resumed step={stopped} " in job.output
    starts = json.loads(
        (steps.folder / "runs" / job.number / "checkpoints/starts.json").read_text()
    )
    assert starts["restarts"] == 1 and starts["ended"]


def test_a_job_comes_back_as_often_as_it_may(slurm: Cluster, steps: Place) -> None:
    words = ("steps.py", "--signal-rank", "3", "--wait", "--max-restarts", "0")
    job = slurm.sbatch(steps, "jobs/slurm/train.sbatch", *words)
    assert job.wait() == ["FAILED"], job.output
    assert re.search(r"SIGUSR1: stopped before step \d+; saved; .*max_restarts=0", job.output)
    assert job.facts("ExitCode") == ["80:0"] and job.facts("Restarts") == ["0"], job.output
    job.until(lambda: not job.processes(), "end its processes", 60)


SCRIPT_OF_ITS_OWN = """
import os, signal
import hpcflow as hf
x = hf.placeholder(hf.float32, [None])
w = hf.Variable(hf.zeros([1]))
train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.square(x - w)))
with hf.train.TrainingSession() as sess:
    for step in range(100_000):
        if sess.context.rank == 3 and step == 50:
            os.kill(os.getpid(), signal.SIGUSR1)
        sess.step(train, {x: [1.0]})
    sess.wait()
    print("trained to the end")
"""


@pytest.mark.parametrize("script", ["train", "ps"])
def test_without_checkpoints_a_signal_to_one_rank_ends_the_job(
    slurm: Cluster, place: Place, script: str
) -> None:
    (place.folder / "signalled.py").write_text(SCRIPT_OF_ITS_OWN)
    none = ("--set", "default_checkpoints=")
    job = slurm.sbatch(place, f"jobs/slurm/{script}.sbatch", "signalled.py", *none)
    assert job.wait() == ["FAILED"], job.output
    assert re.search(r"SIGUSR1: stopped before step \d+; without checkpoints", job.output)
    assert job.facts("ExitCode") == ["75:0"] and job.facts("Restarts") == ["0"], job.output
    assert "trained to the end" not in job.output and "Traceback" not in job.output
    job.until(lambda: not job.processes(), "end its processes", 60)
