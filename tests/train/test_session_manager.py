"""SessionManager: sessions that are initialized, restored, or wait for the chief's values."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import CheckpointError, DeadlineExceededError, GraphError, UninitializedError
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

train = hf.train


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with use_context(RankContext(Settings())), hf.Graph().as_default():
        yield


def test_initialized_then_restored(tmp_path: Path) -> None:
    v = hf.Variable([1.0, 2.0], name="v")
    local = hf.Variable(5.0, collections=[hf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    called: list[Any] = []
    saver = train.Saver()
    manager = train.SessionManager(
        hf.local_variables_initializer(),
        hf.report_uninitialized_variables(),
        hf.report_uninitialized_variables([v]),
    )
    init = hf.global_variables_initializer()
    with manager.prepare_session("", init, saver, tmp_path, init_fn=called.append) as session:
        assert called == [session]
        assert session.run([v, local])[1] == 5
        session.run(v.assign([7.0, 8.0]))
        saver.save(session, tmp_path, 3)
    with manager.prepare_session("", init, saver, tmp_path, init_fn=called.append) as session:
        assert len(called) == 1 and session.run(v).tolist() == [7, 8]
        assert session.run(local) == 5
    session, good = manager.recover_session("", saver, tmp_path)
    assert good and session.run(v).tolist() == [7, 8]
    path = train.latest_checkpoint(tmp_path)
    session, good = manager.recover_session("", saver, checkpoint_filename_with_path=path)
    assert good and session.run(v).tolist() == [7, 8]
    with pytest.raises(CheckpointError, match="cannot both be restored"):
        manager.recover_session("", saver, tmp_path, path)


def test_nothing_to_recover(tmp_path: Path) -> None:
    v = hf.Variable(1.0)
    manager = train.SessionManager(ready_op=hf.report_uninitialized_variables())
    session, good = manager.recover_session("", train.Saver(), tmp_path)
    assert not good
    with pytest.raises(UninitializedError):
        session.run(v)
    with pytest.raises(GraphError, match="init_op"):
        manager.prepare_session("", None, train.Saver(), tmp_path)
    begun = time.monotonic()
    _, good = manager.recover_session("", train.Saver(), tmp_path, None, True, 0.3)
    assert not good and time.monotonic() - begun >= 0.3


def test_variables_without_values_are_named() -> None:
    v, w = hf.Variable(1.0, name="v"), hf.Variable(1.0, name="w")
    manager = train.SessionManager(
        ready_op=hf.report_uninitialized_variables(), recovery_wait_secs=0
    )
    with pytest.raises(UninitializedError, match="session: w"):
        manager.prepare_session("", v.initializer)
    with pytest.raises(DeadlineExceededError, match="v, w"):
        manager.wait_for_session(max_wait_secs=0.1)
    assert w.name == "w"


def test_a_worker_waits_for_the_chief() -> None:
    def body(context: RankContext) -> Any:
        v = hf.Variable(np.arange(3.0), name="v")
        init, ready = hf.global_variables_initializer(), hf.report_uninitialized_variables()
        manager = train.SessionManager(ready_op=ready, recovery_wait_secs=0.01)
        if context.is_chief:
            time.sleep(0.3)
            session = manager.prepare_session("", init)
        else:
            session = manager.wait_for_session(max_wait_secs=60)
        with session:
            return session.run(v).tolist()

    assert run_ranks(3, body, ps=1) == [[0, 1, 2]] * 2


def test_replicas_prepare_together() -> None:
    def body(context: RankContext) -> Any:
        v = hf.Variable(float(3), name="v")
        manager = train.SessionManager(ready_op=hf.report_uninitialized_variables())
        with pytest.raises(GraphError, match="each replica has its own variables"):
            manager.wait_for_session()
        with manager.prepare_session("", hf.global_variables_initializer()) as session:
            return float(session.run(v))

    assert run_ranks(2, body) == [3, 3]
