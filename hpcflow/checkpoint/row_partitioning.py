"""Row partitioning: which rows each rank writes; some replicas divide what all of them have."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Container, Sequence

from hpcflow.checkpoint.checkpoint_layout import HeldRows, Slab, assign_rows
from hpcflow.runtime.job.rank_context import RankContext


def rows_to_write(
    context: RankContext,
    rank: int,
    held_rows: Sequence[HeldRows],
    per_replica_names: Container[str],
    replica: int,
    leads: bool,
) -> list[Slab]:
    """The rows that `rank`, which has `held_rows`, writes.

    Servers write what they host. Among the replicas, each rank of `writers` writes a share of what
    all replicas have. The variables that each replica has for itself (`per_replica_names`) are
    written whole. In parameter-server mode, so are variables on workers, by the replica
    that `leads` (the chief's).
    """
    some = [h for h in held_rows if h.name not in per_replica_names]
    shared: list[Slab] = []
    if rank in context.roles.servers:
        shared = [h.slab for h in some if not h.copy]
    elif context.cluster.mode == "collective":
        shared = _shared_rows(context, rank, some, replica)
    elif leads:
        shared = [h.slab for h in some]
    own_slabs = [h.slab for h in held_rows if h.name in per_replica_names]
    empty = {h.name for h in held_rows if 0 in h.shape}
    return [slab for slab in (*shared, *own_slabs) if slab.name not in empty]


def _shared_rows(
    context: RankContext, rank: int, pieces: Sequence[HeldRows], replica: int
) -> list[Slab]:
    """The rows that `rank` writes of the variables that its task has on all replicas."""
    arrays = [h.array for h in pieces]
    roles, settings = context.roles, context.settings
    task = roles.workers.index(rank) % roles.tasks_per_replica
    chosen = choose_writers(
        [context.hosts[peer] for peer in roles.peers_of(task)],
        sum(array.nbytes for array in arrays),
        settings.part_bytes,
        settings.writers_per_node / roles.tasks_per_replica,
        task,
    )
    return assign_rows(arrays, len(chosen))[chosen.index(replica)] if replica in chosen else []


def choose_writers(
    hosts: Sequence[str], nbytes: int, part_bytes: int, per_node: float, first: int = 0
) -> list[int]:
    """The replicas that write `nbytes`, which all replicas on `hosts` have; at least one.

    Each writes `part_bytes` or more. The writers are spread evenly over the nodes, beginning with
    the node `first`, and are at most `per_node` times as many as the nodes.
    """
    most = max(1, int(per_node * len(set(hosts))))
    count = max(1, min(nbytes // part_bytes, most))
    return sorted(_round_robin_nodes(tuple(hosts), max(1, math.ceil(per_node)), first)[:count])


@functools.lru_cache(maxsize=8)
def _round_robin_nodes(hosts: tuple[str, ...], per_node: int, first: int) -> list[int]:
    """The replicas in turn by node, beginning with node `first`; at most `per_node` of a node."""
    numbers = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    host_counts: collections.Counter[str] = collections.Counter()
    turns = []
    for replica, host in enumerate(hosts):
        if host_counts[host] < per_node:
            turns.append((host_counts[host], (numbers[host] - first) % len(numbers), replica))
            host_counts[host] += 1
    return [replica for _, _, replica in sorted(turns)]
