"""Several threads of one driver: their steps share the baton, the inbox and the instances."""

import signal
import threading

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import NumericError
from hpcflow.runtime.executor import progress_lock
from tests.comm.threads import until
from tests.runtime.ranks import run_ranks

ONE = np.ones(3, np.float32)
LARGE = np.full(100_000, -1, np.float32)  # its kernels take long enough for threads to meet


def together(*bodies):
    """Run each of `bodies` in a thread of its own; False if one still runs after 60 s."""
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return not any(thread.is_alive() for thread in threads)


def both_wait(executor, body):
    """`body` in two threads that find the baton taken; False if one still runs after 60 s."""

    def hold():
        while executor.waiters < 2:
            threading.Event().wait(0.001)
        executor.lock.release()

    executor.lock.acquire()
    return together(body, body, hold)


def test_a_step_that_fails_while_another_thread_holds_the_baton_raises():
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [None])
        bad = hf.check_numerics(hf.sqrt(x), "the root")
        session = hf.Session()
        with pytest.raises(NumericError):
            session.run(bad, {x: LARGE})
        caught = []

        def fail():
            try:
                session.run(bad, {x: LARGE})
            except NumericError as error:
                caught.append(error)

        assert both_wait(session.context.executor, fail)
        assert len(caught) == 2


def test_steps_handed_over_leave_the_inbox():
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [None])
        y = x * 2.0
        session = hf.Session()
        executor = session.context.executor
        found = []

        def run():
            found.append(session.run(y, {x: LARGE})[0])

        assert both_wait(executor, run)
        assert found == [-2, -2]
        assert not executor.inbox


def test_threads_take_turns_with_one_instance():
    def body(context):
        x = hf.placeholder(hf.float32, [3])
        v = hf.Variable(ONE * 0, name="v")
        update = v.assign_add(x)
        session = hf.Session()
        session.run(hf.global_variables_initializer())

        def run():
            for _ in range(20):
                session.run(update, {x: ONE})

        assert together(run, run, run)
        return session.run(v)

    (found,) = run_ranks(2, body, seed=3, ps=1, max_in_flight=1)
    np.testing.assert_array_equal(found, ONE * 60)


def test_an_interrupted_step_leaves_the_engine_in_order():
    """Ctrl-C in a segment: it is raised, the step ends on all its ranks, others follow."""

    def body(context):
        x = hf.placeholder(hf.float32, [3])
        with hf.device("/job:ps/task:0"):
            y = x * 2.0
            z = x * 3.0
        session = hf.Session()
        session.run(y, {x: ONE})
        (family,) = session._families.values()
        (step,) = family._steps.values()

        def interrupt(*feeds):
            raise KeyboardInterrupt

        (instance,) = step.instances
        before = instance.segments
        instance.segments = (interrupt, *before[1:])
        with pytest.raises(KeyboardInterrupt):
            session.run(y, {x: ONE})
        instance.segments = before
        np.testing.assert_array_equal(session.run(y, {x: ONE}), ONE * 2)
        assert step.instances == [instance]
        np.testing.assert_array_equal(session.run(z, {x: ONE}), ONE * 3)
        return context.executor.lock.locked()

    assert run_ranks(2, body, ps=1) == [False]


def test_a_run_in_a_signal_handler_is_refused_not_hung():
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [None], name="x")
        y, z = hf.tanh(x), hf.constant(1.0) + 1.0
        session = hf.Session()
        session.run(z)
        told = []

        def handler(*_):
            try:
                session.run(z)
            except hf.errors.CommError as error:
                told.append(str(error))

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)  # again, if it came between two runs
        big = np.ones(4_000_000, np.float32)
        for _ in range(200):
            session.run(y, {x: big})
            if told:
                break
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        assert told and "set a flag only" in told[0]
        assert session.run(z) == 2


def test_a_thread_that_waits_in_a_queue_does_not_drive_the_steps_of_others(monkeypatch):
    monkeypatch.setattr(progress_lock, "SLEEP_POLL_S", 1000.0)  # else it looks now and then
    with hf.Graph().as_default():
        queue, x = hf.FIFOQueue(3, hf.float32, shapes=()), hf.placeholder(hf.float32, [])
        double, where = x * 2.0, []

        def noted(value):
            where.append(threading.current_thread())
            return value

        told = hf.py_func(noted, [double], hf.float32)
        taken, put, session = queue.dequeue(), queue.enqueue(x), hf.Session()
        found = []
        thread = threading.Thread(target=lambda: found.append(session.run(taken)))
        thread.start()
        executor = session.context.executor
        until(lambda: executor.waits and not executor.lock.locked())
        for _ in range(50):
            session.run(told, {x: 1.0})
        assert where == [threading.current_thread()] * 50
        session.run(put, {x: 3.0})
        thread.join(60)
        assert found == [3]
