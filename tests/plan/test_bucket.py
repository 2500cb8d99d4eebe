"""Buckets of sums: by size, device, dtype and depth; a function of the graph alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.placement.network import Network
from hpcflow.plan.ir.program import Cluster
from hpcflow.settings import Settings

from .interpret import run_plans
from .model import REPLICAS, SINGLE, Net, graph, of_type, plan_of


def buckets(plan):
    found = sorted(of_type(plan, "AllReduce"), key=lambda n: n.attrs["sequence"])
    return [node.attrs["of"] for node in found]


def sums(sizes, dtypes=None):
    with graph() as g:
        made = []
        for i, size in enumerate(sizes):
            dtype = (dtypes or {}).get(i, hf.float32)
            made.append(hf.replica_sum(hf.tanh(hf.zeros([size], dtype)), name=f"s{i}"))
    return g, made


def test_sums_fill_buckets_in_the_order_of_their_inputs():
    g, made = sums([10, 10, 30, 1, 1])
    plan = plan_of(g, made, {}, REPLICAS, Settings(bucket_bytes=80))
    assert buckets(plan) == [("s0", "s1"), ("s2",), ("s3", "s4")]


def test_the_order_is_that_of_the_inputs_not_of_the_sums():
    with graph() as g:
        early, late = hf.tanh(hf.zeros([2])), hf.tanh(hf.ones([2]))
        hf.replica_sum(late, name="late")
        hf.replica_sum(early, name="early")
    made = [g.get_tensor_by_name(f"{n}:0") for n in ("late", "early")]
    assert buckets(plan_of(g, made, {}, REPLICAS)) == [("early", "late")]


def test_without_overlap_one_bucket_holds_all():
    g, made = sums([10, 10, 30])
    plan = plan_of(g, made, {}, REPLICAS, Settings(bucket_bytes=1, overlap=False))
    assert buckets(plan) == [("s0", "s1", "s2")]


def test_dtypes_do_not_mix():
    g, made = sums([2, 2, 2], {1: hf.float64})
    assert sorted(buckets(plan_of(g, made, {}, REPLICAS))) == [("s0", "s2"), ("s1",)]


def test_devices_do_not_mix():
    with graph() as g:
        made = []
        for k in (0, 1, 0):
            with hf.device(f"/job:worker/task:{k}"):
                made.append(hf.replica_sum(hf.tanh(hf.zeros([2])), name=f"on_{k}"))
    plan = plan_of(g, made, {}, Cluster(4, tasks_per_replica=2))
    assert sorted(buckets(plan)) == [("on_0", "on_0_1"), ("on_1",)]


def test_sums_that_need_each_other_do_not_meet():
    with graph() as g:
        first = hf.replica_sum(hf.tanh(hf.zeros([2])), name="first")
        other = hf.replica_sum(hf.tanh(hf.ones([2])), name="other")
        second = hf.replica_sum(hf.tanh(first), name="second")
        third = hf.replica_sum(hf.add(second, other), name="third")
    plan = plan_of(g, [third], {}, REPLICAS)
    assert buckets(plan) == [("first", "other"), ("second",), ("third",)]


def test_a_sum_sized_by_feeds_is_alone():
    with graph() as g:
        x = hf.placeholder(hf.float32, [None], name="x")
        made = [
            hf.replica_sum(hf.tanh(t), name=n)
            for t, n in ((hf.zeros([2]), "a"), (x, "fed"), (hf.ones([2]), "b"))
        ]
    plan = plan_of(g, made, {x: (2,)}, REPLICAS)
    assert sorted(buckets(plan)) == [("a", "b"), ("fed",)]


@pytest.mark.parametrize("bucket_bytes", [1, 64, 300, 1 << 20])
def test_feeds_change_nothing(bucket_bytes):
    net, options = Net(), Settings(bucket_bytes=bucket_bytes)
    plans = [
        plan_of(net.graph, [net.train], net.feeds(batch), REPLICAS, options)
        for batch in (1, 2, 7, 100)
    ]
    first, *others = (buckets(plan) for plan in plans)
    assert all(other == first for other in others)


def test_buckets_are_summed_like_their_members():
    g, made = sums([3, 5])
    (left, right) = run_plans([plan_of(g, made, {}, Cluster(2))] * 2, [[], []], [{}, {}])
    np.testing.assert_array_equal(left[1], np.zeros(5))
    np.testing.assert_array_equal(left[0], right[0])


def test_every_collective_has_its_number():
    plan = Net().start(REPLICAS)
    numbers = [n.attrs["sequence"] for n in of_type(plan, "Broadcast")]
    assert numbers == list(range(6))
    assert not {"depth", "available", "static"} & set(of_type(plan, "Broadcast")[0].attrs)


def test_a_single_replica_has_none():
    assert Net().step(SINGLE).collectives == []


def test_a_network_chooses_the_size_unless_it_is_set():
    """320 kB of gradients: 8 buckets of 40,000 bytes, by the network one of 320,000.

    A ring of 4 ranks sums them in 4 parts, each in 6 latencies and a quarter of the 0.48 ms of all
    bytes, with places for 16 parts. So an allreduce occupies the network for 4 / 16 of 6.12 ms, and
    its transfer is as long as its 6.02 ms of fixed costs with 6.02 / 1.53 as many bytes.
    """
    g, made = sums([10_000] * 8)
    far = dataclasses.replace(REPLICAS, network=Network(bandwidth=1e9, latency=1e-3))
    near = dataclasses.replace(REPLICAS, network=Network(bandwidth=1e9, latency=1e-6))
    chosen = plan_of(g, made, {}, far)
    assert [len(of) for of in buckets(chosen)] == [8]
    assert "buckets of 1,259,085 bytes" in chosen.reasons["replicas/bucket_0"]
    assert [len(of) for of in buckets(plan_of(g, made, {}, near))] == [2] * 4
    for cluster, settings, count in (
        (far, Settings(bucket_bytes=1), 8),
        (near, Settings(overlap=False), 1),
        (REPLICAS, Settings(), 1),
        (SINGLE, Settings(), 0),
    ):
        plan = plan_of(g, made, {}, cluster, settings)
        assert len(buckets(plan)) == count
        assert not any(name.startswith("replicas/bucket") for name in plan.reasons)
