"""TensorFlow 1's SyncReplicasOptimizer chooses how workers of servers keep step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError, HpcflowError
from hpcflow.ps.backup_workers import Backup
from hpcflow.ps.sync_rules import All
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

train = hf.train
STEPS, RATE = 8, 0.1
TRUTH = np.arange(6, dtype=np.float32).reshape(3, 2)  # each worker pulls to a point of its own


def descended(points: np.ndarray) -> np.ndarray:
    """Gradient descent on the mean over `points` of the squared distance, in float64."""
    w = np.zeros(points.shape[1])
    for _ in range(STEPS):
        w -= RATE * 2 * (w - points).mean(axis=0)
    return w


def net(aggregated: int, total: int | None = None) -> tuple[Any, ...]:
    x = hf.placeholder(hf.float32, [None, 2])
    w = hf.Variable(np.zeros(2, np.float32), name="w")
    w.value()
    loss = hf.reduce_mean(hf.reduce_sum(hf.square(w - x), axis=1))
    count = train.get_or_create_global_step()
    opt = train.SyncReplicasOptimizer(
        train.GradientDescentOptimizer(RATE), aggregated, total_num_replicas=total
    )
    return x, w, opt, opt.minimize(loss, global_step=count)


def test_an_update_is_by_the_gradients_of_all() -> None:
    def body(context: RankContext) -> Any:
        x, w, opt, step = net(3)
        final = train.FinalOpsHook([w, train.get_global_step()])
        hooks = [
            opt.make_session_run_hook(context.is_chief),
            train.StopAtStepHook(last_step=STEPS),
            final,
        ]
        with train.MonitoredTrainingSession(hooks=hooks) as session:
            assert context.cluster.sync == All()
            while not session.should_stop():
                session.run(step, {x: TRUTH[[context.replica]]})
        return final.final_ops_values

    for weights, count in run_ranks(5, body, ps=2, seed=1):
        np.testing.assert_allclose(weights, descended(TRUTH), rtol=1e-5)
        assert count == STEPS


def test_the_same_script_with_a_supervisor() -> None:
    """As TensorFlow's own example has it: tokens, a queue runner, operations for the chief."""

    def body(context: RankContext) -> Any:
        x, w, opt, step = net(2)
        local = opt.chief_init_op if context.is_chief else opt.local_step_init_op
        runner, tokens = opt.get_chief_queue_runner(), opt.get_init_tokens_op()
        supervisor = train.Supervisor(
            is_chief=context.is_chief,
            init_op=hf.global_variables_initializer(),
            local_init_op=local,
            ready_for_local_init_op=opt.ready_for_local_init_op,
        )
        session = supervisor.prepare_or_wait_for_session()
        if context.is_chief:
            session.run(tokens)
            supervisor.start_queue_runners(session, [runner])  # type: ignore[list-item]
        for _ in range(STEPS):
            session.run(step, {x: TRUTH[[context.replica]]})
        supervisor.stop()
        return session.run(w)

    for weights in run_ranks(3, body, ps=1, seed=2):
        np.testing.assert_allclose(weights, descended(TRUTH[:2]), rtol=1e-5)


def test_fewer_gradients_than_workers_leave_some_in_reserve() -> None:
    def body(context: RankContext) -> Any:
        net(2, total=3)
        with train.TrainingSession():
            return context.cluster.sync

    assert run_ranks(4, body, ps=1) == [Backup(1)] * 3


def test_an_argument_of_the_session_wins() -> None:
    def body(context: RankContext) -> Any:
        net(3)
        with train.TrainingSession(sync="async"):
            return str(context.cluster.sync)

    assert run_ranks(3, body, ps=1) == ["async"] * 2


def test_numbers_that_make_no_sense() -> None:
    inner = train.GradientDescentOptimizer(RATE)
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        for numbers in ((0, 2), (3, 2)):
            with pytest.raises(GraphError, match="from 1 to total_num_replicas 2"):
                train.SyncReplicasOptimizer(inner, *numbers)
        net(2)
        with pytest.raises(GraphError, match="made for 2 workers; this job has 1"):
            train.TrainingSession()
        with pytest.raises(GraphError, match=r"this graph already has .*aggregated=2, total=2"):
            net(1)


def test_slots_are_those_of_the_optimizer_inside() -> None:
    with hf.Graph().as_default():
        w = hf.Variable(np.zeros(2, np.float32), name="w")
        inner = train.MomentumOptimizer(RATE, 0.9)
        opt = train.SyncReplicasOptimizer(inner, 1)
        opt.minimize(hf.reduce_sum(w * w))
        (name,) = opt.get_slot_names()
        assert opt.get_slot(w, name) is inner.get_slot(w, name)
        assert opt.variables() == inner.variables() != []


def test_servers_are_needed_to_leave_some_out() -> None:
    def body(context: RankContext) -> None:
        net(1, total=2)
        with pytest.raises(HpcflowError, match="needs parameter servers"):
            train.TrainingSession()

    run_ranks(2, body)
