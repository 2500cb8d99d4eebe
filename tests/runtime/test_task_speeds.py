"""Placement by measured speeds: a slow task is named, and has less work at the next start."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import hpcflow as hf
from benchmarks import sleeping_kernels
from benchmarks.sleeping_kernels import sleep_in_kernels
from hpcflow.lowering import python_codegen
from hpcflow.placement.measured_speeds import NAME
from hpcflow.plan.communication import message_coalescing
from hpcflow.plan.distribution import step_problem_builder
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.executor import mpi_progress_thread
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.train import task_speeds
from tests.runtime.nets import data, net
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("slow_task_script.py")
STEPS, FACTOR = 36, 3
CHANGED = (
    (Device, "info"),
    (python_codegen, "LONG_S"),
    (python_codegen, "POLL_EVERY_S"),
    (message_coalescing, "WORTH_S"),
    (mpi_progress_thread, "POLL_S"),
)


class Start(NamedTuple):
    """What a start of the script printed: first step, losses, modelled seconds of each rank."""

    begun: int
    losses: list[float]
    modelled: list[float]
    output: str


def start(folder: Path, steps: int, factor: float) -> Start:
    """Run the script on three ranks, of which rank 2 takes `factor` times as long."""
    folder.mkdir(exist_ok=True)
    options = ["--run-dir", "out", "--inject", f"slow:rank=2x{factor}"]
    for setting in ("page=0", "tasks_per_replica=3", "placement=auto"):
        options += ["--set", setting]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    environ |= {"HPCFLOW_KERNELS": "plain", "HPCFLOW_PLAN_CACHE": "none"}
    done = subprocess.run(
        [sys.executable, "-m", "hpcflow", "run", "-n", "3", *options, str(SCRIPT), str(steps)],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=220,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    begun, losses = json.loads(output.partition("FOUND ")[2].partition("\n")[0])
    seconds = dict(re.findall(r"MODELLED (\d) ([\d.]+)", output))
    return Start(begun, losses, [float(seconds[rank]) for rank in "012"], output)


def slow_lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if "of the speed that placement=auto" in line]


def longest(modelled: list[float]) -> float:
    """Seconds of the busiest rank by the model, of which rank 2 takes three times as long."""
    return max(modelled[0], modelled[1], FACTOR * modelled[2])


@pytest.mark.slow
def test_a_rank_that_is_three_times_slower_is_named_and_has_less_work_at_the_next_start(tmp_path):
    first = start(tmp_path / "slow", STEPS, FACTOR)
    (line,) = slow_lines(first.output)
    assert re.search(r"/job:worker/task:2 \(rank 2, host \S+\) computes at 0\.[2-5]", line), line
    assert "by the measured speeds of" not in first.output
    file = tmp_path / "slow" / "out" / NAME
    speeds = {row["rank"]: row["speed"] for row in json.loads(file.read_text())["ranks"]}
    assert 0.2 < speeds[2] < 0.5 and min(speeds[0], speeds[1]) > 0.67, speeds
    result = json.loads((tmp_path / "slow" / "out" / "result.json").read_text())
    assert any("computes at" in text for text in result["warnings"])

    second = start(tmp_path / "slow", STEPS, FACTOR)
    assert "by the measured speeds of task 2 0." in second.output
    assert second.begun == STEPS
    assert longest(second.modelled) < 0.75 * longest(first.modelled)

    whole = start(tmp_path / "whole", 2 * STEPS, 1.1)
    np.testing.assert_allclose(first.losses + second.losses, whole.losses, rtol=1e-4)
    assert not slow_lines(whole.output), whole.output
    rows = json.loads((tmp_path / "whole" / "out" / NAME).read_text())["ranks"]
    assert len(rows) == 3 and all(row["speed"] > 0.67 for row in rows), rows


def speeds_of_job(folder: Path, rows: object, servers: int = 0) -> list[tuple[float, ...]]:
    """The speeds that the ranks of two replicas of two tasks place by, with this file."""
    data = {"format": "hpcflow-placement-1", "plan": "", "step_seconds": 0.0, "ranks": rows}
    (folder / NAME).write_text(json.dumps(data))
    return run_ranks(
        4 + servers,
        lambda context: context.cluster.speeds,
        tasks_per_replica=2,
        placement="auto",
        run_dir=str(folder),
        ps=servers,
    )


def host_of_tests() -> str:
    return run_ranks(1, lambda context: context.hosts[0])[0]


def test_speeds_are_those_of_ranks_that_are_on_the_same_host(tmp_path):
    """The slowest rank of a task counts: all replicas make one plan."""
    here = host_of_tests()
    rows = [{"rank": 1, "host": here, "speed": 0.5}, {"rank": 3, "host": here, "speed": 0.25}]
    assert speeds_of_job(tmp_path, rows) == [(1.0, 0.25)] * 2
    rows[1]["host"] = "elsewhere"
    assert speeds_of_job(tmp_path, rows) == [(1.0, 0.5)] * 2
    rows[0]["host"] = "elsewhere"
    assert speeds_of_job(tmp_path, rows) == [()] * 2


def test_servers_have_no_measured_speed(tmp_path):
    rows = [{"rank": rank, "host": host_of_tests(), "speed": 0.5} for rank in (1, 4)]
    assert speeds_of_job(tmp_path, rows, servers=1) == [(1.0, 0.5)] * 2


def test_a_damaged_file_is_told_once_and_counts_as_none(tmp_path, caplog):
    twice = {"rank": 1, "host": host_of_tests(), "speed": 0.5}
    for rows in ([{"rank": 1, "host": 3, "speed": "fast"}], [twice, twice]):
        assert speeds_of_job(tmp_path, rows) == [()] * 2
        told = [one.getMessage() for one in caplog.records if NAME in one.getMessage()]
        assert len(told) == 1 and "takes all ranks as equal" in told[0] and "delete it" in told[0]
        assert f"ranks[{len(rows) - 1}]" in told[0]
        caplog.clear()


def clocks_of_ranks(monkeypatch):
    """A sleep of a kernel takes no time: it puts the clock of its rank, a thread, forward.

    So the times of kernels may be so long that no noise of the machine counts.
    """
    mine, now = threading.local(), time.perf_counter

    def sleep(seconds):
        mine.ahead = getattr(mine, "ahead", 0.0) + seconds

    def perf_counter():
        return now() + getattr(mine, "ahead", 0.0)

    clock = types.SimpleNamespace(sleep=sleep, perf_counter=perf_counter)
    monkeypatch.setattr(sleeping_kernels, "time", clock)
    monkeypatch.setattr(time, "perf_counter", perf_counter)


@pytest.mark.slow
def test_the_chief_writes_what_all_replicas_measure(tmp_path, monkeypatch):
    """Two replicas of two tasks in threads; the second task of the second replica sleeps more."""
    for place, name in CHANGED:  # restored: `sleep_in_kernels` changes them
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setattr(task_speeds, "WINDOW_S", 0.05)
    monkeypatch.setattr(step_problem_builder, "MESSAGE_S", 1e-9)
    monkeypatch.setattr(step_problem_builder, "MESSAGE_OVERHEAD_S", 1e-9)
    clocks_of_ranks(monkeypatch)
    serve = RankContext.serve

    def sleeping_serve(context):
        sleep_in_kernels(context, 160_000.0 if context.rank == 3 else 40_000.0)
        serve(context)

    monkeypatch.setattr(RankContext, "serve", sleeping_serve)

    def body(context):
        sleep_in_kernels(context, 40_000.0)
        x, y, loss, train, _ = net()
        features, labels = data()
        with hf.train.TrainingSession() as session:
            for _ in range(40):
                session.step([loss, train], {x: features, y: labels})
            session.result()
        return context.cluster.speeds

    settings = {"tasks_per_replica": 2, "placement": "auto", "run_dir": str(tmp_path)}
    settings |= {"kernels": "plain", "plan_cache": "none"}
    assert run_ranks(4, body, **settings) == [()] * 2
    rows = json.loads((tmp_path / NAME).read_text())["ranks"]
    speeds = {row["rank"]: row["speed"] for row in rows}
    assert set(speeds) == {0, 1, 2, 3} and speeds[3] < 0.5 < min(speeds[k] for k in (0, 1, 2))
    assert (
        run_ranks(4, lambda context: context.cluster.speeds, **settings) == [(1.0, speeds[3])] * 2
    )
