"""Deadlines: a step that is late raises, says what it waited for, and others can follow."""

import threading
import time

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import CommError, DeadlineExceededError, HpcflowError, StepError
from hpcflow.ops.replicas.replica_ops import replica_sum
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.step import step_deadline
from tests.runtime.ranks import run_here, run_ranks

ONE = np.ones(3, np.float32)
SHORT = 0.03
LONG = 100.0  # only a wrong program takes so long


class Clock:
    """The clock of deadlines: each look at it takes `tick` seconds, and calls say what they take.

    So it depends on the program alone, not on the machine, what a step does when it is late.
    """

    def __init__(self, monkeypatch, tick=0.0):
        self.now, self.tick, self.time = 1000.0, tick, time.time
        monkeypatch.setattr(step_deadline, "time", self)

    def monotonic(self):
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def ticking(monkeypatch):
    """A step is late after ten looks: by then it waits."""
    return Clock(monkeypatch, SHORT / 10)


def sleepy(x, calls, clock=None, seconds=0.0, name=None):
    """`x` itself, after some seconds of `clock`; each call is kept in `calls`."""

    def call(value):
        calls.append(name)
        if clock is not None:
            clock.now += seconds
        return value

    made = hf.py_func(call, [x], x.dtype, name=name)
    made.set_shape(x.shape)
    return made


@pytest.fixture(autouse=True)
def graph():
    with hf.Graph().as_default() as made:
        yield made


def test_a_queue_that_never_fills_is_named_and_can_be_used_again(ticking):
    queue = hf.FIFOQueue(4, [hf.float32], shapes=[()], name="q")
    x = hf.placeholder(hf.float32, [])
    put, taken = queue.enqueue([x]), queue.dequeue(name="take")
    session = hf.Session()
    for _ in range(3):
        with pytest.raises(DeadlineExceededError, match="waits in QueueDequeue 'take'") as caught:
            session.run(taken, deadline=SHORT)
        assert "test_deadlines.py" in str(caught.value) and "0.03 s" in str(caught.value)
        assert caught.value.rank == 0
        assert isinstance(caught.value, (StepError, TimeoutError))
    for i in range(3):  # the steps that were given up take no element
        session.run(put, {x: i}, deadline=LONG)
    assert [session.run(taken, deadline=LONG) for i in range(3)] == [0, 1, 2]


def test_a_full_queue_takes_nothing_of_a_step_that_was_late(ticking):
    queue = hf.FIFOQueue(1, [hf.float32], shapes=[()])
    x = hf.placeholder(hf.float32, [])
    put, taken, size = queue.enqueue([x]), queue.dequeue(), queue.size()
    session = hf.Session()
    session.run(put, {x: 1})
    with pytest.raises(DeadlineExceededError, match="QueueEnqueue"):
        session.run(put, {x: 2}, deadline=SHORT)
    assert session.run(taken) == 1
    assert session.run(size) == 0


def test_a_step_that_computes_stops_before_its_first_update(clock):
    calls = []
    v = hf.Variable(ONE, name="v")
    x = hf.placeholder(hf.float32, [3])
    first = sleepy(x, calls, clock, 0.5, name="first")
    second = sleepy(first, calls, name="second")
    update = v.assign_add(second)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    session.run(update, {x: ONE})
    calls.clear()
    with pytest.raises(DeadlineExceededError, match="it computes") as caught:
        session.run(update, {x: ONE}, deadline=0.25)
    assert calls == ["first"] and caught.value.op == "second"
    np.testing.assert_array_equal(session.run(v), 2 * ONE)
    session.run(update, {x: ONE}, deadline=LONG)
    np.testing.assert_array_equal(session.run(v), 3 * ONE)
    session.run(update, {x: ONE})
    np.testing.assert_array_equal(session.run(v), 4 * ONE)


def test_a_step_that_updates_is_made_to_its_end(clock):
    calls = []
    v, w = hf.Variable(ONE, name="v"), hf.Variable(ONE, name="w")
    with hf.control_dependencies([v.assign_add(ONE)]):
        late = sleepy(hf.constant(ONE), calls, clock, 3 * SHORT, name="late")
    with hf.control_dependencies([late]):
        last = w.assign_add(sleepy(late, calls, name="last"))
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    session.run(last, deadline=SHORT)
    assert calls == ["late", "last"]
    assert [a[0] for a in session.run([v, w])] == [2, 2]


def test_the_clock_is_looked_at_inside_loops(clock):
    calls = []
    x = hf.placeholder(hf.float32, [3])

    def step(i, y):
        return i + 1, sleepy(y, calls, clock, SHORT)

    _, y = hf.while_loop(lambda i, y: i < 1000, step, [hf.constant(0), x])
    session = hf.Session()
    with pytest.raises(DeadlineExceededError):
        session.run(y, {x: ONE}, deadline=SHORT)
    assert len(calls) == 2


@pytest.mark.parametrize("where", ["in the loop", "before the loop"])
def test_a_loop_in_or_behind_an_update_runs_to_its_end(where, clock):
    calls = []
    v = hf.Variable(ONE, name="v")
    x = hf.placeholder(hf.float32, [3])
    first = hf.no_op() if where == "in the loop" else v.assign_add(4 * ONE).op

    def step(i, y):
        y = sleepy(y, calls, clock, 0.2)
        with hf.control_dependencies([v.assign_add(y) if where == "in the loop" else y]):
            return i + 1, hf.identity(y)

    with hf.control_dependencies([first]):
        _, y = hf.while_loop(lambda i, y: i < 4, step, [hf.constant(0), hf.identity(x)])
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    session.run(y, {x: ONE})
    session.run(y, {x: ONE}, deadline=0.5)
    assert len(calls) == 8
    np.testing.assert_array_equal(session.run(v), 9 * ONE)


def test_results_are_those_of_a_run_without():
    x = hf.placeholder(hf.float32, [None, 4])
    h = hf.tanh(hf.matmul(x, hf.constant(np.eye(4, dtype=np.float32)[::-1].copy())))
    fetches = {"h": h, "sums": [hf.reduce_sum(h), hf.reduce_max(h, 0)]}
    session = hf.Session()
    call = session.make_callable([h, hf.reduce_sum(h)], [x], deadline=LONG)
    rng = np.random.default_rng(0)
    for rows in (2, 5, 2, 5, 1):
        value = rng.standard_normal((rows, 4)).astype(np.float32)
        plain = session.run(fetches, {x: value})
        timed = session.run(fetches, {x: value}, deadline=LONG)
        np.testing.assert_array_equal(plain["h"], timed["h"])
        np.testing.assert_array_equal(plain["h"], session.run(h, {x: value}, deadline=LONG))
        np.testing.assert_array_equal(plain["h"], call(value)[0])
        assert plain["sums"][0] == timed["sums"][0] == call(value)[1]
        np.testing.assert_allclose(timed["h"], np.tanh(value[:, ::-1]), rtol=1e-6)
        timed["h"][...] = 7  # the caller's own


def test_a_step_behind_those_of_another_thread_never_runs():
    calls = []
    x = hf.placeholder(hf.float32, [3])
    y = sleepy(x, calls)
    session = hf.Session()
    executor = session.context.executor
    session.run(y, {x: ONE}, deadline=LONG)
    caught, held, free = [], threading.Event(), threading.Event()

    def hold():
        with executor.lock:
            held.set()
            free.wait(60)

    def late():
        try:
            session.run(y, {x: ONE}, deadline=SHORT)
        except DeadlineExceededError as error:
            caught.append(error)

    threads = [threading.Thread(target=hold, daemon=True)]
    threads[0].start()
    held.wait(60)
    threads.append(threading.Thread(target=late, daemon=True))
    threads[1].start()
    threads[1].join(60)
    free.set()
    threads[0].join(60)
    assert len(caught) == 1 and "has not begun" in str(caught[0])
    np.testing.assert_array_equal(session.run(y, {x: ONE}), ONE)
    assert len(calls) == 2


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), "soon"])
def test_what_is_no_time_is_an_error(wrong):
    with pytest.raises(HpcflowError, match="is no time that a step can take"):
        hf.Session().run(hf.constant(1.0), deadline=wrong)


def test_a_slow_rank_is_named_and_the_next_step_waits_for_its_end(monkeypatch):
    go, slow = threading.Event(), threading.Event()
    run = Executor.run_segment

    def run_segment(executor, instance, index, feeds=()):
        if executor.rank == 1 and slow.is_set():
            go.wait(60)
        run(executor, instance, index, feeds)

    monkeypatch.setattr(Executor, "run_segment", run_segment)
    Clock(monkeypatch, SHORT / 30)

    def body(context):
        x = hf.placeholder(hf.float32, [3], name="x")
        with hf.device("/job:worker/task:1"):
            v = hf.Variable(ONE, name="v")
            with hf.control_dependencies([v.assign_add(x)]):
                there = v.read_value()
        y = there * 2.0
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(y, {x: 0 * ONE})
        slow.set()
        with pytest.raises(DeadlineExceededError, match=r"waits in Recv .* for rank 1") as caught:
            session.run(y, {x: ONE}, deadline=SHORT)
        assert "the next run may wait" in str(caught.value)
        for _ in range(9):  # as many as may be in flight, and more
            with pytest.raises(DeadlineExceededError):
                session.run(y, {x: ONE}, deadline=SHORT)
        slow.clear()
        go.set()
        before = session.run(v)
        np.testing.assert_array_equal(session.run(y, {x: ONE}), 2 * (before + 1))
        np.testing.assert_array_equal(session.run(y, {x: ONE}, deadline=LONG), 2 * (before + 2))
        return [s.late for f in session._families.values() for s in f._steps.values()]

    (late,) = run_ranks(2, body, tasks_per_replica=2)
    assert not any(late)  # all have ended


@pytest.mark.parametrize("seed", range(3))
def test_steps_over_ranks_that_end_at_any_moment_leave_all_in_order(seed):
    """Deadlines from a tenth of a step's time on: each step gives its value or raises."""

    def body(context):
        x = hf.placeholder(hf.float32, [3], name="x")
        with hf.device("/job:worker/task:1"):
            y = hf.sin(x) + x
        with hf.device("/job:worker/task:2"):
            z = hf.reduce_sum(y * y)
        total = z + hf.reduce_sum(x)
        session, rng, late = hf.Session(), np.random.default_rng(seed), 0
        for i in range(80):
            value = ONE * i
            right = np.sum(np.square(np.sin(value) + value)) + np.sum(value)
            try:
                seconds = rng.choice([1e-4, 1e-3, 4e-3, LONG])
                found = session.run(total, {x: value}, deadline=seconds)
                np.testing.assert_allclose(found, right, rtol=1e-5)
            except DeadlineExceededError:
                late += 1
        np.testing.assert_allclose(session.run(total, {x: value}), right, rtol=1e-5)
        return late

    (late,) = run_ranks(3, body, seed=seed, tasks_per_replica=3)
    assert 0 < late < 80


def test_replicas_of_which_one_was_late_sum_no_more(ticking):
    """The other may have made the step: whoever goes on would add the sums of two steps."""
    done = threading.Event()

    def body(context):
        x = hf.placeholder(hf.float32, [3], name="x")
        total, other = replica_sum(x), replica_sum(x * 2.0)
        session = hf.Session()
        session.run([total, other], {x: ONE})
        session.run(total, {x: ONE})
        session.run(other, {x: ONE})
        if context.replica:
            assert done.wait(60)
            return True
        with pytest.raises(DeadlineExceededError, match=r"waits in AllReduce .* for other ranks"):
            session.run(total, {x: ONE}, deadline=SHORT)
        for fetch in (total, other):
            with pytest.raises(CommError, match=r"an earlier step .* failed here"):
                session.run(fetch, {x: ONE})
        assert session.run(x + 1.0, {x: ONE})[0] == 2
        done.set()
        return True

    assert run_ranks(2, body) == [True, True]


def test_a_training_step_that_was_late_is_not_counted():
    queue = hf.FIFOQueue(4, [hf.float32], shapes=[()], name="q")
    put, taken = queue.enqueue([hf.constant(1.0)]), queue.dequeue()
    v = hf.Variable(np.float32(0))
    train = v.assign_add(taken)
    with hf.train.TrainingSession() as session:
        with pytest.raises(DeadlineExceededError):
            session.step(train, {}, deadline=SHORT)
        assert session.steps == 0
        session.run(put)
        session.step(train, {}, deadline=LONG)
        assert session.steps == 1 and session.run(v) == 1


@pytest.mark.mpi(min_size=2)
def test_a_queue_on_a_server_that_never_fills(ticking):
    def body(context):
        with hf.device("/job:ps/task:0"):
            queue = hf.FIFOQueue(3, [hf.float32], shapes=[()], name=f"q{context.replica}")
        x = hf.placeholder(hf.float32, [])
        put, taken = queue.enqueue([x]), queue.dequeue() + x
        session = hf.Session()
        for _ in range(3):
            with pytest.raises(DeadlineExceededError, match=r"waits in Recv .* for rank \d"):
                session.run(taken, {x: 1}, deadline=SHORT)
        found = []
        for i in range(5):
            session.run(put, {x: i})
            found.append(float(session.run(taken, {x: 1}, deadline=LONG)))
        return found

    found = run_here(body, ps=1)
    assert found in (None, [1.0, 2.0, 3.0, 4.0, 5.0])
