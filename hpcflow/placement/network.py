"""Network: equal nodes with their bandwidths and latencies, and the time of a collective on them.

`topology.py` has unlike ranks and nodes, and racks.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from hpcflow.errors import PlacementError
from hpcflow.placement.topology import Topology

SLOW_NETWORK = 2e9  # bytes per second: above it, nodes are joined by MPI's allreduce (comm/)
# of a ring: bytes of a message, parts of sums at once, bytes by ranks (comm/ring_allreduce.py)
CHUNK_BYTES, LEAST_CHUNK_BYTES, PARTS_IN_FLIGHT, LEAST_BYTES = 32 << 10, 16 << 10, 16, 4 << 10
# of an allreduce's latencies, in which a port is idle though others are under way: messages do not
# come evenly. Measured with 1 to 16 sums at once on 3 and 4 hosts whose network adds 1 or 2 ms.
IDLE_SHARE = 0.5


class AllreduceTimes(NamedTuple):
    """How long an allreduce takes, in seconds.

    Allreduces occupy the network one after the other, each for `occupied`, and end `delay` later.
    From its start an allreduce takes `least` or more. That has the latencies of all its messages,
    in which messages of other allreduces pass.
    """

    occupied: float
    delay: float
    least: float

    @property
    def alone(self) -> float:
        """The time of an allreduce with no other one before it."""
        return max(self.occupied + self.delay, self.least)


@dataclasses.dataclass(frozen=True)
class Network:
    """Equal nodes of `ranks_per_node` ranks on `cores` cores; 0 cores: one core for each rank.

    Each node sends and receives `bandwidth` bytes per second at once. A message between nodes takes
    `latency` seconds besides. Within a node, these are `memory_bandwidth` and `memory_latency`.
    Errors: PlacementError for values that are not positive.
    """

    most_servers: ClassVar[int] = 4  # at most so many servers are replayed

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

    def allreduce_times(self, nbytes: float, ranks: int, local: int) -> AllreduceTimes:
        """Return the times of an allreduce of `nbytes` over `ranks` ranks, `local` on each node.

        Within a node each rank sums a share of the array, which it reads from all and writes once,
        between two barriers. Between N nodes, 2 (N - 1) / N of the array pass the port of a node
        in each direction: by a ring in 2 (N - 1) messages on a slow network (Patarasuk and Yuan,
        Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, JPDC 69(2), 2009),
        else by halving and doubling in 2 log2 N (Thakur, Rabenseifner, Gropp, Optimization of
        Collective Communication Operations in MPICH, IJHPCA 19(1), 2005). A ring sums an array in
        parts, of which some are on their way at once: while a message of one is late, those of
        others pass the port.
        """
        local = max(1, min(local, ranks))
        nodes = math.ceil(ranks / local)
        occupied = delay = least = 0.0
        if local > 1:
            occupied = (local + 1) * nbytes / self.memory_bandwidth
            least = occupied + 2 * math.ceil(math.log2(local)) * self.memory_latency
        if nodes > 1:
            is_ring = self.bandwidth <= SLOW_NETWORK
            messages = 2 * (nodes - 1) if is_ring else 2 * math.ceil(math.log2(nodes))
            parts = ring_parts(nbytes / local, nodes) if is_ring else 0
            moved = 2 * (nodes - 1) / nodes * nbytes / self.bandwidth
            of_part = moved / max(1, parts)
            part = messages * self.latency + of_part  # from its first message to its last
            before = max(0, min(parts, PARTS_IN_FLIGHT) - 1)  # parts that begin before the last one
            least += part + before * of_part / messages
            turns = part * parts / PARTS_IN_FLIGHT
            occupied += max(moved, turns)
            delay = IDLE_SHARE * messages * self.latency if moved >= turns else 0.0
        return AllreduceTimes(occupied, delay, least)

    def gather_seconds(self, nbytes: float, ranks: int, local: int) -> float:
        """Return the time in which `nbytes` of each rank come to all ranks.

        An allreduce of their numbers of rows comes first, in 2 log2 N messages. Then the rows take
        log2 N messages (Bruck et al., Efficient Algorithms for All-to-All Communications in
        Multiport Message-Passing Systems, IEEE TPDS 8(11), 1997). All ranks of a node share its
        port: it receives what the ranks of the other nodes have.
        """
        local = max(1, min(local, ranks))
        messages = 3 * math.ceil(math.log2(ranks))
        if ranks <= local:
            moved = (ranks - 1) * nbytes * local / self.memory_bandwidth
            return messages * self.memory_latency + moved
        return messages * self.latency + (ranks - local) * nbytes / self.bandwidth


def ring_parts(nbytes: float, nodes: int) -> int:
    """The parts into which a ring of `nodes` nodes cuts an array (`comm/ring_allreduce.py`).

    0 if the array is so small that MPI sums it, which takes up no place of a part.
    """
    if nbytes < LEAST_BYTES * nodes:
        return 0
    chunk = int(nbytes) // nodes
    return max(1, chunk // CHUNK_BYTES, min(PARTS_IN_FLIGHT, chunk // LEAST_CHUNK_BYTES))
