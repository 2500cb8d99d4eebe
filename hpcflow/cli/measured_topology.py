"""Measured topology: the file for the setting `topology`, from what the doctor measures of a job.

The port of a node has the best rate of its pairs with other nodes, each way at once, while all
others are paired, too: a slow node slows its pairs only. With two nodes both have the slower rate.
Speeds are relative to the median rank: products and copies by the threads of a rank, while the
others do the same. Measurements within 10 % of the median count as equal to it. The uplink of a
rack has the rate of its slower direction; one that is not narrower than the ports is left out.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcflow.doctor.rack_flows import LEAST_NODES
from hpcflow.doctor.rank_facts import JobFacts, RankFacts, shortened_names
from hpcflow.errors import LaunchError
from hpcflow.placement.topology import FORMAT, topology_of
from hpcflow.platform.quantity_text import rounded_bytes
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.train.result_files import write_output

EQUAL = 0.1  # relative distance from the median that noise explains
Row = dict[str, Any]


def write_topology(path: str, job: JobFacts) -> str:
    """Write the topology of a job; return a line about it.

    Errors: LaunchError if the ranks of a node do not follow each other; OSError.
    """
    data = topology_data(job)
    topology = topology_of(data)
    write_output(Path(path), json.dumps(data, indent=1) + "\n")
    return (
        f"{os.path.abspath(path)} describes {topology.size} ranks, {len(topology.ports)} nodes and "
        f"{len(topology.uplinks)} racks; {_uplinks_text(job)}"
    )


def _uplinks_text(job: JobFacts) -> str:
    """Where the racks are from, and which uplinks limit them."""
    if len(job.nodes) == 1:
        return "one node has no uplink"
    if not job.racks_from:
        why = (
            "SLURM tells no racks, and the rates between nodes show none: uplinks are not measured"
        )
        return why if len(job.nodes) >= LEAST_NODES else f"{why} (that needs {LEAST_NODES} nodes)"
    whence = f"racks are from {job.racks_from}"
    if not job.uplinks:
        return f"{whence}; no rack has both two nodes and another rack, so no uplink was measured"
    narrow = {rack: uplink for rack, uplink in job.uplinks.items() if uplink.is_narrow}
    if not narrow:
        return f"{whence}; no uplink is narrower than the ports of its rack"
    rates = [
        f"{escape_line(rack)} {rounded_bytes(one.out_bytes_per_s)}/s out, "
        f"{rounded_bytes(one.in_bytes_per_s)}/s in "
        f"(its ports {rounded_bytes(one.ports_bytes_per_s)}/s)"
        for rack, one in narrow.items()
    ]
    return f"{whence}; uplinks: {shortened_names(rates)}"


def topology_data(job: JobFacts) -> Row:
    """Return the topology of a job in the format of the file.

    Errors: LaunchError if the ranks of a node do not follow each other.
    """
    runs = [list(ranks) for _, ranks in itertools.groupby(job.ranks, lambda rank: rank.node)]
    if len(runs) > len(job.nodes):
        raise LaunchError(
            "a topology numbers the ranks node by node, but those of a node do not follow each "
            "other in this job",
            hint="start it with srun --distribution=block, or mpirun --map-by slot",
        )
    speeds, ports = _speeds(job.ranks), _ports(job)
    nodes = [_node(ranks, speeds, ports) for ranks in runs]
    names = [job.racks.get(ranks[0].node, ranks[0].switches) for ranks in runs]
    uplinks, racks = _narrow_uplinks(job), list[Row]()
    for name, members in itertools.groupby(zip(names, nodes, strict=True), lambda pair: pair[0]):
        uplink = {"uplink_bytes_per_s": uplinks[name]} if name in uplinks else {}
        racks.append({**uplink, "nodes": _counted([node for _, node in members])})
    data: Row = {"format": FORMAT}
    if job.links:
        data["latency_s"] = _two_digits(statistics.median(link.latency_s for link in job.links))
    if job.local_links:
        rates = (link.bytes_per_s for link in job.local_links)
        data["memory_bytes_per_s"] = _two_digits(statistics.median(rates))
        latency = statistics.median(link.latency_s for link in job.local_links)
        data["memory_latency_s"] = _two_digits(latency)
    return {**data, "racks": _counted(racks)}


def _node(ranks: Sequence[RankFacts], speeds: dict[int, float], ports: dict[str, float]) -> Row:
    """Return a node with these ranks."""
    node: Row = {"ranks": len(ranks)}
    if ranks[0].node in ports:
        node["bytes_per_s"] = ports[ranks[0].node]
    mine = [speeds[rank.rank] for rank in ranks]
    node["speed"] = mine[0] if len(set(mine)) == 1 else mine
    if all(rank.memory for rank in ranks):
        share = min(rank.memory for rank in ranks) // len(ranks)
        node["memory_bytes"] = share // 10**8 * 10**8 or share  # of equal nodes it is equal
    if all(rank.gpu for rank in ranks):
        node["gpus"] = 1  # a rank uses one
    return node


def _speeds(ranks: Sequence[RankFacts]) -> dict[int, float]:
    """Return the speed of each rank: the median time of a product and a copy over its own."""
    measured: list[Callable[[RankFacts], float]] = [lambda r: r.gemm, lambda r: r.copies]
    medians = [statistics.median(map(rate, ranks)) for rate in measured]
    times = [
        sum(median / rate(rank) for median, rate in zip(medians, measured, strict=True))
        for rank in ranks
    ]
    typical = statistics.median(times)
    speeds = _settled([typical / seconds for seconds in times])
    return dict(zip((rank.rank for rank in ranks), speeds, strict=True))


def _ports(job: JobFacts) -> dict[str, float]:
    """Return the bytes per second of each node's port; {} for one node."""
    best: dict[str, float] = {}
    for link in job.links:
        for node in (link.a, link.b):
            best[node] = max(best.get(node, 0.0), link.bytes_per_s)
    return dict(zip(best, _settled(list(best.values())), strict=True)) if best else {}


def _narrow_uplinks(job: JobFacts) -> dict[str, float]:
    """Return the bytes per second of the racks whose uplinks are narrower than their ports."""
    rates = {rack: one.bytes_per_s for rack, one in job.uplinks.items() if one.is_narrow}
    return dict(zip(rates, _settled(list(rates.values())), strict=True)) if rates else {}


def _settled(values: Sequence[float]) -> list[float]:
    """Return the values with two digits; those near their median are equal to it."""
    typical = statistics.median(values)
    return [
        _two_digits(typical if abs(value / typical - 1.0) <= EQUAL else value) for value in values
    ]


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _counted(rows: Sequence[Row]) -> list[Row]:
    """Return rows of which equal neighbours are one, with their `count`."""
    found = []
    for _, same in itertools.groupby(rows):
        members = list(same)
        count = {"count": len(members)} if len(members) > 1 else {}
        found.append({**count, **members[0]})
    return found
