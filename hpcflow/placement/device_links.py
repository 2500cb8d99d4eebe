"""Device links: the links between devices, and the routes of messages over them.

A message takes a latency plus its bytes over the least bandwidth of the links of its route.
`heft.py` and `segment_schedule.py` say for how long it occupies each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.placement.topology import Link, Topology


class Route(NamedTuple):
    """The way of messages from one device to another.

    A message passes `links`, by number, and takes `latency` seconds plus its bytes times
    `seconds_per_byte`, that of the slowest link.
    """

    links: tuple[int, ...]
    latency: float
    seconds_per_byte: float


class Links:
    """The links between devices, by number, and the route from each device to each other one.

    `seconds_per_byte[link]` is the inverse of the bandwidth of a link. `overhead` are the seconds
    for which a message keeps its sender busy, and again its receiver (the parameter o of LogP:
    Culler et al., PPoPP 1993).
    """

    def __init__(
        self,
        seconds_per_byte: Sequence[float],
        routes: dict[tuple[int, int], Route],
        overhead: float = 0.0,
    ) -> None:
        self.seconds_per_byte, self.routes = tuple(seconds_per_byte), routes
        self.overhead = overhead
        count = max(len(routes), 1)
        self.least_latency = min((route.latency for route in routes.values()), default=0.0)
        self.mean_latency = sum(route.latency for route in routes.values()) / count
        self.mean_seconds_per_byte = sum(r.seconds_per_byte for r in routes.values()) / count

    @classmethod
    def equal(cls, devices: int, latency: float, bandwidth: float, overhead: float = 0.0) -> Links:
        """Equal devices, each with a port to send by and a port to receive by."""
        inverse = 1.0 / bandwidth
        routes = {
            (a, b): Route((a, devices + b), latency, inverse)
            for a in range(devices)
            for b in range(devices)
            if a != b
        }
        return cls([inverse] * 2 * devices, routes, overhead)

    @classmethod
    def of_topology(cls, topology: Topology, latency: float, overhead: float = 0.0) -> Links:
        """The links of a topology; device d is its rank d.

        `latency` is that of the software; the latency of the network is added to it.
        """
        numbers: dict[Link, int] = {}
        routes: dict[tuple[int, int], Route] = {}
        for a in range(topology.size):
            for b in range(topology.size):
                if a != b:
                    route = topology.route(a, b)
                    links = tuple(numbers.setdefault(link, len(numbers)) for link in route)
                    inverse = 1.0 / min(map(topology.bandwidth, route))
                    own = topology.message_seconds(a, b, 0)
                    routes[a, b] = Route(links, latency + own, inverse)
        return cls([1.0 / topology.bandwidth(link) for link in numbers], routes, overhead)
