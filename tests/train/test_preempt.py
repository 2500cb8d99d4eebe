"""A signal to one rank stops all of them, together; without one nothing changes."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest

import hpcflow as hf
from hpcflow.plan.roles import Roles
from hpcflow.runtime.context import Context
from hpcflow.runtime.job import use
from hpcflow.runtime.stop import Stop, _whom
from hpcflow.settings import Settings
from hpcflow.train.preempt import Preempted, Preemption, requeue
from tests.runtime.ranks import run_ranks

from .reference import OPTIMIZERS, data, net

EPOCHS = 100  # of 3 steps


def train(context: Context, wishes: dict[int, int], pause: float = 0.0) -> tuple[str, int]:
    """Train; the ranks `wishes` are signalled before the step that it gives."""
    features, labels = data(10)
    x, y, _, step, _ = net(OPTIMIZERS["adam"][0]())
    dataset = hf.data.Dataset({x: features, y: labels}, batch=4)
    session = hf.train.TrainingSession()
    try:
        with session:
            for number, dealt in enumerate(dataset.epochs(EPOCHS)):
                if wishes.get(context.rank) == number:
                    context.stop.note(signal.SIGUSR1)
                session.step(step, dealt)
                time.sleep(pause)
            session.wait()
    except Preempted as end:
        assert end.code == 75 and end.signal == signal.SIGUSR1
        assert "anew" in end.said or not context.is_chief
        return "stopped", session.steps
    return "done", session.steps


@pytest.mark.parametrize("rank", [0, 2])
def test_synchronous_ranks_stop_after_the_same_step(rank: int) -> None:
    ends = run_ranks(3, lambda context: train(context, {rank: 10}))
    assert len(set(ends)) == 1
    how, steps = ends[0]
    assert how == "stopped" and 10 <= steps < EPOCHS * 3


@pytest.mark.parametrize("rank", [0, 2])
def test_asynchronous_workers_stop_each_at_its_next_step(rank: int) -> None:
    ends = run_ranks(4, lambda context: train(context, {rank: 10}, 0.001), ps=1)
    assert len(ends) == 3
    for how, steps in ends:
        assert how == "stopped" and steps < EPOCHS * 3


def test_a_server_passes_its_signal_on() -> None:
    contexts: list[Context] = []

    def body(context: Context) -> tuple[str, int]:
        contexts.append(context)
        return train(context, {}, 0.01)

    original = Context.serve

    def serve(self: Context) -> None:
        self.stop.heed()
        self.stop.note(signal.SIGUSR1)
        original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "serve", serve)
        patch.setattr(Stop, "told", lambda self, number: self.note(number))
        ends = run_ranks(3, body, ps=1)
    assert {how for how, _ in ends} == {"stopped"}


@pytest.mark.parametrize("servers", [0, 1])
def test_without_a_signal_all_train_to_the_end(servers: int) -> None:
    ends = run_ranks(3, lambda context: train(context, {}), ps=servers)
    assert [how for how, _ in ends] == ["done"] * (3 - servers)


def test_a_worker_that_has_finished_stops_with_the_others() -> None:
    """Worker 0 has fewer steps left than worker 1 needs to hear of the signal."""

    def body(context: Context) -> str:
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
    def body(context: Context) -> list[int]:
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
    with use(Context(Settings())), hf.Graph().as_default():
        x, y, _, step, _ = net(OPTIMIZERS["adam"][0]())
        dataset = hf.data.Dataset({x: features, y: labels}, batch=4)
        with pytest.raises(SystemExit) as end, hf.train.TrainingSession() as session:
            assert handlers() == before
            for number, dealt in enumerate(dataset.epochs(2)):
                session.step(step, dealt)
                if number == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.code == 75 and session.steps == 3
    assert "SIGTERM" in str(end.value) and handlers() == before


def test_a_handler_of_the_users_own_stays() -> None:
    mine = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        stop = Stop(0, Roles((), (0,), 1), True)
        stop.heed()
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        stop.unheed()
    finally:
        signal.signal(signal.SIGUSR1, mine)


def test_who_tells_whom() -> None:
    roles = Roles((2, 5), (0, 1, 3, 4), 2)  # two replicas of two tasks
    assert [_whom(r, roles, False) for r in range(6)] == [[3], [0], [0], [0], [3], [0]]
    together = Roles((), (0, 1), 1)
    assert [_whom(r, together, True) for r in range(2)] == [[], []]


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


@pytest.mark.parametrize(("resumes", "says"), [(True, "requeued"), (False, "resume=True")])
def test_only_a_job_that_would_go_on_is_requeued(
    resumes: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcflow.train.preempt.requeue", lambda: "requeued")
    context = Context(Settings())
    context.stop.note(signal.SIGTERM)
    assert says in Preemption(context).end(3, True, resumes).said


def test_outside_of_slurm_one_is_told_to_resume() -> None:
    assert "resume=True" in requeue({}) and "75" in requeue({})
