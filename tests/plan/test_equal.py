"""A cut plan computes what the graph says: by servers, shards, tasks and replicas."""

from __future__ import annotations

import numpy as np
import pytest

from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.verification.plan_verifier import verify_replicas
from hpcflow.plan.verification.unproved_properties import unproved_properties
from hpcflow.settings import Settings

from .interpret import run_graph, run_plan, run_plans, whole_state
from .model import Net, plan_of

RNG = np.random.default_rng(1)
X = RNG.normal(size=(5, 6)).astype("float32")
Y = RNG.normal(size=(5, 4)).astype("float32")


def uncut(net, x, y, steps=3):
    state: dict = {}
    run_graph([net.init], {}, state)
    feeds = {net.x: x, net.y: y}
    losses = [run_graph([net.loss, net.train], feeds, state)[0] for _ in range(steps)]
    return losses, state


@pytest.mark.parametrize(
    "cluster", [Cluster(), Cluster(1, 1), Cluster(2, 2), Cluster(2, 3)], ids=str
)
@pytest.mark.parametrize("shard_bytes", [1 << 20, 40])
def test_servers_and_shards_change_nothing(cluster, shard_bytes):
    net, settings = Net(), Settings(shard_bytes=shard_bytes)
    losses, expected = uncut(net, X, Y)
    start, step = net.start(cluster, settings=settings), net.step(cluster, settings=settings)
    state: dict = {}
    run_plan(start, [], state)
    for loss in losses:
        (mine,) = run_plan(step, [X, Y], state, np.random.default_rng(2))
        np.testing.assert_array_equal(mine, loss)
    found = whole_state([start], state)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert unproved_properties(step) == [] and unproved_properties(start) == []


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20])
def test_replicas_train_as_the_joined_batch(overlap, bucket_bytes):
    net, cluster = Net(), Cluster(4)
    settings = Settings(bucket_bytes=bucket_bytes, overlap=overlap)
    parts = np.array_split(np.arange(len(X)), 4)
    starts = [net.start(cluster, replica=r) for r in range(4)]
    states: list = [{} for _ in range(4)]
    run_plans(starts, [[]] * 4, states)
    share = net.graph.get_tensor_by_name("replica_share:0")
    plans = []
    for rows in parts:
        shapes = {net.x: (len(rows), 6), net.y: (len(rows), 4), share: ()}
        plans.append(plan_of(net.graph, [net.loss, net.train], shapes, cluster, settings=settings))
    verify_replicas(plans)
    _, expected = uncut(net, X, Y)
    shares = [np.float64(len(rows) / len(X)) for rows in parts]
    given = [[X[rows], Y[rows], s] for rows, s in zip(parts, shares, strict=True)]
    for turn in range(3):
        run_plans(plans, given, states, np.random.default_rng(turn))
    for state in states:
        for name, value in state["/job:worker/task:0"].items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
