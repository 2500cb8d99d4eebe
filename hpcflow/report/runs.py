"""Runs as their directories tell them, and which of them make a scaling curve."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError
from hpcflow.train.runlog import COLUMNS, MANIFEST, METRICS, read_rows

RESULT = "result.json"
SHORTEST_S = 0.01  # a rate over less is noise: the last step of a run may follow at once


@dataclasses.dataclass
class Run:
    """One run; what its files do not tell is empty or 0."""

    name: str
    mode: str = ""
    script: str = ""
    ranks: int = 0
    nodes: int = 0
    workers: int = 0
    batch: int = 0  # joined
    rate: float = 0.0  # samples a second, all workers together
    seconds: float = 0.0
    input_wait: float | None = None  # seconds of those, the mean of the workers
    waited: float | None = None  # the same for other ranks, in steps
    stragglers: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    steps: int = 0
    finished: bool = False
    traffic: dict[str, Any] = dataclasses.field(default_factory=dict)  # of servers, in a step
    rows: list[dict[str, float]] = dataclasses.field(default_factory=list)

    @property
    def values(self) -> list[str]:
        """The names of what was measured, e.g. loss."""
        return list(dict.fromkeys(n for row in self.rows for n in row if n not in COLUMNS))

    @property
    def busy(self) -> float:
        """Seconds in which a worker waited neither for input nor for other ranks."""
        return max(0.0, self.seconds - (self.input_wait or 0.0) - (self.waited or 0.0))

    def curve(self, x: str, y: str) -> tuple[list[float], list[float]]:
        """Two columns, where both are there."""
        pairs = [(row[x], row[y]) for row in self.rows if x in row and y in row]
        return [a for a, _ in pairs], [b for _, b in pairs]


def load(paths: Sequence[str]) -> list[Run]:
    """The runs in these folders (or of these result.json), named by what differs in their paths.

    Errors: HpcflowError for a folder in which no run has written anything.
    """
    folders = [Path(path) for path in paths]
    folders = [path.parent if path.is_file() else path for path in folders]
    names = [os.path.relpath(folder) for folder in folders]
    common = os.path.commonpath(names) if len(set(names)) > 1 else os.path.dirname(names[0])
    short = [os.path.relpath(name, common or ".") for name in names]
    return [_load(folder, name) for folder, name in zip(folders, short, strict=True)]


def _load(folder: Path, name: str) -> Run:
    result, manifest = _json(folder / RESULT), _json(folder / MANIFEST)
    rows = _rows(folder / METRICS)
    if not (result or manifest or rows):
        raise HpcflowError(
            f"no run in {folder}: neither {RESULT} nor {MANIFEST} nor {METRICS}",
            hint="start it with `hpcflow run --run-dir DIR ...` and give DIR",
        )
    nodes = manifest.get("nodes") or {host: [] for host in result.get("hosts", [])}
    waits, waited = (result.get(f"{kind}wait_seconds") or [] for kind in ("input_", ""))
    rates = [row["samples_per_second"] for row in rows if "samples_per_second" in row]
    return Run(
        name,
        mode=result.get("mode", manifest.get("mode", "")),
        script=os.path.basename(manifest.get("script") or ""),
        ranks=result.get("ranks", len(manifest.get("roles", []))),
        nodes=len(nodes),
        workers=result.get("replicas", manifest.get("workers", 0)),
        batch=manifest.get("batch", 0),
        rate=result.get("samples_per_second", statistics.median(rates) if rates else 0.0),
        seconds=result.get("seconds", rows[-1].get("seconds", 0.0) if rows else 0.0),
        input_wait=statistics.mean(waits) if waits else None,
        waited=statistics.mean(waited) if waited else None,
        stragglers=result.get("stragglers", manifest.get("stragglers", [])),
        steps=int(rows[-1].get("step", 0)) if rows else max(result.get("steps", [0])),
        traffic=result.get("traffic", {}),
        finished=bool(manifest.get("finished", bool(result))),
        rows=rows,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise HpcflowError(f"{path} cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _rows(path: Path) -> list[dict[str, float]]:
    """The rows as numbers; steps that a resumed run did again are those of the last time."""
    try:
        found = read_rows(path)
    except FileNotFoundError:
        return []
    kept: list[dict[str, float]] = []
    for words in found:
        try:
            row = {name: float(text) for name, text in words.items() if text != ""}
        except ValueError:
            continue  # cut short when the run was killed
        while kept and kept[-1].get("step", 0) >= row.get("step", 0):
            kept.pop()
        if kept and 0 <= row.get("seconds", 0) - kept[-1].get("seconds", 0) < SHORTEST_S:
            row.pop("samples_per_second", None)
        kept.append(row)
    return kept


@dataclasses.dataclass
class Point:
    """One number of ranks: samples a second, against the fewest ranks."""

    ranks: int
    rate: float
    speedup: float
    efficiency: float
    runs: int


@dataclasses.dataclass
class Scaling:
    """Runs that differ in their ranks alone: the joined batch is the same, or that of a worker."""

    kind: str  # strong or weak
    what: str
    points: list[Point]


def scalings(runs: Sequence[Run]) -> list[Scaling]:
    """The curves among `runs`: those with two or more numbers of ranks."""
    keys: dict[str, Callable[[Run], float]] = {
        "strong": lambda run: run.batch,
        "weak": lambda run: run.batch / run.workers,
    }
    usable = [run for run in runs if run.batch and run.workers and run.rate and run.ranks]
    found = []
    for kind, batch in keys.items():
        for script, mode, size in dict.fromkeys((r.script, _mode(r), batch(r)) for r in usable):
            mine = [
                run
                for run in usable
                if run.script == script and batch(run) == size and _mode(run) in (mode, "")
            ]
            if mode == "" and any(_mode(run) for run in usable if batch(run) == size):
                continue  # a single rank is the beginning of the other modes' curves
            points = _points(mine)
            if len(points) > 1:
                per = "" if kind == "strong" else " a worker"
                what = f"{script or 'runs'}, {mode or 'single'}, batch {size:g}{per}"
                found.append(Scaling(kind, what, points))
    return found


def _mode(run: Run) -> str:
    """How it trained; "" for one rank, which is the same in every mode."""
    return run.mode if run.ranks > 1 else ""


def _points(runs: Sequence[Run]) -> list[Point]:
    rates: dict[int, list[float]] = {}
    for run in runs:
        rates.setdefault(run.ranks, []).append(run.rate)
    points: list[Point] = []
    for ranks in sorted(rates):
        rate = statistics.median(rates[ranks])
        first = points[0] if points else Point(ranks, rate, 1.0, 1.0, 1)
        speedup = rate / first.rate
        efficiency = speedup * first.ranks / ranks
        points.append(Point(ranks, rate, speedup, efficiency, len(rates[ranks])))
    return points
