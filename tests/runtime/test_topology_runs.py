"""topology=FILE in real jobs: same values as without, one plan of all replicas, clean errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcflow.errors import DataError
from hpcflow.launch import launcher_detection
from tests.processes import without_summary
from tests.runtime.nets import plain, trained
from tests.runtime.ranks import run_ranks
from tests.runtime.test_automatic_placement import run_script

ROOT = Path(__file__).parents[2]
INSIDE_A_JOB = launcher_detection.detect_launcher() is not None
in_jobs = pytest.mark.skipif(INSIDE_A_JOB, reason="a job cannot start jobs")


def write(folder: Path, *nodes: dict[str, Any]) -> str:
    """The path of a topology of these nodes."""
    data = {"format": "hpcflow-topology-1", "racks": [{"nodes": list(nodes)}]}
    (folder / "topology.json").write_text(json.dumps(data))
    return str(folder / "topology.json")


def job(folder: Path, ranks: int, *options: str) -> subprocess.CompletedProcess[str]:
    """A job that trains one variable, with these settings."""
    (folder / "small.py").write_text(
        "import hpcflow as hf\n"
        "v = hf.Variable([1.0])\n"
        "train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_sum(v * v))\n"
        "with hf.Session() as session:\n"
        "    session.run(hf.global_variables_initializer())\n"
        "    session.run(train)\n"
        "    print('FOUND', session.run(v))\n"
    )
    sets = [word for option in options for word in ("--set", option)]
    words = [sys.executable, "-m", "hpcflow", "run", "-n", str(ranks), *sets, "small.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        words, cwd=folder, env=environ, capture_output=True, text=True, timeout=220
    )


@in_jobs
@pytest.mark.slow
def test_processes_train_as_with_the_default_placement_where_a_rank_is_slow(tmp_path):
    """The slow rank and its port take no part; the losses are those of the default placement."""
    file = write(tmp_path, {"ranks": 2, "speed": [1.0, 0.01]}, {"bytes_per_s": 1.25e10})
    options = ("tasks_per_replica=3", "placement=auto", f"topology={file}")
    expected, _ = run_script(tmp_path / "default", 3, "tasks_per_replica=3")
    found, output = run_script(tmp_path / "auto", 3, *options)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    assert "placement=auto: predicted step" in output


@in_jobs
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["other number", "missing", "malformed"])
def test_a_wrong_file_ends_the_job_with_one_error(tmp_path, kind):
    file = write(tmp_path, {"ranks": 2} if kind == "other number" else {"ranks": 3, "speed": 0})
    told = "describes 2 ranks, but the job has 3"
    if kind == "missing":
        os.unlink(file)
        told = f"there is no file of a topology at {file}"
    elif kind == "malformed":
        told = f"{file}: racks[0].nodes[0].speed is 0"
    done = job(tmp_path, 3, "tasks_per_replica=3", "placement=auto", f"topology={file}")
    assert done.returncode not in (0, None)
    text = without_summary(done.stdout + done.stderr)
    assert "FOUND" not in text and "Traceback" not in text
    assert text.count("setting topology: ") == 1 and file in text and told in text, text


def test_replicas_make_one_plan_though_only_one_has_a_slow_rank(tmp_path):
    """Replicas that made different plans would wait for each other's sums for ever."""
    slow = {"speed": [1.0, 0.05]}

    def body(context):
        return context.cluster.topology, trained()

    for nodes in ([{"ranks": 2}, {"ranks": 2, **slow}], [{"ranks": 2, **slow}, {"ranks": 2}]):
        file = write(tmp_path, *nodes)
        found = run_ranks(4, body, tasks_per_replica=2, placement="auto", topology=file)
        assert [topology.speeds for topology, _ in found] == [(1.0, 0.05)] * 2
        for _, values in found:
            for mine, theirs in zip(values, plain(), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


def test_all_ranks_have_the_error_of_rank_0(tmp_path):
    file = write(tmp_path, {"ranks": 3})
    with pytest.raises(DataError, match="describes 3 ranks, but the job has 2"):
        run_ranks(2, lambda context: None, tasks_per_replica=2, topology=file)
