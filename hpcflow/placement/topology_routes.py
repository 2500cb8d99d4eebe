"""Routes on a topology: which ports and uplinks the messages of a group of replicas pass.

A group is a part of a class of replicas that are alike (`job_places.py`). If each group on nodes
that are alike is one replica, or if there is one such node, ports are those of actual nodes.
Otherwise a group fills nodes of its own, which it shares with the groups of the same place in the
other classes there; and of racks that are alike one is replayed, with the mean load.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Hashable, Sequence

from hpcflow.placement.job_places import JobPlaces, PlacedClass
from hpcflow.placement.network_routes import Ports, PortWeights
from hpcflow.placement.step_template import StepTemplate


@dataclasses.dataclass(frozen=True)
class _Group:
    """`members` replicas of a class, from number `first` of it on; part `place` of `parts`."""

    of: PlacedClass
    members: int
    first: int
    place: int
    parts: int


class TopologyRoutes:
    """The ports of a job on a topology; `sizes` has the members of the groups of each class."""

    def __init__(
        self,
        template: StepTemplate,
        places: JobPlaces,
        sizes: Sequence[Sequence[int]],
        ports: Ports,
    ) -> None:
        self.places, self.servers, self.ports = places, template.servers, ports
        self.topology, self.workers = places.topology, template.ranks
        self.collectives = places.collectives
        self.groups = [
            _Group(one, members, first, place, len(parts))
            for one, parts in zip(places.kinds.replicas, sizes, strict=True)
            for place, (members, first) in enumerate(
                zip(parts, itertools.accumulate(parts, initial=0), strict=False)
            )
        ]
        self.node_counts = collections.Counter(places.kinds.nodes)
        self.rack_counts = collections.Counter(places.kinds.racks)
        self.parts: dict[int, int] = {}  # class of nodes -> the most groups of a class on them
        shared: set[int] = set()  # classes of nodes with groups of several replicas
        for group in self.groups:
            for rank in places.replicas[group.of.replicas[0]]:
                kind = places.kinds.nodes[self.topology.nodes[rank]]
                self.parts[kind] = max(self.parts.get(kind, 0), group.parts)
                if group.members > 1:
                    shared.add(kind)
        self.shared_nodes = {kind for kind in shared if self.node_counts[kind] > 1}
        racks = zip(places.kinds.nodes, self.topology.racks, strict=True)
        self.shared_racks = {places.kinds.racks[rack] for kind, rack in racks if kind in shared}
        self.on_node = self._counts()

    def factor(self, which: int, rank: str) -> float:
        """Return the factor on the times of a rank of a group."""
        if rank in self.servers:
            return 1 / self.topology.speeds[self.places.servers[rank]]
        return self.groups[which].of.factors[self.workers.index(rank)]

    def route(self, which: int, rank: str, to: str) -> tuple[PortWeights, float]:
        """Return the ports of a message of a group, with weights, and its latency.

        Group -1: a message of an update.
        """
        topology, ends = self.topology, (self._rank(which, rank), self._rank(which, to))
        nodes = [topology.nodes[end] for end in ends]
        racks = [topology.racks[node] for node in nodes]
        counts = [float(self.servers.get(to, 1)), float(self.servers.get(rank, 1))]
        if nodes[0] == nodes[1]:
            key, weight, number = self._node(which, nodes[0], ends)
            rate, name = topology.memory_bandwidth, f"memory of node {number}"
            port = self.ports.number(name, key, rate)
            return [(port, weight * max(counts))], topology.memory_latency
        passed: PortWeights = []
        for side, node, end, count in zip(("send", "receive"), nodes, ends, counts, strict=True):
            key, weight, number = self._node(which, node, [end])
            name = f"network port of node {number} ({side})"
            port = self.ports.number(name, key, topology.ports[node])
            passed.append((port, weight * count))
        if racks[0] != racks[1]:
            for side, rack, count in zip(("out", "in"), racks, counts, strict=True):
                passed.append(self._uplink(which, rack, side, count))
        return passed, topology.latency

    def _rank(self, which: int, name: str) -> int:
        """The rank of a server, or that of a worker of the first replica of a group."""
        if name in self.servers:
            return self.places.servers[name]
        group = self.groups[which]
        replica = self.places.replicas[group.of.replicas[group.first]]
        return replica[self.workers.index(name)]

    def _node(self, which: int, node: int, ends: Sequence[int]) -> tuple[Hashable, float, int]:
        """The node that stands for a node, how many messages of a group pass it, its number."""
        kind = self.places.kinds.nodes[node]
        if which < 0:
            return node, 1.0, node
        group = self.groups[which]
        if kind not in self.shared_nodes:
            return node, float(group.members), node
        place = group.place * self.parts[kind] // group.parts
        on_node = min(self.on_node[end, node] for end in ends)
        return (kind, place), float(min(group.members, on_node)), self._first_node(kind)

    def _uplink(self, which: int, rack: int, side: str, count: float) -> tuple[int, float]:
        """The uplink that stands for that of a rack, and how many messages of a group pass it."""
        kind = self.places.kinds.racks[rack]
        members, key, number = (self.groups[which].members if which >= 0 else 1), rack, rack
        weight = float(members)
        if kind in self.shared_racks and self.rack_counts[kind] > 1:
            number = self.places.kinds.racks.index(kind)
            key, weight = number, members / self.rack_counts[kind]
        name = f"uplink of rack {number} ({side})"
        return self.ports.number(name, key, self.topology.uplinks[rack]), weight * count

    def _first_node(self, kind: int) -> int:
        return self.places.kinds.nodes.index(kind)

    def _counts(self) -> dict[tuple[int, int], int]:
        """For the first rank of each group and its node: the ranks of the same class there."""
        counts: dict[tuple[int, int], int] = {}
        for one in self.places.kinds.replicas:
            ranks = [self.places.replicas[number] for number in one.replicas]
            for of_task in zip(*ranks, strict=True):
                on = collections.Counter(self.topology.nodes[rank] for rank in of_task)
                for rank in of_task:
                    node = self.topology.nodes[rank]
                    counts[rank, node] = on[node]
        return counts
