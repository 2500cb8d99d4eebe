"""Ranks and nodes that real jobs lose: SLURM ends the job, and it goes on from what was saved."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cluster import HERE, Cluster, Place
from conftest import PYTHONS, SITES

pytestmark = pytest.mark.limit(400)
SAVES = ("steps.py", "--wait", "--save-every", "5")
OFTEN = 5  # steps between two saves
KILLED = 93  # the step of a death, seven seconds after the steps have become slow


def saved_step(text: str) -> int:
    """Where the job went on: where it had saved as often, or as SLURM ended what was left of it."""
    ((step, samples),) = re.findall(r"resumed step=(\d+) samples=(\d+)", text)
    assert int(samples) == 8 * int(step)
    return int(step)


@pytest.mark.parametrize("script", ["train", "ps"])
def test_a_rank_that_is_killed_ends_the_step_and_leaves_no_process(
    slurm: Cluster, tmp_path: Path, script: str, mpi: str
) -> None:
    """srun --kill-on-bad-exit; what was saved by then is there."""
    steps = Place(tmp_path, PYTHONS[mpi])
    (tmp_path / "steps.py").symlink_to(HERE / "steps.py")
    words = (f"jobs/slurm/{script}.sbatch", *SAVES)
    settings = {"HPCFLOW_INJECT": f"kill:rank=1@step={KILLED}", "HPCFLOW_SAVE": "foreground"}
    job = slurm.sbatch(steps, *words, SYNC="all", **settings, **SITES[mpi])
    assert job.wait() == ["FAILED"], job.output
    assert f"injected on rank 1 at its step {KILLED}: kill:rank=1" in job.output
    assert "end w=" not in job.output and job.facts("Restarts") == ["0"]
    run = tmp_path / "runs" / job.number
    assert (run / "checkpoints" / "latest").exists()
    facts = json.loads((run / "failure.json").read_text())
    task = {"train": "/job:worker/task:1", "ps": "/job:ps/task:0"}[script]
    assert (facts["kind"], facts["rank"], facts["task"]) == ("death", 1, task)
    assert facts["host"].startswith("node") and facts["cause"].endswith("was killed by SIGKILL")
    assert 0 < facts["step"] < KILLED
    last = KILLED // OFTEN * OFTEN
    assert facts["checkpoint"] == str((run / "checkpoints" / f"step-{last}").resolve())
    assert f"rank 1 ({task}) on {facts['host']} has died" in job.output
    job.until(lambda: not job.processes(), "end its processes", 60)


def test_a_job_whose_node_is_lost_comes_back_where_it_had_saved(
    slurm: Cluster, steps: Place
) -> None:
    job = slurm.sbatch(steps, "--nodelist=node1", "jobs/slurm/train.sbatch", *SAVES)
    try:
        job.says("ready 0")
        slurm.ask("scontrol", "update", "nodename=node1", "state=down", "reason=rehearsal")
        job.until(lambda: job.facts("Restarts") == ["1"], "be queued again", 120)
        # what is left of it there must end before the node takes others; refused if it is back
        slurm.run("scontrol", "update", "nodename=node1", "state=resume")
        assert job.wait() == ["COMPLETED"], job.output
    finally:
        slurm.run("scontrol", "update", "nodename=node1", "state=resume")
    assert saved_step(job.output) >= 20 - OFTEN
    assert job.output.count("end w=") == 1 and "Traceback" not in job.output
