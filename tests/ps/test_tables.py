"""A step with a table on servers costs what its rows cost, however long the table is."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from tests.runtime.ranks import run_ranks

T = hf.train
SHORT, LONG = 640, 64_000
OPTIMIZERS = {
    "descent": lambda: T.GradientDescentOptimizer(0.1),
    "momentum": lambda: T.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: T.AdagradOptimizer(0.1),
    "adadelta": lambda: T.AdadeltaOptimizer(0.1),
    "adam": lambda: T.LazyAdamOptimizer(0.1),
    "adamw": lambda: T.AdamWOptimizer(0.01, 0.1),
    "nadam": lambda: T.NadamOptimizer(0.1),
    "adamax": lambda: T.AdamaxOptimizer(0.1),
    "rmsprop": lambda: T.RMSPropOptimizer(0.1, centered=True),
    "ftrl": lambda: T.FtrlOptimizer(0.1),
    "proximal": lambda: T.ProximalGradientDescentOptimizer(0.1, 0.01),
}


def lookup(size: int, cut: str | None, optimizer, clip: bool = False):
    """A loss of the looked-up rows of a table, what trains it, and feeds that name rows twice."""
    partitioner = hf.fixed_size_partitioner(3) if cut else None
    table = hf.get_variable("table", [size, 8], partitioner=partitioner)
    ids = hf.placeholder(hf.int64, [32], name="ids")
    rows = hf.nn.embedding_lookup(table, ids, cut or "mod")
    pairs = optimizer.compute_gradients(hf.reduce_sum(hf.square(rows)))
    if clip:
        clipped, _ = hf.clip_by_global_norm([g for g, _ in pairs], 1.0)
        pairs = list(zip(clipped, [v for _, v in pairs], strict=True))
    return optimizer.apply_gradients(pairs), {ids: np.arange(32) % 4 * 100}


def sampled(size: int, cut: str | None, loss):
    """A loss over few of many classes and what trains its tables."""
    partitioner = hf.fixed_size_partitioner(3) if cut else None
    weights = hf.get_variable("weights", [size, 8], partitioner=partitioner)
    zeros = hf.zeros_initializer()
    biases = hf.get_variable("biases", [size], initializer=zeros, partitioner=partitioner)
    labels, inputs = hf.placeholder(hf.int64, [16, 1]), hf.placeholder(hf.float32, [16, 8])
    sampler = hf.nn.uniform_candidate_sampler(labels, 1, 20, False, 600, seed=3)
    losses = loss(
        weights, biases, labels, inputs, 20, size, 1, sampler, partition_strategy=cut or "mod"
    )
    train = T.AdagradOptimizer(0.1).minimize(hf.reduce_mean(losses))
    return train, {labels: np.arange(16)[:, None] % 3, inputs: np.ones((16, 8), "f4")}


def costs(size: int, build, servers: int, shard_bytes: int) -> tuple:
    """What the plan of a step moves, what this worker sent, and the bytes of the largest value."""

    def body(context):
        train, feeds = build(size)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        plan = session.plan(train, feeds)
        session.run(train, feeds)  # registers the plan
        before = context.world.traffic.total_bytes
        session.run(train, feeds)
        sent = context.world.traffic.total_bytes - before
        nodes = [n for part in plan.parts.values() for n in part.nodes.values()]
        largest = max(spec.nbytes for n in nodes for spec in n.specs if spec.shape is not None)
        whole = [n.name for n in nodes if n.row.writes and not n.row.by_rows]
        return [(e.source, e.dest, e.spec) for e in plan.edges], sent, largest, whole

    ((edges, sent, largest, whole),) = run_ranks(
        1 + servers, body, ps=servers, shard_bytes=shard_bytes
    )
    # an update of a whole variable may only be of a count
    assert all("step" in name for name in whole), whole
    return edges, sent, largest


def same_cost(build, servers: int = 1) -> int:
    """Check that a step of a long table costs that of a short one; the bytes the worker sends.

    With several servers the table is cut at the same share of its rows.
    """
    short, long = (costs(n, build, servers, n * 32 // servers) for n in (SHORT, LONG))
    assert short == long
    assert short[2] <= 4096, "a value as large as the table"
    return short[1]


@pytest.mark.parametrize("clip", [False, True], ids=["plain", "clipped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_moves_and_touches_rows_only(name, clip):
    make = OPTIMIZERS[name]
    sent = same_cost(lambda size: lookup(size, None, make(), clip))
    # ids; of the rows the four that differ, and their ids, both behind 64 bytes of sizes; a header
    assert sent == 32 * 8 + (4 * 8 * 4 + 64) + (4 * 8 + 64) + 64


@pytest.mark.parametrize("name", ["descent", "adam"])
def test_also_of_tables_cut_over_servers(name):
    make = OPTIMIZERS[name]
    sent = same_cost(lambda size: lookup(size, None, make(), True), servers=2)
    assert sent == 2 * 64 + 32 * 8 + 64 + 2 * (64 + 64) + 4 * 8 * 4 + 4 * 8 + 64


@pytest.mark.parametrize("cut", ["mod", "div"])
def test_also_of_partitioned_variables(cut):
    same_cost(lambda size: lookup(size, cut, T.AdagradOptimizer(0.1)))


@pytest.mark.parametrize("loss", [hf.nn.sampled_softmax_loss, hf.nn.nce_loss])
@pytest.mark.parametrize("cut", [None, "mod", "div"])
def test_of_sampled_losses_only_true_and_sampled_classes_are_read_and_trained(loss, cut):
    same_cost(lambda size: sampled(size, cut, loss))


def test_accumulated_gradients_of_rows_move_as_rows():
    def body(context):
        optimizer = T.AccumulatingOptimizer(T.AdagradOptimizer(0.1), 2)
        train, feeds = lookup(SHORT, None, optimizer)
        plan = hf.Session().plan(train, feeds)
        return [e.spec.nbytes for e in plan.edges if not e.token]

    for settings in ({}, {"shard_bytes": SHORT * 16}):
        (moved,) = run_ranks(3, body, ps=2, **settings)
        assert max(moved) <= 32 * 8 * 4
