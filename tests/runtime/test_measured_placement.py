"""placement=auto by the profile of rank 0: who reads it, what it changes, damaged files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcflow.kernels.machine_facts import machine_facts
from hpcflow.launch import launcher_detection
from hpcflow.platform.machine_profile import MachineProfile, ProfileFile
from hpcflow.platform.measured_costs import OperationCost, OperationKey, SampleSummary
from hpcflow.runtime.job import job_times
from tests.runtime.nets import plain, trained
from tests.runtime.ranks import run_ranks
from tests.runtime.test_automatic_placement import SCRIPT
from tests.runtime.test_topology_runs import write

ROOT = Path(__file__).parents[2]
INSIDE_A_JOB = launcher_detection.detect_launcher() is not None
in_jobs = pytest.mark.skipif(INSIDE_A_JOB, reason="a job cannot start jobs")
WIDTH = 256
FLOPS, NBYTES = 2 * 100 * WIDTH * WIDTH, 4 * (2 * 100 * WIDTH + WIDTH * WIDTH)


def rows(seconds: float) -> list[OperationCost]:
    """Products of the script take these seconds, and loops next to none."""
    summary = SampleSummary.of([seconds]), SampleSummary.of([1e-7])
    product = OperationKey("MatMul", ("float32",), "numpy", 1, "cpu", FLOPS, NBYTES)
    loop = OperationKey("Fused: Relu", ("float32",), "llvm", 1, "cpu", 10, 80)
    return [OperationCost(key, s, 1) for key, s in zip((product, loop), summary, strict=True)]


def profile(folder: Path, seconds: float) -> Path:
    """The file of a profile with these rows."""
    file = ProfileFile(folder, machine_facts())
    file.clear()
    assert file.add(MachineProfile(tuple(rows(seconds))))
    return file.path


def run(
    folder: Path, costs: str, *words: str, command: str = "run", threads: str = "1"
) -> tuple[list[str], str]:
    """The lines about the placement, and all output; `threads` 0: as many as a rank has cores."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(SCRIPT)
    ranks = ["-n", "2"] if command == "run" else ["--ranks", "2"]
    sets = ["--set", "tasks_per_replica=2", "--set", "placement=auto"]
    line = [sys.executable, "-m", "hpcflow", command, *ranks, *sets, *words, "script.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HPCFLOW_COST_CACHE": costs}
    environ |= {"HPCFLOW_PLAN_CACHE": str(folder / "plans"), "HPCFLOW_THREADS": threads}
    done = subprocess.run(
        line, cwd=folder, env=environ, capture_output=True, text=True, timeout=220
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    return [line for line in text.splitlines() if "placement=auto: predicted" in line], text


def losses(text: str) -> list[float]:
    (line,) = [line for line in text.splitlines() if "FOUND" in line]
    return json.loads(line.partition("FOUND")[2])[0]


@in_jobs
@pytest.mark.slow
def test_a_changed_profile_makes_a_new_plan_and_the_same_losses(tmp_path):
    """The runs share a cache of plans; only the last one finds its plan there."""
    costs, plans = tmp_path / "costs", tmp_path / "plans"
    costs.mkdir(mode=0o700)
    found, cached = [], []
    for number, seconds in enumerate((1e-6, 0.1, 1e-6)):
        profile(costs, seconds)
        (line,), text = run(tmp_path / str(number), str(costs), "--set", f"plan_cache={plans}")
        assert "; times: 2 operations measured on this machine, 1 thread a rank; tasks of" in line
        found.append((line, losses(text)))
        cached.append(len(list(plans.rglob("*"))))
    (driver, values), (spread, others), (again, _) = found
    assert driver == again != spread and 0 < cached[0] < cached[1] == cached[2]
    np.testing.assert_allclose(values, others, rtol=1e-5)


@in_jobs
@pytest.mark.slow
def test_plan_and_run_have_the_same_times_and_a_damaged_profile_is_one_warning(tmp_path):
    costs = tmp_path / "costs"
    costs.mkdir(mode=0o700)
    file = profile(costs, 0.1)
    for threads in "0", "1":
        (planned,), _ = run(tmp_path / "job", str(costs), command="plan", threads=threads)
        (ran,), _ = run(tmp_path / "job", str(costs), threads=threads)
        assert ran.endswith(planned)
    file.write_text("{")
    for command in ("plan", "run"):
        (line,), text = run(tmp_path / command, str(costs), command=command)
        assert "; times: cost model; tasks of" in line
        assert text.count("placement=auto uses the times of the cost model") == 1
        assert text.count(str(file)) == 1


def test_only_rank_0_reads_the_profile_and_all_replicas_have_its_rows(monkeypatch, tmp_path):
    """Each reader would see other rows: ranks that read for themselves would disagree."""
    seen: list[float] = []

    def read(folder, kinds):
        seen.append(0.1 + len(seen))
        return [row.as_data() for row in rows(seen[-1])]

    monkeypatch.setattr(job_times, "_rows", read)
    file = write(tmp_path, {"ranks": 4, "speed": [2.0, 1.0, 4.0, 4.0]})

    def body(context):
        return context.cluster.times, context.cluster.topology, trained()

    found = run_ranks(4, body, tasks_per_replica=2, placement="auto", topology=file)
    (first, topology, _), (second, _, _) = found
    assert len(seen) == 1 and first == second and first.rows == tuple(rows(0.1))
    assert topology.speeds == (1.0, 0.5)  # relative to rank 0, whose times these are
    for *_, values in found:
        for mine, theirs in zip(values, plain(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


def test_other_placements_read_no_profile(monkeypatch):
    def read(folder, kinds):
        raise AssertionError("a rank without placement=auto reads the profile")

    monkeypatch.setattr(job_times, "_rows", read)
    run_ranks(2, lambda context: trained(), tasks_per_replica=2)


def test_a_rank_imports_none_of_it():
    code = (
        "import sys, hpcflow as hf\n"
        "x = hf.Variable(1.0)\n"
        "with hf.Session() as session:\n"
        "    session.run(hf.global_variables_initializer())\n"
        "names = ('job_times', 'measured_rows', 'operation_costs', 'machine_profile')\n"
        "print([m for m in sys.modules if m.rpartition('.')[2] in names])\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=220
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
