"""A signal to one rank stops all of them, together; without one nothing changes."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.checkpoint import checkpoint_directory
from hpcflow.cli.export import newest
from hpcflow.cli.prove_resume import differences
from hpcflow.launch.slurm_requeue import requeue
from hpcflow.plan.distribution.task_assignment import TaskAssignment
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.job.stop_signal import STEP, TIME, StopSignal, _forward_targets, stop_reason
from hpcflow.settings import Settings
from hpcflow.train.checkpoint_interval import CheckpointInterval
from hpcflow.train.preemption import Preempted, Preemption, StopOutlook
from tests.runtime.ranks import run_ranks

from .reference import OPTIMIZERS, data, net

ROOT = Path(__file__).parent.parent.parent

EPOCHS = 10_000  # of 3 steps: however slow the one is that is to hear of it, nobody is through


def train(
    context: RankContext, wishes: dict[int, int], epochs: int = EPOCHS, rest: float = 0.0
) -> tuple[str, int]:
    """Train; the ranks `wishes` are signalled before the step that it gives."""
    features, labels = data(10)
    x, y, _, step, _ = net(OPTIMIZERS["adam"][0]())
    dataset = hf.data.Dataset({x: features, y: labels}, batch=4)
    session = hf.train.TrainingSession()
    try:
        with session:
            for number, dealt in enumerate(dataset.epochs(epochs)):
                if wishes.get(context.rank) == number:
                    context.stop.note(signal.SIGUSR1)
                session.step(step, dealt)
                time.sleep(rest)
            session.wait()
    except Preempted as end:
        assert end.code == 75 and end.signal == signal.SIGUSR1
        assert "starts from scratch" in end.said or not context.is_chief
        return "stopped", session.steps
    return "done", session.steps


@pytest.mark.parametrize("rank", [0, 2])
def test_synchronous_ranks_stop_after_the_same_step(rank: int) -> None:
    ends = run_ranks(3, lambda context: train(context, {rank: 10}))
    assert len(set(ends)) == 1
    how, steps = ends[0]
    assert how == "stopped" and 10 <= steps < EPOCHS * 3


def test_ranks_of_long_steps_stop_soon_from_the_first_step_on() -> None:
    """A step of 0.02 s or more is followed by a look, which the next one reads."""
    ends = run_ranks(2, lambda context: train(context, {1: 2}, rest=0.03))
    assert ends[0] == ends[1]
    assert ends[0][0] == "stopped" and 2 <= ends[0][1] <= 4


@pytest.mark.parametrize("rank", [0, 2])
def test_asynchronous_workers_stop_each_at_its_next_step(rank: int) -> None:
    ends = run_ranks(4, lambda context: train(context, {rank: 10}), ps=1)
    assert len(ends) == 3
    for how, steps in ends:
        assert how == "stopped" and steps < EPOCHS * 3


def test_a_server_passes_its_signal_on() -> None:
    contexts: list[RankContext] = []

    def body(context: RankContext) -> tuple[str, int]:
        contexts.append(context)
        return train(context, {})

    original = RankContext.serve

    def serve(self: RankContext) -> None:
        self.stop.install_handlers()
        self.stop.note(signal.SIGUSR1)
        original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RankContext, "serve", serve)
        patch.setattr(StopSignal, "receive_request", lambda self, number: self.note(number))
        ends = run_ranks(3, body, ps=1)
    assert {how for how, _ in ends} == {"stopped"}


@pytest.mark.parametrize("servers", [0, 1])
def test_without_a_signal_all_train_to_the_end(servers: int) -> None:
    ends = run_ranks(3, lambda context: train(context, {}, epochs=30), ps=servers)
    assert [how for how, _ in ends] == ["done"] * (3 - servers)


def test_a_worker_that_has_finished_stops_with_the_others() -> None:
    """Worker 0 has fewer steps left than worker 1 needs to hear of the signal."""

    def body(context: RankContext) -> str:
        features, labels = data(4)
        x, y, _, step, _ = net(OPTIMIZERS["adam"][0]())
        dataset = hf.data.Dataset({x: features, y: labels}, batch=4)
        try:
            with hf.train.TrainingSession() as session:
                for number, dealt in enumerate(dataset.epochs(2 if context.replica == 0 else 50)):
                    if number == 20:
                        context.stop.note(signal.SIGUSR1)
                    session.step(step, dealt)
        except Preempted:
            return "stopped"
        return "done"

    assert run_ranks(3, body, ps=1) == ["stopped", "stopped"]


def test_synchronous_ranks_learn_before_the_same_step_that_one_is_late() -> None:
    def body(context: RankContext) -> list[int]:
        preemption, found = Preemption(context), []
        for step in range(300):
            assert not preemption.due(late=context.rank == 1 and step == 0)
            if preemption.late:
                found.append(step)
        preemption.meet(stopping=False)
        return found

    first, *others = run_ranks(3, body)
    assert len(first) == 1 and others == [first, first]


def test_signals_are_heeded_while_training_only() -> None:
    def handlers() -> list[Any]:
        return [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)]

    features, labels = data(10)
    before = handlers()
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        x, y, _, step, _ = net(OPTIMIZERS["adam"][0]())
        dataset = hf.data.Dataset({x: features, y: labels}, batch=4)
        with pytest.raises(SystemExit) as end, hf.train.TrainingSession() as session:
            assert handlers() == before
            for number, dealt in enumerate(dataset.epochs(2)):
                session.step(step, dealt)
                if number == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.code == 75 and session.steps == 3
    assert "SIGTERM" in str(end.value) and handlers()[1] == before[1]


AFTER_TRAINING = """
import os, signal, sys
import hpcflow as hf

def train(steps):
    with hf.Graph().as_default():
        count = hf.Variable(0.0)
        step = count.assign_add(1.0)
        with hf.train.TrainingSession() as session:
            for _ in range(steps):
                session.step(step, {})

train(2)
os.kill(os.getpid(), signal.SIGUSR1)
print("evaluated", flush=True)
if sys.argv[1:]:
    train(2)
"""


@pytest.mark.parametrize(("again", "code"), [(False, 0), (True, 75)])
def test_a_request_after_training_does_not_end_the_script(
    again: bool, code: int, tmp_path: Path
) -> None:
    """It keeps its exit code; another session that begins then stops before its first step."""
    script = tmp_path / "script.py"
    script.write_text(AFTER_TRAINING)
    done = subprocess.run(
        [sys.executable, str(script), *(["again"] if again else [])],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert (done.returncode, done.stdout) == (code, "evaluated\n"), done.stderr


def test_a_handler_of_the_users_own_stays() -> None:
    mine = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        stop = StopSignal(0, TaskAssignment((), (0,), 1), True)
        stop.install_handlers()
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        stop.restore_handlers()
    finally:
        signal.signal(signal.SIGUSR1, mine)


def test_who_tells_whom() -> None:
    roles = TaskAssignment((2, 5), (0, 1, 3, 4), 2)  # two replicas of two tasks
    assert [_forward_targets(r, roles, False) for r in range(6)] == [[3], [0], [0], [0], [3], [0]]
    together = TaskAssignment((), (0, 1), 1)
    assert [_forward_targets(r, together, True) for r in range(2)] == [[], []]


SCONTROL = """#!/bin/sh
echo "$@" >> {log}
[ "$1" = show ] && echo "JobId=7 JobState={state} Reason=None"
[ "$1" = requeue ] && exit {code}
exit 0
"""


@pytest.mark.parametrize(
    ("state", "code", "says", "asked"),
    [
        ("RUNNING", 0, "SLURM has requeued job 7", True),
        ("RUNNING", 1, "resume=True", True),
        ("SIGNALING", 0, "SLURM has requeued job 7", True),
        ("COMPLETING", 0, "is COMPLETING", False),  # cancelled, or SLURM requeues it
    ],
)
def test_the_job_is_requeued_only_while_it_runs(
    state: str, code: int, says: str, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, program = tmp_path / "log", tmp_path / "scontrol"
    program.write_text(SCONTROL.format(log=log, state=state, code=code))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert says in requeue({"SLURM_JOB_ID": "7"})
    assert ("requeue 7" in log.read_text()) == asked


@pytest.mark.parametrize(
    ("requeues", "number", "says"),
    [
        (True, signal.SIGTERM, "requeued"),
        (True, TIME, "requeued"),
        (False, signal.SIGTERM, "as it was told"),
        (True, STEP, "as it was told"),  # a setting ended it: SLURM would do it again
    ],
)
def test_only_a_job_that_would_go_on_is_requeued(
    requeues: bool, number: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcflow.train.preemption.requeue", lambda: "requeued")
    context = RankContext(Settings())
    context.stop.note(number)
    end = Preemption(context).end(3, StopOutlook(7, "as it was told", requeues))
    assert end.said == says and end.code == 7
    assert end.signal == (signal.SIGTERM if number == signal.SIGTERM else None)
    assert stop_reason(number) in str(end)


def kept(context: RankContext, folder: Path, epochs: int = EPOCHS, **more: Any) -> Any:
    """A session that keeps checkpoints, and what it trains."""
    features, labels = data(10)
    x, y, _, step, _ = net(OPTIMIZERS["adam"][0]())
    dataset = hf.data.Dataset({x: features, y: labels}, batch=4)
    session = hf.train.TrainingSession(checkpoints=folder, resume=True, **more)
    return session, step, dataset.epochs(epochs)


def trained(
    context: RankContext, folder: Path, epochs: int = EPOCHS, **more: Any
) -> tuple[int, int]:
    """Train until the end or until it is stopped: the exit code, and this worker's steps."""
    session = None
    try:
        session, step, batches = kept(context, folder, epochs, **more)
        with session:
            for batch in batches:
                session.step(step, batch)
    except Preempted as end:
        return int(end.code or 0), session.steps if session is not None else 0
    return 0, session.steps


PLACES = {
    "alone": dict(n=1),
    "sums": dict(n=3),
    "tasks": dict(n=4, tasks_per_replica=2),
    "async": dict(n=4, ps=1),
    "all": dict(n=4, ps=1, sync="all"),
    "backup": dict(n=4, ps=1, sync="backup:1"),
}


@pytest.mark.parametrize("rank", [0, 2, "server"])
def test_workers_whose_rounds_servers_drive_stop_after_the_same_step(
    rank: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rank == "server":
        original = RankContext.serve

        def serve(self: RankContext) -> None:
            self.stop.install_handlers()
            self.stop.note(signal.SIGUSR1)
            original(self)

        monkeypatch.setattr(RankContext, "serve", serve)
        monkeypatch.setattr(StopSignal, "receive_request", lambda self, number: self.note(number))
    wishes = {} if rank == "server" else {int(rank): 10}
    ends = run_ranks(4, lambda context: train(context, wishes), ps=1, sync="all")
    assert len(ends) == 3 and len(set(ends)) == 1
    how, steps = ends[0]
    assert how == "stopped" and steps < EPOCHS * 3


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_before_the_end_of_the_time_all_save_and_stop(
    places: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, edges = dict(places), [0]

    def is_over(self: CheckpointInterval) -> bool:
        edges[0] += 1
        return edges[0] >= 10

    monkeypatch.setattr(CheckpointInterval, "leaves_no_time", is_over)
    ends = run_ranks(places.pop("n"), lambda c: trained(c, tmp_path), **places)
    assert {code for code, _ in ends} == {75}
    saved = checkpoint_directory.find_checkpoints(tmp_path)
    if "ps" in places and places.get("sync") != "all":
        assert saved[0].step == sum(steps for _, steps in ends)
    else:
        assert {steps for _, steps in ends} == {saved[0].step} and len(saved) == 1
    assert 10 <= saved[0].step < EPOCHS * 3 * len(ends)


@pytest.mark.slow
@pytest.mark.parametrize("places", [dict(n=1), dict(n=3), dict(n=4, ps=1, sync="all")])
def test_synchronous_workers_stop_at_the_very_step_that_is_set(places: Any, tmp_path: Path) -> None:
    places = dict(places)
    n = places.pop("n")
    for stop_at in (7, 9):  # of all starts
        ends = run_ranks(n, lambda c: trained(c, tmp_path), stop_at=stop_at, **places)
        assert checkpoint_directory.find_checkpoints(tmp_path)[0].step == stop_at
        assert set(ends) == {(75, 7 if stop_at == 7 else 2)}


@pytest.mark.slow
def test_asynchronous_workers_stop_by_the_chiefs_steps(tmp_path: Path) -> None:
    ends = run_ranks(4, lambda c: trained(c, tmp_path), ps=1, stop_at=30)
    assert {code for code, _ in ends} == {75}
    assert ends[0][1] == 10  # the chief's share of them
    assert checkpoint_directory.find_checkpoints(tmp_path)[0].step == sum(
        steps for _, steps in ends
    )


def test_a_setting_names_the_folder_of_any_session(tmp_path: Path) -> None:
    def body(context: RankContext) -> tuple[int, int]:
        return trained(context, tmp_path / "the script's own")

    other = str(tmp_path / "other")
    assert run_ranks(2, body, checkpoints=other, stop_at=5) == [(75, 5)] * 2
    assert run_ranks(2, body, checkpoints=other, stop_at=8) == [(75, 3)] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other"]


@pytest.mark.parametrize("places", [dict(n=1), dict(n=3), dict(n=4, ps=1, sync="all")])
def test_a_job_that_has_trained_nothing_does_not_come_back(places: Any, tmp_path: Path) -> None:
    """It goes on behind step 1, where the setting stops it at once."""
    places = dict(places)
    n = places.pop("n")
    first = run_ranks(n, lambda c: trained(c, tmp_path), stop_at=4, **places)
    again = run_ranks(n, lambda c: trained(c, tmp_path), stop_at=1, **places)
    assert {code for code, _ in first} == {75} and {code for code, _ in again} == {79}
    assert {steps for _, steps in again} == {0}


@pytest.mark.slow
def test_it_is_started_again_as_often_as_it_may(tmp_path: Path) -> None:
    def codes(stop_at: int) -> set[int]:
        settings = dict(stop_at=stop_at, max_restarts=2)
        return {code for code, _ in run_ranks(2, lambda c: trained(c, tmp_path), **settings)}

    assert codes(2) == {75}  # the first start
    assert codes(4) == {75}  # restart 1
    assert codes(6) == {80}  # restart 2 is the last: it saves, and says that it does not come back
    assert checkpoint_directory.find_checkpoints(tmp_path)[0].step == 6
    assert codes(8) == {80}  # ... and whoever starts it all the same is told so before it trains
    assert checkpoint_directory.find_checkpoints(tmp_path)[0].step == 6
    assert run_ranks(2, lambda c: trained(c, tmp_path, 3)) == [(0, 3)] * 2  # to its end: no limit
    assert codes(11) == {75}  # the count begins anew


def test_outside_of_slurm_one_is_told_to_resume() -> None:
    assert "resume=True" in requeue({}) and "75" in requeue({})


@pytest.mark.slow
def test_stopped_in_an_epoch_and_gone_on_with_other_ranks_each_sample_is_used_once(
    tmp_path: Path,
) -> None:
    """A signal to one rank, wherever it stops them; then fewer or more ranks, in other modes."""

    def body(context: RankContext, wish: int | None) -> list[int]:
        features, labels = data(26)
        x, y, _, step, _ = net(OPTIMIZERS["adam"][0]())
        dataset = hf.data.Dataset({x: features, y: labels}, batch=4)
        drawn: list[int] = []
        with (
            contextlib.suppress(Preempted),
            hf.train.TrainingSession(checkpoints=tmp_path, resume=True, max_to_keep=0) as session,
        ):
            for number, batch in enumerate(dataset.epochs(3000 if wish is not None else epochs)):
                if context.replica == 1 and number == wish:
                    context.stop.note(signal.SIGTERM)
                session.step(step, batch)
                drawn += batch.indices.tolist()
        return drawn

    drawn: list[int] = []
    lives = [dict(n=3), dict(n=2), dict(n=4, ps=1, sync="all"), dict(n=4, ps=1), dict(n=3, ps=1)]
    for life in lives:
        n = life.pop("n")
        drawn += [i for one in run_ranks(n, lambda c: body(c, 9), **life) for i in one]
    (newest, *others) = checkpoint_directory.find_checkpoints(tmp_path)
    assert newest.facts is not None and len(others) == len(lives) - 1
    (position,) = newest.facts["position"]
    begun = [position["epoch"], *map(int, position["left"])]  # by the fastest worker
    epochs = max(begun) + 2
    drawn += [i for one in run_ranks(2, lambda c: body(c, None)) for i in one]
    assert np.bincount(drawn, minlength=26).tolist() == [epochs] * 26


@pytest.mark.slow
@pytest.mark.parametrize("places", [PLACES[name] for name in ("alone", "sums", "tasks", "all")])
def test_stopped_by_a_signal_and_gone_on_the_last_checkpoint_has_the_same_bits(
    places: Any, tmp_path: Path
) -> None:
    """Of synchronous workers: weights, Adam's slots, the place in the data, random draws."""
    places = dict(places)
    n = places.pop("n")

    def body(context: RankContext, where: Path, wish: int) -> None:
        features, labels = data(10)
        x, y, loss, _, _ = net(OPTIMIZERS["adam"][0]())
        noisy = loss + hf.reduce_mean(hf.random_normal([]) * hf.reduce_sum(x))
        step = hf.train.AdamOptimizer(0.01).minimize(noisy)
        dataset = hf.data.Dataset({x: features, y: labels}, batch=4)
        with (
            contextlib.suppress(Preempted),
            hf.train.TrainingSession(checkpoints=where, resume=True) as session,
        ):
            for number, batch in enumerate(dataset.epochs(EPOCHS)):
                if number == wish and context.rank == context.roles.drivers[-1]:
                    context.stop.note(signal.SIGTERM)
                session.step(step, batch)

    run_ranks(n, lambda c: body(c, tmp_path / "stopped", 10), **places)
    stopped = newest(tmp_path / "stopped")
    end = stopped.facts["step"] + 10
    assert 10 <= stopped.facts["step"] < EPOCHS * 3 - 10
    for where in ("stopped", "whole"):
        run_ranks(n, lambda c, w=where: body(c, tmp_path / w, -1), stop_at=end, **places)
    whole, resumed = newest(tmp_path / "whole"), newest(tmp_path / "stopped")
    assert whole.facts["step"] == resumed.facts["step"] == end
    assert differences(whole, resumed) == []
