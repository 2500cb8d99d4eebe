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


@pytest.mark.mpi(min_size=2)
def test_values_pulled_ahead_over_mpi():
    from mpi4py import MPI

    servers = max(1, MPI.COMM_WORLD.size - 2)
    found = run_here(trained, ps=servers, sync="all", prefetch=True)
    if found is not None:
        for mine, theirs in zip(found[0], plain(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
