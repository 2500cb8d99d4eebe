"""Times of allreduces that overlap, against the messages of the rings, one by one."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools

import numpy as np
import pytest

from hpcflow.comm.ring_allreduce import LEAST_BYTES, PARTS_IN_FLIGHT, SLOW_NETWORK, parts_of
from hpcflow.placement import network as formulas
from hpcflow.placement.durations import Seconds
from hpcflow.placement.job_replay import JobSettings, ReplicaClass, replay_job
from hpcflow.placement.network import Network
from hpcflow.placement.step_template import StepTemplate, TemplateTask

RATE, QUIET = 1e8, JobSettings(sigma=0.0, steps=5)
SIZES = [2, 3, 4, 8]
LATENCIES = [1e-5, 1e-3, 5e-3]
Sum = tuple[float, int]  # when it starts, and its bytes


def ring_ends(sums: list[Sum], ranks: int, latency: float) -> list[float]:
    """When the sums end that all ranks start at the same times, by the messages of one rank.

    All ranks do the same, so what a rank sends at a time its right neighbour would receive, and it
    receives the same from the left. A port sends one message after the other. The next message of a
    part follows when the last one has come, and a part when one of the parts in flight has ended.
    """
    waiting = collections.deque[tuple[float, int, float]]()  # start, sum, seconds of a message
    for i, (start, nbytes) in enumerate(sums):
        array = np.empty(nbytes // 4, np.float32)
        for part in parts_of(array, ranks):
            waiting.append((start, i, array[part].nbytes / ranks / RATE))
    ends, free, count = np.zeros(len(sums)), 0.0, itertools.count()
    slots = [0.0] * PARTS_IN_FLIGHT  # when one is free
    events: list[tuple[float, int, int, float, int]] = []  # a message can be sent: its sum ...
    while events or waiting:
        if waiting and slots and (not events or max(waiting[0][0], slots[0]) <= events[0][0]):
            start, which, seconds = waiting.popleft()
            heapq.heappush(
                events, (max(start, heapq.heappop(slots)), next(count), which, seconds, 0)
            )
            continue
        now, _, which, seconds, sent = heapq.heappop(events)
        if sent == 2 * (ranks - 1):
            ends[which] = max(ends[which], now)
            heapq.heappush(slots, now)
            continue
        free = max(free, now) + seconds
        heapq.heappush(events, (free + latency, next(count), which, seconds, sent + 1))
    return [float(end) for end in ends]


def replayed(sums: list[Sum], ranks: int, network: Network) -> float:
    """The time of a step whose sums begin at their times."""
    tasks: list[TemplateTask] = []
    for start, nbytes in sums:
        tasks.append(TemplateTask("/job:worker/task:0", (), Seconds(start, start, start)))
        occupied, delay, least = network.allreduce_times(nbytes, ranks, 1)
        tasks.append(
            TemplateTask(
                *("/job:worker/task:0", (len(tasks) - 1,), Seconds(occupied, occupied, occupied)),
                **{"is_collective": True, "delay": delay, "least": least},
            )
        )
    template = StepTemplate(tuple(tasks), tuple(range(len(tasks))), ranks)
    return replay_job(template, network, [ReplicaClass(ranks)], QUIET).quantile(0.5)


def test_a_ring_is_cut_into_the_parts_of_the_communicator() -> None:
    assert formulas.PARTS_IN_FLIGHT == PARTS_IN_FLIGHT
    assert formulas.SLOW_NETWORK == SLOW_NETWORK
    for ranks, nbytes in itertools.product((2, 3, 64), (4, 40_000, 65_536, 3 << 20, 100 << 20)):
        array = np.empty(nbytes // 4, np.float32)
        wanted = len(parts_of(array, ranks)) if nbytes >= LEAST_BYTES * ranks else 0
        assert formulas.ring_parts(nbytes, ranks) == wanted


@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("chunk", [4 << 10, 32 << 10, 100 << 10, 500 << 10])
def test_a_sum_that_is_alone_takes_the_time_of_its_messages(ranks, latency, chunk) -> None:
    """Parts are on their way at once: messages of one pass the port in the latencies of others.

    The replay has half of the latencies besides the transfer, if that is longer than a part.
    """
    network, latencies = Network(RATE, latency), 2 * (ranks - 1) * latency
    (wanted,) = ring_ends([(0.0, chunk * ranks)], ranks, latency)
    found = replayed([(0.0, chunk * ranks)], ranks, network)
    assert network.allreduce_times(chunk * ranks, ranks, 1).alone == pytest.approx(found)
    assert wanted * 0.999 <= found <= wanted + latencies / 2
    transfer = 2 * (ranks - 1) * chunk / RATE
    if latencies > 2 * transfer or chunk <= 16 << 10:
        assert found == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("backward", [0.0, 0.5, 1.0, 2.0])
def test_latencies_of_sums_overlap(ranks: int, latency: float, backward: float) -> None:
    """12 buckets come one after the other, each so many times its transfer after the last one.

    None waits for the latencies of another, but for half of those of one at the end. The replay
    leaves out that messages of two sums can be ready at once while the port was idle before.
    """
    network, nbytes, count = Network(RATE, latency), ranks * (16 << 10), 12
    transfer, latencies = 2 * (ranks - 1) * (16 << 10) / RATE, 2 * (ranks - 1) * latency
    sums = [(backward * transfer * i, nbytes) for i in range(count)]
    wanted = max(ring_ends(sums, ranks, latency))
    assert 0.83 * wanted < replayed(sums, ranks, network) <= wanted + latencies / 2
    if latency > 1e-4 and backward <= 1:  # one after the other they would take far longer
        assert count * (transfer + latencies) > 1.5 * (wanted + latencies / 2)


def test_a_small_sum_behind_a_large_one_takes_all_its_latencies() -> None:
    network, ranks = Network(RATE, 5e-3), 4
    sums = [(0.0, 4 << 20), (0.062, 64 << 10)]
    wanted = max(ring_ends(sums, ranks, 5e-3))
    assert replayed(sums, ranks, network) == pytest.approx(wanted, rel=0.1)
    alone = dataclasses.replace(network, latency=0.0)
    assert replayed(sums, ranks, alone) < 0.75 * wanted


def test_small_sums_take_as_long_together_as_one(ranks: int = 4) -> None:
    """MPI sums them, and all are on their way at once, however many."""
    network = Network(RATE, 1e-3)
    sums = [(0.0, 256)] * 40
    assert replayed(sums, ranks, network) == pytest.approx(6e-3, rel=0.04)


def test_sums_of_one_node_have_their_barriers_beside_each_other() -> None:
    """Two barriers of 2 messages, and each rank reads and writes 5 arrays' worth in a share."""
    network = Network(memory_bandwidth=1e9, memory_latency=1.0)
    times = network.allreduce_times(2e9, 4, 4)
    assert times == pytest.approx((10.0, 0.0, 14.0))
    assert times.alone == pytest.approx(14.0)
