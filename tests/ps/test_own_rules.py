"""Synchronization rules of a script: who may begin, and whose gradients an update uses."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError
from hpcflow.ps.sync_coordinator import Contribution, SyncCoordinator
from hpcflow.ps.sync_rules import rule
from tests.runtime.ranks import run_ranks

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Enough(hf.SyncRule):
    """An update uses gradients of at least this fraction of the global batch."""

    fraction: float
    joins = True

    def select(self, update):
        """All that have arrived, if they are enough."""
        arrived = sum(share for _, share in update.arrived)
        return update.arrived if arrived >= self.fraction else None


@dataclasses.dataclass(frozen=True)
class Window(hf.SyncRule):
    """Workers may begin while all of them are in the same window of steps."""

    size: int

    def may_begin(self, steps, slowest):
        """Whether the slowest worker is in the window of this one."""
        return steps // self.size == slowest // self.size


hf.register_sync_rule("enough", Enough)
hf.register_sync_rule("window", Window)


def test_a_rule_is_its_text_and_back():
    for text, meant in (("enough:0.25", Enough(0.25)), ("window:3", Window(3))):
        assert str(meant) == text and rule(text) == meant == rule(meant)
    assert Window(3).counts_steps and not Window(3).joins and not Enough(0.5).counts_steps


@pytest.mark.parametrize("text", ["enough", "enough:1,2", "nowhere:1"])
def test_a_text_that_does_not_fit_the_rule_is_refused(text):
    with pytest.raises(HpcflowError, match="is no rule") as caught:
        rule(text)
    assert "enough" in caught.value.hint


def test_a_rule_does_not_join_gradients_and_count_steps():
    class Both(Window):
        joins = True

    with pytest.raises(HpcflowError, match="either joins gradients or says who may begin"):
        rule(Both(2))


def test_names_of_rules():
    class Nameless(hf.SyncRule):
        pass

    with pytest.raises(HpcflowError, match="has no name"):
        str(Nameless())
    for name in ("backup", "two words", "a:b", ""):
        with pytest.raises(HpcflowError):
            hf.register_sync_rule(name, Nameless)


def test_who_may_begin_is_asked_again_when_the_slowest_has_made_a_step():
    rounds, begun = SyncCoordinator(Window(2), 2), []

    def step(worker):
        rounds.begin(worker, "train", lambda version: begun.append(worker))

    for _ in range(2):
        step(0)
        rounds.tick(0)
    step(0)  # the first of the next window
    assert begun == [0, 0] and rounds.missing() is not None
    step(1)
    rounds.tick(1)
    assert begun == [0, 0, 1]  # the slowest is not through with the window
    step(1)
    rounds.tick(1)
    assert begun == [0, 0, 1, 1, 0]


def test_whose_gradients_count_is_counted_and_the_others_are_released():
    class Odd(Enough):
        def select(self, update):
            return [one for one in update.arrived if one[0] % 2] if update.is_complete else None

    rounds, picked, released = SyncCoordinator(Odd(1.0), 4), [], []
    rounds.pick("train", lambda factors: picked.append(factors.tolist()))
    for worker in range(4):
        given = Contribution(0, (worker,), lambda worker=worker: released.append(worker))
        rounds.add("train", "g", worker, given)
        rounds.ready(worker, "train", 0, 0.25)
    assert picked == [[0, 2.0, 0, 2.0]]  # by the share of those that count
    assert rounds.used_gradients == [0, 1, 0, 1] and rounds.dropped_gradients == [1, 0, 1, 0]
    rounds.end("train")
    assert sorted(released) == [0, 1, 2, 3]


def test_a_rule_sees_which_workers_are_active():
    """A worker at a barrier and a dead one are not; after the barrier all but the dead one are."""
    seen = []

    class Watching(Enough):
        def select(self, update):
            seen.append((sorted(update.active), sorted(update.contributors)))
            return None if 2 in update.active and 2 not in update.contributors else update.arrived

    coordinator, picked = SyncCoordinator(Watching(1.0), 3), []
    coordinator.pick("train", lambda factors: picked.append(factors.tolist()))
    coordinator.ready(0, "train", 0, 1 / 3)
    coordinator.leave_until_barrier(1, list)
    assert not picked  # worker 2 is active and has not contributed
    coordinator.lose(2)
    assert seen == [([0, 1, 2], [0]), ([0, 2], [0]), ([0], [0])]
    assert picked == [[3.0, 0.0, 0.0]]
    coordinator.end("train")
    coordinator.leave_until_barrier(0, list)
    coordinator.pick("train", lambda factors: picked.append(factors.tolist()))
    coordinator.ready(1, "train", 1, 1 / 3)
    assert seen[-1] == ([0, 1], [1])


def test_the_updates_are_those_of_the_workers_that_the_rule_selects():
    """Each worker's gradient is a power of ten: the sum tells whose were applied."""

    def body(context):
        v = hf.Variable(0.0, dtype=hf.float64, name="v")
        loss = v * 10.0**context.replica
        train = hf.train.GradientDescentOptimizer(1.0).minimize(loss)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        if context.replica == 2:
            while context.control.notes.count(1) < 2:  # both others are through
                time.sleep(0.001)
                session.run(v)
        for _ in range(3 if context.replica == 2 else 6):
            session.run(train)
        if context.replica != 2:
            note = {"service": "note", "number": 1}
            context.control.call({context.roles.drivers[2]: note})()
        context.barrier()
        return float(session.run(v)), context.reports()

    found = run_ranks(4, body, ps=1, sync="enough:0.6", seed=3)
    means = -6 * (1 + 10) / 2 - 3 * 100  # of two at a time, then of the one that is left
    assert [value for value, _ in found] == [pytest.approx(means)] * 3
    state = {name: told for one in found[0][1] for name, told in one["state"].items()}
    assert state["rounds enough:0.6"]["used"] == [6, 6, 3]


def hpcflow_run(script: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    words = ["-m", "hpcflow", "run", "-n", "4", "--ps", "1", "--run-dir", str(folder), *options]
    return subprocess.run(
        [sys.executable, *words, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=220,
    )


@pytest.mark.slow
def test_the_example_trains_by_its_rule(tmp_path):
    script = ROOT / "examples" / "quorum.py"
    assert len(script.read_text().splitlines()) <= 50
    done = hpcflow_run(script, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "slope 3.000" in done.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["sync"] == "quorum:0.6"
    used, dropped = result["gradients"]["used"], result["gradients"]["dropped"]
    assert [u + d for u, d in zip(used, dropped, strict=True)] == result["steps"] == [40] * 3
    # while all three train an update uses two or three gradients, so all used ones of the worker
    # that ends first are beside another
    assert sum(used) / 3 <= result["updates"]["slope"] <= sum(used) - min(used)


def test_a_rule_with_memory_waits_for_the_worker_that_it_left_out():
    fresh = runpy.run_path(str(ROOT / "examples" / "fresh_backup.py"))["Fresh"]
    rounds, picked = SyncCoordinator(fresh(1), 3), []
    for version in range(2):
        for channel in ("one", "other"):  # what is owed in one is not owed in the other
            rounds.pick(channel, lambda factors: picked.append(np.flatnonzero(factors).tolist()))
            for worker in range(3):
                rounds.ready(worker, channel, version, 1 / 3)
            rounds.end(channel)
    assert picked == [[0, 1], [0, 1], [0, 2], [0, 2]]
    assert rule("fresh:1") == fresh(1) and str(fresh(1)) == "fresh:1"


@pytest.mark.slow
def test_the_example_with_memory_drops_no_worker_twice_in_a_row(tmp_path):
    script = ROOT / "examples" / "fresh_backup.py"
    assert len(script.read_text().splitlines()) <= 50
    done = hpcflow_run(script, tmp_path, "--inject", "slow:rank=2x5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "slope 3.000" in done.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["sync"] == "fresh:1"
    used, dropped = result["gradients"]["used"], result["gradients"]["dropped"]
    assert [u + d for u, d in zip(used, dropped, strict=True)] == result["steps"] == [40] * 3
    assert all(d <= u + 1 for u, d in zip(used, dropped, strict=True))


SCRIPT = """
import dataclasses
import hpcflow as hf

@dataclasses.dataclass(frozen=True)
class Half(hf.SyncRule):
    joins = True
    def needed(self, workers): return workers // 2

hf.register_sync_rule("half", Half)
def main():
    v = hf.Variable(0.0)
    train = hf.train.GradientDescentOptimizer(0.1).minimize(v * v)
    with hf.train.TrainingSession() as sess:
        for _ in range(5): sess.run(train)
        sess.wait()
        sess.result()
"""


@pytest.mark.slow
def test_the_option_finds_a_rule_of_the_script_and_needs_a_guard(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + "main()\n")
    done = hpcflow_run(script, tmp_path, "--sync", "half")
    assert done.returncode == 2
    assert "__main__" in done.stderr and str(script) in done.stderr
    script.write_text(SCRIPT + 'if __name__ == "__main__": main()\n')
    done = hpcflow_run(script, tmp_path, "--sync", "half")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "result.json").read_text())["sync"] == "half"
    done = hpcflow_run(script, tmp_path, "--sync", "haf")
    assert done.returncode == 2 and "is no rule" in done.stderr
