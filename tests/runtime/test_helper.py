"""The helper polls while a long kernel runs, only then, and its errors are not lost."""

import threading
import time

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import CommError
from hpcflow.lowering import python_codegen
from hpcflow.runtime.executor.mpi_progress_thread import ProgressThread
from tests.comm.threads import until
from tests.runtime.ranks import run_ranks
from tests.runtime.test_engine import random_graph


def test_it_polls_only_while_it_is_lent():
    polled = []
    helper = ProgressThread(lambda: polled.append(threading.current_thread().name) is None)
    helper.lend()
    until(lambda: len(polled) >= 3)
    helper.take()
    count = len(polled)
    time.sleep(0.05)
    assert len(polled) == count
    assert set(polled) == {"hpcflow-helper"}


def test_its_error_is_raised_where_the_kernel_ends():
    def poll():
        raise CommError("by test")

    helper = ProgressThread(poll)
    helper.lend()
    until(lambda: not helper._is_lent)
    with pytest.raises(CommError, match="by test"):
        helper.take()
    helper.lend()
    helper.reclaim_lock()  # after a failed kernel: nothing is raised over the kernel's own error
    helper.reclaim_lock()


def test_steps_are_right_when_every_kernel_lends(monkeypatch):
    monkeypatch.setattr(python_codegen, "LONG_S", -1.0)

    def body(context):
        x, fetches, expected = random_graph(3, 3)
        session = hf.Session()
        return [session.run(fetches, {x: np.full(3, 2, np.float32)}) for _ in range(5)], expected

    ((results, expected),) = run_ranks(3, body, tasks_per_replica=3, seed=1)
    for found in results:
        np.testing.assert_array_equal(found, expected)


def test_a_failing_kernel_gives_the_baton_back(monkeypatch):
    monkeypatch.setattr(python_codegen, "LONG_S", -1.0)

    def body(context):
        x = hf.placeholder(hf.float32, [3], name="x")
        y = hf.check_numerics(x, "bad") + 1.0
        with hf.device("/job:worker/task:1"):
            z = hf.identity(x) * 2.0
        session = hf.Session()
        with pytest.raises(hf.errors.NumericError):
            session.run([y, z], {x: np.full(3, np.nan, np.float32)})
        both = session.run([y, z], {x: np.ones(3, np.float32)})
        assert [float(one[0]) for one in both] == [2, 2]
        return session.run(z, {x: np.ones(3, np.float32)})[0]

    assert run_ranks(2, body, tasks_per_replica=2) == [2]
