"""Splits of published, profiled graphs: the least greatest load, or the least latency.

    python benchmarks/placement.py split GRAPH.json --objective load --contiguous --seconds 10 \\
        --out SPLIT.json
    python benchmarks/placement.py check GRAPH.json SPLIT.json
    python benchmarks/placement.py all --graphs FOLDER --seconds 10 --out RESULT.json

The format is that of "Efficient Algorithms for Device Placement of DNN Graph Operators" (Tarnawski
et al., NeurIPS 2020). Nodes have `id`, `fpgaLatency` and `cpuLatency` in ms, `supportedOnFpga`,
`size` in bytes, `isBackwardNode` and `colorClass`: same class, same device. Edges have `sourceId`,
`destId` and `cost`, ms to move the output of the source. `maxFPGAs`, `maxCPUs` and `maxSizePerFPGA`
are the devices. A split is `{"fpgas": [{"nodes": [ids]}], "cpus": [...]}`.

The load of an accelerator is its compute time, plus
`cost` once for each of its nodes whose output is used elsewhere, plus `cost` once for each node
elsewhere whose output it uses; moving is free to a CPU.

`split` exits with 1 if it finds no split that fits. `check` prints `load_ms`, `latency_ms` (null if
not contiguous), `memory_ok`, `colocation_ok`, `supported_ok`, `devices_ok` and `contiguous`; it
exits with 1 if one of the four in the middle is false. Both exit with 2 on bad input. `check`
imports nothing of hpcflow. `all` splits each graph of a folder both ways, `--seconds` each, beside
the splits in its folder `experts` and the published optima that `--optimum` gives.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

if __name__ == "__main__":
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # the search is compared on one core

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESERVE = 0.15  # share of the time that is left for reading, checking and writing


class BadInputError(Exception):
    """A file is not what it should be."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of a graph file."""

    accelerator_ms: float  # infinity if it cannot run there
    cpu_ms: float
    size: float
    backward: bool
    color: object


@dataclasses.dataclass(frozen=True)
class Graph:
    """A graph file; `cost` is that of moving the output of a node."""

    nodes: dict[int, Node]
    edges: frozenset[tuple[int, int]]
    cost: dict[int, float]
    accelerators: int
    cpus: int
    memory: float


# -- files


def read(path: str) -> Any:
    try:
        return json.loads(pathlib.Path(path).read_text())
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{path}: is not JSON: {error}") from error


def number(row: Any, key: str, where: str) -> float:
    value = row.get(key) if isinstance(row, dict) else None
    # Greater numbers would be infinite in sums and powers.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e100:
        shown = f"{value!r:.40}"
        raise BadInputError(f"{where}: {key} must be a number from 0 to 1e100, is {shown}")
    return float(value)


def flag(row: Any, key: str, default: bool, where: str) -> bool:
    value = row.get(key, default)
    if not isinstance(value, int) or value not in (0, 1):
        raise BadInputError(f"{where}: {key} must be 0, 1, true or false, is {value!r}")
    return bool(value)


def color_class(row: Any, where: str) -> int | str | None:
    value = row.get("colorClass")
    if isinstance(value, bool) or not isinstance(value, (int, str, type(None))):
        raise BadInputError(f"{where}: colorClass must be a whole number or text, is {value!r}")
    return value


def positive(word: str) -> float:
    value = float(word)
    if not 0 < value < math.inf:
        raise ValueError
    return value


def whole(row: Any, key: str, where: str) -> int:
    value = number(row, key, where)
    if value != int(value):
        raise BadInputError(f"{where}: {key} must be a whole number, is {value!r}")
    return int(value)


def rows(content: Any, key: str, path: str) -> list[Any]:
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, list):
        raise BadInputError(f"{path}: has no list {key!r}")
    return found


def read_graph(path: str) -> Graph:
    """Read a graph. Errors: BadInputError with the file and the entry."""
    content = read(path)
    nodes: dict[int, Node] = {}
    for i, row in enumerate(rows(content, "nodes", path)):
        where = f"{path}: nodes[{i}]"
        name = whole(row, "id", where)
        if name in nodes:
            raise BadInputError(f"{where}: id {name} is given twice")
        supported = flag(row, "supportedOnFpga", True, where)
        nodes[name] = Node(
            number(row, "fpgaLatency", where) if supported else math.inf,
            number(row, "cpuLatency", where),
            number(row, "size", where),
            flag(row, "isBackwardNode", False, where),
            color_class(row, where),
        )
    edges: set[tuple[int, int]] = set()
    cost: dict[int, float] = {}
    for i, row in enumerate(rows(content, "edges", path)):
        where = f"{path}: edges[{i}]"
        ends = whole(row, "sourceId", where), whole(row, "destId", where)
        for end in ends:
            if end not in nodes:
                raise BadInputError(f"{where}: there is no node {end}")
        edges.add(ends)
        cost[ends[0]] = max(number(row, "cost", where), cost.get(ends[0], 0.0))
    limits = whole(content, "maxFPGAs", path), whole(content, "maxCPUs", path)
    graph = Graph(nodes, frozenset(edges), cost, *limits, number(content, "maxSizePerFPGA", path))
    if not nodes:
        raise BadInputError(f"{path}: has no nodes")
    if not sum(limits):
        raise BadInputError(f"{path}: has no devices")
    return graph


def read_split(path: str, graph: Graph) -> tuple[list[set[int]], list[set[int]]]:
    """Read the nodes of each accelerator and CPU. Errors: BadInputError if it is no partition."""
    content, seen = read(path), set()
    groups: dict[str, list[set[int]]] = {}
    for key in ("fpgas", "cpus"):
        groups[key] = []
        for i, row in enumerate(rows(content, key, path)):
            where = f"{path}: {key}[{i}]"
            ids = rows(row, "nodes", where)
            for name in ids:
                if isinstance(name, bool) or not isinstance(name, int) or name not in graph.nodes:
                    raise BadInputError(f"{where}: {name!r} is no node of the graph")
                if name in seen:
                    raise BadInputError(f"{where}: node {name} is on two devices, or twice on one")
                seen.add(name)
            groups[key].append(set(ids))
    missing = sorted(graph.nodes.keys() - seen)
    if missing:
        raise BadInputError(f"{path}: {len(missing)} nodes are on no device: {missing[:5]}")
    return groups["fpgas"], groups["cpus"]


# -- check: from the definitions, with nothing of hpcflow


def check(graph: Graph, accelerators: Sequence[set[int]], cpus: Sequence[set[int]]) -> dict:
    """Return the loads and which constraints hold."""
    users: dict[int, set[int]] = {name: set() for name in graph.nodes}
    for source, dest in graph.edges:
        users[source].add(dest)
    devices = [*accelerators, *cpus]
    loads = [accelerator_load(graph, users, part) for part in accelerators]
    loads += [sum(graph.nodes[name].cpu_ms for name in part) for part in cpus]
    sizes = [sum(graph.nodes[name].size for name in part) for part in accelerators]
    of_color: dict[object, set[int]] = {}
    for i, part in enumerate(devices):
        for name in part:
            color = graph.nodes[name].color
            if color is not None:
                of_color.setdefault(color, set()).add(i)
    load = max(loads, default=0.0)
    contiguous = all(is_contiguous(graph, users, part) for part in devices)
    return {
        "load_ms": load if math.isfinite(load) else None,
        "latency_ms": latency(users, devices, loads) if contiguous else None,
        "memory_ok": all(size <= graph.memory * (1 + 1e-12) for size in sizes),
        "colocation_ok": all(len(found) == 1 for found in of_color.values()),
        "supported_ok": math.isfinite(load),
        "devices_ok": count(accelerators) <= graph.accelerators and count(cpus) <= graph.cpus,
        "contiguous": contiguous,
    }


def count(parts: Iterable[set[int]]) -> int:
    return sum(bool(part) for part in parts)


def accelerator_load(graph: Graph, users: dict[int, set[int]], part: set[int]) -> float:
    load = sum(graph.nodes[name].accelerator_ms for name in part)
    for name, used_by in users.items():
        if used_by - part if name in part else used_by & part:
            load += graph.cost[name]
    return load


def is_contiguous(graph: Graph, users: dict[int, set[int]], part: set[int]) -> bool:
    """Whether no path leaves the part and comes back, forward and backward nodes each alone."""
    for backward in (False, True):
        own = {name for name in part if graph.nodes[name].backward == backward}
        outside: set[int] = set()
        todo = [name for inside in own for name in users[inside] - own]
        while todo:
            name = todo.pop()
            if name in own:
                return False
            if name not in outside:
                outside.add(name)
                todo += users[name]
    return True


def latency(
    users: dict[int, set[int]], devices: Sequence[set[int]], loads: Sequence[float]
) -> float | None:
    """Return when the last device ends if each runs its part at once; None if they cannot."""
    place = {name: i for i, part in enumerate(devices) for name in part}
    needs: dict[int, set[int]] = {i: set() for i in range(len(devices))}
    for source, used_by in users.items():
        for name in used_by:
            if place[name] != place[source]:
                needs[place[name]].add(place[source])
    ends: dict[int, float] = {}
    while len(ends) < len(devices):
        ready = [i for i in needs if i not in ends and needs[i] <= ends.keys()]
        if not ready:
            return None
        for i in ready:
            ends[i] = max((ends[j] for j in needs[i]), default=0.0) + loads[i]
    last = max(ends.values(), default=0.0)
    return last if math.isfinite(last) else None


# -- split: by hpcflow


def split_problem(graph: Graph) -> tuple[Any, list[list[int]]]:
    """Return the problem, whose blocks are the classes of nodes, and the nodes of each block."""
    import numpy as np

    from hpcflow.placement.pipeline_splits.split_problem import DeviceType, SplitProblem, Transfer

    blocks: dict[object, list[int]] = {}
    for name, node in graph.nodes.items():
        key = ("node", name) if node.color is None else ("color", node.color)
        blocks.setdefault(key, []).append(name)
    members = list(blocks.values())
    block_of = {name: i for i, names in enumerate(members) for name in names}
    used: dict[int, set[int]] = {}
    for source, dest in graph.edges:
        if block_of[source] != block_of[dest]:
            used.setdefault(source, set()).add(block_of[dest])

    def total(field: str) -> list[float]:
        return [sum(getattr(graph.nodes[n], field) for n in names) for names in members]

    problem = SplitProblem(
        (
            DeviceType("accelerator", min(graph.accelerators, len(members)), graph.memory),
            DeviceType("cpu", min(graph.cpus, len(members)), math.inf, 0.0),
        ),
        np.array([total("accelerator_ms"), total("cpu_ms")]),
        np.array(total("size")),
        order_of_blocks(graph, block_of, len(members)),
        tuple(
            Transfer(block_of[source], frozenset(consumers), graph.cost[source])
            for source, consumers in used.items()
        ),
    )
    return problem, members


def order_of_blocks(
    graph: Graph, block_of: dict[int, int], size: int
) -> tuple[frozenset[int], ...]:
    """Return the blocks before each: forward edges, and backward edges in the same or other way.

    Backward nodes run in the opposite order. Files have their edges in that order or as copies of
    the forward edges; the way that agrees with more forward edges is taken.
    """
    ways: dict[bool, set[tuple[int, int]]] = {False: set(), True: set()}
    for source, dest in graph.edges:
        backward = graph.nodes[source].backward
        if backward == graph.nodes[dest].backward and block_of[source] != block_of[dest]:
            ways[backward].add((block_of[source], block_of[dest]))
    reverse = {(dest, source) for source, dest in ways[True]}
    agrees = len(ways[False] & ways[True]) > len(ways[False] & reverse)
    before: list[set[int]] = [set() for _ in range(size)]
    for source, dest in ways[False] | (ways[True] if agrees else reverse):
        before[dest].add(source)
    return tuple(map(frozenset, before))


def search(graph: Graph, objective: str, contiguous: bool, seconds: float) -> dict | None:
    """Return a split in the file's format, and whether it is exact; None if none fits."""
    from hpcflow.placement.pipeline_splits.contiguous_split import contiguous_split
    from hpcflow.placement.pipeline_splits.order_cycles import without_cycles
    from hpcflow.placement.pipeline_splits.split_latency import latency_of, least_latency
    from hpcflow.placement.pipeline_splits.split_problem import Part
    from hpcflow.placement.pipeline_splits.split_search import (
        greedy_split,
        improve_within,
        improved_split,
    )

    end = time.monotonic() + seconds * (1 - RESERVE)
    problem, members = split_problem(graph)
    merged = without_cycles(problem)
    share = 1.0 if contiguous and objective == "load" else 0.5
    found = contiguous_split(merged.problem, seconds * (1 - RESERVE) * share)
    parts, exact = (found.parts, found.is_exact) if found else (None, False)
    left = end - time.monotonic()
    if objective == "latency":
        whole = frozenset(range(merged.problem.size))
        kinds = [k for k, device in enumerate(problem.devices) if device.count]
        starts = [[Part(kind, whole)] for kind in kinds] + ([list(parts)] if parts else [])
        best = min(starts, key=lambda start: latency_of(merged.problem, start))
        if math.isinf(latency_of(merged.problem, best)):
            return None
        improve = functools.partial(least_latency, merged.problem)
        parts = merged.expand(improve_within(left, improve, best))
    elif contiguous:
        parts = parts and merged.expand(parts)
    else:
        start = merged.expand(parts) if parts else greedy_split(problem)
        improve = functools.partial(improved_split, problem)
        parts = start and improve_within(left, improve, start)
    if not parts:
        return None
    nodes = [[n for block in sorted(part.blocks) for n in members[block]] for part in parts]
    groups = {"fpgas": 0, "cpus": 1}
    split: dict[str, Any] = {
        key: [
            {"nodes": names}
            for part, names in zip(parts, nodes, strict=True)
            if part.device_type == kind and names
        ]
        for key, kind in groups.items()
    }
    return {**split, "exact": exact and contiguous and objective == "load"}


def parts_of(split: dict) -> list[list[set[int]]]:
    return [[set(row["nodes"]) for row in split[key]] for key in ("fpgas", "cpus")]


# -- commands


def split_command(args: argparse.Namespace) -> int:
    graph = read_graph(args.graph)
    split = search(graph, args.objective, args.contiguous, args.seconds)
    if split is None:
        print(f"{args.graph}: no split was found that fits the devices", file=sys.stderr)
        return 1
    pathlib.Path(args.out).write_text(json.dumps(split) + "\n")
    print(json.dumps(check(graph, *parts_of(split)) | {"exact": split["exact"]}))
    return 0


def check_command(args: argparse.Namespace) -> int:
    graph = read_graph(args.graph)
    found = check(graph, *read_split(args.split, graph))
    print(json.dumps(found))
    keys = ("memory_ok", "colocation_ok", "supported_ok", "devices_ok")
    return 0 if all(found[key] for key in keys) else 1


def all_command(args: argparse.Namespace) -> int:
    """Split each graph of a folder both ways, beside the experts and the given optima."""
    import common

    folder = pathlib.Path(args.graphs)
    files = sorted(folder.glob("*.json"))
    if not files:
        raise BadInputError(f"{folder}: has no graphs (*.json)")
    match, checks = common.Tournament(), []
    optima = dict(optimum(word) for word in args.optimum)
    for file in files:
        graph, name = read_graph(str(file)), file.stem
        figures = {}
        for column in ("contiguous", "any"):
            begin = time.monotonic()
            split = search(graph, "load", column == "contiguous", args.seconds)
            if split is None:
                raise BadInputError(f"{file}: no split was found that fits its devices")
            figures[column] = check(graph, *parts_of(split))["load_ms"]
            match.add(name, column, figures[column])
            match.add(f"{name}: search", column, (time.monotonic() - begin) * 1e3)
        expert = folder / "experts" / f"{name}_expert.json"
        if expert.exists():
            figures["expert"] = check(graph, *read_split(str(expert), graph))["load_ms"]
            match.add(name, "expert", figures["expert"])
        if name in optima:
            least, rounding = optima[name]
            ratio, most = figures["contiguous"] / least, 1.000001 + rounding / least
            checks.append(common.check(f"{name}: by the optimum", ratio, at_most=most))
        if "expert" in figures:
            ratio = figures["contiguous"] / figures["expert"]
            checks.append(common.check(f"{name}: by the expert", ratio, at_most=1.0))
        ratio = figures["any"] / figures["contiguous"]
        checks.append(common.check(f"{name}: any split by contiguous", ratio, at_most=1.0))
    match.versions["here"] = common.versions(["numpy"])
    common.finish(match.record(checks, "ms", 1.0), args.out)
    return 0


def optimum(word: str) -> tuple[str, tuple[float, float]]:
    """The name of a graph, its optimum, and by how much the text may be rounded."""
    name, _, value = word.partition("=")
    try:
        rounding = 0.5 * 10.0 ** -len(value.partition(".")[2])
        return name, (float(value), rounding)
    except ValueError:
        raise BadInputError(f"--optimum {word}: must be GRAPH=MILLISECONDS") from None


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; 0, 1: infeasible, 2: bad input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    split = commands.add_parser("split", help="search a split")
    split.add_argument("graph")
    split.add_argument("--objective", choices=("load", "latency"), default="load")
    split.add_argument("--contiguous", action="store_true", help="parts that cuts separate")
    split.add_argument("--seconds", type=positive, default=10.0)
    split.add_argument("--out", required=True)
    split.set_defaults(command=split_command)
    checks = commands.add_parser("check", help="check a split, with nothing of hpcflow")
    checks.add_argument("graph")
    checks.add_argument("split")
    checks.set_defaults(command=check_command)
    every = commands.add_parser("all", help="measure all graphs of a folder")
    every.add_argument("--graphs", metavar="FOLDER", required=True)
    every.add_argument("--seconds", type=positive, default=10.0)
    every.add_argument("--optimum", action="append", default=[], metavar="GRAPH=MS")
    every.add_argument("--out", required=True)
    every.set_defaults(command=all_command)
    args = parser.parse_args(words)
    try:
        return args.command(args)
    except (BadInputError, OSError) as error:
        print(f"placement.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.path.append(str(ROOT))
    sys.exit(main())
