"""Values pulled ahead: the same numbers, and nothing old after an assignment, a load or a save."""

import numpy as np
import pytest

import hpcflow as hf
from tests.ps.test_rules import share_of
from tests.runtime.nets import data, net, plain
from tests.runtime.ranks import run_here, run_ranks


def trained(context, steps=12, between=None):
    features, labels = data()
    x, y, loss, train, variables = net()
    zero = variables[-1].assign(np.full(4, 0.25, np.float32))
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    for step in range(steps):
        mine, truth = share_of(context, step, features, labels)
        session.run([loss, train], {x: mine, y: truth})
        if step == between:
            session.run(zero)
    return session.run(variables), len(context.prefetching_steps)


@pytest.mark.parametrize("sync", ["async", "all", "stale:1"])
def test_one_worker_still_equals_plain_training_bit_for_bit(sync):
    ((found, ahead),) = run_ranks(3, trained, ps=2, sync=sync, prefetch=True, seed=2)
    for mine, theirs in zip(found, plain(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert ahead == 1  # it was done: the step after the last one is pulled


def test_workers_in_step_still_equal_one_process():
    for found, _ in run_ranks(4, trained, ps=2, sync="all", prefetch=True, seed=5):
        for mine, theirs in zip(found, plain(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sync", ["async", "all"])
def test_an_assignment_discards_what_was_pulled(sync):
    results = [
        run_ranks(2, lambda c: trained(c, between=6), ps=1, sync=sync, prefetch=ahead, seed=3)[0][0]
        for ahead in (False, True)
    ]
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_load_discards_what_was_pulled(tmp_path):
    def body(context):
        w = hf.Variable(np.ones(2, np.float32), name="w")
        train = hf.train.GradientDescentOptimizer(0.25).minimize(hf.reduce_sum(w * w))
        saver = hf.train.Saver()
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        session.run(train)
        path = saver.save(session, str(tmp_path / "saved"))
        for _ in range(2):
            session.run(train)
        saver.restore(session, path)
        session.run(train)
        return session.run(w)

    (found,) = run_ranks(2, body, ps=1, prefetch=True)
    np.testing.assert_array_equal(found, np.full(2, 0.25))  # each step halves: one, load, one more


def test_a_backup_worker_pulls_nothing_ahead():
    results = run_ranks(4, trained, ps=1, sync="backup:1", prefetch=True, seed=4)
    assert all(ahead == 0 for _, ahead in results)


COUNTED = {  # what a step also does without any value of the driver, or before it is run
    "an update on a server": lambda v, here, said: hf.get_variable("c", []).assign_add(1.0),
    "an update on a task": lambda v, here, said: here.assign_add(1.0),
    "a read on a task": lambda v, here, said: here.read_value() + 0.0,
    "a random number": lambda v, here, said: hf.random_uniform([], seed=3),
    "a loop over tasks": lambda v, here, said: hf.while_loop(
        lambda i, s: i < 2, lambda i, s: (i + 1, s + hf.reduce_sum(v)), [0, here.read_value()]
    )[1],
    "a function of the script": lambda v, here, said: hf.py_func(
        lambda value: (said.append(1), np.float32(1))[1], [v], hf.float32
    ),
}


def counted(context, what, said):
    """Fetches of ten training steps with steps of other plans between them, and the end values."""
    v = hf.Variable(np.zeros(4, np.float32), name="v")
    train = hf.train.GradientDescentOptimizer(1.0).minimize(hf.reduce_sum(v))
    with hf.device("/job:worker/task:1"), hf.variable_scope("", initializer=hf.zeros_initializer()):
        here = hf.get_variable("here", [], trainable=False)
        with hf.device(None if "server" in what or "script" in what else "/job:worker/task:1"):
            also = COUNTED[what](v, here, said)
    change = here.assign_add(10.0)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    found = []
    for step in range(10):
        found.append(session.run([also, train])[0])
        session.run(v)  # messages of a prefetched step arrive meanwhile
        if step % 3 == 2:
            session.run(change)
    context.meet("the end")
    return found, session.run(hf.global_variables())


@pytest.mark.parametrize("what", COUNTED)
def test_a_prefetched_step_does_nothing_before_it_is_run(what):
    """It was begun in advance and discarded: updates were made once more, and reads were old."""
    results = []
    for prefetch in (False, True):
        said = []
        (found,) = run_ranks(
            3,
            lambda context: counted(context, what, said),  # noqa: B023
            ps=1,
            tasks_per_replica=2,
            prefetch=prefetch,
        )
        results.append((found, len(said)))
    (one, said), (other, said_ahead) = results
    assert said == said_ahead
    for mine, theirs in zip([*one[0], *one[1]], [*other[0], *other[1]], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def additions(context, seed):
    """Random steps of three plans; how often this worker trained and added, and the end values."""
    v = hf.Variable(np.zeros(4, np.float32), name="v")
    c = hf.Variable(np.float32(0), name="c", trainable=False)
    train = hf.train.GradientDescentOptimizer(1.0).minimize(hf.reduce_sum(v))
    add = c.assign_add(1.0)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    rng = np.random.default_rng(seed + context.replica)
    trained = added = 0
    for _ in range(20):
        chosen = rng.integers(3)
        session.run([[train], [train, add], [add]][chosen])
        trained, added = trained + (chosen < 2), added + (chosen > 0)
        assert -session.run(v)[0] >= trained
    context.meet("the end")
    return trained, added, session.run([v, c])


@pytest.mark.parametrize("sync", ["async", "stale:0", "stale:1"])
@pytest.mark.parametrize("seed", range(3))
def test_workers_that_discard_prefetched_steps_lose_no_update(sync, seed):
    """A discarded step that waited for a slower worker was counted twice: the job stopped."""
    found = run_ranks(3, lambda c: additions(c, seed), ps=1, sync=sync, prefetch=True, seed=seed)
    trained, added = sum(f[0] for f in found), sum(f[1] for f in found)
    for _, _, (v, c) in found:
        np.testing.assert_array_equal(v, np.full(4, -trained))
        assert c == added


@pytest.mark.mpi(min_size=2)
def test_values_pulled_ahead_over_mpi():
    from mpi4py import MPI

    servers = max(1, MPI.COMM_WORLD.size - 2)
    found = run_here(trained, ps=servers, sync="all", prefetch=True)
    if found is not None:
        for mine, theirs in zip(found[0], plain(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
