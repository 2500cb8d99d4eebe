"""Parameter-server mode: the same numbers as plain training, and nothing torn, lost or hanging."""

import threading

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError
from tests.runtime.nets import data, net, plain, trained
from tests.runtime.ranks import run_ranks

OPTIMIZERS = {
    "sgd": lambda: hf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: hf.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: hf.train.AdamOptimizer(0.01),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("servers", [1, 2])
def test_one_worker_equals_plain_training_bit_for_bit(name, servers):
    (found,) = run_ranks(
        1 + servers, lambda context: trained(optimizer=OPTIMIZERS[name]()), ps=servers
    )
    for mine, theirs in zip(found, plain(optimizer=OPTIMIZERS[name]()), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_large_variables_are_cut_by_rows_and_train_the_same():
    def body(context):
        weights = trained()
        return weights, context.reports()

    ((found, reports),) = run_ranks(3, body, ps=2, shard_bytes=64)
    for mine, theirs in zip(found, plain(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    pieces = [set(r["updates"]) for r in reports if r["task"].startswith("/job:ps")]
    for server in pieces:  # each holds rows of each weight matrix, with their Adam slots
        assert sum(name.startswith("layer1/w") and "part" in name for name in server) >= 3


def test_asynchronous_workers_share_one_model_and_learn():
    features, labels = data(48)

    def body(context):
        x, y, loss, train, _ = net()
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        mine = slice(context.replica * 16, context.replica * 16 + 16)
        for step in range(120):
            session.run(train, {x: features[mine], y: labels[mine]})
            if step % 10 == 9:  # or the last of the slowest would see its own data alone
                context.barrier()
        return float(session.run(loss, {x: features, y: labels}))

    losses = run_ranks(4, body, ps=1, seed=7)
    assert len(set(losses)) == 1
    assert losses[0] < 0.9  # from about 2; a third of the data alone cannot get there


def test_a_pulled_variable_is_never_torn():
    """Readers hold a large version while writers go on: each read is one number throughout."""
    size = 1 << 20

    def body(context):
        v = hf.Variable(np.zeros(size, np.float32), name="v")
        total = hf.Variable(np.zeros((), np.float32), name="total")
        with hf.device("/job:worker/task:0"):
            seen = hf.identity(v.value()) * 1.0
        update = v.assign_add(np.ones(size, np.float32))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        torn = 0
        for _ in range(8):
            if context.replica:
                session.run(update)
            else:
                value = session.run(seen)
                torn += int(value.min() != value.max())
        session.run(total.assign_add(np.float32(1)))
        context.barrier()
        return torn, float(session.run(v)[0])

    for torn, last in run_ranks(4, body, ps=1, seed=11):
        assert torn == 0
        assert last == 16


def test_two_threads_of_one_worker_train_at_once():
    features, labels = data()

    def body(context):
        x, y, _, train, _ = net()
        session = hf.Session()
        session.run(hf.global_variables_initializer())

        def run():
            for _ in range(20):
                session.run(train, {x: features, y: labels})

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return context.reports()

    (reports,) = run_ranks(2, body, ps=1)
    assert reports[1]["updates"]["layer0/w"] == 60


def test_model_parallelism_by_device_scopes_alone():
    for n in (3, 6):  # alone, and as two replicas
        results = run_ranks(n, lambda context: trained(cut=True), tasks_per_replica=3, seed=n)
        for found in results:
            for mine, theirs in zip(found, plain(), strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5 * (n > 3))


def test_replicas_whose_first_sum_is_not_on_the_driver():
    def body(context):
        with hf.device("/job:worker/task:1"):
            v = hf.Variable(np.full(3, 2, np.float32), name="v")
            total = hf.replica_sum(v * 2.0)
        session = hf.Session()
        session.run(v.initializer)
        return session.run(total)

    for found in run_ranks(4, body, tasks_per_replica=2, seed=2):
        np.testing.assert_array_equal(found, np.full(3, 8, np.float32))


def test_sums_of_two_sessions_do_not_share_storage():
    def body(context):
        found = []
        for size in (3, 5):  # nodes of the same names, in graphs of their own
            with hf.Graph().as_default(), hf.device("/job:worker/task:1"):
                x = hf.placeholder(hf.float32, [size])
                total = hf.replica_sum(x * 2.0)
                with hf.Session() as session:
                    found.append(session.run(total, {x: np.ones(size, np.float32)}))
        return found

    for three, five in run_ranks(4, body, tasks_per_replica=2):
        np.testing.assert_array_equal(three, np.full(3, 4, np.float32))
        np.testing.assert_array_equal(five, np.full(5, 4, np.float32))


def test_a_fetched_value_of_a_loop_behind_the_sums_is_an_error_that_names_it():
    def body(context):
        v = hf.Variable(np.zeros(4, np.float32), name="v")
        c = hf.Variable(np.float32(0), name="c", trainable=False)
        train = hf.train.GradientDescentOptimizer(1.0).minimize(hf.reduce_sum(v))

        def add(i, total):
            with hf.control_dependencies([c.assign_add(1.0)]):
                return i + 1, total + 1.0

        with hf.control_dependencies([train]):
            _, total = hf.while_loop(lambda i, total: i < 2, add, [0, 0.0])
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        with pytest.raises(GraphError, match="'while', an update that the servers make"):
            session.run([total, train])
        session.run([total.op, train])
        return session.run(c)

    assert run_ranks(2, body, ps=1, sync="all") == [2.0]
