"""Gradient bucketing: merges allreduces into buckets and gives collectives one order."""

from __future__ import annotations

from collections.abc import Iterable

from hpcflow.graph.device_names import parse_device
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.plan.ir.program_rewriting import sorted_program, substitute_values
from hpcflow.settings import Settings

Key = tuple[str, str, int]  # device, dtype, depth


def bucket_gradients(program: Program, settings: Settings) -> Program:
    """Merge AllReduce nodes to about `bucket_bytes` and give each collective its `sequence`.

    A bucket holds allreduces of one device, dtype and depth (the number of collectives before them,
    so that no cycle can arise), in the order in which the graph creates their inputs. The result
    depends only on the graph, so every replica builds the same buckets for any feeds. Without
    `overlap`, one bucket holds all allreduces that can be merged.
    """
    program = _place_collectives(program, settings)
    sums = [n for n in program.nodes.values() if n.row.combines == "sum"]
    used_names = set(program.nodes)
    merged: list[Node] = []
    for group in _bucket_groups(sums, program, settings):
        merged.append(_merge_bucket(group, f"replicas/bucket_{len(merged)}", used_names))
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


def _bucket_groups(sums: list[Node], program: Program, settings: Settings) -> Iterable[list[Node]]:
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
        if settings.overlap and filled[key] >= settings.bucket_bytes:
            yield open_.pop(key)
            filled[key] = 0
    yield from open_.values()


def _merge_bucket(group: list[Node], name: str, used_names: set[str]) -> Node:
    while name in used_names:
        name += "_"
    inside = {n.name for n in group}
    control = dict.fromkeys(c for n in group for c in n.control if c not in inside)
    attrs = {
        "group": "replicas",
        "of": tuple(n.name for n in group),
        "depth": group[0].attrs["depth"],
        "available": max(n.attrs["available"] for n in group),
    }
    return Node(
        name,
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
