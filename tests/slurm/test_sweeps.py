"""Sweeps and scaling studies as job arrays: what runs, how often, and with which states."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from cluster import Cluster, Place

pytestmark = pytest.mark.limit(600)
CORES = 4  # of a node
COUNT, TOO_LONG, NO_MEMORY = 100, 40, 60
FAILING = {n for n in range(COUNT) if n % 25 == 3}
RUN = f"""
import argparse, os, sys, time
options = argparse.ArgumentParser()
options.add_argument("--run", type=int)
run = options.parse_args().run
def say(word):
    with open("lines.txt", "a") as file:
        file.write(f"{{word}} {{run}} {{os.environ['SLURM_JOB_ID']}}\\n")
say("begin")
for step in range(2000 if run == {TOO_LONG} else 10):
    time.sleep(0.1)
if run in {FAILING}:
    sys.exit(3)
if run == {NO_MEMORY}:
    raise MemoryError("no room")
say("end")
"""


def hpcflow(slurm: Cluster, place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "hpcflow", *words)
    return slurm.run(*command, cwd=place.folder)


def wait_for_queue(slurm: Cluster, seconds: float) -> None:
    """Wait until no job waits or runs, those that jobs submit among them."""
    end = time.monotonic() + seconds
    while slurm.ask("squeue", "-h"):
        assert time.monotonic() < end, slurm.ask("squeue")
        time.sleep(0.5)


def states(folder: Path) -> list[str]:
    found = []
    for place in sorted((folder / "ledger").glob("[0-9n]*")):
        found.append(json.loads((place / "state.json").read_text())["state"])
    return found


def ledger_processes(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"hpcflow.sweep.ledger_run" in words and str(folder).encode() in words:
            found.append(int(entry.name))
    return found


def test_a_hundred_runs_with_kills_time_outs_and_a_lost_node(slurm: Cluster, place: Place) -> None:
    (place.folder / "train.py").write_text(RUN)
    grid = [word for n in range(COUNT) for word in ("--grid", f"run={n}")]
    command = ["sweep", "train.py", *grid, "--sbatch=--time=2 --mem-per-cpu=100", "--json"]
    submitted = hpcflow(slurm, place, *command)
    assert submitted.returncode == 0, submitted.stderr
    runs = json.loads(submitted.stdout)["runs"]
    assert len(runs) == COUNT  # it returns at once
    again = hpcflow(slurm, place, *command)
    assert again.returncode == 0 and "submitted" not in again.stderr, again.stderr
    sweep, lines = place.folder / "sweeps/train", place.folder / "lines.txt"
    end = time.monotonic() + 240
    while not lines.exists() or lines.read_text().count("end") < 12:
        assert time.monotonic() < end, slurm.ask("squeue")
        time.sleep(0.2)
    for pid in ledger_processes(sweep)[:3]:
        os.kill(pid, signal.SIGKILL)
    slurm.ask("scontrol", "update", "nodename=node4", "state=down", "reason=rehearsal")
    wait_for_queue(slurm, 420)
    found = dict(enumerate(states(sweep)))
    assert {n for n, state in found.items() if state == "failed"} == FAILING
    assert {n for n, state in found.items() if state == "timeout"} == {TOO_LONG}
    assert {n for n, state in found.items() if state == "out_of_memory"} == {NO_MEMORY}
    assert Counter(found.values())["done"] == COUNT - len(FAILING) - 2
    ends = Counter(line.split()[1] for line in lines.read_text().splitlines() if "end" in line)
    assert set(ends) == {str(n) for n, state in found.items() if state == "done"}
    repeated = sum(ends.values()) - len(ends)
    assert repeated <= 3 + CORES  # had ended when they were killed, which nobody had recorded
    data = json.loads((sweep / "results.json").read_text())  # the last job has written it
    assert [run["state"] for run in data["runs"]] == list(found.values())
    assert data["runs"][3]["exit_code"] == 3
    begun = lines.read_text()
    final = hpcflow(slurm, place, *command)
    assert final.returncode == 1 and lines.read_text() == begun  # nothing runs again


HALVING = """
import argparse, json, os, pathlib
import hpcflow as hf
options = argparse.ArgumentParser()
options.add_argument("--rate", type=float)
options.add_argument("--epochs", type=int)
options = options.parse_args()
hf.Variable(hf.zeros([2]))
with hf.train.TrainingSession() as session:
    session.result(loss=(options.rate - 2) ** 2 + 1 / options.epochs)
"""


def test_jobs_submit_the_rungs_of_successive_halving(slurm: Cluster, place: Place) -> None:
    (place.folder / "train.py").write_text(HALVING)
    grid = [word for rate in range(4) for word in ("--grid", f"rate={rate}")]
    words = ["--search", "halving", "--metric", "loss", "--mode", "min", "-n", "2"]
    done = hpcflow(
        slurm, place, "sweep", "train.py", *grid, *words, "--budget", "epochs=1:4:2", "--slurm"
    )
    assert done.returncode == 0, done.stderr
    wait_for_queue(slurm, 300)
    data = json.loads((place.folder / "sweeps/train/results.json").read_text())
    chosen = [(run["group"], run["values"]["rate"], run["state"]) for run in data["runs"]]
    assert chosen == [
        *((0, f"{rate}", "done") for rate in range(4)),
        *((1, "2", "done"), (1, "1", "done"), (2, "2", "done")),
    ]
    last = json.loads((place.folder / "sweeps/train/runs/0006/result.json").read_text())
    assert last["ranks"] == 2 and last["loss"] == 0.25


def test_a_scaling_study_is_one_submission(slurm: Cluster, place: Place) -> None:
    words = ["--ranks", "1,2", "--repeats", "2", "--sbatch=--time=5", "examples/digits.py"]
    submitted = hpcflow(slurm, place, "scale", *words, "--epochs", "1")
    assert submitted.returncode == 0, submitted.stderr
    assert "submitted" in submitted.stdout and not (place.folder / "scaling/scaling.json").exists()
    wait_for_queue(slurm, 300)
    data = json.loads((place.folder / "scaling/scaling.json").read_text())
    assert [(p["ranks"], p["runs"]) for p in data["points"]] == [(1, 2), (2, 2)]
    begun = [json.loads((path / "state.json").read_text())
             for path in sorted((place.folder / "scaling/ledger").glob("n*"))]  # fmt: skip
    spans = sorted((one["begun"], one["begun"] + one["seconds"]) for one in begun)
    assert all(a[1] <= b[0] + 1 for a, b in itertools.pairwise(spans))  # in turns
    assert (place.folder / "scaling/report.html").exists()
