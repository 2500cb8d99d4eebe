"""Rank mapping: the ranks of a job on a topology, and the equivalence classes of replicas there.

Two replicas are equivalent if their tasks have equal speeds and are on equivalent nodes. Two nodes
are equivalent if their ports are equal, their ranks have equal speeds and roles, and their racks
are equivalent; two racks, if their uplinks are equal and their nodes are. A replay treats
equivalent replicas alike (`topology_routes.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from hpcflow.errors import PlacementError
from hpcflow.placement.network import AllreduceTimes, Network
from hpcflow.placement.topology import Topology

MOST_CLASSES = 1024  # of replicas: more are made fewer by rounding speeds
ROUNDINGS = (0.0, 0.01, 0.03, 0.1, 0.3)  # relative steps of speeds that are tried, in this order


@dataclasses.dataclass(frozen=True)
class EquivalentReplicas:
    """A class of equivalent replicas, by number.

    `factors[k]` is the factor on the times of their task k: 1 / speed of the slowest of them.
    """

    replicas: tuple[int, ...]
    factors: tuple[float, ...]


class EquivalenceClasses(NamedTuple):
    """`nodes[n]` is the number of the class of node n, `racks[r]` that of rack r.

    `replicas` has the replicas of each class.
    """

    nodes: list[int]
    racks: list[int]
    replicas: list[EquivalentReplicas]


@dataclasses.dataclass(frozen=True)
class RankMapping:
    """Where a job is: `replicas[i][k]` is the rank of worker task k of replica i.

    `servers` has the rank of each server, by task name. `source` is the file of the topology.
    Errors: PlacementError if there are too many different nodes.
    """

    topology: Topology
    replicas: tuple[tuple[int, ...], ...]
    servers: Mapping[str, int] = dataclasses.field(default_factory=dict)
    source: str = ""

    most_servers: ClassVar[int] = 16  # a replay has at most so many different servers
    slowdown: ClassVar[float] = 1.0  # of more ranks than cores: the speeds of the ranks have it

    @functools.cached_property
    def classes(self) -> EquivalenceClasses:
        """The equivalence classes, with at most `MOST_CLASSES` classes of replicas."""
        for by_speed in (True, False):
            for step in ROUNDINGS:
                classes = self._classes(step, by_speed)
                if len(classes.replicas) <= MOST_CLASSES:
                    return classes
        raise PlacementError(
            f"more than {MOST_CLASSES:,} nodes of the topology are unlike in ports, ranks or racks",
            hint="round the bandwidths of its ports and uplinks",
        )

    @functools.cached_property
    def _workers(self) -> list[int]:
        return [rank for replica in self.replicas for rank in replica]

    @functools.cached_property
    def _network(self) -> Network:
        """Equal nodes with the slowest link between workers."""
        return Network.between(self.topology, self._workers)

    @property
    def ranks_per_node(self) -> int:
        """The most workers on a node."""
        return self._network.ranks_per_node

    @functools.cached_property
    def bandwidth(self) -> float:
        """Bytes per second of the slowest port of a server, or of a worker without servers."""
        ranks = self.servers.values() or self._workers
        return min(self.topology.ports[self.topology.nodes[rank]] for rank in ranks)

    @property
    def memory_bandwidth(self) -> float:
        """Bytes per second within a node."""
        return self.topology.memory_bandwidth

    @property
    def collectives(self) -> str:
        """The name of collectives, with the link that limits them."""
        if len({self.topology.nodes[rank] for rank in self._workers}) == 1:
            return "collectives"
        return f"collectives, by the {self.topology.slowest_link(self._workers)[1]}"

    def allreduce_times(self, nbytes: float, ranks: int, local: int) -> AllreduceTimes:
        """Return the times of an allreduce of `ranks` ranks, at most `local` on a node.

        A ring passes each port and each uplink once each way, so the slowest is the limit.
        """
        return self._network.allreduce_times(nbytes, *self._ring_ranks(ranks, local))

    def gather_seconds(self, nbytes: float, ranks: int, local: int) -> float:
        """Return the time in which `nbytes` of each rank come to all ranks."""
        return self._network.gather_seconds(nbytes, ranks, min(local, ranks))

    def as_data(self) -> dict[str, Any]:
        """Return the mapping as JSON data."""
        return {
            "topology": self.source,
            "nodes": len(self.topology.ports),
            "racks": len(self.topology.uplinks),
            "classes": len(self.classes.replicas),
        }

    def _ring_ranks(self, ranks: int, local: int) -> tuple[int, int]:
        """The ranks of a ring over equal nodes, and the ranks of one of them: `local`.

        There are as many nodes as the first tasks of the replicas are on.
        """
        nodes = {self.topology.nodes[replica[0]] for replica in self.replicas}
        local = max(1, min(local, ranks))
        return len(nodes) * local, local

    def _rounded(self, step: float) -> list[float]:
        """The key of the speed of each rank: floor(log(speed, 1 + step)); of step 0, the speed."""
        if not step:
            return list(self.topology.speeds)
        base = math.log1p(step)
        return [float(math.floor(math.log(speed) / base)) for speed in self.topology.speeds]

    def _keys(self, speeds: Sequence[float]) -> list[Hashable]:
        """For each node what it has: its port, and the speeds and roles of its ranks."""
        roles = {rank: name for name, rank in self.servers.items()}
        for replica in self.replicas:
            roles.update({rank: f"worker {k}" for k, rank in enumerate(replica)})
        ranks: list[list[tuple[str, float]]] = [[] for _ in self.topology.ports]
        for rank, node in enumerate(self.topology.nodes):
            ranks[node].append((roles.get(rank, ""), speeds[rank]))
        return [
            (port, tuple(sorted(on))) for port, on in zip(self.topology.ports, ranks, strict=True)
        ]

    def _classes(self, step: float, by_speed: bool) -> EquivalenceClasses:
        """The classes with speeds rounded to powers of 1 + `step`.

        Without `by_speed`, nodes may be equivalent whose ranks have unlike speeds.
        """
        topology, speeds = self.topology, self._rounded(step)
        keys = _numbered(self._keys(speeds if by_speed else [0.0] * len(speeds)))
        inside: list[list[int]] = [[] for _ in topology.uplinks]
        for key, rack in zip(keys, topology.racks, strict=True):
            inside[rack].append(key)
        pairs = zip(topology.uplinks, inside, strict=True)
        racks = _numbered([(uplink, tuple(sorted(on))) for uplink, on in pairs])
        nodes = _numbered([(key, racks[r]) for key, r in zip(keys, topology.racks, strict=True)])
        found: dict[Hashable, list[int]] = {}
        for number, ranks in enumerate(self.replicas):
            on = [topology.nodes[rank] for rank in ranks]
            apart = [topology.racks[node] for node in on]
            together = [on.index(node) for node in on] + [apart.index(rack) for rack in apart]
            places = [(nodes[node], speeds[rank]) for node, rank in zip(on, ranks, strict=True)]
            found.setdefault((tuple(places), tuple(together)), []).append(number)
        return EquivalenceClasses(
            nodes, racks, [self._class_of(numbers) for numbers in found.values()]
        )

    def _class_of(self, numbers: Sequence[int]) -> EquivalentReplicas:
        """A class of replicas, as slow as the slowest of each task."""
        ranks = zip(*(self.replicas[number] for number in numbers), strict=True)
        slowest = [min(self.topology.speeds[rank] for rank in of_task) for of_task in ranks]
        return EquivalentReplicas(tuple(numbers), tuple(1 / speed for speed in slowest))


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    """For each key, the number of its class."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
