"""A step under a rule, split at its sums: what the worker does, and what the servers do after."""

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.verification.plan_verifier import verify_plan
from hpcflow.ps.backup_workers import Backup
from hpcflow.ps.bounded_staleness import Stale
from hpcflow.ps.sync_rules import All, Async
from hpcflow.settings import Settings
from tests.plan.model import Net, graph, plan_of
from tests.runtime.nets import net


def planned(sync, fetches=("train",), servers=2, **settings):
    with graph() as made:
        x, y, loss, train, variables = net()
        named = {"train": train, "loss": loss, "variables": variables[0].value()}
        plan = plan_of(
            made,
            [named[name] for name in fetches],
            {x: (8, 6), y: (8,)},
            Cluster(3, servers, sync=sync),
            Settings(**settings),
        )
    if plan.round is not None:
        verify_plan(plan.round)
    return plan


def types(plan):
    return [n.type for part in plan.parts.values() for n in part.nodes.values()]


def test_updates_are_in_the_round_once_and_in_no_workers_step():
    plan = planned(All())
    assert "ApplyAdam" not in types(plan)
    assert types(plan.round).count("ApplyAdam") == 6  # one a variable
    assert types(plan).count("RoundAdd") == types(plan.round).count("RoundSum") == 6
    assert plan.round.driver == "/job:ps/task:0"
    assert set(plan.round.parts) == {"/job:ps/task:0", "/job:ps/task:1"}


@pytest.mark.parametrize("sync", [Async(), Stale(2)])
def test_other_rules_leave_updates_in_the_step(sync):
    plan = planned(sync)
    assert plan.round is None
    assert types(plan).count("ApplyAdam") == 6
    assert types(plan).count("ClockTick") == types(plan).count("RoundBegin") == (sync == Stale(2))


def test_nothing_of_a_worker_is_computed_again_in_the_round():
    plan = planned(Backup(1), shard_bytes=64)
    assert not {"MatMul", "Relu", "BiasAdd", "Feed", "SparseSoftmaxCrossEntropy"} & set(
        types(plan.round)
    )


def test_only_numbers_and_order_pass_between_servers():
    """Gradients go straight to the server that holds the variable, or the piece of it."""
    for shard_bytes in (16 << 20, 64):
        plan = planned(All(), shard_bytes=shard_bytes)
        among = [e for e in (*plan.edges, *plan.round.edges) if "worker" not in e.source + e.dest]
        assert sum(edge.spec.nbytes for edge in among) == 8 + 3 * 8  # version, a factor a worker


def test_rows_of_a_cut_table_go_to_the_servers_that_hold_them():
    with graph() as made:
        table = hf.Variable(np.zeros((10, 4), np.float32), name="table")
        ids = hf.placeholder(hf.int64, [None], name="ids")
        loss = hf.reduce_mean(hf.square(hf.nn.embedding_lookup(table, ids)))
        train = hf.train.AdagradOptimizer(0.1).minimize(loss)
        cluster, settings = Cluster(2, 2, sync=All()), Settings(shard_bytes=32)
        plan = plan_of(made, [train], {ids: (6,)}, cluster, settings)
    verify_plan(plan.round)
    assert all(edge.spec.sized for edge in plan.round.edges)  # no rows
    worker = plan.parts["/job:worker/task:0"].nodes.values()
    assert [n.type for n in worker].count("SumEqualRows") == 1  # each row is sent once
    sums = [n for p in plan.round.parts.values() for n in p.nodes.values() if n.type == "RoundSum"]
    assert sorted(n.device for n in sums) == ["/job:ps/task:0/cpu:0", "/job:ps/task:1/cpu:0"]


def test_a_step_that_reads_begins_when_the_coordinator_says():
    plan = planned(All(), fetches=("variables",))
    assert plan.round is None
    assert types(plan).count("RoundBegin") == 1
    assert "RoundReady" not in types(plan)
    assert "RoundBegin" not in types(planned(Async(), fetches=("variables",)))


def test_a_sum_of_a_fetched_value_joins_it_for_all():
    with graph() as made:
        x = hf.placeholder(hf.float32, [None], name="x")
        share = hf.cast(hf.replica_share(), hf.float32)
        total = hf.replica_sum(hf.reduce_mean(x) * share)
        plan = plan_of(made, [total], {x: (4,)}, Cluster(2, 1, sync=All()))
    verify_plan(plan.round)
    assert types(plan).count("RoundTotal") == 1


def test_replicas_plan_the_same_updates():
    plans = [Net().step(Cluster(3, 2, sync=All()), replica=r) for r in range(3)]
    assert len({plan.updates for plan in plans}) == 1 and plans[0].updates
