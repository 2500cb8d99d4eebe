"""A step that fails, fails alone: on all its ranks, and the next one can follow."""

import threading
import time

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import (
    AssertError,
    CancelledError,
    CommError,
    LonelyCollectiveError,
    NumericError,
    OutOfRangeError,
)
from hpcflow.ops.replicas.replica_ops import replica_sum
from tests.comm.threads import until
from tests.runtime.ranks import run_ranks

ONE = np.ones(3, np.float32)


def vector(name):
    return hf.placeholder(hf.float32, [3], name=name)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [0, 3, 50_000, None])
def test_a_kernel_that_fails_on_another_rank_ends_the_step_and_nothing_else(seed, size):
    """Its values, of any size, are missing downstream; the same instance runs the next step."""

    def body(context):
        x, more = vector("x"), hf.placeholder(hf.float32, [size], name="more")
        v = hf.Variable(np.zeros(3, np.float32), name="v")
        with hf.device("/job:worker/task:1"):
            bad = hf.check_numerics(x, "the input")
            with hf.control_dependencies([bad]):
                y = more + 1.0
        with hf.device("/job:worker/task:2"):
            z = hf.reduce_sum(y) + hf.reduce_sum(bad)
        update = v.assign_add(bad)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        rows, found = np.ones(size or 7, np.float32), []
        if size == 0:
            rows = rows[:0]
        for i in range(12):
            feeds = {x: ONE * (np.nan if i % 3 == 1 else 1), more: rows}
            try:
                found.append(float(session.run([z, update], feeds)[0]))
            except NumericError as error:
                assert error.rank == 1 and "the input" in str(error)
                assert "test_failing_steps.py" in str(error)
                found.append(None)
        (step,) = [s for f in session._families.values() for s in f._steps.values()][1:]
        return found, 2.0 * len(rows) + 3.0, len(step.instances), session.run(v)

    ((found, right, instances, v),) = run_ranks(3, body, seed=seed, tasks_per_replica=3)
    assert found == [right, None, right] * 4
    assert instances == 1
    np.testing.assert_array_equal(v, ONE * 8)


def test_several_ranks_that_fail_at_once_are_told_once():
    def body(context):
        x = vector("x")
        parts = []
        for k in (0, 1, 2):
            with hf.device(f"/job:worker/task:{k}"):
                parts.append(hf.check_numerics(x * float(k), f"on {k}"))
        total = hf.add_n(parts)
        session = hf.Session()
        for i in range(10):
            if i % 2:
                with pytest.raises(NumericError, match=r"on [012]"):
                    session.run(total, {x: ONE * np.nan})
            else:
                np.testing.assert_array_equal(session.run(total, {x: ONE}), ONE * 3)
        return True

    assert run_ranks(3, body, seed=2, tasks_per_replica=3) == [True]


def test_a_step_that_fails_before_its_sums_leaves_them_to_the_next():
    """Both replicas fail in the same step: neither has started its sum, so none is missing."""

    def body(context):
        x = vector("x")
        total = replica_sum(hf.check_numerics(x, "the input"))
        session = hf.Session()
        found = []
        for i in range(6):
            try:
                found.append(session.run(total, {x: ONE * (np.nan if i in (1, 2) else i)})[0])
            except NumericError:
                found.append(None)
        return found

    for found in run_ranks(2, body, seed=1):
        assert found == [0, None, None, 6, 8, 10]


def test_a_step_that_fails_between_its_sums_is_lost():
    def body(context):
        x = vector("x")
        first = replica_sum(x)
        second = replica_sum(hf.check_numerics(first * x, "the product"))
        session = hf.Session()
        session.run(second, {x: ONE})
        with pytest.raises((NumericError, LonelyCollectiveError)):
            session.run(second, {x: ONE * np.nan})
        with pytest.raises(CommError, match="an earlier step of this fetch failed here"):
            session.run(second, {x: ONE})
        return True

    assert run_ranks(2, body, seed=1, bucket_bytes=1) == [True, True]


def test_what_other_ranks_wait_for_is_cancelled_with_the_step():
    """One queue is closed while the same step waits on another rank for another queue."""

    def body(context):
        with hf.device("/job:worker/task:1"):
            closed = hf.FIFOQueue(2, hf.float32, shapes=[()], name="closed")
        with hf.device("/job:worker/task:2"):
            empty = hf.FIFOQueue(2, hf.float32, shapes=[()], name="empty")
        x = hf.placeholder(hf.float32, [])
        both = [closed.dequeue(), empty.dequeue()]
        session = hf.Session()
        for i in range(2):
            session.run([closed.enqueue(x), empty.enqueue(x)], {x: np.float32(i)})
            assert session.run(both) == [i, i]
        session.run(closed.close())
        for _ in range(3):
            with pytest.raises(OutOfRangeError, match="'closed' is closed"):
                session.run(both)
        session.run(empty.enqueue(x), {x: np.float32(5)})
        assert session.run(empty.size()) == 1
        return float(session.run(both[1]))

    assert run_ranks(3, body, seed=3, tasks_per_replica=3) == [5.0]


def test_closing_a_session_ends_the_steps_that_wait_on_other_ranks():
    def body(context):
        with hf.device("/job:ps/task:0"):
            queue = hf.FIFOQueue(1, hf.float32, shapes=[()], name="q")
        session, other = hf.Session(), hf.Session()
        caught = []

        take = queue.dequeue()
        threads = [threading.Thread(target=lambda: _run(session, take, caught)) for _ in range(6)]
        for thread in threads:  # more than there are instances
            thread.start()
        until(lambda: _begun(session) == len(threads))
        session.close()
        for thread in threads:
            thread.join(60)
        assert not any(t.is_alive() for t in threads)
        x = hf.placeholder(hf.float32, [])
        other.run(queue.enqueue(x), {x: np.float32(4)})
        return [type(e) for e in caught], float(other.run(take))

    ((caught, found),) = run_ranks(2, body, seed=5, ps=1)
    assert caught == [CancelledError] * 6
    assert found == 4.0


def _begun(session):
    """How many steps have an instance, or wait for one."""
    steps = [step for f in session._families.copy().values() for step in f._steps.copy().values()]
    return sum(len(step.instances) + step.waiting_runs for step in steps)


def _run(session, fetch, caught):
    try:
        session.run(fetch)
    except CancelledError as error:
        caught.append(error)


def test_a_program_that_ends_while_a_thread_waits_ends():
    def body(context):
        with hf.device("/job:ps/task:0"):
            queue = hf.FIFOQueue(1, hf.float32, shapes=[()], name="q")
        session, take, caught = hf.Session(), queue.dequeue(), []
        thread = threading.Thread(target=_run, args=(session, take, caught), daemon=True)
        thread.start()
        until(lambda: _begun(session) == 1)
        context.caught = (thread, caught)
        return context

    (context, *_) = run_ranks(3, body, seed=5, ps=1)
    thread, caught = context.caught
    thread.join(60)
    assert not thread.is_alive()
    assert [type(e) for e in caught] == [CancelledError]


@pytest.mark.parametrize("seed", range(3))
def test_ctrl_c_while_a_step_waits_for_a_queue_on_another_rank(seed):
    """It meets the engine while it polls; the dequeue on the server takes nothing any more."""

    def body(context):
        with hf.device("/job:ps/task:0"):
            queue = hf.FIFOQueue(3, hf.float32, shapes=[()], name="q")
        x = hf.placeholder(hf.float32, [])
        put, taken, session = queue.enqueue(x), queue.dequeue() * 2.0, hf.Session()
        executor, listen = context.executor, context.executor.control
        for i in range(4):
            polls = iter(range(5 * i, -1, -1))

            def interrupted(polls=polls):
                if not next(polls):
                    executor.control = listen
                    raise KeyboardInterrupt
                return listen()

            executor.control = interrupted
            with pytest.raises(KeyboardInterrupt):
                session.run(taken)
            session.run(put, {x: np.float32(i)})
            assert session.run(taken) == 2 * i
        steps = [s for f in session._families.values() for s in f._steps.values()]
        return [len(step.instances) for step in steps], float(session.run(queue.size()))

    ((instances, left),) = run_ranks(2, body, seed=seed, ps=1)
    assert set(instances) == {1} and left == 0


@pytest.mark.parametrize("waits", [False, True])
def test_a_step_that_fails_holds_no_version_of_a_variable(waits):
    """It fails between the read of a version and the last use of it, behind an update."""
    with hf.Graph().as_default():
        x = vector("x")
        v = hf.Variable(np.zeros(3, np.float32), name="v")
        before = v.value()
        with hf.control_dependencies([before]):
            update = v.assign_add(ONE)
        with hf.control_dependencies([update]):
            checked = hf.check_numerics(x, "the input")
        fetches = [before * 2.0 + checked]
        if waits:
            queue = hf.FIFOQueue(1, hf.float32, shapes=[(3,)])
            fetches.append(queue.size())
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for i in range(8):
            if i % 2:
                with pytest.raises(NumericError):
                    session.run(fetches, {x: ONE * np.nan})
            else:
                np.testing.assert_array_equal(session.run(fetches, {x: ONE})[0], ONE * (2 * i + 1))
        state = session.store.states["v"]
        assert not state.pins and not state.old
        np.testing.assert_array_equal(session.run(v), ONE * 8)


@pytest.mark.parametrize("sync", ["stale:0", "stale:1", "all"])
def test_a_step_that_fails_after_it_waited_for_a_slower_worker_can_be_followed(sync):
    """Its wait on server 0 ended twice, by the other worker and by the failure."""

    def body(context):
        v, x = hf.Variable(np.zeros(3, np.float32), name="v"), vector("x")
        works = hf.placeholder(hf.bool, [])
        known = hf.reduce_sum(v) < 1e9  # follows the beginning of the step
        with hf.control_dependencies([hf.Assert(hf.logical_and(works, known), [x])]):
            loss = hf.reduce_sum(v * hf.identity(x))
        train = hf.train.GradientDescentOptimizer(1.0).minimize(loss)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for step in range(12):
            if context.replica:
                time.sleep(0.01)
            if step % 3 != 1:
                session.run(train, {x: ONE, works: True})
                continue
            with pytest.raises(AssertError):
                session.run(train, {x: ONE, works: False})
        context.meet("the end")
        return session.run(v)

    updates = 8 if sync == "all" else 16
    for v in run_ranks(3, body, ps=1, sync=sync):
        np.testing.assert_array_equal(v, np.full(3, -updates))
