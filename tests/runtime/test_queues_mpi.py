"""Queues over real MPI ranks: run under mpirun with `--with-mpi` on 1, 2, 3 and 4 ranks."""

import itertools
import threading

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import NumericError, OutOfRangeError
from tests.runtime.ranks import run_here

pytestmark = pytest.mark.mpi


def world_size():
    from hpcflow.comm import mpi_communicator

    return mpi_communicator.world().size


@pytest.mark.mpi(min_size=2)
def test_workers_put_in_and_take_out_of_a_queue_on_a_server():
    """Rows of 200 kB, put in by a thread of each worker, taken by its main thread until closed."""
    rows, size = 12, 50_000

    def body(context):
        done = hf.Variable(np.int32(0), trainable=False, name="done")
        with hf.device("/job:ps/task:0"):
            queue = hf.FIFOQueue(3, [hf.int32, hf.float32], shapes=[(), (size,)], name="q")
        x, y = hf.placeholder(hf.int32, []), hf.placeholder(hf.float32, [size])
        put, taken, close = queue.enqueue([x, y]), queue.dequeue(), queue.close()
        with hf.control_dependencies([done.assign_add(1)]):
            count = done.read_value()
        session = hf.Session()
        session.run(hf.global_variables_initializer())

        def produce():
            for i in range(rows):
                number = 100 * context.replica + i
                session.run(put, {x: number, y: np.full(size, number, np.float32)})
            if session.run(count) == context.roles.replicas:
                session.run(close)

        thread = threading.Thread(target=produce)
        thread.start()
        found = []
        with pytest.raises(OutOfRangeError, match="'q' is closed"):
            while True:
                number, row = session.run(taken)
                assert (row == number).all()
                found.append(int(number))
        thread.join()
        texts = context.drivers.all_gather_text(" ".join(map(str, found)))
        return sorted(int(n) for text in texts for n in text.split()), context.roles.replicas

    result = run_here(body, ps=1)
    if result is not None:
        found, replicas = result
        assert found == sorted(100 * r + i for r in range(replicas) for i in range(rows))


def test_a_chain_of_queues_over_all_ranks_and_a_step_that_fails_on_the_last():
    tasks = world_size()

    def body(context):
        x = hf.placeholder(hf.float32, [None])
        queues = []
        for k in range(tasks):
            with hf.device(f"/job:worker/task:{k}"):
                queues.append(hf.PaddingFIFOQueue(9, hf.float32, shapes=[(None,)], name=f"q{k}"))
        moves = []
        for k, (queue, following) in enumerate(itertools.pairwise(queues)):
            with hf.device(f"/job:worker/task:{k}"):
                moves.append(following.enqueue(queue.dequeue() + 1.0))
        with hf.device(f"/job:worker/task:{tasks - 1}"):
            last = hf.check_numerics(queues[-1].dequeue(), "the end")
        with hf.device("/job:worker/task:0"):
            total = hf.reduce_sum(last)
        session, put, found = hf.Session(), queues[0].enqueue(x), []
        for i in range(20):
            rows = np.full(i, np.nan if i % 5 == 4 else 1, np.float32)
            session.run(put, {x: rows})
            for move in moves:
                session.run(move)
            try:
                found.append(float(session.run([total, last])[0]))
            except NumericError as error:
                assert error.rank == tasks - 1
                found.append(None)
        return found

    found = run_here(body, tasks_per_replica=tasks)
    if found is not None:
        assert found == [None if i % 5 == 4 else i * tasks for i in range(20)]


def test_replicas_whose_queues_end_at_the_same_step():
    def body(context):
        queue = hf.FIFOQueue(10, hf.float32, shapes=[(3,)], name="q")
        v = hf.Variable(np.zeros(3, np.float32))
        loss = hf.reduce_sum(v * queue.dequeue())
        train = hf.train.GradientDescentOptimizer(0.5).minimize(loss)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(queue.enqueue_many([np.full((7, 3), context.replica + 1, np.float32)]))
        session.run(queue.close())
        steps = 0
        with pytest.raises(OutOfRangeError):
            while True:
                session.run(train)
                steps += 1
        return steps, session.run(v)

    steps, value = run_here(body)
    assert steps == 7
    np.testing.assert_allclose(value, -0.5 * 7 * (world_size() + 1) / 2 * np.ones(3))
