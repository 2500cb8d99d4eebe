"""Network benchmark: pairs of nodes and within nodes, a ring, an allreduce, and clock offsets.

The *leaders* are the first ranks of the nodes; they measure between nodes.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcflow.comm import mpi_communicator
from hpcflow.comm.communicator import Communicator
from hpcflow.comm.mpi_communicator import MpiCommunicator
from hpcflow.comm.polling_backoff import wait_for_requests
from hpcflow.doctor.rank_facts import RATES, SLURM, JobFacts, MeasuredWait, NetworkLink, RankFacts
from hpcflow.doctor.uplink_benchmark import UplinkBenchmark
from hpcflow.doctor.wait_benchmark import Samples, time_waits

PATIENCE_S = 60.0  # timeout of one message
TRIPS = 30  # round trips of a latency
SMALLEST, LARGEST = 1 << 18, 1 << 25  # bytes of a message that measures bandwidth
LONG_MESSAGE_S = 0.05  # a message of this duration suffices to measure bandwidth
ALLREDUCE_BYTES = 1 << 20  # on each rank
ALL_PAIRS = 64  # up to this number of nodes all pairs are timed; above, 63 pairs per node
ROUNDS_IN_RACKS = 3  # above, also so many pairs of each node within its rack
TAG = 7


def pairing_rounds(n: int, max_rounds: int) -> Iterator[list[tuple[int, int]]]:
    """Rounds of disjoint pairs of 0..n-1 for simultaneous tests (circle method of a round robin).

    n - 1 rounds (n if n is odd) have each pair once; at most `max_rounds` are returned.
    """
    seats = [*range(n)] + ([-1] if n % 2 else [])
    for _ in range(min(max_rounds, len(seats) - 1)):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(p), max(p)) for p in pairs if -1 not in p]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def exchange(comm: Communicator, to: int, source: int, out: np.ndarray, into: np.ndarray) -> float:
    """Seconds to send `out` and receive `into` at the same time."""
    begun = time.perf_counter()
    requests = comm.recv(into, source, TAG), comm.send(out, to, TAG)
    wait_for_requests(*requests, timeout=PATIENCE_S, label=f"a message to rank {to}")
    return time.perf_counter() - begun


def time_pair(comm: Communicator) -> tuple[float, float, float]:
    """Latency in s, bytes/s each way and seconds of an allreduce between two ranks."""
    peer = 1 - comm.rank
    small, reply = np.zeros(1), np.zeros(1)
    trips = [exchange(comm, peer, peer, small, reply) for _ in range(TRIPS)]
    count, best = SMALLEST, 0.0
    while True:
        out, into = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
        seconds = np.array([min(exchange(comm, peer, peer, out, into) for _ in range(2))])
        wait_for_requests(comm.all_reduce(seconds, "max"))
        best = max(best, count / float(seconds[0]))
        if seconds[0] > LONG_MESSAGE_S or count >= LARGEST:
            break
        count *= 4
    return min(trips), best, min(time_allreduce(comm) for _ in range(2))


def time_allreduce(comm: Communicator) -> float:
    """Seconds of an allreduce of 1 MiB over all ranks of `comm`."""
    data = np.zeros(ALLREDUCE_BYTES // 4, np.float32)
    wait_for_requests(comm.barrier())
    begun = time.perf_counter()
    wait_for_requests(comm.all_reduce(data), timeout=PATIENCE_S, label="an allreduce")
    return time.perf_counter() - begun


def pairing_rounds_in_racks(racks: Sequence[str], max_rounds: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs of nodes of one rack, in all racks at once; `racks` by node."""
    every = [
        [
            [(members[a], members[b]) for a, b in pairs]
            for pairs in pairing_rounds(len(members), max_rounds)
        ]
        for rack in dict.fromkeys(racks)
        for members in [[node for node, name in enumerate(racks) if name == rack]]
    ]
    turns = itertools.zip_longest(*every, fillvalue=[])
    return [list(itertools.chain.from_iterable(turn)) for turn in turns]


def time_pairs(
    leaders: MpiCommunicator, nodes: list[str], racks: Sequence[str] = ()
) -> list[tuple[str, str, list[float]]]:
    """This rank's timed pairs; all leaders call it. `nodes` are in the order of their ranks.

    If not all pairs are timed, `racks` of the nodes add some within each rack.
    """
    timed_pairs, all_rounds = [], list(pairing_rounds(leaders.size, ALL_PAIRS - 1))
    if leaders.size > ALL_PAIRS:
        all_rounds += pairing_rounds_in_racks(racks, ROUNDS_IN_RACKS)
    for pairs in all_rounds:
        color = next((i for i, pair in enumerate(pairs) if leaders.rank in pair), -1)
        pair = leaders.split_by(color, leaders.rank)
        if pair is None:
            continue
        a, b = pairs[color]
        timing = list(time_pair(pair))
        pair.close()
        if leaders.rank == a:
            timed_pairs.append((nodes[a], nodes[b], timing))
    return timed_pairs


def time_pair_of_node(
    world: MpiCommunicator, nodes: list[str]
) -> tuple[list[tuple[str, str, list[float]]], Samples]:
    """The timed pair of this node and its waits, on its first rank; every rank calls it.

    All nodes are timed at once. `nodes` are in the order of the ranks. A node with one rank has no
    pair.
    """
    here = nodes[world.rank]
    first_two = [rank for rank, node in enumerate(nodes) if node == here][:2]
    in_pair = len(first_two) == 2 and world.rank in first_two
    pair = world.split_by(first_two[0] if in_pair else -1, world.rank)
    if pair is None:
        return [], {}
    timing, waits = list(time_pair(pair)), time_waits(pair)
    pair.close()
    return [(here, here, timing)] if world.rank == first_two[0] else [], waits


def time_ring(leaders: Communicator) -> float:
    """Seconds in which every node sends 1 MiB to the next."""
    out, into = np.zeros(ALLREDUCE_BYTES, np.uint8), np.zeros(ALLREDUCE_BYTES, np.uint8)
    following, before = (leaders.rank + 1) % leaders.size, (leaders.rank - 1) % leaders.size
    wait_for_requests(leaders.barrier())
    spans = [exchange(leaders, following, before, out, into) for _ in range(3)]
    longest = np.array([min(spans)])
    wait_for_requests(leaders.all_reduce(longest, "max"))
    return float(longest[0])


def clock_offsets(leaders: Communicator) -> tuple[float, float]:
    """This node's clock minus the first node's, and the error bound, in s; all leaders call it."""
    best = (0.0, 0.0)
    for peer in range(1, leaders.size):
        if leaders.rank == 0:
            for _ in range(TRIPS // 3):
                wait_for_requests(
                    leaders.send(np.array([time.time()]), peer, TAG), timeout=PATIENCE_S
                )
                wait_for_requests(leaders.recv(np.zeros(1), peer, TAG), timeout=PATIENCE_S)
        elif leaders.rank == peer:
            best = _clock_against_first(leaders)
    return best


def _clock_against_first(leaders: Communicator) -> tuple[float, float]:
    """The offset by the exchange with the least delay; half this delay is the error bound."""
    estimates, before = [], None
    for _ in range(TRIPS // 3):
        first_time = np.zeros(1)
        wait_for_requests(leaders.recv(first_time, 0, TAG), timeout=PATIENCE_S)
        now = time.time()
        if before is not None:  # rank 0 sent it after it had received our last answer
            estimates.append(((before + now) / 2 - first_time[0], (now - before) / 2))
        before = time.time()
        wait_for_requests(leaders.send(np.zeros(1), 0, TAG), timeout=PATIENCE_S)
    offset, within = min(estimates, key=lambda row: row[1])
    return float(offset), float(within)


def find_racks(
    leaders: MpiCommunicator,
    nodes: list[str],
    switches: list[str],
    rows: list[tuple[str, str, list[float]]],
) -> dict[str, Any]:
    """The fields of JobFacts about racks, by SLURM or by measured rates; all leaders call it.

    `rows` are this rank's timed pairs.
    """
    texts = leaders.all_gather_text(json.dumps(rows))
    pairs = dict[tuple[int, int], float]()
    for a, b, timing in itertools.chain.from_iterable(map(json.loads, texts)):
        pair = (nodes.index(a), nodes.index(b))
        pairs[pair] = max(pairs.get(pair, 0.0), float(timing[1]))
    ports = [max(rate for pair, rate in pairs.items() if n in pair) for n in range(len(nodes))]
    benchmark = UplinkBenchmark(leaders, ports)
    if any(switches):
        names = list(dict.fromkeys(switches))
        racks = [names.index(name) for name in switches]
        uplinks, source = benchmark.uplinks(racks), SLURM
    else:
        by_rates = benchmark.racks_by_rates(pairs) if len(nodes) <= ALL_PAIRS else None
        racks, uplinks = by_rates or ([0] * len(nodes), {})
        names, source = [f"rack {n}" for n in range(max(racks) + 1)], RATES if by_rates else ""
    return {
        "racks": {node: names[rack] for node, rack in zip(nodes, racks, strict=True)},
        "racks_from": source,
        "uplinks": {names[rack]: uplink for rack, uplink in uplinks.items()},
    }


def gather(local_facts: RankFacts, with_racks: bool = False) -> JobFacts | None:
    """Time the network and gather all ranks' facts on rank 0; every rank calls it.

    `with_racks`: also the racks of the nodes and their uplinks.
    """
    world = mpi_communicator.world()
    nodes = [text.strip() for text in world.all_gather_text(local_facts.node)]
    firsts = {node: nodes.index(node) for node in nodes}
    leaders = world.split(list(firsts.values()))
    rows, together, racks = [], {}, {}
    if leaders is not None and leaders.size > 1:
        switches = leaders.all_gather_text(local_facts.switches)
        rows = time_pairs(leaders, list(firsts), switches)
        if with_racks:
            racks = find_racks(leaders, list(firsts), switches, rows)
        together["ring"] = time_ring(leaders)
        local_facts.clock_s, local_facts.clock_within_s = clock_offsets(leaders)
    wait_for_requests(world.barrier())
    local_rows, waits = time_pair_of_node(world, nodes)
    wait_for_requests(world.barrier())
    if world.size > 1:
        together["allreduce"] = min(time_allreduce(world) for _ in range(3))
    wait_rows = [[local_facts.node, *key, late] for key, late in waits.items()]
    report = [dataclasses.asdict(local_facts), rows, local_rows, wait_rows]
    texts = world.gather_text(json.dumps(report))
    if texts is None:
        return None
    reports = [json.loads(text) for text in texts]
    ranks = [RankFacts.from_data(facts) for facts, *_ in reports]
    links, local_links = (
        [NetworkLink(a, b, *values) for report in reports for a, b, values in report[place]]
        for place in (1, 2)
    )
    skipped = f"; each node with {ALL_PAIRS - 1} others" if len(firsts) > ALL_PAIRS else ""
    late = [MeasuredWait(*row) for report in reports for row in report[3]]
    return JobFacts(ranks, links, local_links, together, late, skipped, **racks)
