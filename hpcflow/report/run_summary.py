"""Run summary: loads runs from their directories and groups them to scaling curves."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcflow.monitoring.failure_json import NAME as FAILURE
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report import run_comparison, run_outcome
from hpcflow.report.run_directory_reader import FileFacts, mean, rows_of
from hpcflow.report.scaling_points import ScalingPoint, scaling_points
from hpcflow.train.run_records import COLUMNS, MANIFEST, METRICS

RESULT = "result.json"
SERVERS = "/job:ps/"  # prefix of the servers' task names
SLOW = {"worker": int, "rank": int, "host": str, "factor": float}
DIRECTIONS = {"received": int, "sent": int}
TRAFFIC = {"servers": [{"task": str, "predicted": DIRECTIONS, "measured": DIRECTIONS}]}


@dataclasses.dataclass
class RunSummary:
    """One run; values that its files lack are empty or 0."""

    name: str
    mode: str = ""
    script: str = ""
    ranks: int = 0
    servers: int = 0  # included in ranks
    nodes: int = 0
    replicas: int = 0
    batch: int = 0  # the global batch
    rate: float = 0.0  # samples/s of all workers together
    seconds: float = 0.0
    seconds_to_first_step: float | None = None  # since the launch of the job
    input_wait: float | None = None  # seconds of waiting for input, mean of the workers
    waited: float | None = None  # seconds of waiting for other ranks in steps, mean of the workers
    stragglers: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    steps: int = 0
    state: str = run_outcome.UNREADABLE  # a word of run_outcome.py
    ended: str = ""  # details of the state in one line, if known
    options: dict[str, str] = dataclasses.field(default_factory=dict)  # it was started with
    results: dict[str, str] = dataclasses.field(default_factory=dict)  # of its script
    traffic: dict[str, Any] = dataclasses.field(default_factory=dict)  # of servers, per step
    rows: list[dict[str, float]] = dataclasses.field(default_factory=list)
    faults: list[str] = dataclasses.field(default_factory=list)  # unreadable files and values

    @property
    def is_readable(self) -> bool:
        """Whether at least one file describes the run."""
        return bool(self.rows or self.mode or self.ranks or self.script)

    @property
    def workers(self) -> int:
        """The ranks that compute gradients: all but the servers."""
        return max(self.ranks - self.servers, 0)

    @property
    def values(self) -> list[str]:
        """The names of the metrics, such as loss."""
        return list(dict.fromkeys(n for row in self.rows for n in row if n not in COLUMNS))

    @property
    def busy(self) -> float:
        """Seconds in which a worker waited neither for input nor for other ranks."""
        return max(0.0, self.seconds - (self.input_wait or 0.0) - (self.waited or 0.0))

    def curve(self, x: str, y: str) -> tuple[list[float], list[float]]:
        """Two columns, of the rows that have both."""
        pairs = [(row[x], row[y]) for row in self.rows if x in row and y in row]
        return [a for a, _ in pairs], [b for _, b in pairs]


def load(paths: Sequence[str], is_over: bool | None = None) -> list[RunSummary]:
    """The runs in these folders (or of these result.json), named by the differing path parts.

    `is_over` says whether they have ended; by default the locks of their folders tell. Errors of
    reading a folder are among the faults of its run.
    """
    folders = [Path(path) for path in paths]
    folders = [path.parent if os.path.isfile(path) else path for path in folders]
    names = [os.path.relpath(folder) for folder in folders]
    common = os.path.commonpath(names) if len(set(names)) > 1 else os.path.dirname(names[0])
    short = [os.path.relpath(name, common or ".") for name in names]
    return [
        _load(folder, escape_line(name), is_over)
        for folder, name in zip(folders, short, strict=True)
    ]


def _load(folder: Path, name: str, is_over: bool | None) -> RunSummary:
    faults: list[str] = []
    manifest, failure = (FileFacts(folder / file, faults) for file in (MANIFEST, FAILURE))
    result = FileFacts(folder / RESULT, faults)
    if manifest.is_there and not manifest.get("finished", bool, False):
        result = FileFacts.none()  # it belongs to an earlier run
    rows = rows_of(folder / METRICS, faults)
    if not (result.is_there or manifest.is_there or rows):
        if run_outcome.goes_on(folder, is_over):
            return RunSummary(name, state=run_outcome.RUNNING)  # it has only just started
        none = f"no run in {folder}: neither {RESULT} nor {MANIFEST} nor {METRICS}"
        return RunSummary(name, faults=faults or [none])
    rates = [row["samples_per_second"] for row in rows if "samples_per_second" in row]
    last = rows[-1] if rows else {}
    source = result if result.is_there else manifest
    roles = manifest.get("roles", [str], [])
    state, ended = run_outcome.outcome_of(folder, manifest, failure, result, is_over)
    run = RunSummary(
        name,
        mode=source.text("mode"),
        script=os.path.basename(manifest.text("script")),
        ranks=result.count("ranks") or len(roles),
        servers=result.count("servers") or sum(role.startswith(SERVERS) for role in roles),
        nodes=len(manifest.get("nodes", {}, {}) or set(result.get("hosts", [str], []))),
        replicas=result.count("replicas") or manifest.count("workers"),
        batch=manifest.count("batch"),
        rate=result.number("samples_per_second") or (statistics.median(rates) if rates else 0.0),
        seconds=result.number("seconds") or last.get("seconds", 0.0),
        seconds_to_first_step=source.get("seconds_to_first_step", float, None),
        input_wait=mean(result.get("input_wait_seconds", [float], [])),
        waited=mean(result.get("wait_seconds", [float], [])),
        stragglers=source.get("stragglers", [SLOW], []),
        steps=int(last.get("step", 0) or max(result.get("steps", [int], []), default=0)),
        traffic=result.get("traffic", TRAFFIC, {}),
        state=state,
        ended=ended,
        options=run_comparison.options(manifest),
        results=run_comparison.script_values(result),
        rows=rows,
        faults=faults,
    )
    if not run.is_readable:
        run.state, run.ended = run_outcome.UNREADABLE, ""
    return run


@dataclasses.dataclass
class ScalingCurve:
    """Runs that differ only in their workers: strong has equal global batches, weak per worker."""

    kind: str  # strong or weak
    description: str
    points: list[ScalingPoint]


def scalings(runs: Sequence[RunSummary]) -> list[ScalingCurve]:
    """The scaling curves among `runs`: those with at least two numbers of workers."""
    keys: dict[str, Callable[[RunSummary], float]] = {
        "strong": lambda run: run.batch,
        "weak": lambda run: run.batch / run.replicas,
    }
    usable = [run for run in runs if run.batch and run.replicas and run.rate and run.workers]
    curves = []
    for kind, batch in keys.items():
        for script, mode, size in dict.fromkeys((r.script, _mode(r), batch(r)) for r in usable):
            alike = [run for run in usable if run.script == script and batch(run) == size]
            if mode == "" and any(map(_mode, alike)):
                continue  # a single rank is a point of the other modes' curves
            mode_runs = [run for run in alike if _mode(run) == mode]
            if all(run.workers > 1 for run in mode_runs):
                mode_runs += [run for run in alike if _mode(run) == ""]
            points = _points(mode_runs)
            if len(points) > 1:
                per = "" if kind == "strong" else " a worker"
                title = f"{script or 'runs'}, {mode or 'single'}, batch {size:g}{per}"
                curves.append(ScalingCurve(kind, title, points))
    return curves


def _mode(run: RunSummary) -> str:
    """The mode of training; "" for one rank, which is the same in every mode."""
    return run.mode if run.ranks > 1 else ""


def _points(runs: Sequence[RunSummary]) -> list[ScalingPoint]:
    """The points of runs by their workers; servers are ranks, but no workers."""
    ranks: dict[int, int] = {}
    for run in runs:
        ranks[run.workers] = min(run.ranks, ranks.get(run.workers, run.ranks))
    rates: dict[tuple[int, int], list[float]] = {}
    firsts: dict[tuple[int, int], list[float]] = {}
    for run in runs:
        rates.setdefault((ranks[run.workers], run.workers), []).append(run.rate)
        if run.seconds_to_first_step is not None:
            firsts.setdefault((ranks[run.workers], run.workers), []).append(
                run.seconds_to_first_step
            )
    return scaling_points(rates, firsts)
