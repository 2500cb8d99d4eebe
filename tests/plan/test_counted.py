"""What a plan predicts is what communicators count: every edge, every header, every sum."""

from __future__ import annotations

import collections
import threading

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.cost import cost_model
from hpcflow.plan.cost.cost_model import HEADER_BYTES
from tests.runtime import ranks
from tests.runtime.nets import data, net

STEPS = 5
HEADER_TAG, FIRST_DATA_TAG = 1, 16


def counted(worlds):
    """Bytes and messages so far of every rank, by (source, destination, tag)."""
    found = {}
    for world in worlds:
        for key, messages in world.traffic.messages.items():
            found[(world.rank, *key)] = (messages, world.traffic.bytes[key])
    return found


def run(monkeypatch, n, cut, **settings):
    """(plan, rank of each task, what was counted) of each replica; `STEPS` steps each."""
    worlds: list = []
    make = ranks.thread_world
    monkeypatch.setattr(
        ranks, "thread_world", lambda *a, **k: worlds.extend(make(*a, **k)) or worlds
    )
    shots: list = []
    drivers = (n - settings.get("ps", 0)) // settings.get("tasks_per_replica", 1)
    meeting = threading.Barrier(drivers, timeout=220)  # one that sends no messages

    def shot(context):
        meeting.wait()
        if context.is_chief:
            shots.append(counted(worlds))
        meeting.wait()

    def body(context):
        features, labels = data()
        x, y, loss, train, _ = net(hf.train.MomentumOptimizer(0.1, 0.9), cut)
        session, feeds = hf.Session(), {x: features, y: labels}
        session.run(hf.global_variables_initializer())
        session.run([loss, train], feeds)
        shot(context)
        for _ in range(STEPS):
            session.run([loss, train], feeds)
        shot(context)
        return session.plan([loss, train], feeds), context.roles.ranks_of(context.replica)

    replicas = ranks.run_ranks(n, body, **settings)
    before, after = shots
    moved = {key: tuple(np.subtract(now, before.get(key, (0, 0)))) for key, now in after.items()}
    return replicas, {key: value for key, value in moved.items() if value[0]}


def expected(replicas):
    """(source, destination) -> sorted bytes of the messages of one step of all replicas."""
    found = collections.defaultdict(list)
    for plan, rank in replicas:
        for edge in plan.edges:
            found[rank[edge.source], rank[edge.dest]].append(edge.spec.nbytes)
        for task in plan.parts:
            if task != plan.driver:
                found[rank[plan.driver], rank[task]].append(HEADER_BYTES)
    return {key: sorted(sizes) for key, sizes in found.items()}


@pytest.mark.parametrize("cut, settings", [
    (False, {"ps": 1}),
    (False, {"ps": 2, "shard_bytes": 64}),
    (False, {"ps": 3, "shard_bytes": 64}),
    (True, {"tasks_per_replica": 4}),
    (True, {"tasks_per_replica": 3, "ps": 1}),
], ids=str)  # fmt: skip
def test_every_edge_of_every_rank(monkeypatch, cut, settings):
    replicas, moved = run(monkeypatch, 4, cut, **settings)
    found = collections.defaultdict(list)
    for (source, dest, tag), (messages, nbytes) in moved.items():
        if dest == "collective":
            continue
        assert tag == HEADER_TAG or tag >= FIRST_DATA_TAG
        assert messages == STEPS and nbytes % STEPS == 0, "each tag carries one message a step"
        found[source, dest].append(nbytes // STEPS)
    assert {key: sorted(sizes) for key, sizes in found.items()} == expected(replicas)
    for plan, rank in replicas:
        for row in cost_model.message_traffic(plan):
            assert row.nbytes <= sum(found[rank[row.source], rank[row.dest]])


def test_every_sum_of_every_rank(monkeypatch):
    replicas, moved = run(monkeypatch, 4, False, bucket_bytes=128, comm="mpi")
    assert {dest for _, dest, _ in moved} == {"collective"}
    for (plan, rank), other in zip(replicas, range(4), strict=True):
        sums = cost_model.collective_bytes(plan.parts[plan.driver])
        messages, nbytes = moved[other, "collective", 0]
        assert rank[plan.driver] == other and len(sums) > 1
        assert (messages, nbytes) == (STEPS * len(sums), STEPS * sum(sums.values()))
