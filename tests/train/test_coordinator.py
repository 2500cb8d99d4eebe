"""Coordinators and queue runners: threads that end together, errors that are heard."""

import sys
import threading
import time

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import CancelledError, GraphError, HpcflowError, NumericError, OutOfRangeError
from tests.comm.threads import until


@pytest.fixture(autouse=True)
def graph():
    with hf.Graph().as_default() as g:
        yield g


def looping(coord, body=lambda: None):
    def run():
        with coord.stop_on_exception():
            while not coord.should_stop():
                body()
                time.sleep(0.001)

    thread = threading.Thread(target=run, daemon=True)
    coord.register_thread(thread)
    thread.start()
    return thread


def test_threads_stop_when_one_asks():
    coord = hf.train.Coordinator()
    threads = [looping(coord) for _ in range(3)]
    assert not coord.should_stop() and not coord.wait_for_stop(0.01)
    coord.request_stop()
    coord.join()
    assert coord.joined and not any(t.is_alive() for t in threads)
    coord.clear_stop()
    assert not coord.should_stop() and not coord.joined


def test_the_first_error_reaches_who_joins():
    coord, errors = hf.train.Coordinator(), iter([ValueError("one"), ValueError("two")])

    def fail():
        raise next(errors)

    looping(coord, fail)
    coord.wait_for_stop(60)
    looping(coord, fail)
    with pytest.raises(ValueError, match="one"):
        coord.join()
    with pytest.raises(KeyError):  # nobody would hear of it any more
        coord.request_stop(KeyError())


def test_the_end_of_the_data_is_no_error():
    for ex in (OutOfRangeError("the end"), "info"):
        coord = hf.train.Coordinator()
        try:
            raise OutOfRangeError("the end")
        except OutOfRangeError:
            coord.request_stop(sys.exc_info() if ex == "info" else ex)
        coord.join()
    coord = hf.train.Coordinator(clean_stop_exception_types=(KeyError,))
    coord.request_stop(OutOfRangeError("the end"))
    with pytest.raises(OutOfRangeError):
        coord.join()


def test_a_thread_that_does_not_stop_is_named():
    coord, release = hf.train.Coordinator(), threading.Event()
    thread = threading.Thread(target=release.wait, name="deaf", daemon=True)
    thread.start()
    coord.request_stop()
    with pytest.raises(HpcflowError, match=r"1 threads are still running 0\.05 s.*: deaf"):
        coord.join([thread], stop_grace_period_secs=0.05)
    coord.join([thread], stop_grace_period_secs=0.05, ignore_live_threads=True)
    release.set()


def test_a_looper_calls_in_its_rhythm():
    coord, calls = hf.train.Coordinator(), []

    def call(word, end):
        calls.append(word + end)
        if len(calls) == 3:
            coord.request_stop()

    begun = time.monotonic()
    hf.train.LooperThread.loop(coord, 0.02, call, ("a",), {"end": "b"})
    coord.join()
    assert calls == ["ab"] * 3 and time.monotonic() - begun >= 0.04

    class Counting(hf.train.LooperThread):
        count = 0

        def run_loop(self):
            self.count += 1
            if self.count == 5:
                raise ValueError("by test")

    coord = hf.train.Coordinator()
    looper = Counting(coord, None)
    looper.start()
    with pytest.raises(ValueError, match="by test"):
        coord.join()
    assert looper.count == 5


def counting_queue(capacity=4, name="q"):
    """A queue of 0, 1, 2, ... and its variable."""
    count = hf.Variable(np.int32(0), trainable=False, name=f"{name}_count")
    queue = hf.FIFOQueue(capacity, hf.int32, shapes=[()], name=name)
    return queue, queue.enqueue(hf.count_up_to(count, 1000))


def test_runners_fill_a_queue_and_stop_with_their_coordinator():
    queue, put = counting_queue()
    hf.train.add_queue_runner(hf.train.QueueRunner(queue, [put] * 3))
    taken, coord, session = queue.dequeue(), hf.train.Coordinator(), hf.Session()
    session.run(hf.global_variables_initializer())
    with session.as_default():
        threads = hf.train.start_queue_runners(coord=coord)
    assert len(threads) == 4
    assert hf.train.start_queue_runners(session, coord) == []  # they run
    found = [int(session.run(taken)) for _ in range(50)]
    assert sorted(found) == sorted(set(found)) and max(found) < 50 + 4 + 3
    coord.request_stop()
    coord.join(threads, stop_grace_period_secs=60)
    assert session.run(queue.is_closed())


def test_the_last_runner_closes_the_queue_when_the_input_ends():
    count = hf.Variable(np.int32(0), trainable=False)
    queue = hf.FIFOQueue(4, hf.int32, shapes=[()], name="q")
    put = queue.enqueue(hf.count_up_to(count, 20))
    runner = hf.train.QueueRunner(queue, [put, put])
    assert runner.name == "q"
    taken, session = queue.dequeue(), hf.Session()
    session.run(hf.global_variables_initializer())
    threads = runner.create_threads(session, start=True)
    found = []
    with pytest.raises(OutOfRangeError, match="'q' is closed"):
        while True:
            found.append(int(session.run(taken)))
    assert sorted(found) == list(range(20))
    for thread in threads:
        thread.join(60)
    assert not runner.exceptions_raised


@pytest.mark.parametrize("with_coord", [True, False])
def test_an_error_of_a_runner_is_heard(with_coord):
    x = hf.Variable(np.float32(np.nan))
    queue = hf.FIFOQueue(4, hf.float32, shapes=[()], name="q")
    runner = hf.train.QueueRunner(queue, [queue.enqueue(hf.check_numerics(x, "the input"))])
    coord, session = hf.train.Coordinator() if with_coord else None, hf.Session()
    session.run(hf.global_variables_initializer())
    threads = runner.create_threads(session, coord, daemon=True, start=True)
    if coord is not None:
        with pytest.raises(NumericError, match="the input"):
            coord.join(threads)
    else:
        threads[0].join(60)
        assert [type(e) for e in runner.exceptions_raised] == [NumericError]


@pytest.mark.parametrize("waits", [True, False], ids=["while it waits", "between two runs"])
def test_closing_the_session_ends_runners(waits):
    queue, put = counting_queue()
    runner, session = hf.train.QueueRunner(queue, [put]), hf.Session()
    session.run(hf.global_variables_initializer())
    (thread,) = runner.create_threads(session)
    if waits:
        thread.start()
        until(lambda: session.context.executor.waits)
    session.close()
    if not waits:
        thread.start()
    thread.join(60)
    assert not thread.is_alive() and not runner.exceptions_raised
    with pytest.raises(GraphError, match="needs an operation"):
        hf.train.QueueRunner(queue, [])


def test_a_runner_that_is_cancelled_tells_its_coordinator():
    queue, put = counting_queue()
    runner, session = hf.train.QueueRunner(queue, [put]), hf.Session()
    coord = hf.train.Coordinator()
    session.run(hf.global_variables_initializer())
    threads = runner.create_threads(session, coord, daemon=True, start=True)
    until(lambda: session.context.executor.waits)
    session.run(queue.close(cancel_pending_enqueues=True))
    with pytest.raises(CancelledError, match="'q' is closed"):
        coord.join(threads)
