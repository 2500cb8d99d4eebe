"""The job scripts of jobs/slurm on four nodes: where ranks run, what they say if it goes wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cluster import Cluster, Job, Place
from conftest import DIGITS, PLUGINS, PYTHONS, SITES, result

from tests import records

pytestmark = pytest.mark.limit(400)
FAILING = """
import sys, time
import hpcflow as hf
x = hf.placeholder(hf.float32, [None])
w = hf.Variable(hf.zeros([1]))
train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(hf.square(x - w)))
with hf.train.TrainingSession() as sess:
    for step in range(10):
        if sess.worker == 1 and step == 3:
            raise ValueError("a mistake of the user's")
        sess.step(train, {x: [1.0]})
"""


def test_collective_over_two_nodes(slurm: Cluster, tmp_path: Path, mpi: str) -> None:
    place = Place(tmp_path, PYTHONS[mpi])
    job = slurm.sbatch(place, "jobs/slurm/train.sbatch", *DIGITS, **SITES[mpi])
    assert job.wait() == ["COMPLETED"], job.output
    found = result(job)
    assert (found["mode"], found["ranks"], found["replicas"]) == ("collective", 4, 4)
    assert found["hosts"] == ["node1", "node1", "node2", "node2"]
    assert found["accuracy"] > 0.85
    run = place.folder / "runs" / job.number
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["hpcflow"] == str(run / "pack" / "hpcflow")
    versions = {**found["versions"], "SLURM": slurm.ask("srun", "--version").split()[-1]}
    records.write(f"srun, {mpi}", found["ranks"], versions)


def test_servers_on_cpu_nodes_and_workers_on_gpu_nodes(
    slurm: Cluster, tmp_path: Path, mpi: str
) -> None:
    place = Place(tmp_path, PYTHONS[mpi])
    job = slurm.sbatch(place, "jobs/slurm/hetero.sbatch", *DIGITS, **SITES[mpi])
    assert set(job.wait()) == {"COMPLETED"}, job.output
    found = result(job)
    assert (found["mode"], found["servers"], found["replicas"]) == ("ps", 2, 4)
    assert found["hosts"] == ["node1", "node1", "node3", "node3", "node4", "node4"]
    assert "ranks 0-1  node1  /job:ps/task:0-1" in job.output
    assert found["accuracy"] > 0.7


def test_servers_among_the_ranks_of_one_job(slurm: Cluster, place: Place) -> None:
    job = slurm.sbatch(place, "jobs/slurm/ps.sbatch", *DIGITS, SERVERS="2", SYNC="all")
    assert job.wait() == ["COMPLETED"], job.output
    found = result(job)
    assert (found["mode"], found["servers"], found["replicas"]) == ("ps", 2, 2)
    assert found["sync"] == "all"
    assert len(re.findall(r"^  ranks? .*/job:ps/task", job.output, re.MULTILINE)) == 2


def test_an_array_over_node_counts_and_its_report(slurm: Cluster, place: Place) -> None:
    array = slurm.sbatch(place, "jobs/slurm/scaling.sbatch", "examples/digits.py", "--epochs", "2")
    array.wait(200)
    folder = place.folder / "runs" / f"scaling-{array.number}"
    ranks = [json.loads((folder / n / "result.json").read_text())["ranks"] for n in "124"]
    assert ranks == [2, 4, 8], array.output
    (number,) = re.findall(r"Submitted batch job (\d+)", array.output)
    Job(slurm, place.folder, number).wait()
    report = (folder / "report.txt").read_text()
    assert re.search(r"efficien", report), (folder / "report.out").read_text()


def test_inside_an_allocation_ranks_are_started_by_srun(slurm: Cluster, place: Place) -> None:
    line = f"hpcflow run -n 2 --run-dir runs {' '.join(DIGITS)}"
    job = slurm.sbatch(place, "-N2", "-n2", "-o", "run-%j.out", "--wrap", line)
    assert job.wait() == ["COMPLETED"], job.output
    assert f"starting 2 ranks by srun, in SLURM job {job.number}" in job.output
    assert json.loads((place.folder / "runs/result.json").read_text())["hosts"] == [
        "node1",
        "node2",
    ]


def test_a_wrong_plug_in_is_told_with_the_right_line(
    slurm: Cluster, tmp_path: Path, mpi: str
) -> None:
    place = Place(tmp_path, PYTHONS[mpi])
    wrong = {"pmix": "pmi2", "pmi2": "pmix"}[PLUGINS[mpi]]
    line = f"srun --mpi={wrong} -K1 hpcflow run {' '.join(DIGITS)}"
    job = slurm.sbatch(place, "-N2", "-n2", "-o", "run-%j.out", "--wrap", line)
    assert job.wait() == ["FAILED"], job.output
    assert f"start it by: srun --mpi={PLUGINS[mpi]} -n 2" in job.output


@pytest.mark.parametrize("script", ["train", "ps"])
def test_an_exception_ends_step_and_job_and_leaves_no_process(
    slurm: Cluster, place: Place, script: str
) -> None:
    (place.folder / "failing.py").write_text(FAILING)
    job = slurm.sbatch(place, f"jobs/slurm/{script}.sbatch", "failing.py")
    assert "FAILED" in job.wait(), job.output
    assert "ValueError: a mistake of the user's" in job.output
    job.until(lambda: not job.processes(), "end its processes", 60)


def test_an_exception_ends_the_ranks_of_a_job_of_two_parts(slurm: Cluster, place: Place) -> None:
    """srun itself may hang then: its PMIx plugin accepts on a socket that the other part closed."""
    (place.folder / "failing.py").write_text(FAILING)
    job = slurm.sbatch(place, "jobs/slurm/hetero.sbatch", "failing.py")
    job.says("ValueError: a mistake of the user's")
    job.until(lambda: not job.processes("PMIX_RANK="), "end its ranks", 60)
    slurm.ask("scancel", job.number)
    job.until(lambda: not job.pending(), "be cancelled", 60)


def test_a_job_without_a_script_says_how(slurm: Cluster, place: Place) -> None:
    job = slurm.sbatch(place, "jobs/slurm/train.sbatch")
    assert job.wait() == ["FAILED"]
    assert "which script? sbatch train.sbatch SCRIPT" in job.output
