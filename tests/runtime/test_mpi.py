"""The runtime over real MPI ranks: run under mpirun with `--with-mpi` on 1, 2, 3 and 4 ranks."""

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.cost import cost_model
from tests.runtime.nets import data, net, plain, trained
from tests.runtime.ranks import run_here, run_ranks
from tests.runtime.spanning import TASKS, run_spanning, same
from tests.runtime.test_engine import random_graph

pytestmark = pytest.mark.mpi


def world_size():
    from hpcflow.comm import mpi_communicator

    return mpi_communicator.world().size


def equal(found, atol=0.0):
    for mine, theirs in zip(found, plain(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)


@pytest.mark.mpi(min_size=2)
def test_one_worker_and_servers_equal_plain_training_bit_for_bit():
    found = run_here(lambda context: trained(), ps=world_size() - 1, shard_bytes=64)
    if found is not None:
        equal(found)


@pytest.mark.parametrize("comm", ["mpi", "shared"])
def test_replicas_of_equal_batches_equal_plain_training(comm):
    equal(run_here(lambda context: trained(), comm=comm, bucket_bytes=128), atol=1e-5)


def test_a_graph_cut_over_all_ranks_equals_the_uncut_one():
    tasks = world_size()

    def body(context):
        x, fetches, expected = random_graph(7, tasks)
        session = hf.Session()
        return [session.run(fetches, {x: np.full(3, 2, np.float32)}) for _ in range(20)], expected

    result = run_here(body, tasks_per_replica=tasks)
    if result is not None:
        for found in result[0]:
            np.testing.assert_array_equal(found, result[1])


@pytest.mark.mpi(min_size=3)
def test_layers_on_three_ranks_train_as_one():
    if world_size() % 3 == 0:
        found = run_here(lambda context: trained(cut=True), tasks_per_replica=3)
        if found is not None:
            equal(found)


@pytest.mark.mpi(min_size=3)
def test_one_loop_over_three_ranks():
    if world_size() == 3:
        found = run_here(lambda context: run_spanning(TASKS), tasks_per_replica=3, exact=True)
        if found is not None:
            (alone,) = run_ranks(1, lambda c: run_spanning(["", "", ""]), exact=True)
            same(found, alone)


@pytest.mark.mpi(min_size=2)
def test_a_large_variable_is_not_torn_while_it_is_pulled():
    size = 10_000_000  # 40 MB

    def body(context):
        v = hf.Variable(np.zeros(size, np.float32), name="v")
        seen = hf.identity(v.value()) * 1.0
        update = v.assign_add(np.ones(size, np.float32))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        torn = 0
        for step in range(4):
            if (step + context.replica) % 2:
                session.run(update)
            else:
                value = session.run(seen)
                torn += int(value.min() != value.max())
        context.barrier()
        return torn, float(session.run(v)[0]), context.roles.replicas

    result = run_here(body, ps=1, shard_bytes=1 << 30)
    if result is not None:
        assert result[:2] == (0, 2 * result[2])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("ps", [0, 1])
def test_bytes_and_messages_are_exactly_those_of_the_plan(ps):
    steps = 7

    def body(context):
        features, labels = data()
        x, y, _, train, _ = net()
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        feeds = {x: features, y: labels}
        session.run(train, feeds)
        before = context.report()
        for _ in range(steps):
            session.run(train, feeds)
        after = context.report()
        sent = [after[k] - before[k] for k in ("bytes_sent", "messages_sent")]
        context.barrier()
        plan = session.plan(train, feeds)
        mine = [t for t in cost_model.message_traffic(plan) if t.source == plan.driver]
        planned = [sum(t.nbytes for t in mine), sum(t.messages for t in mine)]
        sums = cost_model.collective_bytes(plan.parts[plan.driver])
        planned[0] += sum(sums.values())
        planned[1] += len(sums)
        return sent, [steps * n for n in planned]

    result = run_here(body, ps=ps)
    if result is not None:
        assert result[0] == result[1]
