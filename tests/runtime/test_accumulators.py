"""Accumulators against sums by hand: stale gradients, waiting takes, rows, synchronous training."""

import threading

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import CancelledError, DTypeError, GraphError, RangeError, ShapeError
from tests.comm.threads import until
from tests.runtime.ranks import run_ranks


@pytest.fixture(autouse=True)
def graph():
    with hf.Graph().as_default() as g:
        yield g


@pytest.mark.parametrize("reduction", ["MEAN", "SUM"])
def test_the_mean_or_sum_of_what_has_come(reduction):
    rng = np.random.default_rng(1)
    grads = rng.standard_normal((5, 2, 3)).astype(np.float32)
    x = hf.placeholder(hf.float32, [2, 3])
    acc = hf.ConditionalAccumulator(hf.float32, [2, 3], reduction_type=reduction)
    put, taken, count = acc.apply_grad(x), acc.take_grad(3), acc.num_accumulated()
    assert taken.shape == (2, 3) and acc.dtype == np.float32
    session = hf.Session()
    for grad in grads[:4]:
        session.run(put, {x: grad})
    assert session.run(count) == 4
    combine = np.mean if reduction == "MEAN" else np.sum
    np.testing.assert_allclose(session.run(taken), combine(grads[:4], 0), rtol=1e-6)
    assert session.run(count) == 0


def test_stale_gradients_are_dropped():
    x, step = hf.placeholder(hf.float32, []), hf.placeholder(hf.int64, [])
    acc = hf.ConditionalAccumulator(hf.float32, [])
    put, taken, count = acc.apply_grad(x, step), acc.take_grad(1), acc.num_accumulated()
    session = hf.Session()
    session.run(put, {x: 1.0, step: 0})
    assert session.run(taken) == 1  # and now it is step 1
    session.run(put, {x: 2.0, step: 0})
    assert session.run(count) == 0
    session.run(put, {x: 3.0, step: 1})
    session.run(put, {x: 5.0, step: 7})
    assert session.run(count) == 2
    assert session.run(taken) == 4
    session.run(acc.set_global_step(10))
    session.run(put, {x: 3.0, step: 9})
    session.run(put, {x: 4.0, step: 10})
    assert session.run(taken) == 4


def test_takes_wait_in_their_order():
    x = hf.placeholder(hf.float32, [])
    acc = hf.ConditionalAccumulator(hf.float32, [], reduction_type="SUM")
    put, three, one = acc.apply_grad(x, 100), acc.take_grad(3), acc.take_grad(1)
    session, found = hf.Session(), {}

    def take(name, fetch):
        try:
            found[name] = float(session.run(fetch))
        except CancelledError:
            found[name] = None

    threads = []
    for name, fetch in (("three", three), ("one", one)):
        threads.append(threading.Thread(target=take, args=(name, fetch)))
        threads[-1].start()
        until(lambda: len(session.context.executor.waits) == len(threads))
    for value in (1.0, 2.0):
        session.run(put, {x: value})
    assert not found
    for value in (4.0, 8.0):
        session.run(put, {x: value})
    for thread in threads:
        thread.join(60)
    assert found == {"three": 7, "one": 8}
    thread = threading.Thread(target=take, args=("late", one))
    thread.start()
    until(lambda: session.context.executor.waits)
    session.close()
    thread.join(60)
    assert found["late"] is None


def test_rows():
    acc = hf.SparseConditionalAccumulator(hf.float64, [6, 2])
    indices, values = hf.placeholder(hf.int64, [None]), hf.placeholder(hf.float64, [None, 2])
    put = acc.apply_grad(indices, values, [6, 2])
    rng = np.random.default_rng(2)
    session, total, hits = hf.Session(), np.zeros((6, 2)), np.zeros(6)
    for at in ([3, 1], [1, 1, 5], [], [5]):
        rows = rng.standard_normal((len(at), 2))
        session.run(put, {indices: np.array(at, np.int64), values: rows})
        np.add.at(total, at, rows)
        hits[list(set(at))] += 1
    found, mean, shape = session.run(acc.take_grad(4))
    assert found.tolist() == [1, 3, 5] and shape.tolist() == [6, 2]
    np.testing.assert_allclose(mean, (total / np.maximum(hits, 1)[:, None])[[1, 3, 5]])


def test_rows_as_indexed_slices_and_their_sum():
    acc = hf.SparseConditionalAccumulator(hf.float32, [4], reduction_type="SUM")
    grad = hf.IndexedSlices([1.0, 2.0, 3.0], [2, 0, 2], [4])
    put, taken = acc.apply_indexed_slices_grad(grad), acc.take_indexed_slices_grad(2)
    session = hf.Session()
    session.run(put)
    session.run(put)
    found = session.run(taken)
    assert found.indices.tolist() == [0, 2] and found.values.tolist() == [4, 8]
    assert found.dense_shape.tolist() == [4]
    empty = hf.SparseConditionalAccumulator(hf.float32)
    at, rows = hf.placeholder(hf.int32, [None]), hf.placeholder(hf.float32, [None, 3])
    session.run(empty.apply_grad(at, rows), {at: np.zeros(0, "i4"), rows: np.zeros((0, 3), "f4")})
    _, values, shape = session.run(empty.take_grad(1))
    assert values.shape == (0, 3) and shape.tolist() == [-1, 3]


def test_what_does_not_fit_is_told():
    with pytest.raises(GraphError, match="neither MEAN nor SUM"):
        hf.ConditionalAccumulator(hf.float32, reduction_type="MAX")
    with pytest.raises(DTypeError, match="floats"):
        hf.ConditionalAccumulator(hf.int32)
    acc = hf.ConditionalAccumulator(hf.float32, name="acc")
    x, n = hf.placeholder(hf.float32, None), hf.placeholder(hf.int32, [])
    session = hf.Session()
    session.run(acc.apply_grad(x), {x: np.ones(3, "f4")})
    with pytest.raises(ShapeError, match=r"a gradient is \[2\]; accumulator 'acc' has \[3\]"):
        session.run(acc.apply_grad(x), {x: np.ones(2, "f4")})
    with pytest.raises(RangeError, match="0 gradients"):
        session.run(acc.take_grad(n), {n: 0})
    assert session.run(acc.take_grad(n), {n: 1}).tolist() == [1, 1, 1]
    rows = hf.SparseConditionalAccumulator(hf.float32, [4, 2])
    with pytest.raises(ShapeError):
        rows.apply_grad([0], [[1.0, 2.0, 3.0]])
    with pytest.raises(RangeError, match="not one of"):
        session.run(rows.apply_grad([4], [[1.0, 2.0]]))
    with pytest.raises(ShapeError, match="rows"):
        hf.SparseConditionalAccumulator(hf.float32, [])


def test_synchronous_training_of_accumulators_and_tokens():
    """As TensorFlow's SyncReplicasOptimizer: three workers, of which two make a step."""
    steps, needed = 12, 2

    def body(context):
        with hf.device("/job:ps/task:0"):
            w = hf.Variable(np.zeros(3, np.float32), name="w")
            step = hf.Variable(np.int64(0), trainable=False, name="step")
            acc = hf.ConditionalAccumulator(hf.float32, [3], name="acc")
            tokens = hf.FIFOQueue(-1, hf.int64, shapes=[()], name="tokens")
        local = hf.Variable(np.int64(0), trainable=False, collections=["local_variables"])
        target = np.array([1, 2, 3], np.float32)
        (grad,) = hf.gradients(hf.reduce_sum(hf.square(w - target)) / 2, [w])
        put = acc.apply_grad(grad, local)
        with hf.control_dependencies([put]):
            token = tokens.dequeue()
            train = local.assign(token)
        with hf.control_dependencies([w.assign_sub(0.5 * acc.take_grad(needed))]):
            with hf.control_dependencies([step.assign_add(1)]):
                with hf.control_dependencies([step.read_value()]):
                    after = step.read_value()
                give = tokens.enqueue_many([hf.fill([needed], after)])
        session = hf.Session()
        session.run(hf.local_variables_initializer())
        session.run(hf.global_variables_initializer())
        chief = None
        if context.is_chief:
            session.run(tokens.enqueue_many([np.zeros(needed, np.int64)]))

            def apply():
                for _ in range(steps):
                    session.run(give)
                session.run(tokens.close())

            chief = threading.Thread(target=apply)
            chief.start()
        mine = 0
        with pytest.raises(hf.errors.OutOfRangeError):
            while True:
                session.run(train)
                mine += 1
        if chief is not None:
            chief.join()
        context.barrier()
        return mine, session.run([w, step])

    results = run_ranks(4, body, ps=1, seed=2)
    for _, (w, step) in results:
        assert step == steps
        np.testing.assert_allclose(w, np.array([1, 2, 3]) * (1 - 0.5**steps), rtol=1e-5)
    assert sum(mine for mine, _ in results) == needed * (steps + 1)
