"""A stream of a queue's elements, filled by a thread while it is read."""

import threading

import numpy as np

import hpcflow as hf


def test_a_stream_of_the_elements_of_a_queue():
    with hf.Graph().as_default():
        queue = hf.FIFOQueue(5, [hf.float32, hf.int32], shapes=[(2,), ()])
        x, y = hf.placeholder(hf.float32, [None, 2]), hf.placeholder(hf.int32, [None])
        one, number = hf.placeholder(hf.float32, [2]), hf.placeholder(hf.int32, [])
        put, close = queue.enqueue([one, number]), queue.close()
        session = hf.Session()
        samples = hf.data.dequeued(session, queue.dequeue())
        stream = hf.data.Stream((x, y), samples, batch=8)

        def fill():
            for i in range(30):
                session.run(put, {one: np.full(2, i, "f4"), number: i})
            session.run(close)

        thread = threading.Thread(target=fill)
        thread.start()
        sums = [int(session.run(hf.reduce_sum(y) * 1, batch)) for batch in stream.epoch(0)]
        thread.join()
    assert sums == [28, 92, 156, 159]


def test_a_single_component():
    with hf.Graph().as_default():
        queue = hf.FIFOQueue(20, hf.float32, shapes=[()])
        session = hf.Session()
        session.run(queue.enqueue_many([np.arange(10, dtype="f4")]))
        session.run(queue.close())
        x = hf.placeholder(hf.float32, [None])
        stream = hf.data.Stream(x, hf.data.dequeued(session, queue.dequeue()), batch=4)
        found = [batch[x].tolist() for batch in stream.epoch(0)]
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
