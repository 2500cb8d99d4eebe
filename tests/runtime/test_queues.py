"""Queues in sessions: threads on one rank, queues on servers and other tasks, closing."""

import os
import signal
import threading
import time

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import (
    CancelledError,
    DTypeError,
    GraphError,
    HpcflowError,
    OutOfRangeError,
    PlacementError,
    RangeError,
    ShapeError,
)
from tests.comm.threads import until
from tests.runtime.ranks import run_ranks


@pytest.fixture(autouse=True)
def graph():
    with hf.Graph().as_default() as g:
        yield g


def in_thread(function, *args):
    """A thread of `function`; its result or error is `.found`."""

    def run():
        try:
            thread.found = function(*args)
        except BaseException as error:
            thread.found = error

    thread = threading.Thread(target=run, daemon=True)
    thread.found = None
    thread.start()
    return thread


def ended(*threads):
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    return [thread.found for thread in threads]


def interrupt_when_it_waits(session):
    """As Ctrl-C while the main thread's step waits."""

    def interrupt():
        until(lambda: session.context.executor.waits)
        os.kill(os.getpid(), signal.SIGINT)

    in_thread(interrupt)


def scalar(name="x"):
    return hf.placeholder(hf.float32, [], name=name)


# -- what goes in comes out


def test_elements_come_out_as_they_went_in():
    x = scalar()
    queue = hf.FIFOQueue(10, [hf.float32, hf.int32], shapes=[(), (2,)])
    put = queue.enqueue([x, [1, 2]])
    taken, both = queue.dequeue(), queue.dequeue_many(2)
    assert [t.shape for t in taken] == [(), (2,)]
    assert [t.shape for t in both] == [(2,), (2, 2)]
    session = hf.Session()
    for i in range(3):
        session.run(put, {x: float(i)})
    assert session.run(queue.size()) == 3
    number, pair = session.run(taken)
    assert number == 0 and pair.tolist() == [1, 2] and pair.dtype == np.int32
    numbers, pairs = session.run(both)
    assert numbers.tolist() == [1, 2] and pairs.tolist() == [[1, 2], [1, 2]]
    assert session.run([queue.size(), queue.is_closed()]) == [0, False]


def test_dequeue_and_enqueue_of_one_run_do_not_block_each_other():
    x = scalar()
    queue = hf.FIFOQueue(1, hf.float32, shapes=())
    taken, put = queue.dequeue(), queue.enqueue(x)
    session = hf.Session()
    for i in range(5):
        assert session.run([taken, put], {x: float(i)}) == [i, None]
    computed = hf.FIFOQueue(1, hf.float32, shapes=())
    after = computed.dequeue() + 1.0
    assert session.run([after, computed.enqueue(x * 2.0)], {x: 3.0})[0] == 7


def test_what_is_in_the_queue_does_not_change_with_what_was_fed_or_fetched():
    x = hf.placeholder(hf.float32, [3])
    v = hf.Variable(np.zeros(3, np.float32))
    queue = hf.FIFOQueue(9, hf.float32, shapes=[(3,)])
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    array = np.ones(3, np.float32)
    session.run(queue.enqueue(x), {x: array})
    array[:] = 5
    session.run(queue.enqueue(v))
    session.run(v.assign_add(array))
    session.run(queue.enqueue(x * 2.0 + 1.0), {x: array})
    session.run(queue.enqueue(x * 2.0 + 1.0), {x: array * 2})
    first = session.run(queue.dequeue())
    assert first.tolist() == [1, 1, 1] and first.flags.writeable
    found = session.run(queue.dequeue_many(3))
    assert found[:, 0].tolist() == [0, 11, 21]


def test_rows_of_a_batch_are_elements():
    queue = hf.FIFOQueue(10, [hf.int32, hf.float32], shapes=[(), (2,)], names=["n", "row"])
    assert queue.names == ["n", "row"] and queue.dtypes == [hf.int32, hf.float32]
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    session = hf.Session()
    session.run(queue.enqueue_many({"row": rows, "n": np.arange(6, dtype=np.int32)}))
    found = session.run(queue.dequeue())
    assert found["n"] == 0 and found["row"].tolist() == [0, 1]
    session.run(queue.close())
    found = session.run(queue.dequeue_up_to(3))
    assert found["n"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(found["row"], rows[1:4])
    assert queue.dequeue_up_to(3)["row"].shape == (None, 2)
    assert session.run(queue.dequeue_up_to(3))["n"].tolist() == [4, 5]
    with pytest.raises(OutOfRangeError, match=r"closed and has 0 element\(s\); 3 were asked for"):
        session.run(queue.dequeue_up_to(3))


def test_a_queue_without_shapes_takes_any_and_gives_one_at_a_time():
    x = hf.placeholder(hf.float32, None)
    queue = hf.FIFOQueue(10, hf.float32)
    session = hf.Session()
    for shape in [(), (3,), (2, 0, 4)]:
        session.run(queue.enqueue(x), {x: np.ones(shape, np.float32)})
    taken = queue.dequeue()
    assert taken.shape is None
    assert [session.run(taken).shape for _ in range(3)] == [(), (3,), (2, 0, 4)]
    with pytest.raises(ShapeError, match="without shapes"):
        queue.dequeue_many(2)


def test_padding_to_the_largest():
    queue = hf.PaddingFIFOQueue(10, [hf.int32, hf.float32], shapes=[(None, 2), ()])
    x, y = hf.placeholder(hf.int32, [None, 2]), scalar()
    session = hf.Session()
    for i in (1, 3, 0):
        session.run(queue.enqueue([x, y]), {x: np.full((i, 2), i, np.int32), y: float(i)})
    many = queue.dequeue_many(3)
    assert many[0].shape == (3, None, 2)
    found, numbers = session.run(many)
    assert found[:, :, 0].tolist() == [[1, 0, 0], [3, 3, 3], [0, 0, 0]]
    assert numbers.tolist() == [1, 3, 0]
    assert session.run(queue.dequeue_many(0))[0].shape == (0, 0, 2)
    with pytest.raises(ShapeError, match="rank"):
        hf.PaddingFIFOQueue(10, [hf.float32] * 2, shapes=[(), None])


def test_random_order_follows_from_the_seed():
    session, orders = hf.Session(), []
    for seed in (1, 1, 2):
        queue = hf.RandomShuffleQueue(100, 5, hf.int32, shapes=[()], seed=seed)
        session.run(queue.enqueue_many([np.arange(20, dtype=np.int32)]))
        first = session.run(queue.dequeue_many(15)).tolist()
        session.run(queue.close())
        orders.append(first + session.run(queue.dequeue_many(5)).tolist())
    assert sorted(orders[0]) == list(range(20))
    assert orders[0] == orders[1] != orders[2]


def test_the_smallest_priority_first():
    queue = hf.PriorityQueue(10, hf.float32, shapes=[()])
    session = hf.Session()
    session.run(queue.enqueue_many([np.array([3, 1, 2, 1]), np.array([0, 1, 2, 3], "f4")]))
    priorities, values = session.run(queue.dequeue_many(4))
    assert priorities.tolist() == [1, 1, 2, 3] and values.tolist() == [1, 3, 2, 0]


def test_the_smallest_priorities_also_for_who_waited_for_them():
    """TensorFlow's answer: one that came while a dequeue waited goes before what was there."""
    queue = hf.PriorityQueue(10, hf.float32, shapes=[()])
    session, found = hf.Session(), []
    session.run(queue.enqueue_many([np.array([5, 7]), np.array([5, 7], "f4")]))
    taken = queue.dequeue_many(4)
    waits = threading.Thread(target=lambda: found.append(session.run(taken)))
    waits.start()
    until(lambda: session.run(queue.size()) == 0)  # it has taken both
    session.run(queue.enqueue_many([np.array([1, 2, 3]), np.array([1, 2, 3], "f4")]))
    waits.join(60)
    assert [a.tolist() for a in found[0]] == [[1, 2, 3, 5], [1, 2, 3, 5]]


def test_one_of_several_queues():
    queues = [hf.FIFOQueue(5, hf.float32, shapes=[()], name=f"q{i}") for i in range(3)]
    index, x = hf.placeholder(hf.int32, []), scalar()
    chosen = hf.QueueBase.from_list(index, queues)
    put, taken = chosen.enqueue(x), chosen.dequeue()
    session = hf.Session()
    for i in (0, 2, 2):
        session.run(put, {index: i, x: float(i)})
    assert session.run([q.size() for q in queues]) == [1, 0, 2]
    assert session.run(taken, {index: 2}) == 2
    with pytest.raises(RangeError, match="queue 3 of 3"):
        session.run(taken, {index: 3})
    assert session.run(hf.QueueBase.from_list(0, queues[:1]).dequeue()) == 0


# -- waiting and closing


def test_threads_wait_for_room_and_for_elements():
    x = scalar()
    queue = hf.FIFOQueue(2, hf.float32, shapes=())
    put, taken, session = queue.enqueue(x), queue.dequeue(), hf.Session()
    takers = [in_thread(session.run, taken) for _ in range(6)]  # more than instances
    time.sleep(0.05)
    assert not any(t.found is not None for t in takers)
    putters = [in_thread(session.run, put, {x: float(i)}) for i in range(9)]
    found = sorted(ended(*takers))
    rest = [float(session.run(taken)) for _ in range(3)]
    ended(*putters)
    assert sorted([*found, *rest]) == list(range(9))


def test_closing_releases_everyone():
    x = scalar()
    full, empty = (hf.FIFOQueue(1, hf.float32, shapes=(), name=n) for n in ("full", "empty"))
    session = hf.Session()
    session.run(full.enqueue(x), {x: 1.0})
    waiting = [in_thread(session.run, full.enqueue(x), {x: 2.0})]
    waiting += [in_thread(session.run, empty.dequeue()), in_thread(session.run, empty.dequeue())]
    time.sleep(0.05)
    session.run([full.close(cancel_pending_enqueues=True), empty.close()])
    kinds = [type(error) for error in ended(*waiting)]
    assert kinds == [CancelledError, OutOfRangeError, OutOfRangeError]
    assert session.run([full.is_closed(), full.dequeue()]) == [True, 1]
    with pytest.raises(CancelledError, match="'full' is closed") as caught:
        session.run(full.enqueue(x, name="late"), {x: 3.0})
    assert caught.value.op == "late" and "test_queues.py" in str(caught.value)


def test_a_step_that_finds_a_closed_queue_fails_alone():
    x = scalar()
    queue = hf.FIFOQueue(3, hf.float32, shapes=())
    taken, other = queue.dequeue() + 1.0, hf.tanh(x)
    session = hf.Session()
    session.run(queue.enqueue(x), {x: 1.0})
    session.run(queue.close())
    assert session.run(taken) == 2
    for _ in range(20):
        with pytest.raises(OutOfRangeError):
            session.run(taken)
        assert session.run(other, {x: 0.0}) == 0


def test_ctrl_c_while_a_step_waits():
    x = scalar()
    queue = hf.FIFOQueue(3, hf.float32, shapes=())
    taken, session = queue.dequeue(), hf.Session()
    interrupt_when_it_waits(session)
    with pytest.raises(KeyboardInterrupt):
        session.run(taken)
    session.run(queue.enqueue(x), {x: 4.0})  # nobody has taken it
    assert session.run(taken) == 4


def test_a_dequeue_that_is_given_up_loses_nothing():
    queue = hf.FIFOQueue(5, hf.int32, shapes=())
    session = hf.Session()
    session.run(queue.enqueue_many([np.arange(3, dtype=np.int32)]))
    interrupt_when_it_waits(session)
    with pytest.raises(KeyboardInterrupt):
        session.run(queue.dequeue_many(5))
    assert session.run(queue.dequeue_many(3)).tolist() == [0, 1, 2]


# -- what does not fit


def test_what_does_not_fit_is_told():
    queue = hf.FIFOQueue(3, [hf.float32, hf.int32], shapes=[(2,), ()], name="q")
    x, y = hf.placeholder(hf.float32, [3]), hf.placeholder(hf.float32, None)
    with pytest.raises(ShapeError, match="has 2 components, not 1"):
        queue.enqueue(x)
    with pytest.raises(ShapeError, match=r"component 0 is \[3\]; the queue takes \[2\]"):
        queue.enqueue([x, 1])
    with pytest.raises(DTypeError):
        queue.enqueue([y, y])
    with pytest.raises(GraphError, match="no names"):
        queue.enqueue({"a": x, "b": 1})
    with pytest.raises(ShapeError, match="do not agree"):
        queue.enqueue_many([np.ones((3, 2), "f4"), np.ones(2, "i4")])
    with pytest.raises(ShapeError, match="scalar"):
        queue.enqueue_many([np.ones((3, 2), "f4"), np.int32(1)])
    with pytest.raises(ShapeError, match="as many shapes"):
        hf.FIFOQueue(3, hf.float32, shapes=[(), ()])
    with pytest.raises(ShapeError, match="must be known"):
        hf.FIFOQueue(3, hf.float32, shapes=[(None,)])
    with pytest.raises(GraphError, match="capacity 0"):
        hf.FIFOQueue(0, hf.float32)
    with pytest.raises(GraphError, match="greater than min_after_dequeue 5"):
        hf.RandomShuffleQueue(5, 5, hf.float32)
    with pytest.raises(DTypeError, match="the same dtypes"):
        hf.QueueBase.from_list(0, [queue, hf.FIFOQueue(3, hf.float32)])
    session = hf.Session()
    with pytest.raises(ShapeError, match=r"component 0 is \[4\]; the queue takes \[2\]"):
        session.run(queue.enqueue([y, 1]), {y: np.ones(4, "f4")})
    n = hf.placeholder(hf.int32, [])
    counted = hf.cast(hf.range(n), hf.float32)
    session.run(queue.enqueue([counted, 1]), {n: 2})
    with pytest.raises(ShapeError, match=r"a component is \[4\]; the queue takes \[2\]"):
        session.run(queue.enqueue([counted, 1]), {n: 4})
    with pytest.raises(ShapeError, match=r"components have \[1, 2\] rows"):
        session.run(queue.enqueue_many([hf.ones([2, 2]), hf.range(n)]), {n: 1})
    with pytest.raises(RangeError, match="-1 elements"):
        session.run(queue.dequeue_many(n), {n: -1})
    with pytest.raises(PlacementError):
        with hf.device("/gpu:0"):
            other = hf.FIFOQueue(3, hf.float32)
        session.run(other.size())


def test_queues_of_two_graphs_with_one_name_do_not_mix():
    from hpcflow.runtime.job.rank_context import RankContext
    from hpcflow.settings import Settings

    store = hf.Session(context=RankContext(Settings())).store
    for i, capacity in enumerate((3, 3, 4)):
        with hf.Graph().as_default():
            session = hf.Session()
            session.store = store
            size = hf.FIFOQueue(capacity, hf.float32, shapes=(), shared_name="one").size()
            if i < 2:
                assert session.run(size) == 0
            else:
                with pytest.raises(HpcflowError, match="other attributes"):
                    session.run(size)


INT, FLOAT = [hf.int32], [hf.float32]


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (lambda: hf.FIFOQueue(4, INT, [[2]], shared_name="s"), "capacity 3, not 4"),
        (lambda: hf.FIFOQueue(3, FLOAT, [[2]], shared_name="s"), "types .*int32.*, not .*float32"),
        (lambda: hf.FIFOQueue(3, INT, [[3]], shared_name="s"), r"shapes \(\(2,\),\), not"),
        (lambda: hf.FIFOQueue(3, INT * 2, [[2], []], shared_name="s"), "component_types"),
        (lambda: hf.RandomShuffleQueue(3, 0, INT, [[2]], shared_name="s"), "it is a FIFOQueue"),
    ],
)
def test_queues_that_share_a_name_must_agree(other, differs):
    with hf.Graph().as_default(), hf.Session() as session:
        first = hf.FIFOQueue(3, INT, [[2]], shared_name="s")
        same = hf.FIFOQueue(3, INT, [[2]], shared_name="s")
        session.run(first.enqueue([[1, 2]]))
        assert session.run(same.size()) == 1
        made_at = first.queue_ref.op.line
        with pytest.raises(HpcflowError, match=f"'s' was made .* at .*: .*{differs}") as raised:
            session.run(other().size())
        assert made_at in str(raised.value) and raised.value.line != made_at


@pytest.mark.parametrize("name", [3, [1], np.timedelta64(1)], ids=["int", "list", "timedelta"])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: hf.FIFOQueue(3, INT, shared_name=name),
        lambda name: hf.ConditionalAccumulator(hf.float32, shared_name=name),
        lambda name: hf.data.Iterator.from_structure(hf.float32, shared_name=name),
        lambda name: hf.train.batch([hf.constant(1.0)], 2, shared_name=name),
    ],
    ids=["queue", "accumulator", "iterator", "batch"],
)
def test_a_shared_name_is_a_text(make, name):
    with pytest.raises(GraphError, match=r"shared_name=.* cannot be a name") as raised:
        make(name)
    assert "test_queues.py:" in raised.value.line


# -- over ranks


@pytest.mark.parametrize("kind", ["fifo", "random"])
def test_workers_share_a_queue_on_a_server(kind):
    """Three workers put in and take out; the last one to finish closes it."""

    def body(context):
        done = hf.Variable(np.int32(0), trainable=False, name="done")
        with hf.device("/job:ps/task:0"):
            if kind == "fifo":
                queue = hf.FIFOQueue(4, [hf.int32, hf.float32], shapes=[(), (3,)], name="q")
            else:
                queue = hf.RandomShuffleQueue(4, 1, [hf.int32, hf.float32], [(), (3,)], name="q")
        x, y = hf.placeholder(hf.int32, []), hf.placeholder(hf.float32, [3])
        put, taken, close = queue.enqueue([x, y]), queue.dequeue(), queue.close()
        with hf.control_dependencies([done.assign_add(1)]):
            count = done.read_value()
        session = hf.Session()
        session.run(hf.global_variables_initializer())

        def produce():
            for i in range(20):
                number = 100 * context.replica + i
                session.run(put, {x: number, y: np.full(3, number, np.float32)})
            if session.run(count) == 3:
                session.run(close)

        producer, found = in_thread(produce), []
        with pytest.raises(OutOfRangeError, match="'q' is closed"):
            while True:
                number, row = session.run(taken)
                np.testing.assert_array_equal(row, np.full(3, number))
                found.append(int(number))
        ended(producer)
        return found

    results = run_ranks(4, body, seed=4, ps=1)
    everything = sorted(n for found in results for n in found)
    assert everything == sorted(100 * r + i for r in range(3) for i in range(20))


def test_queues_on_three_tasks_of_one_graph_make_a_pipeline():
    def body(context):
        x = hf.placeholder(hf.float32, [2])
        queues = []
        for k in (1, 2):
            with hf.device(f"/job:worker/task:{k}"):
                queues.append(hf.FIFOQueue(2, hf.float32, shapes=[(2,)], name=f"q{k}"))
        first, second = queues
        with hf.device("/job:worker/task:1"):
            move = second.enqueue(first.dequeue() * 2.0)
        put, taken = first.enqueue(x), second.dequeue()
        finish = [first.close(), second.close()]
        session = hf.Session()

        def produce():
            for i in range(30):
                session.run(put, {x: np.full(2, i, np.float32)})
            session.run(finish[0])

        def pass_on():
            try:
                while True:
                    session.run(move)
            except OutOfRangeError:
                session.run(finish[1])

        threads, found = [in_thread(produce), in_thread(pass_on)], []
        with pytest.raises(OutOfRangeError):
            while True:
                found.append(session.run(taken)[0])
        ended(*threads)
        return found

    (found,) = run_ranks(3, body, seed=6, tasks_per_replica=3)
    assert found == [2 * i for i in range(30)]


def test_rows_of_any_number_cross_between_ranks():
    def body(context):
        with hf.device("/job:ps/task:0"):
            queue = hf.PaddingFIFOQueue(20, hf.float32, shapes=[(None,)], name="q")
        x = hf.placeholder(hf.float32, [None])
        put, taken = queue.enqueue(x), queue.dequeue_up_to(4)
        session = hf.Session()
        for i in range(10):
            session.run(put, {x: np.full(i, i, np.float32)})
        session.run(queue.close())
        return [session.run(taken) for _ in range(3)]

    (found,) = run_ranks(2, body, seed=1, ps=1)
    assert [f.shape for f in found] == [(4, 3), (4, 7), (2, 9)]
    assert [f.sum() for f in found] == [14, 126, 145]


def test_collective_replicas_train_from_queues_of_their_own():
    """Each fails at the same step, at the end of its data, and ends in order."""

    def body(context):
        queue = hf.FIFOQueue(10, hf.float32, shapes=[(3,)], name="q")
        v = hf.Variable(np.zeros(3, np.float32))
        train = hf.train.GradientDescentOptimizer(0.5).minimize(hf.reduce_sum(v * queue.dequeue()))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        rows = np.full((7, 3), context.replica + 1, np.float32)
        session.run(queue.enqueue_many([rows]))
        session.run(queue.close())
        steps = 0
        with pytest.raises(OutOfRangeError):
            while True:
                session.run(train)
                steps += 1
        return steps, session.run(v)

    for steps, value in run_ranks(2, body, seed=1):
        assert steps == 7
        np.testing.assert_allclose(value, -0.5 * 7 * 3 / 2 * np.ones(3))


def test_strings_wait_in_a_queue_on_a_server():
    def body(context):
        with hf.device("/job:ps/task:0"):
            queue = hf.PaddingFIFOQueue(9, hf.string, shapes=[(None,)], name="q")
        x = hf.placeholder(hf.string, [None])
        put, taken = queue.enqueue(x), queue.dequeue_many(2)
        session = hf.Session()
        session.run(put, {x: ["one"]})
        session.run(put, {x: ["two", "", "drei"]})
        found = session.run(taken)
        session.run(queue.close())
        for _ in range(3):
            with pytest.raises(OutOfRangeError):
                session.run(hf.string_join([taken, taken]))
        return found.tolist()

    (found,) = run_ranks(2, body, seed=1, ps=1)
    assert found == [[b"one", b"", b""], [b"two", b"", b"drei"]]
