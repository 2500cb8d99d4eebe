"""`hpcflow run --survive` in an allocation: mpirun of Open MPI starts the ranks, not srun."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from cluster import Cluster, Job, Place

pytestmark = pytest.mark.limit(400)
SCRIPT = """
import sys, time
import numpy as np
import hpcflow as hf

x = hf.placeholder(hf.float32, [None, 3])
w = hf.Variable(np.zeros((3, 1), np.float32), name="w")
count = hf.train.get_or_create_global_step()
loss = hf.reduce_mean(hf.square(hf.matmul(x, w) - 1.0))
train = hf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=count)
dataset = hf.data.Dataset({x: np.eye(3, dtype=np.float32)[np.arange(48) % 3]}, 8, seed=1)
with hf.train.TrainingSession() as session:
    for batch in dataset.epochs(4):
        if len(sys.argv) > 1 and session.steps == 5:
            print("ready", session.context.rank, flush=True)
            time.sleep(1000)
        session.step(train, batch)
    session.wait()
    result = session.result()
    if result is not None:
        print("LOST", [one["rank"] for one in result["lost"]], session.run(count), flush=True)
"""


def submit(slurm: Cluster, place: Place, *words: str) -> Job:
    (place.folder / "train.py").write_text(SCRIPT)
    lines = ["#!/bin/bash", "#SBATCH --nodes=2 --ntasks-per-node=2 --output=job-%j.out"]
    lines.append(f"hpcflow run -n 4 --survive {' '.join(words)}\necho code $?\n")
    (place.folder / "job.sh").write_text("\n".join(lines))
    return slurm.sbatch(place, "job.sh")


def test_the_others_go_on_without_a_rank_of_another_node(slurm: Cluster, place: Place) -> None:
    job = submit(slurm, place, "--inject", "kill:rank=2@step=6", "train.py")
    assert job.wait() == ["COMPLETED"], job.output
    assert "starting 4 ranks by mpirun of Open MPI" in job.output
    assert re.search(r"rank 2 \(/job:worker/task:2\) on node\d has died: 3 of 4", job.output)
    assert "LOST [2] 24\n" in job.output and "code 0\n" in job.output, job.output


def test_a_node_that_dies_ends_the_job_with_a_code(slurm: Cluster, place: Place) -> None:
    """PRRTE's own would be 0."""
    job = submit(slurm, place, "train.py", "waits")
    job.until(lambda: job.output.count("ready") == 4, "come to the step", 150)
    for pid in of_other_nodes(job):
        os.kill(pid, signal.SIGKILL)
    job.wait()
    assert "code 86\n" in job.output and "LOST" not in job.output, job.output
    job.until(lambda: not job.processes(), "end its processes", 60)


def of_other_nodes(job: Job) -> list[int]:
    """Open MPI's daemons of the other nodes, and the ranks that they have started."""
    pids = job.processes()
    daemons = {pid for pid in pids if b"/prted\0" in Path(f"/proc/{pid}/cmdline").read_bytes()}
    stats = {pid: Path(f"/proc/{pid}/stat").read_text() for pid in pids if pid not in daemons}
    parents = {pid: int(stat.rpartition(")")[2].split()[1]) for pid, stat in stats.items()}
    return [*daemons, *(pid for pid in parents if parents[pid] in daemons)]
