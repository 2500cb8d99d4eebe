"""The rules end to end: the same numbers as one process, nobody waits for who has ended."""

import random
import time

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError, HpcflowError
from hpcflow.runtime.job.job_membership import current_context, use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.comm.threads import until
from tests.runtime.nets import data, net, plain
from tests.runtime.ranks import run_here, run_ranks

OPTIMIZERS = {
    "adam": lambda: hf.train.AdamOptimizer(0.01),
    "momentum": lambda: hf.train.MomentumOptimizer(0.1, 0.9),
    "lamb": lambda: hf.train.LAMBOptimizer(0.01),
}


def share_of(context, step, features, labels):
    """This worker's part of a joined batch of 8."""
    n, r = context.roles.replicas, context.replica
    rows = slice(8 * (step % 3) + 8 // n * r, 8 * (step % 3) + 8 // n * (r + 1))
    return features[rows], labels[rows]


def trained(context, optimizer=None, pause=0.0, steps=12):
    features, labels = data()
    x, y, loss, train, variables = net(optimizer)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    for step in range(steps):
        time.sleep(pause)
        mine, truth = share_of(context, step, features, labels)
        session.run([loss, train], {x: mine, y: truth})
    return session.run(variables)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_all_equals_one_process_on_the_joined_batch(name, servers):
    results = run_ranks(
        2 + servers,
        lambda context: trained(context, OPTIMIZERS[name]()),
        ps=servers,
        sync="all",
        seed=servers,
        shard_bytes=64 if servers == 3 else 16 << 20,
    )
    for found in results:
        for mine, theirs in zip(found, plain(optimizer=OPTIMIZERS[name]()), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


def test_all_is_bit_equal_from_run_to_run_and_for_one_worker_to_plain_training():
    runs = [
        run_ranks(5, lambda context: trained(context), ps=1, sync="all", seed=seed)[0]
        for seed in (1, 2)
    ]
    (alone,) = run_ranks(2, lambda context: trained(context), ps=1, sync="all")
    for first, second in zip(*runs, strict=True):
        np.testing.assert_array_equal(first, second)
    for mine, theirs in zip(alone, plain(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def session_run(context, sync, steps=None, epochs=3, **more):
    """The weights and the result of a training session on dealt batches, at random paces."""
    features, labels = data(50)
    x, y, loss, train, variables = net()
    step_number = hf.train.get_or_create_global_step()
    counted = step_number.assign_add(1)
    dataset = hf.data.Dataset({x: features, y: labels}, batch=16, seed=1)
    session = hf.train.TrainingSession(sync=sync, **more)
    pace = random.Random(context.replica)
    with session as sess:
        for batch in dataset.epochs(epochs):
            if steps is not None and sess.steps >= steps[context.replica]:
                break
            time.sleep(pace.random() * 0.003)
            sess.step([loss, train], batch)
        sess.wait()
        del counted
        return sess.run(variables), sess.result()


def one_process(tmp_path):
    settings = Settings(run_dir=str(tmp_path))
    with use_context(RankContext(settings)), hf.Graph().as_default():
        return session_run(current_context(), None)


@pytest.mark.parametrize("servers", [1, 2])
def test_uneven_shares_and_the_last_batch_of_an_epoch(tmp_path, servers):
    """50 samples, batches of 16, three workers: shares of 6, 5, 5 and of 1, 1, 0."""
    results = run_ranks(
        3 + servers,
        lambda context: session_run(context, "all"),
        ps=servers,
        run_dir=str(tmp_path),
        seed=4,
    )
    expected, _ = one_process(tmp_path)
    for found, _ in results:
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
    told = results[0][1]
    assert told["sync"] == "all"
    assert told["gradients"] == {"used": [12] * 3, "late": [0] * 3, "dropped": [0] * 3}


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["all", hf.Backup(1), hf.Stale(1)], ids=str)
@pytest.mark.parametrize("saves", [False, True])
def test_a_worker_that_ends_early_leaves_nobody_waiting(tmp_path, sync, saves):
    more = {"checkpoints": tmp_path / "saved", "save_every": 3} if saves else {}
    results = run_ranks(
        4,
        lambda context: session_run(context, sync, steps=(2, 11, 7), **more),
        ps=1,
        run_dir=str(tmp_path),
        seed=2,
    )
    told = results[0][1]
    assert told["steps"] == [2, 11, 7]
    if sync != hf.Stale(1):
        used, dropped = told["gradients"]["used"], told["gradients"]["dropped"]
        assert [u + d for u, d in zip(used, dropped, strict=True)] == [2, 11, 7]
    for found, _ in results[1:]:
        for mine, theirs in zip(results[0][0], found, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_stale_bounds_how_far_a_fast_worker_runs_ahead(tmp_path):
    """A counter on the server that each step reads and another one adds to: seen from outside."""
    bound = 2

    def body(context):
        n = context.roles.replicas
        ends = [hf.Variable(0.0, trainable=False, name=f"ended{w}") for w in range(n)]
        w = hf.Variable(1.0, name="w")
        seen = [v.value() for v in ends]
        train = hf.train.GradientDescentOptimizer(0.1).minimize(w * w)
        with hf.control_dependencies([train]):
            mine = ends[context.replica].assign_add(1.0)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        most = 0.0
        for step in range(15):
            if context.replica == 0 and step == 5:  # until the others may go no further
                until(lambda: min(session.run(seen[1:])) > 5 + bound)
            counts = session.run([*seen, mine])[:n]
            most = max(most, step - min(counts))
        return most

    found = run_ranks(4, body, ps=1, sync=f"stale:{bound}", seed=9)
    assert max(found) <= bound
    assert max(found) == bound  # the fast ones did wait at it


def test_backup_does_not_wait_for_a_slow_worker():
    """The slow worker takes no step before the others have done all of theirs."""
    steps = 6

    def body(context):
        features, labels = data()
        x, y, loss, train, _ = net()
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run([loss, train], {x: features, y: labels})  # one of all, to begin with
        if context.replica == 2:
            while context.control.notes.count(1) < 2:  # both others are through
                time.sleep(0.001)
                session.run(loss, {x: features, y: labels})
        for _ in range(steps):
            session.run(train, {x: features, y: labels})
        if context.replica != 2:
            note = {"service": "note", "number": 1}
            context.control.call({context.roles.drivers[2]: note})()
        return context.reports()

    reports = run_ranks(4, body, ps=1, sync="backup:1", seed=1)[0]
    told = next(r["state"]["rounds backup:1"] for r in reports if r["task"].startswith("/job:ps"))
    assert [u + d for u, d in zip(told["used"], told["dropped"], strict=True)] == [7, 7, 7]


def test_what_follows_the_sums_is_computed_once_and_can_be_fetched():
    """Clipping by the global norm, and the norm and the number of steps as fetched values."""

    def body(context):
        features, labels = data()
        x, y, loss, _, variables = net()
        optimizer = hf.train.GradientDescentOptimizer(0.5)
        pairs = optimizer.compute_gradients(loss)
        clipped, norm = hf.clip_by_global_norm([g for g, _ in pairs], 0.1)
        count = hf.train.get_or_create_global_step()
        train = optimizer.apply_gradients(
            zip(clipped, [v for _, v in pairs], strict=True), global_step=count
        )
        with hf.control_dependencies([train]):
            after = count.read_value()
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        norms, numbers = [], []
        for step in range(4):
            mine, truth = share_of(context, step, features, labels)
            _, one, number = session.run([train, norm, after], {x: mine, y: truth})
            norms.append(float(one))
            numbers.append(int(number))
        return norms, numbers, session.run(variables)

    with use_context(RankContext(Settings())), hf.Graph().as_default():
        expected = body(current_context())
    for norms, numbers, weights in run_ranks(4, body, ps=2, sync="all", seed=5):
        np.testing.assert_allclose(norms, expected[0], rtol=1e-5)
        assert numbers == expected[1] == [1, 2, 3, 4]
        for mine, theirs in zip(weights, expected[2], strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_a_fed_learning_rate_is_handed_to_the_servers():
    def body(context):
        w = hf.Variable(np.full(3, 2, np.float32), name="w")
        rate = hf.placeholder(hf.float32, [], name="rate")
        train = hf.train.GradientDescentOptimizer(rate).minimize(hf.reduce_sum(w * 3.0))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for value in (0.5, 0.25):
            session.run(train, {rate: value})
        return session.run(w)

    for found in run_ranks(4, body, ps=2, sync="all"):
        np.testing.assert_allclose(found, np.full(3, 2 - 3 * 0.75), rtol=1e-6)


def test_rows_of_a_table_are_joined_as_in_one_process():
    ids = np.array([[0, 3, 3], [5, 0, 9]])

    def body(context):
        table = hf.Variable(np.arange(40, dtype="f4").reshape(10, 4), name="table")
        chosen = hf.placeholder(hf.int64, [None], name="ids")
        loss = hf.reduce_mean(hf.square(hf.nn.embedding_lookup(table, chosen)))
        train = hf.train.AdagradOptimizer(0.1).minimize(loss)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        n = context.roles.replicas
        mine = ids[context.replica] if n > 1 else ids.ravel()
        for _ in range(3):
            session.run(train, {chosen: mine})
        return session.run(table)

    with use_context(RankContext(Settings())), hf.Graph().as_default():
        expected = body(current_context())
    for shard_bytes in (16 << 20, 32):
        for found in run_ranks(4, body, ps=2, sync="all", shard_bytes=shard_bytes, seed=8):
            np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_two_updates_take_turns():
    """As in adversarial training: each worker makes one, then the other, of all workers."""

    def body(context):
        v, w = hf.Variable(1.0, name="v"), hf.Variable(2.0, name="w")
        rate = hf.train.GradientDescentOptimizer(0.1)
        first, second = rate.minimize(v * w, var_list=[v]), rate.minimize(v * w, var_list=[w])
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for _ in range(5):
            session.run(first)
            session.run(second)
        return session.run([v, w])

    v, w = 1.0, 2.0
    for _ in range(5):
        v -= 0.1 * w
        w -= 0.1 * v
    for found in run_ranks(5, body, ps=2, sync="all", seed=6):
        np.testing.assert_allclose(found, [v, w], rtol=1e-6)


def test_errors_name_what_to_do():
    def too_many(context):
        return hf.train.TrainingSession(sync=hf.Backup(2))

    with pytest.raises(HpcflowError, match="2 backup workers of 2"):
        run_ranks(3, too_many, ps=1)
    with pytest.raises(HpcflowError, match="needs parameter servers"):
        run_ranks(2, lambda context: hf.train.TrainingSession(sync="stale:1"))

    for ranks, rule in ((1, "all"), (3, "async"), (3, "all"), (2, "backup:1"), (2, "stale:1")):
        with pytest.raises(
            HpcflowError, match=f"sync={rule} is a rule .* none of the {ranks} rank"
        ):
            run_ranks(ranks, lambda context: None, sync=rule)

    def twice(context):
        w = hf.Variable(1.0, name="w")
        total = hf.replica_sum(hf.replica_sum(w * 2.0) * w)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(total)

    with pytest.raises(GraphError, match="depends on another"):
        run_ranks(3, twice, ps=1, sync="all")


def test_a_step_that_fails_before_its_gradients_gives_way_to_the_next(tmp_path):
    def body(context):
        w = hf.Variable(np.ones(2, np.float32), name="w")
        x = hf.placeholder(hf.float32, [None], name="x")
        picked = hf.gather(w, hf.cast(x, hf.int32))
        half = hf.reduce_sum(hf.square(picked)) / 2
        train = hf.train.GradientDescentOptimizer(0.1).minimize(half)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(train, {x: [0]})
        if context.replica == 0:
            with pytest.raises(HpcflowError):
                session.run(train, {x: [7]})
        session.run(train, {x: [0]})
        return session.run(w)

    for found in run_ranks(3, body, ps=1, sync="all", seed=3):
        np.testing.assert_allclose(found, [0.81, 1.0], rtol=1e-6)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("sync", ["all", "stale:1"])
def test_rules_over_mpi(sync):
    from mpi4py import MPI

    servers = max(1, MPI.COMM_WORLD.size - 2)
    found = run_here(trained, ps=servers, sync=sync)
    if found is not None and (sync == "all" or MPI.COMM_WORLD.size == 2):
        for mine, theirs in zip(found, plain(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


def test_the_chief_need_not_train():
    """Who evaluates only, and ends, leaves the others to train."""

    def body(context):
        w = hf.Variable(np.ones(2, np.float32), name="w")
        train = hf.train.GradientDescentOptimizer(0.25).minimize(hf.reduce_sum(w * w))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        if not context.is_chief:
            for _ in range(2):
                session.run(train)
        context.barrier()
        return session.run(w)

    for found in run_ranks(4, body, ps=1, sync="all", seed=2):
        np.testing.assert_allclose(found, np.full(2, 0.25), rtol=1e-6)


def test_what_is_fetched_beside_an_update_is_of_the_version_before_it():
    """Also on a server that nothing is given to: fast workers must not change it meanwhile."""

    def body(context):
        with hf.device("/job:ps/task:1"):
            count = hf.Variable(0.0, trainable=False, name="count")
        with hf.device("/job:ps/task:0"):
            w = hf.Variable(1.0, name="w")
        train = hf.train.GradientDescentOptimizer(0.1).minimize(w * w)
        before = count.value()
        total = hf.replica_sum(hf.constant(1.0) * hf.cast(hf.replica_share(), hf.float32))
        with hf.control_dependencies([train]):
            more = count.assign_add(total)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        return [float(session.run([before, more])[0]) for _ in range(40)]

    for found in run_ranks(4, body, ps=2, sync="all", seed=11):
        np.testing.assert_allclose(found, np.arange(40), rtol=1e-6)
