"""Monitored sessions and their hooks, alone and with several workers in either mode."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import (
    CheckpointError,
    FeedError,
    FetchError,
    GraphError,
    HpcflowError,
    LonelyCollectiveError,
    OutOfRangeError,
    UninitializedError,
)
from hpcflow.graph.side_effects import is_training_step
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

train = hf.train


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        yield


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The lines that are logged, as they come."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    yield lines
    logger.setLevel(level)
    logger.removeHandler(handler)


def counting() -> tuple[hf.Variable, hf.Operation]:
    """A global step, and a step of training that adds 1 to it and to a variable."""
    step = train.get_or_create_global_step()
    w = hf.Variable(np.zeros(3, np.float32), name="w")
    step.value(), w.value()  # read before the updates that are made next
    return w, hf.group(w.assign_add(hf.ones([3])), step.assign_add(1))


class Recorder(train.SessionRunHook):
    """Writes down what is called; fetches and feeds what it is given."""

    def __init__(self, events: list[Any], fetches: Any = None, feeds: Any = None) -> None:
        self.events, self.args = events, train.SessionRunArgs(fetches, feeds)

    def begin(self) -> None:
        hf.constant(1)  # the graph may still grow
        self.events.append("begin")

    def after_create_session(self, session: Any, coord: Any) -> None:
        with pytest.raises(GraphError, match="finalized"):
            hf.constant(1)
        assert isinstance(session, hf.Session) and not coord.should_stop()
        self.events.append("created")

    def before_run(self, run_context: Any) -> Any:
        self.events.append(("before", run_context.original_args.fetches))
        return self.args if self.args != (None, None) else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.events.append(("after", run_values.results))

    def end(self, session: Any) -> None:
        self.events.append("end")


# -- the protocol


def test_hooks_are_called_around_runs() -> None:
    x = hf.placeholder(hf.float32, [], name="x")
    y, z = 2.0 * x, {"z": [x + 1.0, x]}
    first: list[Any] = []
    second: list[Any] = []
    hooks = [Recorder(first, z), Recorder(second, None, {x: 5.0})]
    with train.MonitoredSession(hooks=hooks) as session:
        assert session.graph is hf.get_default_graph()
        assert session.run({"y": y}) == {"y": 10.0}
        assert session.run([y, (y, "x:0")]) == [10.0, (10.0, 5.0)]
        assert not session.should_stop()
    assert session.should_stop()
    assert first == [
        *("begin", "created", ("before", {"y": y}), ("after", {"z": [6.0, 5.0]})),
        *(("before", [y, (y, "x:0")]), ("after", {"z": [6.0, 5.0]}), "end"),
    ]
    assert [e for e in second if e[0] == "after"] == [("after", ())] * 2
    with pytest.raises(FetchError, match="is closed"):
        session.run(y)


def test_a_function_of_a_step_runs_with_hooks_or_without() -> None:
    counting()
    x = hf.constant(3.0)
    seen: list[Any] = []

    class Hook(train.SessionRunHook):
        def before_run(self, run_context: Any) -> None:
            seen.append(run_context.original_args.fetches)

    def double(step_context: Any) -> Any:
        return step_context.session.run(x) + step_context.run_with_hooks(fetches=x)

    with train.MonitoredSession(hooks=[Hook()]) as session:
        assert session.run_step_fn(double) == 6.0 and seen == [x]
        session.run_step_fn(lambda step_context: step_context.request_stop())
    assert session.should_stop()


def test_the_graph_is_finalized_as_long_as_the_session_is_open() -> None:
    counting()
    graph = hf.get_default_graph()
    with train.MonitoredSession():
        assert graph.finalized
    assert not graph.finalized
    hf.constant(1.0)


def test_a_hook_feeds_what_nobody_else_may() -> None:
    x = hf.placeholder(hf.float32, [], name="x")
    y = x * 2.0
    numbers = iter([3.0, 4.0, 5.0])
    with train.MonitoredSession(hooks=[train.FeedFnHook(lambda: {x: next(numbers)})]) as session:
        assert [session.run(y), session.run(y)] == [6.0, 8.0]
        with pytest.raises(FeedError, match="FeedFnHook feeds 'x:0'"):
            session.run(y, {x: 1.0})


@pytest.mark.parametrize("end", [OutOfRangeError("no more"), StopIteration()])
def test_the_end_of_the_data_ends_it_well(end: Exception) -> None:
    events: list[Any] = []
    with train.MonitoredSession(hooks=[Recorder(events)]):
        raise end
    assert events[-1] == "end"


def test_another_error_ends_it_at_once(tmp_path: Path) -> None:
    events: list[Any] = []
    _, step = counting()
    with (
        pytest.raises(ValueError, match="by test"),
        train.MonitoredTrainingSession(
            checkpoint_dir=tmp_path, hooks=[Recorder(events)]
        ) as session,
    ):
        session.run(step)
        raise ValueError("by test")
    assert "end" not in events and list(tmp_path.iterdir()) == []


def test_why_a_queue_was_closed_is_raised() -> None:
    def fail(number: Any) -> Any:
        raise KeyError("by test")

    queue = hf.FIFOQueue(2, [hf.float32], shapes=[()])
    bad = hf.py_func(fail, [hf.constant(1.0)], hf.float32)
    train.add_queue_runner(train.QueueRunner(queue, [queue.enqueue(bad)]))
    out = queue.dequeue()
    with pytest.raises(HpcflowError, match="by test"), train.MonitoredSession() as session:
        while not session.should_stop():
            session.run(out)
        session.run(out)


def test_queue_runners_are_started_and_end() -> None:
    (number,) = train.slice_input_producer([np.arange(4)], num_epochs=1, shuffle=False)
    found = []
    with train.MonitoredSession() as session:
        while not session.should_stop():
            found.append(int(session.run(number)))
    assert found == [0, 1, 2, 3]


def test_a_step_of_training_changes_what_replicas_share() -> None:
    w = hf.Variable(1.0)
    mine = hf.Variable(1.0, trainable=False, collections=[hf.GraphKeys.LOCAL_VARIABLES])
    x = hf.constant(1.0)
    change = w.assign_add(x)
    with hf.control_dependencies([change]):
        after = hf.identity(x)
    inside = hf.cond(hf.constant(True), lambda: _added(w), lambda: hf.constant(0.0))
    other = hf.cond(hf.constant(True), lambda: w + 1.0, lambda: hf.constant(0.0))
    assert [is_training_step([t]) for t in (change, after, inside, hf.exp(after))] == [True] * 4
    quiet = (w.value(), other, mine.assign_add(x), w.initializer)
    assert [is_training_step([t]) for t in quiet] == [False] * 4


def _added(w: hf.Variable) -> hf.Tensor:
    with hf.control_dependencies([w.assign_add(1.0)]):
        return hf.constant(1.0)


# -- beginning


def test_a_scaffold_says_how_it_begins() -> None:
    fed = hf.placeholder(hf.float32, [2])
    w = hf.Variable(fed, name="w")
    local = hf.Variable(4.0, collections=[hf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    more = local.assign_add(1.0)
    seen = []
    scaffold = train.Scaffold(
        init_op=hf.global_variables_initializer(),
        init_feed_dict={fed: [1, 2]},
        init_fn=lambda scaffold, session: seen.append((scaffold, session.run(w).tolist())),
        ready_op=hf.report_uninitialized_variables(),
        local_init_op=more,
    )
    creator = train.ChiefSessionCreator(scaffold)
    with train.MonitoredSession(creator) as session:
        assert session.run([w, local])[0].tolist() == [1, 2] and session.run(local) == 5
    assert seen == [(scaffold, [1.0, 2.0])]


def test_what_has_no_value_is_named() -> None:
    w = hf.Variable(1.0, name="w")
    hf.Variable(1.0, name="forgotten")
    ready = hf.report_uninitialized_variables()
    scaffold = train.Scaffold(init_op=w.initializer, ready_op=ready)
    with pytest.raises(UninitializedError, match="init_op: forgotten"):
        train.MonitoredTrainingSession(scaffold=scaffold)


def test_a_graph_may_have_two_sessions_one_after_the_other() -> None:
    w, step = counting()
    for _ in range(2):
        with train.MonitoredTrainingSession(log_step_count_steps=None) as session:
            session.run(step)
            assert session.run(w).tolist() == [1, 1, 1]


# -- checkpoints


def steps_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("step-"))


def test_it_goes_on_from_the_newest_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    w, step = counting()
    begun = []
    scaffold = train.Scaffold(init_fn=lambda scaffold, session: begun.append(1))
    for last in (7, 9):
        with train.MonitoredTrainingSession(
            checkpoint_dir=tmp_path,
            hooks=[train.StopAtStepHook(last_step=last)],
            scaffold=scaffold,
            save_checkpoint_steps=3,
        ) as session:
            while not session.should_stop():
                session.run(step)
            assert session.run(w).tolist() == [last] * 3
    assert steps_in(tmp_path) == ["step-3", "step-6", "step-7", "step-9"] and begun == [1]
    assert "resumed step=7" in capsys.readouterr().out
    with train.SingularMonitoredSession(checkpoint_dir=tmp_path) as single:
        assert single.run(w).tolist() == [9] * 3
        assert single.raw_session().run(w).tolist() == [9] * 3
        single.run(step)
    creator = train.ChiefSessionCreator(checkpoint_filename_with_path=tmp_path / "step-6")
    with train.MonitoredSession(creator) as session:
        assert session.run(w).tolist() == [6] * 3
    assert len(steps_in(tmp_path)) == 4  # neither of them saves


@pytest.mark.slow
def test_a_hook_of_ones_own_saves_instead(tmp_path: Path, said: list[str]) -> None:
    w, step = counting()
    saver = train.Saver({"weights": w}, max_to_keep=1)
    with train.MonitoredTrainingSession(
        checkpoint_dir=tmp_path / "none",
        hooks=[train.CheckpointSaverHook(tmp_path / "some", save_steps=2, saver=saver)],
    ) as session:
        for _ in range(5):
            session.run(step)
    assert steps_in(tmp_path / "some") == ["step-5"] and not (tmp_path / "none").exists()
    assert any("the given CheckpointSaverHook saves" in line for line in said)
    with hf.Session() as plain:
        found = train.Saver({"weights": w}).restore(plain, tmp_path / "some")
        assert found["step"] == 5 and plain.run(w).tolist() == [5] * 3


def test_a_hook_saves_in_no_folder_of_another_run(tmp_path: Path) -> None:
    """A session that restores goes on from `checkpoint_dir`, or from a file; not from here."""
    hook = train.CheckpointSaverHook(tmp_path, save_steps=1)
    for i, given in enumerate([{}, {}, {"checkpoint_dir": tmp_path / "none"}]):
        with hf.Graph().as_default():
            count = train.get_or_create_global_step()
            step = count.assign_add(1)
            if not i:
                with train.SingularMonitoredSession([hook], **given) as session:
                    session.run(step)
                continue
            with pytest.raises(CheckpointError, match="the newest is step-1"):
                train.SingularMonitoredSession([hook], **given)


def test_one_hook_saves() -> None:
    counting()
    hooks = [train.CheckpointSaverHook("x", save_steps=1) for _ in range(2)]
    with pytest.raises(HpcflowError, match="2 CheckpointSaverHooks"):
        train.MonitoredSession(hooks=hooks)
    with pytest.raises(HpcflowError, match="exactly one"):
        train.CheckpointSaverHook("x")
    with pytest.raises(HpcflowError, match="at most one"):
        train.CheckpointSaverHook("x", 1, saver=train.Saver(), scaffold=train.Scaffold())


def learned(context: RankContext, folder: Path, last: int) -> list[Any]:
    """What a worker sees at the end; the workers say different things, the chief's count."""
    w, step = counting()
    mine = {"checkpoint_dir": folder} if context.is_chief else {}
    final = train.FinalOpsHook([w, train.get_global_step()])  # when all have done their steps
    with train.MonitoredTrainingSession(
        is_chief=context.is_chief,
        hooks=[train.StopAtStepHook(last_step=last), final],
        save_checkpoint_steps=4,
        **mine,
    ) as session:
        while not session.should_stop():
            session.run(step)
    weights, count = final.final_ops_values
    return [weights.tolist(), int(count)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_all_ranks_save_when_the_chief_says(tmp_path: Path, seed: int) -> None:
    """Asynchronous workers: every count in the checkpoint is in the weights exactly once."""
    for last in (10, 20):
        body = functools.partial(learned, folder=tmp_path, last=last)
        found = run_ranks(4, body, ps=2, seed=seed)
        assert len(found) == 2 and found[0] == found[1]
        weights, count = found[0]
        assert weights == [count] * 3 and last <= count <= last + 1
    assert len(steps_in(tmp_path)) >= 3


def test_replicas_save_after_the_same_step(tmp_path: Path) -> None:
    for last in (6, 9):
        found = run_ranks(3, functools.partial(learned, folder=tmp_path, last=last))
        assert found == [[[last] * 3, last]] * 3
    assert steps_in(tmp_path) == ["step-4", "step-6", "step-8", "step-9"]


def test_other_workers_wait_until_the_chief_has_begun() -> None:
    """The chief's init_fn is slow; whoever trained before it would be undone by it."""

    def body(context: RankContext) -> float:
        w = hf.Variable(0.0, name="w")
        fed = hf.placeholder(hf.float32, [])
        reset, step = w.assign(fed), w.assign_add(1.0)

        def begin(scaffold: Any, session: Any) -> None:
            if context.is_chief:
                time.sleep(0.2)
                session.run(reset, {fed: 100.0})

        scaffold = train.Scaffold(init_fn=begin)
        creator = train.ChiefSessionCreator if context.is_chief else train.WorkerSessionCreator
        with train.MonitoredSession(creator(scaffold)) as session:
            for _ in range(5):
                session.run(step)
            context.barrier()
            return float(session.run(w))

    assert run_ranks(4, body, ps=1, seed=3) == [115.0] * 3


# -- the hooks


def test_it_stops_so_many_steps_after_the_beginning() -> None:
    w, step = counting()
    fed = hf.placeholder(hf.int64, [])
    reset = train.get_or_create_global_step().assign(fed)
    scaffold = train.Scaffold(init_fn=lambda _, session: session.run(reset, {fed: 5}))
    hook = train.StopAtStepHook(num_steps=4)
    with train.MonitoredTrainingSession(scaffold=scaffold, hooks=[hook]) as session:
        while not session.should_stop():
            session.run(step)
        assert session.run(w).tolist() == [4] * 3
    for given in ({}, {"num_steps": 1, "last_step": 1}):
        with pytest.raises(HpcflowError, match="exactly one of num_steps"):
            train.StopAtStepHook(**given)


def test_hooks_that_count_need_a_global_step() -> None:
    hf.Variable(1.0)
    with pytest.raises(GraphError, match="StopAtStepHook needs a global step"):
        train.MonitoredSession(hooks=[train.StopAtStepHook(last_step=1)])


def test_a_variable_of_this_name_is_the_global_step() -> None:
    step = hf.Variable(0, name="global_step", trainable=False)
    assert train.get_global_step() is step and train.get_or_create_global_step() is step


def test_values_are_logged(said: list[str]) -> None:
    w, step = counting()
    hf.reduce_sum(w.value(), name="total")
    show = train.LoggingTensorHook
    hooks = [
        show({"sum": "total:0"}, every_n_iter=2),
        show(["total:0"], at_end=True),
        show([w], every_n_secs=1e9, formatter=lambda values: f"first {values['w'][0]}"),
    ]
    with train.MonitoredTrainingSession(hooks=hooks) as session:
        for _ in range(5):
            session.run(step)
    told = [line.partition(" (")[0] for line in said if "=" in line or "first 0" in line]
    assert told == ["sum = 0.0", "first 0.0", "sum = 6.0", "sum = 12.0", "total:0 = 15.0"]
    with pytest.raises(HpcflowError, match="exactly one"):
        show([w])
    with pytest.raises(HpcflowError, match="every_n_iter must be at least 1, not 0"):
        show([w], every_n_iter=0)


def test_the_rate_is_logged(said: list[str], tmp_path: Path) -> None:
    _, step = counting()
    with train.MonitoredTrainingSession(
        checkpoint_dir=tmp_path, log_step_count_steps=5, save_checkpoint_secs=0
    ) as session:
        for _ in range(11):
            session.run(step)
    rates = [line for line in said if line.startswith("global_step/sec: ")]
    assert len(rates) == 2 and all(float(line.split()[1]) > 0 for line in rates)
    assert steps_in(tmp_path) == []


def test_a_timer_says_when_it_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("hpcflow.tf1.session_hooks.time.monotonic", lambda: clock[0])
    timer = train.SecondOrStepTimer(every_secs=10)
    assert timer.last_triggered_step() is None and timer.should_trigger_for_step(3)
    assert timer.update_last_triggered_step(3) == (None, None)
    clock[0] = 109.0
    assert not timer.should_trigger_for_step(4)
    clock[0] = 110.0
    assert timer.should_trigger_for_step(4) and not timer.should_trigger_for_step(3)
    assert timer.update_last_triggered_step(7) == (10.0, 4) and timer.last_triggered_step() == 7
    timer = train.SecondOrStepTimer(every_steps=2)
    timer.update_last_triggered_step(5)
    assert [timer.should_trigger_for_step(s) for s in (5, 6, 7)] == [False, False, True]


@pytest.mark.parametrize("fails", [True, False])
def test_a_loss_that_is_nan_ends_it(fails: bool, said: list[str]) -> None:
    x = hf.placeholder(hf.float32, [])
    loss = hf.identity(x, name="loss")
    hook = train.NanTensorHook("loss:0", fail_on_nan_loss=fails)
    with train.MonitoredSession(hooks=[hook]) as session:
        session.run(loss, {x: 1.0})
        assert not session.should_stop()
        if fails:
            with pytest.raises(train.NanLossDuringTrainingError, match="the loss 'loss:0' is NaN"):
                session.run(loss, {x: float("nan")})
        else:
            session.run(loss, {x: float("nan")})
            assert session.should_stop() and "is NaN" in said[-1]


def test_final_operations_run_once_at_the_end() -> None:
    w, step = counting()
    hook = train.FinalOpsHook([w, train.get_or_create_global_step()])
    with train.MonitoredTrainingSession(hooks=[hook]) as session:
        session.run(step)
        assert hook.final_ops_values is None
        session.run(step)
    assert hook.final_ops_values[0].tolist() == [2] * 3 and hook.final_ops_values[1] == 2


@pytest.mark.slow
def test_a_worker_waits_for_a_global_step(tmp_path: Path) -> None:
    """Also while the chief saves, for which it needs the one who waits."""

    def body(context: RankContext) -> int:
        _, step = counting()
        wait = 0 if context.is_chief else 12
        hooks = [train.GlobalStepWaiterHook(wait), train.StopAtStepHook(last_step=16)]
        first = None
        with train.MonitoredTrainingSession(
            checkpoint_dir=tmp_path, hooks=hooks, save_checkpoint_steps=4
        ) as session:
            while not session.should_stop():
                now, _ = session.run([train.get_global_step(), step])
                first = int(now) if first is None else first
        assert first is not None
        return first

    first, second = run_ranks(3, body, ps=1)
    assert first == 0 and second >= 12


def test_nobody_waits_where_all_step_together(said: list[str]) -> None:
    _, step = counting()
    with train.MonitoredTrainingSession(hooks=[train.GlobalStepWaiterHook(9)]) as session:
        session.run(step)
    assert any("does not wait for global step 9" in line for line in said)


# -- several workers


@pytest.mark.parametrize("ps", [0, 1])
def test_hooks_of_the_chief_alone(ps: int, tmp_path: Path) -> None:
    """They add operations, on all ranks, and fetches, which joint steps have on all ranks."""

    class Adds(train.SessionRunHook):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def begin(self) -> None:
            self.sum = hf.reduce_sum(hf.get_collection("variables")[1].value(), name="extra")

        def before_run(self, run_context: Any) -> Any:
            return train.SessionRunArgs(self.sum)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.seen.append(float(run_values.results))

    def body(context: RankContext) -> list[float]:
        w, _ = counting()
        x = hf.placeholder(hf.float32, [3])
        loss = hf.reduce_mean(hf.square(w - x))
        step = train.GradientDescentOptimizer(0.1).minimize(loss)
        hook = Adds()
        shown = train.LoggingTensorHook([loss], every_n_iter=2)
        with train.MonitoredTrainingSession(
            chief_only_hooks=[hook], hooks=[shown] if ps == 0 else []
        ) as session:
            for _ in range(4):
                session.run(step, {x: np.ones(3, np.float32)})
            if context.is_chief:  # no step of training: one rank alone may run it
                session.run(loss, {x: np.ones(3, np.float32)})
        return hook.seen

    chief, other = run_ranks(2 + ps, body, ps=ps)
    assert len(chief) == 5 and chief == sorted(chief) and other == []
    assert ps or chief[0] == 0  # beside an asynchronous worker, which may have been faster


def test_a_replica_that_stops_alone_is_told() -> None:
    def body(context: RankContext) -> None:
        w, _ = counting()
        step = train.GradientDescentOptimizer(0.1).minimize(hf.reduce_sum(hf.square(w)))
        with train.MonitoredTrainingSession() as session:
            for _ in range(2 + context.rank):
                session.run(step)

    with pytest.raises(LonelyCollectiveError, match="sums over all replicas"):
        run_ranks(2, body)


def test_a_run_directory_gets_the_result(tmp_path: Path) -> None:
    def body(context: RankContext) -> None:
        _, step = counting()
        with train.MonitoredTrainingSession() as session:
            session.run(step)

    run_ranks(3, body, ps=1, run_dir=str(tmp_path))
    assert '"steps": [' in (tmp_path / "result.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["all", "backup:1", "stale:2"])
def test_workers_stop_and_save_under_each_rule(sync: str, tmp_path: Path) -> None:
    """Under `all` every worker takes the same steps, and the checkpoint is theirs."""

    def body(context: RankContext) -> tuple[int, int]:
        w, _ = counting()
        x = hf.placeholder(hf.float32, [3])
        loss = hf.reduce_mean(hf.square(w - x))
        step = train.GradientDescentOptimizer(0.1).minimize(loss, train.get_global_step())
        final = train.FinalOpsHook(train.get_global_step())
        with train.MonitoredTrainingSession(
            checkpoint_dir=tmp_path,
            hooks=[train.StopAtStepHook(last_step=12), final],
            save_checkpoint_steps=5,
        ) as session:
            while not session.should_stop():
                session.run(step, {x: np.ones(3, np.float32)})
        return session._session.steps, int(final.final_ops_values)

    found = run_ranks(4, body, ps=1, sync=sync, seed=5)
    if sync == "all":
        assert found == [(12, 12)] * 3
        assert steps_in(tmp_path) == ["step-10", "step-12", "step-5"]
    # each of three may read 11 before their three updates of that step, and makes one more
    assert all(12 <= count <= 17 for _, count in found)
    assert f"step-{found[0][1]}" in steps_in(tmp_path)


# -- configs, options and traces


def test_sessions_take_a_config() -> None:
    with hf.device("/gpu:0"):
        w, step = counting()
    config = hf.ConfigProto(allow_soft_placement=True)
    for make in (
        lambda: train.MonitoredTrainingSession(config=config, log_step_count_steps=None),
        lambda: train.SingularMonitoredSession(config=config),
        lambda: train.MonitoredSession(train.ChiefSessionCreator(config=config)),
    ):
        with make() as session:
            session.run(step)
            assert session.run(w).tolist() == [1, 1, 1]


def test_a_hook_may_ask_for_a_trace() -> None:
    w, step = counting()
    seen: list[tuple[int, int, int]] = []

    class Tracing(train.SessionRunHook):
        def before_run(self, run_context: Any) -> train.SessionRunArgs:
            assert run_context.original_args.options in (None, hf.RunOptions(timeout_in_ms=9000))
            return train.SessionRunArgs(None, options=hf.RunOptions(trace_level=3))

        def after_run(self, run_context: Any, run_values: Any) -> None:
            told, options = run_values.run_metadata.step_stats, run_values.options
            seen.append((len(told.dev_stats), options.trace_level, options.timeout_in_ms))

    mine = hf.RunMetadata()
    with train.SingularMonitoredSession([Tracing()]) as session:
        session.run(step)
        session.run(step, None, hf.RunOptions(timeout_in_ms=9000), mine)
        assert session.run(w).tolist() == [2, 2, 2]
    assert seen == [(1, 3, 0), (1, 3, 9000), (1, 3, 0)]  # reading is seen, too
    assert any(n.node_name for n in mine.step_stats.dev_stats[0].node_stats)


class Told(train.CheckpointSaverListener):
    """Writes down what it is told, and asks for the end behind the save of a step."""

    def __init__(self, folder: Path, last: int | None = None) -> None:
        self.folder, self.last = folder, last
        self.log: list[Any] = []

    def begin(self) -> None:
        self.log.append("begin")

    def before_save(self, session: Any, step: int) -> None:
        self.log.append(("before", step, session.run(train.get_global_step()), self.saved()))

    def after_save(self, session: Any, step: int) -> bool:
        self.log.append(("after", step, self.saved()))
        return self.last is not None and step >= self.last

    def end(self, session: Any, step: int) -> None:
        self.log.append(("end", step))

    def saved(self) -> int:
        return len(steps_in(self.folder)) if self.folder.exists() else 0


def test_listeners_are_told_of_saves(tmp_path: Path) -> None:
    """As TensorFlow tells them, but for a save at step 0, which hpcflow does not make."""
    step, listener = train.get_or_create_global_step().assign_add(1), Told(tmp_path)
    hook = train.CheckpointSaverHook(tmp_path, save_steps=2, listeners=[listener])
    with train.MonitoredSession(hooks=[hook]) as session:
        for _ in range(5):
            session.run(step)
    saves = [(2, 0), (4, 1), (5, 2)]
    told = [(("before", n, n, k), ("after", n, k + 1)) for n, k in saves]
    assert listener.log == ["begin", *(one for both in told for one in both), ("end", 5)]


def test_a_listener_may_ask_for_the_end(tmp_path: Path) -> None:
    step, listener = train.get_or_create_global_step().assign_add(1), Told(tmp_path, last=4)
    hook = train.CheckpointSaverHook(tmp_path, save_steps=2, listeners=[Told(tmp_path), listener])
    with train.MonitoredSession(hooks=[hook]) as session:
        while not session.should_stop():
            session.run(step)
    assert listener.log[-1] == ("end", 5) and steps_in(tmp_path)[-1] == "step-5"


def test_listeners_of_the_chief_alone(tmp_path: Path) -> None:
    def body(context: RankContext) -> list[Any]:
        step = hf.replica_sum(hf.constant(1.0))
        with hf.control_dependencies([step]):
            step = train.get_or_create_global_step().assign_add(1)
        listener = Told(tmp_path)
        hook = train.CheckpointSaverHook(
            tmp_path, save_steps=2, listeners=[listener] if context.is_chief else None
        )
        with train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(3):
                session.run(step)
        return [one[:2] for one in listener.log if one[0] == "after"]

    assert run_ranks(2, body) == [[("after", 2), ("after", 3)], []]
