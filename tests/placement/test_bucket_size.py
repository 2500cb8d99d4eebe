"""Sizes of buckets for a network, against the time of the allreduces of a step."""

from __future__ import annotations

import pytest

from hpcflow.placement.bucket_size import best_bucket_bytes
from hpcflow.placement.network import Network
from hpcflow.placement.topology import topology_of

MIB = 1 << 20


def step_seconds(network: Network, nodes: int, total: int, size: int, backward: float) -> float:
    """Time until all gradients are summed; they appear evenly during `backward` seconds.

    Calls of 20 us follow each other, and bytes pass the network, but latencies overlap.
    """
    ready, called, passed, end = 0, 0.0, 0.0, 0.0
    while ready < total:
        nbytes = min(size, total - ready)
        ready += nbytes
        called = max(called, backward * ready / total) + 20e-6
        times = network.allreduce_times(nbytes, nodes, 1)
        passed = max(passed, called) + times.occupied
        end = max(end, passed + times.delay, called + times.least)
    return end


NETWORKS = {
    "InfiniBand, 64 nodes": (Network(25e9, 2e-6), 64),
    "10 Gbit/s, 8 nodes": (Network(1.25e9, 2e-5), 8),
    "1 Gbit/s, 2 nodes": (Network(1.25e8, 5e-5), 2),
    "1 Gbit/s, 512 nodes": (Network(1.25e8, 5e-5), 512),
    "a far network": (Network(1e9, 1e-2), 4),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("total", [10_000, 3 * MIB, 100 * MIB, 1000 * MIB])
def test_a_chosen_size_is_seldom_worse_and_often_better_than_one_mib(name, total) -> None:
    network, nodes = NETWORKS[name]
    size = best_bucket_bytes(network, nodes, 1, total)
    transfer = network.allreduce_times(total, nodes, 1).alone
    ratios = [
        step_seconds(network, nodes, total, size, share * transfer)
        / step_seconds(network, nodes, total, MIB, share * transfer)
        for share in (0.1, 1.0, 10.0)
    ]
    assert max(ratios) < 1.45
    if total >= 3 * MIB and network.latency >= 1e-3:
        assert ratios[0] < 0.75, ratios


def test_fixed_costs_are_a_tenth_of_the_transfer_unless_the_gradients_are_few() -> None:
    network = Network(1e9, 1e-4)  # two nodes: 2 messages, and the array passes a port once
    assert best_bucket_bytes(network, 2, 1, 1 << 30) == pytest.approx(10 * 220e-6 * 1e9, rel=1e-3)
    assert best_bucket_bytes(network, 2, 1, 4_000_000) == 1_000_000  # a quarter, above 220,000
    assert best_bucket_bytes(network, 2, 1, 400_000) == pytest.approx(220_000, rel=1e-3)


def test_a_slower_start_or_a_faster_transfer_takes_larger_buckets() -> None:
    def size(latency: float, rate: float) -> int:
        return best_bucket_bytes(Network(rate, latency), 16, 1, 1 << 34)

    for rate in (2.5e9, 2.5e10):
        assert size(1e-6, rate) < size(1e-5, rate) < size(1e-4, rate)
    for latency in (1e-6, 1e-4):
        assert size(latency, 2.5e9) < size(latency, 2.5e10)


def test_the_network_of_workers_has_their_slowest_link() -> None:
    racks = [
        {"uplink_bytes_per_s": 3e8, "nodes": [{"ranks": 2, "bytes_per_s": 2e9},
                                              {"ranks": 1, "bytes_per_s": 1e9}]},
        {"uplink_bytes_per_s": 5e8, "nodes": [{"ranks": 1, "bytes_per_s": 4e9}]},
    ]  # fmt: skip
    data = {"format": "hpcflow-topology-1", "latency_s": 3e-5, "racks": racks}
    topology = topology_of(data)
    network = Network.between(topology, [0, 1, 2])
    assert (network.bandwidth, network.latency, network.ranks_per_node) == (1e9, 3e-5, 2)
    assert Network.between(topology, [0, 1]).bandwidth == 2e9
    assert Network.between(topology, [0, 3]).bandwidth == 3e8
    assert Network.between(topology, [2, 3]).ranks_per_node == 1
