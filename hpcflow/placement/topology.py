"""Topology: the ranks of a job, their speeds and memory, and the links between them.

Nodes send and receive by their ports; racks of nodes are joined by uplinks. A message between two
ranks of a node moves through the node's memory; another one passes the port of its sender's node,
the uplinks of both racks if they differ, and the port of its receiver's node. Switches within a
rack, and the network above the uplinks, are never the limit.

A file describes a topology as JSON:

    {"format": "hpcflow-topology-1", "latency_s": 5e-6, "memory_bytes_per_s": 2e10,
     "racks": [{"count": 2, "uplink_bytes_per_s": 1e10, "nodes": [
        {"count": 16, "ranks": 8, "bytes_per_s": 1.25e10, "speed": 1.0},
        {"ranks": 2, "speed": [1.0, 0.3], "memory_bytes": 1.6e10, "gpus": 2}]}]}

`count` equal racks or nodes follow each other, 1 by default. Ranks are numbered in this order.
`speed` is relative to the predicted times of operations, of all ranks of a node or of each.
`memory_bytes` and `gpus` are those of one rank. Absent: one rack, no limit of an uplink or of
memory, speed 1, no GPU. Numbers outside of the ranges below are errors.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hpcflow.errors import DataError, PlacementError
from hpcflow.platform.record_files import read_json_object

FORMAT = "hpcflow-topology-1"
MOST_RANKS = 1 << 20
MOST_GPUS = 1024  # of a rank
# Accepted numbers: what lies outside is a wrong unit.
RATES = (1e3, 1e15)  # bytes per second
LATENCIES = (0.0, 10.0)  # seconds
SPEEDS = (1e-3, 1e3)
MEMORY = (1e6, 1e18)  # bytes of a rank

LinkKind = Literal["memory", "send", "receive", "uplink out", "uplink in"]


class Link(NamedTuple):
    """What a message passes: the memory of a node, one direction of its port or of an uplink.

    `number` is that of the node, or of the rack.
    """

    kind: LinkKind
    number: int


@dataclasses.dataclass(frozen=True)
class Topology:
    """Ranks on nodes in racks; bandwidths in bytes per second, each way at once.

    `nodes[r]` is the node of rank r, `racks[n]` the rack of node n. `speeds`, `memory` (bytes) and
    `gpus` are of the ranks, `ports` of the nodes, `uplinks` of the racks.
    """

    nodes: tuple[int, ...]
    speeds: tuple[float, ...]
    memory: tuple[float, ...]
    gpus: tuple[int, ...]
    racks: tuple[int, ...]
    ports: tuple[float, ...]
    uplinks: tuple[float, ...]
    latency: float = 5e-6
    memory_bandwidth: float = 2e10
    memory_latency: float = 1e-6

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.nodes)

    def route(self, source: int, dest: int) -> tuple[Link, ...]:
        """Return the links that a message from rank `source` to rank `dest` passes."""
        sender, receiver = self.nodes[source], self.nodes[dest]
        if sender == receiver:
            return (Link("memory", sender),)
        first, last = self.racks[sender], self.racks[receiver]
        between = (Link("uplink out", first), Link("uplink in", last)) if first != last else ()
        return Link("send", sender), *between, Link("receive", receiver)

    def bandwidth(self, link: Link) -> float:
        """Return the bytes per second of a link."""
        if link.kind == "memory":
            return self.memory_bandwidth
        return (self.uplinks if link.kind.startswith("uplink") else self.ports)[link.number]

    def of_tasks(self, replicas: Sequence[Sequence[int]]) -> Topology:
        """Return the topology of the tasks of a replica: rank k is task k.

        `replicas` has the ranks of each replica's tasks. All replicas make one plan, so the nodes
        and racks are those of the first, and each value is the worst of all replicas.
        """
        columns = list(zip(*replicas, strict=True))
        nodes = [self.nodes[rank] for rank in replicas[0]]
        node_of = {node: i for i, node in enumerate(dict.fromkeys(nodes))}
        racks = [self.racks[node] for node in node_of]
        rack_of = {rack: i for i, rack in enumerate(dict.fromkeys(racks))}
        ports, uplinks = [math.inf] * len(node_of), [math.inf] * len(rack_of)
        for first, ranks in zip(nodes, columns, strict=True):
            node, rack = node_of[first], rack_of[self.racks[first]]
            used = {self.nodes[rank] for rank in ranks}
            ports[node] = min(ports[node], *(self.ports[n] for n in used))
            uplinks[rack] = min(uplinks[rack], *(self.uplinks[self.racks[n]] for n in used))
        return dataclasses.replace(
            self,
            nodes=tuple(node_of[node] for node in nodes),
            speeds=tuple(min(self.speeds[rank] for rank in ranks) for ranks in columns),
            memory=tuple(min(self.memory[rank] for rank in ranks) for ranks in columns),
            gpus=tuple(min(self.gpus[rank] for rank in ranks) for ranks in columns),
            racks=tuple(rack_of[rack] for rack in racks),
            ports=tuple(ports),
            uplinks=tuple(uplinks),
        )

    def slowest_link(self, ranks: Iterable[int]) -> tuple[float, str]:
        """Return the bandwidth of the slowest link between the nodes of ranks, and its name."""
        nodes = sorted({self.nodes[rank] for rank in ranks})
        racks = sorted({self.racks[node] for node in nodes})
        links = [(self.ports[node], f"network port of node {node}") for node in nodes]
        if len(racks) > 1:
            links += [(self.uplinks[rack], f"uplink of rack {rack}") for rack in racks]
        return min(links, key=lambda link: link[0])

    def message_seconds(self, source: int, dest: int, nbytes: float) -> float:
        """Return the time of a message on idle links: a latency, and the slowest link."""
        links = self.route(source, dest)
        latency = self.memory_latency if links[0].kind == "memory" else self.latency
        return latency + nbytes / min(map(self.bandwidth, links))


def read_topology(path: Path) -> Topology:
    """Read a topology. Errors: HpcflowError naming the file and what is wrong in it."""
    return topology_of(read_description(path))


def read_description(path: Path) -> dict[str, Any]:
    """Read the JSON object of a topology, which `topology_of` takes. Errors: as `read_topology`."""
    data = read_json_object(path, unique=True)
    if data is None:
        raise DataError(f"there is no file of a topology at {path}", hint="give the path of one")
    try:
        topology_of(data)
    except PlacementError as error:
        hint = "`hpcflow help placement` describes the format"
        raise DataError(f"{path}: {error.message}", hint=hint) from None
    return data


def topology_of(data: Mapping[str, Any]) -> Topology:
    """Return the topology that a JSON object describes.

    Errors: PlacementError naming the place of what is malformed.
    """
    if data.get("format") != FORMAT:
        raise PlacementError(f"format is {data.get('format')!r}, not {FORMAT!r}")
    _check_names(
        data, "", {"format", "latency_s", "memory_bytes_per_s", "memory_latency_s", "racks"}
    )
    columns: dict[str, list[Any]] = {
        name: [] for name in ("nodes", "speeds", "memory", "gpus", "racks", "ports", "uplinks")
    }
    for rack, place in _repeated(data, "racks", ""):
        _check_names(rack, place, {"count", "uplink_bytes_per_s", "nodes"})
        columns["uplinks"].append(_number(rack, "uplink_bytes_per_s", place, math.inf, RATES))
        for node, where in _repeated(rack, "nodes", place):
            _add_node(node, where, columns)
    if not columns["nodes"]:
        raise PlacementError("racks: there is no rank")
    return Topology(
        **{name: tuple(values) for name, values in columns.items()},
        latency=_number(data, "latency_s", "", Topology.latency, LATENCIES),
        memory_bandwidth=_number(data, "memory_bytes_per_s", "", Topology.memory_bandwidth, RATES),
        memory_latency=_number(data, "memory_latency_s", "", Topology.memory_latency, LATENCIES),
    )


def _add_node(node: Mapping[str, Any], place: str, columns: dict[str, list[Any]]) -> None:
    """Add a node, which belongs to the last rack, and its ranks."""
    names = {"count", "ranks", "bytes_per_s", "speed", "memory_bytes", "gpus"}
    _check_names(node, place, names)
    ranks = _count(node, "ranks", place, (1, MOST_RANKS))
    if len(columns["nodes"]) + ranks > MOST_RANKS:
        raise PlacementError(f"{place}ranks: more than {MOST_RANKS:,} ranks together")
    speeds = node.get("speed", 1.0)
    if not isinstance(speeds, list):
        speeds = [speeds] * ranks
    if len(speeds) != ranks:
        raise PlacementError(f"{place}speed: {len(speeds)} numbers for {ranks} ranks")
    columns["speeds"] += [_number({"speed": one}, "speed", place, 1.0, SPEEDS) for one in speeds]
    columns["nodes"] += [len(columns["ports"])] * ranks
    columns["memory"] += [_number(node, "memory_bytes", place, math.inf, MEMORY)] * ranks
    columns["gpus"] += [_count(node, "gpus", place, (0, MOST_GPUS))] * ranks
    columns["racks"].append(len(columns["uplinks"]) - 1)
    columns["ports"].append(_number(node, "bytes_per_s", place, 1.25e10, RATES))


def _repeated(
    data: Mapping[str, Any], name: str, place: str
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the objects of a list, each as often as its `count` says, with their places."""
    rows = data.get(name)
    if not isinstance(rows, list) or not rows:
        raise PlacementError(f"{place}{name} is no list of objects")
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise PlacementError(f"{place}{name}[{i}] is no object")
        where = f"{place}{name}[{i}]."
        for _ in range(_count(row, "count", where, (1, MOST_RANKS))):
            yield row, where


def _check_names(data: Mapping[str, Any], place: str, known: set[str]) -> None:
    for name in data:
        if name not in known:
            raise PlacementError(f"{place}{name} is unknown; known are {', '.join(sorted(known))}")


def _number(
    data: Mapping[str, Any], name: str, place: str, default: float, limits: tuple[float, float]
) -> float:
    """Return a number within `limits`; the default if there is none. Errors: PlacementError."""
    if name not in data:
        return default
    value, (least, most) = data[name], limits
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise PlacementError(f"{place}{name} is {_shown(value)}: give {least:g} to {most:g}")
    return float(value)


def _count(data: Mapping[str, Any], name: str, place: str, limits: tuple[int, int]) -> int:
    """Return an integer within `limits`; the least one if there is none. Errors: as `_number`."""
    (least, most), value = limits, data.get(name, limits[0])
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise PlacementError(f"{place}{name} is {_shown(value)}: give {least:,} to {most:,}")
    return value


def _shown(value: object) -> str:
    """The text of a JSON value, shortened if it is long."""
    return reprlib.repr(value)
