"""Rack flows: which nodes send to which to measure uplinks, the rates that ports allow, and racks.

Nodes are numbers in the order of the job, racks are numbers by node. Rates are bytes per second.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

MOST_GROUPS = 16  # of racks, which are measured one after the other
PEERS = 2  # nodes to which a node sends at once: a slow one does not hold it up
SAME_RACK = 0.9  # of the ports' rate, between nodes of a rack while all nodes exchange
LEAST_NODES = 4  # of a job in which racks are looked for

Rates = dict[int, float]


class Flow(NamedTuple):
    """Messages from one node to another, counted for a rack."""

    source: int
    dest: int
    rack: int


def rack_groups(racks: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Groups of racks to measure at once; `racks[n]` is the rack of node n.

    The uplink of a rack with one node is part of the measured rate of the node's port.
    """
    sizes = collections.Counter(racks)
    several = [rack for rack in sizes if sizes[rack] > 1]
    if len(sizes) > 1:
        yield from filter(None, (tuple(several[at::MOST_GROUPS]) for at in range(MOST_GROUPS)))


def flows_between(racks: Sequence[int], measured: Sequence[int]) -> list[Flow]:
    """Flows from all nodes of the measured racks to nodes of the others, spread over these."""
    senders, peers = (
        _interleaved(racks, [rack for rack in dict.fromkeys(racks) if (rack in measured) == inside])
        for inside in (True, False)
    )
    each = min(PEERS, len(peers))
    return [
        Flow(node, peers[(i * each + k) % len(peers)], racks[node])
        for i, node in enumerate(senders)
        for k in range(each)
    ]


def _interleaved(racks: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """The nodes of the chosen racks: the first of each, the second of each ..."""
    members = [[node for node, rack in enumerate(racks) if rack == one] for one in chosen]
    return [node for row in itertools.zip_longest(*members) for node in row if node is not None]


def port_rates(flows: Sequence[Flow], ports: Sequence[float]) -> Rates:
    """The rate of each rack's flows if only ports limit them: max-min fairness.

    `ports[n]` is the rate of node n, each way at once. The method is progressive filling (Bertsekas
    and Gallager, Data Networks, 6.5.2).
    """
    left: dict[tuple[str, int], float] = {}
    for flow in flows:
        for end in _ends(flow):
            left[end] = ports[end[1]]
    rates, growing = dict.fromkeys((flow.rack for flow in flows), 0.0), list(flows)
    while growing:
        users = collections.Counter(end for flow in growing for end in _ends(flow))
        full = min(users, key=lambda end: left[end] / users[end])
        share = left[full] / users[full]
        for flow in [flow for flow in growing if full in _ends(flow)]:
            rates[flow.rack] += share
            growing.remove(flow)
            for end in _ends(flow):
                left[end] = max(left[end] - share, 0.0)
    return rates


def _ends(flow: Flow) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("send", flow.source), ("receive", flow.dest)


def likely_racks(
    pairs: Mapping[tuple[int, int], float], ports: Sequence[float]
) -> list[int] | None:
    """The rack of each node, by the rates of all pairs while all nodes exchange.

    Agglomerative clustering with average linkage (Sokal and Michener, 1958): two groups of nodes
    are joined while the mean rate between them is `SAME_RACK` of their ports. There are racks if
    this leaves two groups or more, each of two nodes or more; otherwise the result is None.
    """
    n = len(ports)
    if n < LEAST_NODES:
        return None
    shares = np.ones((n, n))
    for (a, b), rate in pairs.items():
        shares[a, b] = shares[b, a] = min(rate / min(ports[a], ports[b]), 1.0)
    groups = [[node] for node in range(n)]
    while len(groups) > 1:
        means = {
            (i, j): float(shares[np.ix_(groups[i], groups[j])].mean())
            for i, j in itertools.combinations(range(len(groups)), 2)
        }
        i, j = max(means, key=lambda key: means[key])
        if means[i, j] < SAME_RACK:
            break
        groups[i] += groups.pop(j)
    if len(groups) < 2 or min(map(len, groups)) < 2:
        return None
    found = [0] * n
    for rack, nodes in enumerate(sorted(groups, key=min)):
        for node in nodes:
            found[node] = rack
    return found


def flows_inside(racks: Sequence[int]) -> list[Flow]:
    """Flows from every second node of each rack to the next one; all count together, for rack 0.

    Each port has one direction: two-way streams of TCP slow each other.
    """
    found = []
    for rack in dict.fromkeys(racks):
        nodes = [node for node, one in enumerate(racks) if one == rack]
        ends = zip(nodes[::2], nodes[1::2], strict=False)
        found += [Flow(source, dest, 0) for source, dest in ends]
    return found
