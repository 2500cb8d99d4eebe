"""Memory excess: the tasks of a predicted job that need more memory than their ranks have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hpcflow.graph.device_names import parse_device
from hpcflow.placement.network import Network
from hpcflow.placement.rank_mapping import RankMapping
from hpcflow.platform.quantity_text import format_bytes


class Excess(NamedTuple):
    """A task that needs more memory than it has, in bytes."""

    task: str
    needs: int
    has: int


def memory_excess(
    memory: Mapping[str, int], network: Network | RankMapping, limit: int
) -> list[Excess]:
    """The tasks that exceed `limit` or the memory of a rank of a topology, by most first.

    `memory` has the bytes that each task needs. `limit` is `memory_limit` in bytes, 0 for none.
    """
    found = []
    for task, needs in memory.items():
        limits = [limit] if limit else []
        if isinstance(network, RankMapping):
            limits += [int(x) for x in _topology_bytes(network, task) if x < 1 << 62]
        if limits and needs > min(limits):
            found.append(Excess(task, needs, min(limits)))
    return sorted(found, key=lambda one: one.has - one.needs)


def excess_text(found: Iterable[Excess], is_searched: bool) -> str:
    """Lines that say which tasks do not fit; without a search, also how to find what would."""
    lines = [
        f"does not fit: {one.task} needs {one.needs:,} bytes ({format_bytes(one.needs)}), of "
        f"{one.has:,} that its rank may use: {one.needs - one.has:,} are missing"
        for one in found
    ]
    next_ = "  next  --search finds settings that fit, or says how many ranks or bytes would"
    return "\n".join(lines if is_searched else [*lines, next_])


def _topology_bytes(mapping: RankMapping, task: str) -> list[float]:
    """The memory of each rank that runs a task of the plan, in bytes."""
    memory = mapping.topology.memory
    if task in mapping.servers:
        return [memory[mapping.servers[task]]]
    number = parse_device(task).task or 0
    return [memory[replica[number]] for replica in mapping.replicas]
