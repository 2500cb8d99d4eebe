"""Gradient bucketing: merges allreduces into buckets and gives collectives one order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hpcflow.graph.device_names import parse_device
from hpcflow.plan.ir.program import Cluster, Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import new_name, sorted_program, substitute_values
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.settings import Settings

BUCKET_BYTES = 1 << 20  # without a setting or a topology
Key = tuple[str, str, int]  # device, dtype, depth


def bucket_gradients(
    program: Program, settings: Settings, cluster: Cluster, reasons: dict[str, str]
) -> Program:
    """Merge AllReduce nodes to about `bucket_bytes` and give each collective its `sequence`.

    A bucket holds allreduces of one device, dtype and depth (the number of collectives before them,
    so that no cycle can arise), in the order in which the graph creates their inputs. The result
    depends only on the graph and the network of the workers, so every replica builds the same
    buckets for any feeds. Without `overlap`, one bucket holds all allreduces that can be merged.
    The reason of a size that was chosen is added to `reasons`.
    """
    program = _place_collectives(program, settings)
    sums = [n for n in program.nodes.values() if n.row.combines == "sum"]
    used_names = set(program.nodes)
    merged: list[Node] = []
    size, reason = _bucket_bytes(sums, settings, cluster)
    for group in _bucket_groups(sums, program, size if settings.overlap else math.inf):
        merged.append(_merge_bucket(group, f"replicas/bucket_{len(merged)}", used_names))
        if reason and settings.overlap:
            reasons[merged[-1].name] = reason
    values = {
        ref: Ref(node.name, i)
        for node in merged
        for i, ref in enumerate(Ref(name) for name in node.attrs["of"])
    }
    order = {name: (node.name,) for node in merged for name in node.attrs["of"]}
    grown = program.but(nodes=program.nodes | {node.name: node for node in merged})
    return sorted_program(_number_collectives(substitute_values(grown, values, order)))


def _place_collectives(program: Program, settings: Settings) -> Program:
    """Place collectives on their task's CPU, except allreduces on GPUs that NCCL runs."""
    nodes = dict(program.nodes)
    for node in nodes.values():
        device = parse_device(node.device)
        by_nccl = device.kind == "gpu" and settings.comm in ("auto", "nccl")
        if node.row.collective and not (by_nccl and node.row.combines == "sum"):
            nodes[node.name] = node.but(device=f"{device.host}/cpu:0")
    return program.but(nodes=nodes)


def _bucket_bytes(sums: Sequence[Node], settings: Settings, cluster: Cluster) -> tuple[int, str]:
    """The bytes of a bucket, and the reason if they were chosen for the network."""
    total = sum(max(0, node.attrs["static"]) for node in sums)
    network = cluster.network
    if settings.bucket_bytes or network is None or cluster.replicas < 2 or not total:
        return settings.bucket_bytes or BUCKET_BYTES, ""
    from hpcflow.placement.bucket_size import best_bucket_bytes

    local = max(1, network.ranks_per_node // cluster.tasks_per_replica)
    size = best_bucket_bytes(network, cluster.replicas, local, total)
    latency, seconds = (
        network.allreduce_times(n, cluster.replicas, local).alone for n in (0, size)
    )
    return size, (
        f"buckets of {size:,} bytes for {total:,} bytes of gradients, by the topology: an "
        f"allreduce takes {format_seconds(latency)} without data and {format_seconds(seconds)} "
        "with it (setting bucket_bytes=0)"
    )


def _bucket_groups(sums: list[Node], program: Program, most: float) -> Iterable[list[Node]]:
    """The allreduces of each bucket, which is closed when it has `most` bytes."""
    open_: dict[Key, list[Node]] = {}
    filled: dict[Key, int] = {}
    for node in sorted(sums, key=lambda n: (n.attrs["depth"], n.attrs["available"], n.name)):
        size = node.attrs["static"]
        if size < 0:  # its size depends on feeds: it gets a bucket of its own
            yield [node]
            continue
        key = (node.device, program.spec(node.inputs[0]).dtype.str, node.attrs["depth"])
        open_.setdefault(key, []).append(node)
        filled[key] = filled.get(key, 0) + size
        if filled[key] >= most:
            yield open_.pop(key)
            filled[key] = 0
    yield from open_.values()


def _merge_bucket(group: list[Node], name: str, used_names: set[str]) -> Node:
    inside = {n.name for n in group}
    control = dict.fromkeys(c for n in group for c in n.control if c not in inside)
    attrs = {
        "group": "replicas",
        "of": tuple(n.name for n in group),
        "depth": group[0].attrs["depth"],
        "available": max(n.attrs["available"] for n in group),
    }
    return Node(
        new_name(name, used_names),
        "AllReduce",
        tuple(n.inputs[0] for n in group),
        tuple(control),
        attrs,
        tuple(n.specs[0] for n in group),
        group[0].device,
        line=group[0].line,
    )


def _number_collectives(program: Program) -> Program:
    collectives = [n for n in program.nodes.values() if n.row.collective]
    collectives.sort(key=lambda n: (n.attrs["depth"], n.attrs["available"], n.name))
    helpers = ("depth", "available", "static")
    nodes = dict(program.nodes)
    for sequence, node in enumerate(collectives):
        attrs = {k: v for k, v in node.attrs.items() if k not in helpers}
        nodes[node.name] = node.but(attrs=attrs | {"sequence": sequence})
    return program.but(nodes=nodes)
