"""Topology routes: the ports and uplinks that messages pass on a topology (`topology.py`).

Replicas, nodes and racks have classes of equivalent ones (`rank_mapping.py`). A group of replicas,
which is replayed as one replica, is a part of a class of replicas.

Messages pass the ports of actual nodes if the class of these nodes has one node, or if all groups
on nodes of the class are single replicas. Otherwise one node stands for the nodes of a group.
Groups with the same place in other classes of replicas on these nodes share it. Of equivalent racks
one is replayed, with their mean load.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Hashable, Sequence

from hpcflow.placement.network_routes import Ports, PortWeights
from hpcflow.placement.rank_mapping import EquivalentReplicas, RankMapping
from hpcflow.placement.step_template import StepTemplate


@dataclasses.dataclass(frozen=True)
class _Group:
    """`members` replicas of the class `of`, from its replica `first` on.

    It is group `place` of the `parts` groups of its class.
    """

    of: EquivalentReplicas
    members: int
    first: int
    place: int
    parts: int


class TopologyRoutes:
    """The ports of a job on a topology; `sizes[c]` has the members of each group of class c."""

    def __init__(
        self,
        template: StepTemplate,
        mapping: RankMapping,
        sizes: Sequence[Sequence[int]],
        ports: Ports,
    ) -> None:
        self.mapping, self.servers, self.ports = mapping, template.servers, ports
        self.topology, self.workers = mapping.topology, template.ranks
        self.collectives = mapping.collectives
        self.groups = [
            _Group(one, members, first, place, len(parts))
            for one, parts in zip(mapping.classes.replicas, sizes, strict=True)
            for place, (members, first) in enumerate(
                zip(parts, itertools.accumulate(parts, initial=0), strict=False)
            )
        ]
        self.node_counts = collections.Counter(mapping.classes.nodes)
        self.rack_counts = collections.Counter(mapping.classes.racks)
        # class of nodes -> the most groups that a class of replicas on these nodes has
        self.parts: dict[int, int] = {}
        shared: set[int] = set()  # classes of nodes with groups of several replicas
        for group in self.groups:
            for rank in mapping.replicas[group.of.replicas[0]]:
                node_class = mapping.classes.nodes[self.topology.nodes[rank]]
                self.parts[node_class] = max(self.parts.get(node_class, 0), group.parts)
                if group.members > 1:
                    shared.add(node_class)
        self.shared_nodes = {
            node_class for node_class in shared if self.node_counts[node_class] > 1
        }
        racks = zip(mapping.classes.nodes, self.topology.racks, strict=True)
        self.shared_racks = {
            mapping.classes.racks[rack] for node_class, rack in racks if node_class in shared
        }
        self.on_node = self._counts()

    def factor(self, g: int, rank: str) -> float:
        """Return the factor on the times of a rank of group g."""
        if rank in self.servers:
            return 1 / self.topology.speeds[self.mapping.servers[rank]]
        return self.groups[g].of.factors[self.workers.index(rank)]

    def route(self, g: int, rank: str, to: str) -> tuple[PortWeights, float]:
        """Return the ports of a message of group g, with weights, and its latency in seconds.

        Group -1: a message of an update, from server to server.
        """
        topology, ends = self.topology, (self._rank(g, rank), self._rank(g, to))
        nodes = [topology.nodes[end] for end in ends]
        racks = [topology.racks[node] for node in nodes]
        counts = [float(self.servers.get(to, 1)), float(self.servers.get(rank, 1))]
        if nodes[0] == nodes[1]:
            key, weight, number = self._node(g, nodes[0], ends)
            rate, name = topology.memory_bandwidth, f"memory of node {number}"
            port = self.ports.number(name, key, rate)
            return [(port, weight * max(counts))], topology.memory_latency
        passed: PortWeights = []
        for side, node, end, count in zip(("send", "receive"), nodes, ends, counts, strict=True):
            key, weight, number = self._node(g, node, [end])
            name = f"network port of node {number} ({side})"
            port = self.ports.number(name, key, topology.ports[node])
            passed.append((port, weight * count))
        if racks[0] != racks[1]:
            for side, rack, count in zip(("out", "in"), racks, counts, strict=True):
                passed.append(self._uplink(g, rack, side, count))
        return passed, topology.latency

    def _rank(self, g: int, name: str) -> int:
        """The rank of a server, or that of a worker of the first replica of group g."""
        if name in self.servers:
            return self.mapping.servers[name]
        group = self.groups[g]
        replica = self.mapping.replicas[group.of.replicas[group.first]]
        return replica[self.workers.index(name)]

    def _node(self, g: int, node: int, ends: Sequence[int]) -> tuple[Hashable, float, int]:
        """The node that stands for a node, how many messages of a group pass it, its number."""
        node_class = self.mapping.classes.nodes[node]
        if g < 0:
            return node, 1.0, node
        group = self.groups[g]
        if node_class not in self.shared_nodes:
            return node, float(group.members), node
        place = group.place * self.parts[node_class] // group.parts
        on_node = min(self.on_node[end, node] for end in ends)
        return (node_class, place), float(min(group.members, on_node)), self._first_node(node_class)

    def _uplink(self, g: int, rack: int, side: str, count: float) -> tuple[int, float]:
        """The uplink that stands for that of a rack, and how many messages of a group pass it."""
        rack_class = self.mapping.classes.racks[rack]
        members, key, number = (self.groups[g].members if g >= 0 else 1), rack, rack
        weight = float(members)
        if rack_class in self.shared_racks and self.rack_counts[rack_class] > 1:
            number = self.mapping.classes.racks.index(rack_class)
            key, weight = number, members / self.rack_counts[rack_class]
        name = f"uplink of rack {number} ({side})"
        return self.ports.number(name, key, self.topology.uplinks[rack]), weight * count

    def _first_node(self, node_class: int) -> int:
        return self.mapping.classes.nodes.index(node_class)

    def _counts(self) -> dict[tuple[int, int], int]:
        """For each worker and its node: the ranks there of the same task in the same class."""
        counts: dict[tuple[int, int], int] = {}
        for one in self.mapping.classes.replicas:
            ranks = [self.mapping.replicas[number] for number in one.replicas]
            for of_task in zip(*ranks, strict=True):
                on = collections.Counter(self.topology.nodes[rank] for rank in of_task)
                for rank in of_task:
                    node = self.topology.nodes[rank]
                    counts[rank, node] = on[node]
        return counts
