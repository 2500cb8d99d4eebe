"""Task speeds: when a driver compares its tasks, whom it names, and what it tells the chief."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcflow.placement.measured_speeds import NAME
from hpcflow.runtime.job.message_headers import ServerLoad
from hpcflow.train import task_speeds
from hpcflow.train.task_speeds import TaskSpeeds


class Job:
    """A driver of rank 0 with tasks on ranks 1 and 2, in simulated time; it answers at once.

    `work` has the seconds of own work of each rank in a step, which takes as long as the longest.
    """

    def __init__(self, monkeypatch: Any, folder: Path, chief: int = 0) -> None:
        self.now, self.work = 100.0, [0.02, 0.02, 0.02]
        self.busy, self.asked, self.posted = [0.0] * 3, 0, list[Any]()
        self.lines: list[str] = []
        monkeypatch.setattr(task_speeds, "time", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(
            task_speeds.logger, "warning", lambda text, *values: self.lines.append(text % values)
        )
        self.control: Any = SimpleNamespace(
            server_loads={}, rank_speeds={}, send=self._answer, post=self._post
        )
        self.executor: Any = SimpleNamespace(run_locked=lambda begin, over: begin(), waited=0.0)
        self.plans: Any = SimpleNamespace(task_seconds=[], digest="digest")
        self.context: Any = SimpleNamespace(
            control=self.control,
            executor=self.executor,
            plans=self.plans,
            roles=SimpleNamespace(workers=(0, 1, 2), tasks_per_replica=3, drivers=(chief,)),
            replica=0,
            hosts=["a", "b", "c"],
            settings=SimpleNamespace(inject="", run_dir=str(folder)),
            crowded_hosts=frozenset(),
            is_chief=chief == 0,
            cluster=SimpleNamespace(speeds=()),
            task_name=lambda rank: f"/job:worker/task:{rank}",
        )
        self.speeds = TaskSpeeds(self.context)
        self.folder = folder

    def _answer(self, rank: int, header: Any) -> None:
        self.asked += 1
        now = self.now
        self.control.server_loads[rank] = ServerLoad(
            int(now * 1e9), int((now - self.busy[rank]) * 1e9)
        )

    def _post(self, rank: int, request: Any) -> None:
        self.posted.append((rank, request))

    def steps(self, count: int, plan: tuple[float, ...] = ()) -> None:
        """Run steps; the first makes `plan`, the predicted seconds of the tasks."""
        for i in range(count):
            self.speeds.begin()
            if i == 0 and plan:
                self.plans.task_seconds.append(plan)
            longest = max(self.work)
            self.now += longest
            self.executor.waited += longest - self.work[0]
            self.busy = [busy + work for busy, work in zip(self.busy, self.work, strict=True)]
            self.speeds.end()

    def wait(self, seconds: float, works: bool) -> None:
        """Something other than a training step, in which the tasks work or do not."""
        self.now += seconds
        self.executor.waited += seconds
        if works:
            self.busy = [self.busy[0], *(busy + seconds for busy in self.busy[1:])]

    def file(self) -> dict[int, float]:
        rows = json.loads((self.folder / NAME).read_text())["ranks"]
        return {row["rank"]: row["speed"] for row in rows}


EQUAL = (0.001, 0.001, 0.001)


def test_equal_tasks_are_asked_at_most_once_a_second_and_nobody_is_named(monkeypatch, tmp_path):
    job = Job(monkeypatch, tmp_path)
    job.steps(1000, EQUAL)
    assert job.lines == [] and 2 * 15 <= job.asked <= 2 * 21  # in 20 seconds
    job.speeds.finish()
    assert job.file() == pytest.approx({0: 1.0, 1: 1.0, 2: 1.0}, abs=0.01)


def test_a_task_that_becomes_slow_is_named_once_and_written_at_once(monkeypatch, tmp_path):
    job = Job(monkeypatch, tmp_path)
    job.steps(200, EQUAL)
    assert job.lines == [] and not (tmp_path / NAME).exists()
    job.work[2] = 0.06
    job.steps(300)
    (line,) = job.lines
    assert line.startswith("/job:worker/task:2 (rank 2, host c) computes at 0.")
    assert "its own work takes 60 ms of a step of 60 ms (20 ms before), and 20 ms by" in line
    assert job.file() == pytest.approx({0: 1.0, 1: 1.0, 2: 1 / 3}, abs=0.1)
    job.speeds.finish()
    assert job.file()[2] == pytest.approx(1 / 3, abs=0.01)


def test_a_placement_that_assumed_the_slowness_is_as_predicted(monkeypatch, tmp_path):
    """The speed that is written is that of the rank, not relative to what was assumed."""
    job = Job(monkeypatch, tmp_path)
    job.context.cluster.speeds = (1.0, 1.0, 0.4)
    job.steps(300, (0.001, 0.001, 0.001))  # on the slow one: a third of the operations
    job.speeds.finish()
    assert job.lines == [] and job.file()[2] == pytest.approx(0.4, abs=0.01)


def test_one_slow_second_names_nobody(monkeypatch, tmp_path):
    job = Job(monkeypatch, tmp_path)
    job.steps(300, EQUAL)
    job.work[1] = 0.2
    job.steps(5)
    job.work[1] = 0.02
    job.steps(300)
    assert job.lines == []


def test_a_validation_between_steps_is_not_work_of_steps(monkeypatch, tmp_path):
    job = Job(monkeypatch, tmp_path)
    job.steps(1, EQUAL)
    for _ in range(10):
        job.steps(150)
        job.wait(9.0, works=True)
    job.speeds.finish()
    assert job.lines == [] and job.file() == pytest.approx({0: 1.0, 1: 1.0, 2: 1.0}, abs=0.01)


def test_steps_that_divide_the_work_differently_are_not_judged(monkeypatch, tmp_path):
    job = Job(monkeypatch, tmp_path)
    job.steps(1, EQUAL)
    job.steps(1, (0.003, 0.001, 0.001))
    job.work[2] = 0.06
    job.steps(500)
    job.speeds.finish()
    assert job.lines == [] and not (tmp_path / NAME).exists()


def test_ranks_on_crowded_hosts_are_not_judged(monkeypatch, tmp_path):
    job = Job(monkeypatch, tmp_path)
    job.context.crowded_hosts = frozenset("c")
    job.speeds = TaskSpeeds(job.context)
    job.work[2] = 0.06
    job.steps(500, EQUAL)
    job.speeds.finish()
    assert job.lines == [] and set(job.file()) == {0, 1}


def test_other_drivers_send_to_the_chief_only_what_has_changed(monkeypatch, tmp_path):
    job = Job(monkeypatch, tmp_path, chief=7)
    job.steps(500, EQUAL)
    assert len(job.posted) == 1
    job.work[1] = 0.06
    job.steps(500)
    assert len(job.lines) == 1 and 2 <= len(job.posted) <= 6
    rank, request = job.posted[-1]
    assert rank == 7 and request["service"] == "speeds"
    assert dict(request["speeds"])[1] == pytest.approx(1 / 3, abs=0.11)
    job.speeds.finish()
    assert not (tmp_path / NAME).exists()
