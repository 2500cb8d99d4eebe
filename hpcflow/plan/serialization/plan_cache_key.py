"""Plan cache key: a digest of all inputs that a plan depends on."""

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
from hpcflow.plan import user_passes
from hpcflow.plan.distribution.replica_lowering import representative_replica
from hpcflow.plan.distribution.variable_placement import VariablePlacement
from hpcflow.plan.ir.control_flow_nodes import nested_nodes
from hpcflow.plan.ir.program import Cluster, Node, Program
from hpcflow.plan.serialization.plan_cache_format import encode_value
from hpcflow.settings import Settings

LEAST_NODES = 32  # a smaller plan is computed as fast as it is loaded
MOST_BYTES = 1 << 16  # limit for constants, such as initial values, to keep files small
PACKED = "sources.sha256"  # file in a pack of hpcflow's modules: the digest of their sources
UNRELATED_SETTINGS = {  # settings that no plan depends on: output paths, how ranks wait and end
    *("run_dir", "log_files", "tensorboard", "trace", "kernel_cache", "plan_cache"),
    *("cost_cache", "topology"),  # the cluster has what the file says
    *("stall_s", "stall_abort_s", "crowded", "mtbf_h", "time_limit", "max_restarts", "requeue"),
    *("checkpoints", "stop_at", "save", "profile"),
    *(
        "pack",
        "pack_cache",
        "cuda_graphs",
        "random_seed",
        "default_checkpoints",
        "part_bytes",
        "writers_per_node",
    ),
}


def plan_cache_key(
    program: Program,
    graph: Graph,
    cluster: Cluster,
    settings: Settings,
    placements: Mapping[str, VariablePlacement],
    replica: int,
    about: Callable[[], Any],
) -> str | None:
    """Return the cache key of the plan of `program`; None if it is too small or not cacheable.

    `about()` returns the other inputs of the plan: devices, libraries, versions. Its `repr` is
    hashed. It is called only if needed.
    """
    nodes = [*program.nodes.values(), *nested_nodes(program.nodes)]
    if len(nodes) < LEAST_NODES or any(node.row.script for node in nodes):
        return None  # the user's Python function may have changed
    if sum(map(_constant_bytes, nodes)) > MOST_BYTES:
        return None
    passes = user_passes.digests()
    if passes is None:
        return None  # what a registered pass uses may have changed
    share = [t.op.name for t in graph.get_collection("replica_share")]
    facts = [
        cluster,
        planning_settings(settings),
        sorted(placements.items()),
        representative_replica(program, cluster, replica),
        about(),
        passes,
    ]
    try:
        data = [encode_value(program), share, list(_graph_facts(program, graph)), repr(facts)]
    except TypeError:  # a function of the user, or strings
        return None
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def planning_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that plans may depend on."""
    names = [
        field.name for field in dataclasses.fields(settings) if field.name not in UNRELATED_SETTINGS
    ]
    return {name: getattr(settings, name) for name in names}


def _constant_bytes(node: Node) -> int:
    """Return the bytes of a node's constants."""
    return sum(value.nbytes for value in node.attrs.values() if isinstance(value, np.ndarray))


def _graph_facts(program: Program, graph: Graph) -> Iterator[list[Any]]:
    """Yield what passes read from the graph: the nodes and those colocated with them."""
    stack, visited = [*program.nodes], set(program.nodes)
    while stack:
        name = stack.pop()
        if name not in graph:
            continue
        op = graph.get_operation_by_name(name)
        specs = [[text_of(t.dtype), t.shape] for t in op.outputs]
        yield [name, op.type, op.device, sorted(op.colocate), specs]
        new = [mate for mate in op.colocate if mate not in visited]
        visited.update(new)
        stack += new


@functools.cache
def source_fingerprint() -> str:
    """Return a string that identifies the state of hpcflow's own files; a pack contains it."""
    if os.environ.get("HPCFLOW_PACK_FILE"):
        from hpcflow.platform.pack_importer import active_importer

        importer = active_importer()
        if importer is not None:
            return importer.fingerprint
    return files_fingerprint()


def files_fingerprint() -> str:
    """Return the string for the files that are there now.

    For an installed package the stat of the first file counts, because all files have the same age.
    In a checkout, where files are edited, all files count.
    """
    top = Path(__file__).parents[2]
    if (top / PACKED).exists():
        return (top / PACKED).read_text()
    is_checkout = (top.parent / "pyproject.toml").exists()
    stats = file_stats(str(top)) if is_checkout else [(str(top), (top / "__init__.py").stat())]
    skip = len(str(top))  # a copy at another path is equal
    facts = sorted((path[skip:], stat.st_size, stat.st_mtime_ns) for path, stat in stats)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def file_stats(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and stat of all Python files below a folder.

    This is a few hundred files, before each first step.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry.path, entry.stat()
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from file_stats(entry.path)
