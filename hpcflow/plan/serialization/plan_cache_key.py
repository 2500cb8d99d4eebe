"""The name of a plan among those that are kept: a digest of all that it follows from."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import text_of
from hpcflow.graph.graph import Graph
from hpcflow.plan.distribution.replica_lowering import as_planned
from hpcflow.plan.distribution.variable_placement import Home
from hpcflow.plan.ir.control_flow_nodes import within
from hpcflow.plan.ir.program import Cluster, Node, Program
from hpcflow.plan.serialization.plan_cache_format import data_of
from hpcflow.settings import Settings

LEAST_NODES = 32  # smaller plans are made as fast as they are loaded
MOST_BYTES = 1 << 16  # of constants, such as initial values of variables: files are small
PACKED = "sources.sha256"  # in a pack of hpcflow's modules: a digest of what it is made of
APART = {  # settings that no plan follows from: where things are written, how ranks wait and end
    *("run_dir", "log_files", "tensorboard", "trace", "kernel_cache", "plan_cache"),
    *("stall_s", "stall_abort_s", "crowded", "mtbf_h", "time_limit", "max_restarts", "requeue"),
    *("checkpoints", "stop_at", "save", "placement", "memory_limit", "profile"),
    *("cuda_graphs", "random_seed", "default_checkpoints", "part_bytes", "writers_per_node"),
}


def key(
    program: Program,
    graph: Graph,
    cluster: Cluster,
    settings: Settings,
    homes: Mapping[str, Home],
    replica: int,
    about: Callable[[], Any],
) -> str | None:
    """What the plan of `program` is called; None if it is not worth keeping, or cannot be.

    `about()` is what else it follows from: devices, libraries, versions. Its `repr` counts, and it
    is asked only if need be.
    """
    nodes = [*program.nodes.values(), *within(program.nodes)]
    if len(nodes) < LEAST_NODES or any(node.row.script for node in nodes):
        return None  # what an operation of the user's does may have changed
    if sum(map(_bytes, nodes)) > MOST_BYTES:
        return None
    share = [t.op.name for t in graph.get_collection("replica_share")]
    facts = [
        cluster,
        chosen(settings),
        sorted(homes.items()),
        as_planned(program, cluster, replica),
        about(),
    ]
    try:
        data = [data_of(program), share, list(_beside(program, graph)), repr(facts)]
    except TypeError:  # a function of the user's, or texts
        return None
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def chosen(settings: Settings) -> dict[str, Any]:
    """The settings that plans may follow from."""
    names = [field.name for field in dataclasses.fields(settings) if field.name not in APART]
    return {name: getattr(settings, name) for name in names}


def _bytes(node: Node) -> int:
    """Bytes of its constants."""
    return sum(value.nbytes for value in node.attrs.values() if isinstance(value, np.ndarray))


def _beside(program: Program, graph: Graph) -> Iterator[list[Any]]:
    """What passes ask the graph itself: of the nodes, and of those whose devices they share."""
    stack, seen = [*program.nodes], set(program.nodes)
    while stack:
        name = stack.pop()
        if name not in graph:
            continue
        op = graph.get_operation_by_name(name)
        specs = [[text_of(t.dtype), t.shape] for t in op.outputs]
        yield [name, op.type, op.device, sorted(op.colocate), specs]
        new = [mate for mate in op.colocate if mate not in seen]
        seen.update(new)
        stack += new


@functools.cache
def sources() -> str:
    """Tells one state of hpcflow's own files from others.

    A pack says it itself; of an installed one the first file does, which is as old as the others.
    In a checkout, where files are edited, all of them count.
    """
    top = Path(__file__).parents[2]
    if (top / PACKED).exists():
        return (top / PACKED).read_text()
    is_checkout = (top.parent / "pyproject.toml").exists()
    found = _stats(str(top)) if is_checkout else [(str(top), (top / "__init__.py").stat())]
    skip = len(str(top))  # a copy elsewhere is the same
    facts = sorted((path[skip:], stat.st_size, stat.st_mtime_ns) for path, stat in found)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _stats(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """All of Python's files below a folder: a few hundred, before each first step."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.path, entry.stat()
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _stats(entry.path)
