"""Jobs on a topology and with a shared storage, against schedules computed by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from hpcflow.errors import PlacementError
from hpcflow.placement.durations import Seconds
from hpcflow.placement.job_replay import JobSettings, JobTimes, ReplicaClass, replay_job
from hpcflow.placement.network import Network
from hpcflow.placement.rank_mapping import MOST_CLASSES, RankMapping
from hpcflow.placement.step_copies import SharedStorage
from hpcflow.placement.step_template import StepTemplate, TemplateTask
from hpcflow.placement.topology import FORMAT, topology_of
from tests.placement.replay_by_tasks import Task, replay
from tests.placement.test_job_replay import with_servers, with_sums, with_updates

WORKER, OTHER, SERVER = "/job:worker/task:0", "/job:worker/task:1", "/job:ps/task:0"
QUIET = JobSettings(sigma=0.0, steps=10)
LATENCY = 1e-5


def mapped(
    racks: Sequence[dict[str, Any]], per_replica: int = 1, server: int | None = None
) -> RankMapping:
    """All ranks are workers, those of a replica far apart; one may be a server."""
    topology = topology_of({"format": FORMAT, "latency_s": LATENCY, "racks": list(racks)})
    workers = [rank for rank in range(topology.size) if rank != server]
    share = len(workers) // per_replica
    replicas = tuple(zip(*[workers[share * k :][:share] for k in range(per_replica)], strict=True))
    return RankMapping(topology, replicas, {} if server is None else {SERVER: server})


def rack(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"nodes": [{"ranks": 1, "bytes_per_s": 1e9, **node} for node in nodes], **more}


def replayed(
    template: StepTemplate, mapping: RankMapping, settings: JobSettings = QUIET, **more: Any
) -> JobTimes:
    classes = [ReplicaClass(len(one.replicas)) for one in mapping.classes.replicas]
    return replay_job(template, mapping, classes, settings, **more)


def with_neighbours(replicas: int, nbytes: float) -> StepTemplate:
    """Meet, compute for a second, and send to the other task of the replica."""
    tasks = (
        TemplateTask(WORKER, (), is_collective=True),
        TemplateTask(WORKER, (0,), Seconds(1.0, 1.0, 1.0), "cpu:0"),
        TemplateTask(WORKER, (1,), to=OTHER, nbytes=nbytes),
    )
    return StepTemplate(tasks, (2,), replicas)


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_messages_between_racks_share_the_uplinks(groups: int) -> None:
    """4 nodes of a rack send 1e9 bytes each at once over an uplink of 1e9 bytes a second."""
    racks = [rack({"count": 4}, uplink_bytes_per_s=1e9, count=2)]
    settings = dataclasses.replace(QUIET, groups=groups)
    times = replayed(with_neighbours(4, 1e9), mapped(racks, 2), settings)
    assert times.quantile(0.5) == pytest.approx(5.0 + LATENCY)
    busy = {name: share for name, share in times.busy.items() if share}
    assert busy["uplink of rack 0 (out)"] == pytest.approx(4 / 5, rel=1e-3)
    assert busy["uplink of rack 1 (in)"] == pytest.approx(4 / 5, rel=1e-3)
    wide = mapped([rack({"count": 4}, count=2)], 2)
    assert replayed(with_neighbours(4, 1e9), wide, settings).quantile(0.5) == pytest.approx(
        2.0 + LATENCY
    )


@pytest.mark.parametrize("groups", [64, 8, 2])
def test_equivalent_racks_are_replayed_as_one(groups: int) -> None:
    """16 racks, of which 8 send to the other 8: each uplink passes the messages of 4 nodes."""
    racks = [rack({"count": 4}, uplink_bytes_per_s=1e9, count=16)]
    settings = dataclasses.replace(QUIET, groups=groups)
    times = replayed(with_neighbours(32, 1e9), mapped(racks, 2), settings)
    assert times.quantile(0.5) == pytest.approx(5.0 + LATENCY)
    assert max(times.busy, key=times.busy.__getitem__).startswith("uplink of rack")


@pytest.mark.parametrize("groups", [64, 4])
def test_ranks_of_a_node_share_its_port_and_those_of_others_do_not(groups: int) -> None:
    """8 ranks of each of 8 nodes send 1e8 bytes each through a port: 0.8 s."""
    mapping = mapped([rack({"ranks": 8, "count": 16})], 2)
    settings = dataclasses.replace(QUIET, groups=groups)
    times = replayed(with_neighbours(64, 1e8), mapping, settings)
    assert times.quantile(0.5) == pytest.approx(1.8 + LATENCY)
    near = mapped([rack({"ranks": 2})], 2)
    through_memory = replayed(with_neighbours(1, 2e10), near).quantile(0.5)
    assert through_memory == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("groups", [128, 4])
def test_unlike_ranks_of_a_node_share_its_port(groups: int) -> None:
    """4 ranks of a node send 2e8 bytes each from 1 s on, the other 4 from 1.4 s on.

    At 1.4 s the first have sent half. Their other halves share the port until 2.2 s with as many
    bytes of the second, whose other halves take until 2.6 s.
    """
    mapping = mapped([rack({"ranks": 8, "count": 16, "speed": [1.0, 1 / 1.4] * 4})], 2)
    settings = dataclasses.replace(QUIET, groups=groups)
    times = replayed(with_neighbours(64, 2e8), mapping, settings)
    assert times.steps == pytest.approx(2.6 + LATENCY)


def test_a_slow_port_delays_its_rank_and_is_the_limit() -> None:
    racks = [rack({"count": 3}, {"bytes_per_s": 1e7}, {"bytes_per_s": 1e10})]
    template = with_updates(4, 4)
    last = dataclasses.replace(template.tasks[3], nbytes=1e8)
    template = dataclasses.replace(template, tasks=(*template.tasks[:3], last))
    times = replayed(template, mapped(racks, server=4))
    assert times.quantile(0.5) == pytest.approx(1.0 + 10.0, rel=1e-4)
    assert max(times.busy, key=times.busy.__getitem__) == "network port of node 3 (send)"
    three = dataclasses.replace(template, needed=3)
    assert replayed(three, mapped(racks, server=4)).quantile(0.5) == pytest.approx(1.1, rel=1e-4)


def test_a_rank_at_a_third_of_the_speed_delays_synchronous_steps_and_itself() -> None:
    racks = [rack({"count": 15}, {"speed": 1 / 3}, {})]
    joint = replayed(with_sums(17), mapped(racks))
    assert joint.quantile(0.5) == pytest.approx(3 * 1.5 + 0.25)
    alone = replayed(with_servers(16, 1e-6), mapped(racks, server=16))
    assert alone.steps_per_second == pytest.approx(15 + 1 / 3, rel=1e-3)
    slow_server = mapped([rack({"count": 16}, {"speed": 1 / 3})], server=16)
    limited = replayed(with_servers(16, 0.1), slow_server)
    assert limited.steps_per_second == pytest.approx(1 / 0.3, rel=0.02)


@pytest.mark.parametrize("nodes", [2, 5, 8])
def test_a_ring_is_as_slow_as_its_slowest_port(nodes: int) -> None:
    """The formula bounds the ring that is replayed message by message."""
    rates, nbytes = [1e8] + [1e9] * (nodes - 1), nodes * 20e3  # a ring of one part
    tasks: list[Task] = []
    for step in range(2 * (nodes - 1)):
        for rank in range(nodes):
            before = (step - 1) * nodes  # it sends one message after the other
            after = (before + (rank - 1) % nodes, before + rank) if step else ()
            ports = ((2 * rank, 1.0), (2 * ((rank + 1) % nodes) + 1, 1.0))
            tasks.append(Task(after, nbytes=nbytes / nodes, ports=ports, delay=LATENCY))
    ends = replay(tasks, 0, [rate for rate in rates for _ in range(2)]).ends
    mapping = mapped([rack(*({"bytes_per_s": rate} for rate in rates))])
    found = mapping.allreduce_times(nbytes, nodes, 1).alone
    assert ends.max() == pytest.approx(found, rel=0.01 if nodes == 2 else 0.3)
    assert ends.max() <= found * (1 + 1e-9)
    assert mapping.collectives == "collectives, by the network port of node 0"


def test_a_ring_over_racks_passes_each_uplink_once() -> None:
    uplinks = mapped([rack({"count": 4}, uplink_bytes_per_s=2e8, count=2)])
    nbytes, ring = 8 * 20e3, 2 * 7  # a ring of one part
    assert uplinks.allreduce_times(nbytes, 8, 1).alone == pytest.approx(
        ring * LATENCY + ring / 8 * nbytes / 2e8
    )
    assert uplinks.collectives == "collectives, by the uplink of rack 0"
    inside = mapped([rack({"count": 8}, uplink_bytes_per_s=2e8)])
    assert inside.allreduce_times(nbytes, 8, 1).alone == pytest.approx(
        ring * LATENCY + ring / 8 * nbytes / 1e9
    )
    assert uplinks.gather_seconds(nbytes, 8, 1) == pytest.approx(9 * LATENCY + 7 * nbytes / 2e8)
    one_node = mapped([rack({"ranks": 4})])
    assert one_node.collectives == "collectives"
    assert one_node.allreduce_times(nbytes, 4, 4).alone == pytest.approx(
        Network().allreduce_times(nbytes, 4, 4).alone
    )


@pytest.mark.parametrize("make", [
    lambda n: with_sums(n), lambda n: with_servers(n, 1e-3, 1e7), lambda n: with_updates(n, n - 2),
])  # fmt: skip
@pytest.mark.parametrize("groups", [16, 100])
def test_equal_nodes_are_a_network(make, groups: int) -> None:
    """The same draws of noise give the same times."""
    template = make(60)
    server = 60 if template.servers else None
    mapping = mapped([rack({"count": 61 if template.servers else 60})], server=server)
    settings = JobSettings(groups=groups, steps=12)
    network = Network(bandwidth=1e9, latency=LATENCY)
    wanted = replay_job(template, network, [ReplicaClass(60)], settings)
    assert replayed(template, mapping, settings).steps == pytest.approx(wanted.steps, rel=1e-9)


def test_speeds_of_too_many_classes_are_rounded_down() -> None:
    racks = [rack({"ranks": 2, "speed": [1 + i / 7000, 2 - i / 7000]}) for i in range(3000)]
    racks = [{"nodes": [node for one in racks for node in one["nodes"]]}]
    mapping = mapped(racks)
    classes = mapping.classes.replicas
    assert 10 < len(classes) <= MOST_CLASSES
    assert sorted(i for one in classes for i in one.replicas) == list(range(6000))
    for one in classes:
        slowest = min(mapping.topology.speeds[i] for i in one.replicas)
        fastest = max(mapping.topology.speeds[i] for i in one.replicas)
        assert one.factors == (1 / slowest,) and fastest < slowest * 1.31
    ports = [{"ranks": 1, "bytes_per_s": 1e9 + i} for i in range(1500)]
    with pytest.raises(PlacementError, match="nodes of the topology are unlike"):
        _ = mapped([{"nodes": ports}]).classes


# -- storage


@pytest.mark.parametrize("groups", [64, 3])
@pytest.mark.parametrize("make", [with_sums, lambda n: with_servers(n, 1e-6)])
def test_reading_is_hidden_until_the_storage_is_the_limit(make, groups: int) -> None:
    template = make(8)
    own = 1.75 if template.is_synchronous else 1.0
    settings = dataclasses.replace(QUIET, groups=groups, steps=20)
    network = Network(bandwidth=1e9, latency=1e-9)
    for bandwidth, step in ((1e9, own), (1e8, 8.0)):
        storage = SharedStorage(bandwidth, 1e8)
        times = replay_job(template, network, [ReplicaClass(8)], settings, storage)
        assert times.steps[:, -8:].mean() == pytest.approx(step, rel=0.02)
        share = 8e8 / bandwidth / step
        assert times.busy["storage"] == pytest.approx(share, rel=0.25)


def test_saves_hold_steps_only_if_the_storage_is_not_done_with_the_last() -> None:
    times = replay_job(with_sums(4), Network(), [ReplicaClass(4)], QUIET)
    beside = times.with_saves(10, held=0.5, written=7.0)
    assert beside.steps_per_second == pytest.approx(4 / (1.75 + 0.05))
    assert beside.busy["storage"] == pytest.approx(7.0 / 18.0)
    assert beside.quantile(0.5) == pytest.approx(1.75)
    assert beside.quantile(0.95) == pytest.approx(2.25)
    late = times.with_saves(2, held=0.5, written=7.0)
    assert late.steps_per_second == pytest.approx(4 / 3.5)
    assert late.busy["storage"] == pytest.approx(1.0)
    every = times.with_saves(1, held=0.5, written=1.0)
    assert every.quantile(0.5) == pytest.approx(2.25)
