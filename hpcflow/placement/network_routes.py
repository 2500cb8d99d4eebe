"""Network routes: the ports that messages pass on a network of equal nodes (`network.py`).

A group of replicas is replayed as one replica (`job_replay.py`); its messages weigh as many.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hpcflow.placement.network import Network
from hpcflow.placement.step_template import StepTemplate

PortWeights = list[tuple[int, float]]  # ports, and how many messages of a group pass each


class Ports:
    """The ports of a replay; a name and a node have one port.

    `names[i]` is the name of port i, and `bandwidths[i]` its bytes per second.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.bandwidths: list[float] = []
        self._numbers: dict[tuple[str, object], int] = {}

    def number(self, name: str, node: object, bandwidth: float) -> int:
        """Return the number of a port, group is added if it is new."""
        number = self._numbers.setdefault((name, node), len(self.names))
        if number == len(self.names):
            self.names.append(name)
            self.bandwidths.append(bandwidth)
        return number


class NetworkRoutes:
    """The ports of a job on a network; `members[g]` is how many replicas group g stands for."""

    collectives = "collectives"  # the name of what they occupy

    def __init__(
        self, template: StepTemplate, network: Network, members: Sequence[int], ports: Ports
    ) -> None:
        self.network, self.servers, self.members = network, template.servers, members
        self.workers, self.ports = template.ranks, ports
        size = template.replicas * len(self.workers) + sum(template.servers.values())
        self.is_one_node = network.nodes_of(size) == 1
        self.firsts = [0, *itertools.accumulate(members)]

    def factor(self, g: int, rank: str) -> float:
        """Return the factor on the times of a rank of group g."""
        return self.network.slowdown

    def route(self, g: int, rank: str, to: str) -> tuple[PortWeights, float]:
        """Return the ports of a message of group g, with weights, and its latency in seconds.

        Group -1: a message of an update, from server to server.
        """
        network, servers, ends = self.network, self.servers, (rank, to)
        members = self.members[g] if g >= 0 else 1
        is_inside = servers.keys().isdisjoint(ends) and len(self.workers) <= network.ranks_per_node
        if is_inside or self.is_one_node:
            node, weight = self._node(g, rank)
            rate, node = network.memory_bandwidth, 0 if self.is_one_node else node
            port = self.ports.number("memory of a node", node, rate)
            weight = members * float(servers.get(rank, 1)) if self.is_one_node else weight
            return [(port, weight)], network.memory_latency
        ports = []
        for side, end, other in (("send", *ends), ("receive", *reversed(ends))):
            node, on_node = self._node(g, end)
            of = end if end in servers else "a worker's node"
            weight = members if end in servers else on_node
            name = f"network port of {of} ({side})"
            port = self.ports.number(name, node, network.bandwidth)
            ports.append((port, float(weight * servers.get(other, 1))))
        return ports, network.latency

    def _node(self, g: int, rank: str) -> tuple[int, float]:
        """The node of a rank of group g, and how many members of the group are on it.

        A group that fills nodes is replayed as one of them, which has a negative number.
        """
        if rank in self.servers or g < 0:
            return 0, 1.0
        per_replica, per_node = len(self.workers), self.network.ranks_per_node
        place, members = self.workers.index(rank), self.members[g]
        if members * per_replica < per_node or members == 1:
            return (self.firsts[g] * per_replica + place) // per_node, float(members)
        return -1 - g * per_replica - place // per_node, float(max(1, per_node // per_replica))
