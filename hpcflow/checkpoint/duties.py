"""Which rows each rank writes of what it has: replicas share what they all have."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from hpcflow.checkpoint.layout import Array, Slab, share
from hpcflow.runtime.context import Context


def duty_of(
    context: Context,
    rank: int,
    found: Sequence[Mapping[str, Any]],
    own: Container[str],
    replica: int,
    leads: bool,
) -> list[Slab]:
    """The rows that `rank`, which has `found`, writes.

    Servers write what they host, ranks of a replica its share of what all replicas have. What a
    replica has for itself (named in `own`) is written whole, as in parameter-server mode variables
    on workers: those of the replica that `leads`, the chief's.
    """
    some = [h for h in found if h["name"] not in own]
    shared: list[Slab] = []
    if rank in context.roles.servers:
        shared = [_all(h) for h in some if not h["copy"]]
    elif context.cluster.mode == "collective":
        arrays = [Array(h["name"], h["dtype"], tuple(h["shape"])) for h in some]
        shared = share(arrays, context.roles.replicas)[replica]
    elif leads:
        shared = [_all(h) for h in some]
    mine = [_all(h) for h in found if h["name"] in own]
    empty = {h["name"] for h in found if 0 in h["shape"]}
    return [slab for slab in (*shared, *mine) if slab.name not in empty]


def _all(held: Mapping[str, Any]) -> Slab:
    return Slab(held["name"], held["start"], held["stop"])
