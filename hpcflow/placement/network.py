"""Network of a cluster: bandwidths and latency of nodes, and the time of a collective."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from hpcflow.errors import PlacementError
from hpcflow.placement.topology import Topology

SLOW_NETWORK = 2e9  # bytes per second: above it, nodes are joined by MPI's allreduce (comm/)


@dataclasses.dataclass(frozen=True)
class Network:
    """Equal nodes of `ranks_per_node` ranks on `cores` cores; 0 cores: one core for each rank.

    Each node sends and receives `bandwidth` bytes per second at once. A message takes `latency`
    seconds besides. Within a node bytes move through a memory of `memory_bandwidth`.
    Errors: PlacementError for values that are not positive.
    """

    most_servers: ClassVar[int] = 4  # a replay has at most so many different servers

    bandwidth: float = 12.5e9
    latency: float = 5e-6
    ranks_per_node: int = 1
    cores: int = 0
    memory_bandwidth: float = 2e10
    memory_latency: float = 1e-6

    def __post_init__(self) -> None:
        positive = ("bandwidth", "ranks_per_node", "memory_bandwidth")
        for name in (*positive, "latency", "memory_latency", "cores"):
            value = getattr(self, name)
            if not (value > 0 or (value == 0 and name not in positive)) or math.isinf(value):
                raise PlacementError(f"a network with {name} {value}", hint="give a positive value")

    def as_data(self) -> dict[str, Any]:
        """Return the network as JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def between(cls, topology: Topology, ranks: Sequence[int]) -> Network:
        """Return the slowest link between ranks of a topology as that of equal nodes."""
        return cls(
            bandwidth=topology.slowest_link(ranks)[0],
            latency=topology.latency,
            ranks_per_node=max(
                collections.Counter(topology.nodes[rank] for rank in ranks).values()
            ),
            memory_bandwidth=topology.memory_bandwidth,
            memory_latency=topology.memory_latency,
        )

    @property
    def slowdown(self) -> float:
        """The factor on the time of computing if a node has more ranks than cores."""
        return max(1.0, self.ranks_per_node / self.cores) if self.cores else 1.0

    def nodes_of(self, ranks: int) -> int:
        """The number of nodes that these ranks need."""
        return math.ceil(ranks / self.ranks_per_node)

    def allreduce_seconds(self, nbytes: float, ranks: int, local: int) -> float:
        """Return the time of an allreduce of `nbytes` over `ranks` ranks, `local` on each node.

        Within a node each rank sums a share of the array, which it reads from all and writes once,
        between two barriers. Between N nodes, 2 (N - 1) / N of the array pass the port of a node
        in each direction: by a ring in 2 (N - 1) messages on a slow network (Patarasuk and Yuan,
        Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, JPDC 69(2), 2009),
        else by halving and doubling in 2 log2 N (Thakur, Rabenseifner, Gropp, Optimization of
        Collective Communication Operations in MPICH, IJHPCA 19(1), 2005).
        """
        local = max(1, min(local, ranks))
        nodes = math.ceil(ranks / local)
        seconds = 0.0
        if local > 1:
            barriers = 2 * math.ceil(math.log2(local)) * self.memory_latency
            seconds += barriers + (local + 1) * nbytes / self.memory_bandwidth
        if nodes > 1:
            is_ring = self.bandwidth <= SLOW_NETWORK
            messages = 2 * (nodes - 1) if is_ring else 2 * math.ceil(math.log2(nodes))
            seconds += messages * self.latency
            seconds += 2 * (nodes - 1) / nodes * nbytes / self.bandwidth
        return seconds

    def gather_seconds(self, nbytes: float, ranks: int, local: int) -> float:
        """Return the time in which `nbytes` of each rank come to all ranks, by a ring.

        All ranks of a node share its port: it receives what the ranks of the other nodes have.
        """
        local = max(1, min(local, ranks))
        if ranks <= local:
            return (ranks - 1) * (self.memory_latency + nbytes * local / self.memory_bandwidth)
        return (ranks - 1) * self.latency + (ranks - local) * nbytes / self.bandwidth
