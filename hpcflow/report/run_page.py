"""Page of runs: one self-contained HTML file, for a browser without a network.

It shows what the files in the run directories tell; the page of a running job is of the moment when
it was written. Charts are SVG; the script of the page zooms and smooths them. Texts of files are
escaped. `redacted` pages have no hosts, users, paths, commands and logs.
"""

from __future__ import annotations

import datetime
import math
import os
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import HpcflowError
from hpcflow.monitoring.failure_json import NAME as FAILURE
from hpcflow.platform.record_files import open_plain, read_json_object
from hpcflow.platform.terminal_escaping import escape_text
from hpcflow.report import run_outcome
from hpcflow.report.html_elements import Html, element, joined, table
from hpcflow.report.page_charts import Series, bar_chart, line_chart
from hpcflow.report.run_comparison import all_names, differing
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.report.run_limits import Limit, limits
from hpcflow.report.run_summary import RESULT, RunSummary, ScalingCurve, load, scalings
from hpcflow.report.run_tables import duration, traffic_table
from hpcflow.report.wait_heat_map import HeatMap, heat_map, png_uri
from hpcflow.train.run_records import MANIFEST, PACES, read_rows

ASSETS = Path(__file__).parent
LOG_BYTES, LOG_LINES = 64 << 10, 40  # of the log of a rank that failed
MOST_OPERATIONS = 10
PACE_COLUMNS = ("seconds", "step", "worker", "work", "wait")
MOST_VALUE, MOST_WORKERS = 1e15, 1 << 16  # of paces.csv: more is damage
MOST_BARS = 64  # workers in a chart of bars
REFRESH_S = 10  # of the page of a running job
HIDDEN = "(hidden)"
BAD_STATES = (run_outcome.DIED, run_outcome.FAILED, run_outcome.STALLED, run_outcome.UNREADABLE)


class Page(NamedTuple):
    """A page and its figures as plain data."""

    text: str
    figures: dict[str, Any]


def page_of(
    folders: Sequence[str | Path],
    redacted: bool = False,
    refresh: bool = False,
    is_over: bool | None = None,
) -> Page:
    """The page of some runs.

    With `refresh` a browser reads the page again every ten seconds, while a run goes on. `is_over`
    says whether the runs have ended, if this process is one of theirs; else their locks tell.
    Errors: HpcflowError if no folder has a run.
    """
    views = views_of(folders, redacted, is_over)
    curves = scalings([view.run for view in views])
    return Page(page(views, curves, refresh), page_data(views, curves))


def views_of(
    folders: Sequence[str | Path], redacted: bool = False, is_over: bool | None = None
) -> list[RunView]:
    """What a page shows of each run. Errors: HpcflowError if no folder has a run."""
    runs = load([str(folder) for folder in folders], is_over)
    if not any(run.is_readable for run in runs):
        raise HpcflowError(
            "\n".join(fault for run in runs for fault in run.faults) or "there is no run",
            hint="start it with `hpcflow run --run-dir DIR ...` and give DIR",
        )
    return [
        RunView(Path(folder), run, redacted, i + 1)
        for i, (folder, run) in enumerate(zip(folders, runs, strict=True))
    ]


class RunView:
    """What a page shows of one run."""

    def __init__(self, folder: Path, run: RunSummary, redacted: bool, number: int = 1) -> None:
        self.number = number
        folder = folder.parent if folder.is_file() else folder
        self.folder, self.run, self.redacted = folder, run, redacted
        faults: list[str] = []
        self.manifest = FileFacts(folder / MANIFEST, faults)
        is_old = self.manifest.is_there and not self.manifest.get("finished", bool, False)
        self.result = FileFacts.none() if is_old else FileFacts(folder / RESULT, faults)
        self.failure = FileFacts(folder / FAILURE, faults)
        self.paces = rows_of_paces(folder / PACES)
        self.map: HeatMap | None = heat_map(self.paces)

    @property
    def name(self) -> str:
        """The name of the run in the page."""
        return self.run.name if not self.redacted else f"run {self.number}"

    def told(self, text: str) -> str:
        """A text that names hosts, users or paths; hidden in a redacted page."""
        return HIDDEN if self.redacted and text else text

    @property
    def results(self) -> dict[str, str]:
        """What the script added to its result; in a redacted page only numbers."""
        results = self.run.results
        return {k: v for k, v in results.items() if not self.redacted or _is_number(v)}

    @property
    def workers(self) -> list[str]:
        """The names of the workers: number, rank and host."""
        roles = self.manifest.get("roles", [str], [])
        hosts = self.result.get("hosts", [str], [])
        ranks = [rank for rank, role in enumerate(roles) if "/worker" in role]
        settings = self.manifest.get("settings", {}, {})
        told = str(self.result.get("tasks_per_replica", int, settings.get("tasks_per_replica", 1)))
        span = max(1, int(told)) if told.isdigit() and len(told) < 6 else 1
        names = []
        for worker in range(min(max(self.run.replicas, 1), max(len(roles), len(hosts), 1))):
            rank = ranks[worker * span] if worker * span < len(ranks) else worker
            host = hosts[rank] if rank < len(hosts) else ""
            where = f" on {host}" if host and not self.redacted else ""
            names.append(f"worker {worker} (rank {rank}{where})")
        return names

    @property
    def inputs(self) -> list[float]:
        """Seconds that each worker waited for input."""
        return list(map(float, self.result.get("input_wait_seconds", [float], [])))

    @property
    def work(self) -> list[float]:
        """Seconds of own work in the steps of each worker."""
        return self._per_worker("work_seconds", "work")

    @property
    def waits(self) -> list[float]:
        """Seconds that each worker waited for others."""
        return self._per_worker("wait_seconds", "wait")

    def _per_worker(self, field: str, column: str) -> list[float]:
        told = list(map(float, self.result.get(field, [float], [])))
        if told or not self.paces:
            return told
        workers = int(max(row["worker"] for row in self.paces)) + 1
        totals, last = [0.0] * workers, [0.0] * workers
        for row in self.paces:  # a row has the means of a worker's last steps
            worker = int(row["worker"])
            totals[worker] += row[column] * max(0.0, row["step"] - last[worker])
            last[worker] = row["step"]
        return totals

    @property
    def limits(self) -> list[Limit]:
        """What limits the run."""
        saves = self.result.get("saves", {}, {})
        servers = [
            role for role in self.manifest.get("roles", [str], []) if role.startswith("/job:ps/")
        ]
        return limits(
            self.run.seconds, self.inputs, self.work, self.waits, self.workers, saves, servers
        )


def rows_of_paces(path: Path) -> list[dict[str, float]]:
    """The rows of paces.csv since the last start; [] if there are none."""
    rows: list[dict[str, float]] = []
    try:
        for words in read_rows(path):
            try:
                row = {name: float(text) for name, text in words.items() if text != ""}
            except ValueError:
                continue
            if not all(0 <= row.get(name, -1.0) < MOST_VALUE for name in PACE_COLUMNS):
                continue
            if row["worker"] != int(row["worker"]) or row["worker"] >= MOST_WORKERS:
                continue
            if rows and row["seconds"] < rows[-1]["seconds"]:
                rows.clear()  # a later start
            rows.append(row)
    except HpcflowError:
        return []
    return rows


def page_data(views: Sequence[RunView], curves: Sequence[ScalingCurve]) -> dict[str, Any]:
    """The figures of a page, as plain data."""
    return {
        "format": "hpcflow-report-1",
        "runs": [
            {
                "name": view.name,
                "state": view.run.state,
                "mode": view.run.mode,
                "ranks": view.run.ranks,
                "workers": view.run.workers,
                "servers": view.run.servers,
                "batch": view.run.batch,
                "steps": view.run.steps,
                "seconds": view.run.seconds,
                "samples_per_second": view.run.rate,
                "results": view.results,
                "last": {
                    name: _finite(view.run.curve("step", name)[1][-1])
                    for name in view.run.values
                    if view.run.curve("step", name)[1]
                },
                "limits": [one._asdict() for one in view.limits],
                "faults": [view.told(fault) for fault in view.run.faults],
            }
            for view in views
        ],
        "scaling": [
            {
                "kind": curve.kind,
                "description": curve.description,
                "points": [vars(point) for point in curve.points],
            }
            for curve in curves
        ],
    }


def page(views: Sequence[RunView], curves: Sequence[ScalingCurve], refresh: bool = False) -> str:
    """The page as a text."""
    title = "hpcflow: " + ", ".join(view.name for view in views[:3])
    goes_on = refresh and any(view.run.state == run_outcome.RUNNING for view in views)
    sections: list[Html | None] = []
    if len(views) == 1:
        sections += _one_run(views[0])
    else:
        sections += _several_runs(views)
    sections.append(_scaling(curves))
    if len(views) > 1:
        sections += [
            element("details", element("summary", view.name), *_one_run(view)) for view in views
        ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="refresh", content=str(REFRESH_S)) if goes_on else None,
        element("title", title),
        Html(f"<style>{(ASSETS / 'page.css').read_text(encoding='utf-8')}</style>"),
    )
    written = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    body = element(
        "body",
        element("main", element("h1", title), *sections),
        element("footer", f"written {written}; drag in a chart to zoom, double click to go back"),
        Html(f"<script>{(ASSETS / 'page.js').read_text(encoding='utf-8')}</script>"),
    )
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"


# -- one run


def _one_run(view: RunView) -> list[Html | None]:
    return [
        _facts(view),
        _limits(view),
        _curves([view]),
        _heat(view),
        _seconds(view),
        _memory(view),
        _operations(view),
        _traffic(view),
        _events(view),
        _failed(view),
        _origin(view),
    ]


def _facts(view: RunView) -> Html:
    run, manifest = view.run, view.manifest
    bad = " bad" if run.state in BAD_STATES else ""
    places = f"{run.ranks} ranks" + (f" on {run.nodes} nodes" if run.nodes > 1 else "")
    if run.servers:
        places += f", {run.servers} servers"
    git = manifest.get("git", {}, {})
    facts: list[tuple[str, Any]] = [
        ("script", view.told(run.script) or "-"),
        ("state", element("b", run.state, class_="state" + bad)),
        ("mode", f"{run.mode or '-'}, {places}"),
        ("steps", f"{run.steps:,}"),
        ("time", duration(run.seconds)),
        ("samples/s", f"{run.rate:,.0f}" if run.rate else "-"),
        ("global batch", f"{run.batch:,}" if run.batch else "-"),
    ]
    if git:
        facts.append(
            ("commit", f"{str(git.get('commit'))[:10]}{'*' if git.get('changed') else ''}")
        )
    if run.state == run_outcome.RUNNING and manifest.text("start"):
        facts.append(("started", manifest.text("start")))
    facts += [(name, value) for name, value in view.results.items()]
    items = [
        element(
            "li", element("span", name), value if isinstance(value, Html) else element("b", value)
        )
        for name, value in facts
    ]
    parts: list[Html | None] = [element("ul", *items, class_="facts")]
    if run.ended:
        parts.append(element("p", view.told(run.ended), class_="state" + bad))
    parts += [element("p", view.told(fault), class_="bad") for fault in run.faults]
    return joined(parts)


def _limits(view: RunView) -> Html | None:
    """What the seconds of the run were lost to."""
    found = view.limits
    if not view.run.seconds or not (view.waits or view.inputs):
        return None
    own = [w - i for w, i in zip(view.work, view.inputs or [0.0] * len(view.work), strict=False)]
    lost = sum(one.seconds for one in found)
    computing = statistics.median(own) if own else max(0.0, view.run.seconds - lost)
    items = [
        element("li", element("b", f"{one.resource}: "), one.text, element("br"),
                element("span", one.remedy, class_="remedy"))
        for one in found
    ]  # fmt: skip
    share = computing / view.run.seconds
    items.append(
        element("li", element("b", "computing: "), f"{computing:.3g} s ({share:.0%}), see the "
                "operations below or `hpcflow run --profile`")
    )  # fmt: skip
    return joined([element("h2", "What the time went to"), element("ul", *items, class_="limits")])


def _curves(views: Sequence[RunView]) -> Html | None:
    """A chart for each metric and its validation, and one of the rate."""
    names = all_names([dict.fromkeys(view.run.values, "") for view in views])
    charts = []
    for name in (name for name in names if not name.startswith("val_") or name[4:] not in names):
        series = []
        for view in views:
            for column in (name, f"val_{name}"):
                xs, ys = view.run.curve("step", column)
                label = column if len(views) == 1 else f"{view.name}: {column}"
                few = len(xs) < 30
                series.append(Series(label, xs, ys, marked=few, dashed=column != name))
        charts.append(line_chart(name, [one for one in series if one.xs], "steps", name))
    rates = [Series(view.name, *view.run.curve("seconds", "samples_per_second")) for view in views]
    charts.append(line_chart("samples per second", rates, "seconds", "samples/s"))
    charts = [chart for chart in charts if chart]
    if not charts:
        return None
    slider = element(
        "label",
        "smoothing ",
        element("input", type="range", id="smooth", min="0", max="99", value="0"),
    )
    return joined([element("h2", "Curves"), slider, element("div", *charts, class_="grid")])


def _heat(view: RunView) -> Html | None:
    """Workers by time: who waited, and who was waited for."""
    found = view.map
    if found is None or len(found.waiting) < 2:
        return None
    workers = round(len(found.waiting) * found.workers_in_a_row)
    if np.isnan(found.waiting).all(axis=1).any():
        return None  # workers without work and waiting
    shares = np.nanmean(found.waiting, axis=1)
    least, most = int(np.nanargmin(shares)), int(np.nanargmax(shares))
    each = found.workers_in_a_row
    said = (
        f"waiting for others: from {shares[least]:.0%} of its time (worker {least * each:.0f}) to "
        f"{shares[most]:.0%} (worker {most * each:.0f})"
    )
    image = element("img", src=png_uri(found.waiting), alt=said, class_="heat")
    axis = element("div", element("span", "worker 0"), element("span", f"{workers - 1}"),
                   class_="heat-axis")  # fmt: skip
    times = element("div", element("span", "0 s"), element("span", duration(found.seconds)),
                    class_="heat-time")  # fmt: skip
    scale = element("p", "no waiting ", element("span", class_="scale"), " waiting only; a pale "
                    "row among dark ones is a worker that the others waited for")  # fmt: skip
    figure = element(
        "figure",
        element("figcaption", said),
        element("div", axis, image, class_="heat-row"),
        times,
        scale,
    )
    return joined([element("h2", "Own work and waiting, by worker and time"), figure])


def _seconds(view: RunView) -> Html | None:
    """Where the seconds of each worker went."""
    work, waits, inputs = view.work, view.waits, view.inputs
    if not work or len(waits) != len(work):
        return None
    inputs = inputs if len(inputs) == len(work) else [0.0] * len(work)
    rows = [
        (name, [max(own - fed, 0.0), fed, waited])
        for name, own, fed, waited in zip(view.workers, work, inputs, waits, strict=False)
    ]
    kinds = ["own work", "waiting for input", "waiting for ranks"]
    left_out = f", the first {MOST_BARS} of {len(rows)} workers" if len(rows) > MOST_BARS else ""
    chart = bar_chart(f"seconds of each worker{left_out}", rows[:MOST_BARS], kinds)
    return joined([element("h2", "Seconds by worker"), chart]) if chart else None


def _memory(view: RunView) -> Html | None:
    """Predicted and measured bytes of each rank."""
    reports = view.result.get("memory", [{}], [])
    rows = []
    for rank, report in enumerate(reports):
        predicted, peak = report.get("predicted"), report.get("peak")
        if not isinstance(peak, dict):
            continue
        measured = sum(v for v in peak.values() if isinstance(v, (int, float)))
        if isinstance(predicted, dict):
            predicted = sum(v for v in predicted.values() if isinstance(v, (int, float)))
        if isinstance(predicted, (int, float)):
            rows.append([f"rank {rank}", _size(predicted), _size(measured)])
    if not rows:
        return None
    shown = table(["rank", "predicted", "measured peak"], rows[:MOST_BARS], "memory on devices")
    return joined([element("h2", "Memory"), shown])


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:,.3g} {unit}"
        nbytes /= 1024
    return f"{nbytes:,.4g} TiB"


def _operations(view: RunView) -> Html | None:
    """The operations that take most, with the share of the machine's peak that they reach."""
    profile = _json(view.folder / "profile.json")
    ranks = profile.get("ranks")
    if not isinstance(ranks, list) or not ranks or not isinstance(ranks[0], dict):
        return None
    rows: list[list[str]] = []
    operations = ranks[0].get("ops")
    for one in operations if isinstance(operations, list) else ():
        if isinstance(one, dict) and one.get("kind") == "kernels" and len(rows) < MOST_OPERATIONS:
            calls = max(_number(one.get("calls")), 1.0)
            rows.append([
                str(one.get("name", ""))[:60],
                str(one.get("title") or one.get("type", ""))[:60],
                f"{_number(one.get('share')):.1%}",
                f"{_number(one.get('seconds')) / calls * 1e6:,.1f}",
                f"{_number(one.get('gflops')):.3g}",
                f"{_number(one.get('gbs')):.3g}",
                f"{_number(one.get('peak_share')):.0%}",
                view.told(str(one.get("provider", ""))),
                view.told(str(one.get("line", ""))),
            ])  # fmt: skip
    if not rows:
        return None
    head = ["operation", "type", "of the step", "us a call", "GFLOP/s", "GB/s", "of the peak",
            "kernel", "line"]  # fmt: skip
    return joined([
        element("h2", "Heaviest operations of rank 0"),
        table(head, rows, "the ten heaviest operations beside the peaks of this machine"),
    ])  # fmt: skip


def _traffic(view: RunView) -> Html | None:
    servers = view.run.traffic.get("servers") if view.run.traffic else None
    if not servers:
        return None
    head, rows = traffic_table(servers)
    return joined([
        element("h2", "Bytes of a step"), table(head, rows, "bytes of a step of one worker")
    ])  # fmt: skip


def _events(view: RunView) -> Html | None:
    """Starts, saves, stragglers and warnings."""
    items: list[str] = []
    for earlier in view.manifest.get("earlier", [{}], []):
        items.append(f"started {earlier.get('start')}, ended {earlier.get('end')}")
    if view.manifest.text("start"):
        items.append(f"started {view.manifest.text('start')}")
    saves = view.result.get("saves", {}, {})
    if saves:
        items.append(
            f"{saves.get('written', 0)} checkpoints written, {saves.get('failed', 0)} failed; "
            f"training waited {_number(saves.get('held_seconds')):.3g} s for them"
        )
    for slow in view.run.stragglers:
        items.append(
            view.told(f"worker {slow['worker']} (rank {slow['rank']} on {slow['host']}) "
                      f"worked {slow['factor']:.2g} times as long as the median")
        )  # fmt: skip
    warnings = view.result.said.get("warnings")
    if isinstance(warnings, dict):
        items += [view.told(f"warning: {text} ({said})") for text, said in warnings.items()]
    elif isinstance(warnings, list):
        items += [view.told(f"warning: {text}") for text in warnings]
    if view.manifest.text("end"):
        items.append(f"ended {view.manifest.text('end')}")
    if not items:
        return None
    return joined([element("h2", "Events"), element("ul", *(element("li", i) for i in items))])


def _failed(view: RunView) -> Html | None:
    """The first failure, and the last lines of the log of its rank."""
    if not view.failure.is_there:
        return None
    parts: list[Html | None] = [element("h2", "Failure")]
    if view.redacted:
        parts.append(element("p", HIDDEN))
        return joined(parts)
    rank = view.failure.get("rank", int, None)
    parts.append(element("p", view.failure.text("cause"), class_="bad"))
    if view.failure.text("next"):
        parts.append(element("p", f"next: {view.failure.text('next')}"))
    lines = "" if rank is None else _last_lines(view.folder / f"rank-{rank}.log")
    if lines:
        parts.append(element("pre", lines, tabindex="0"))
    return joined(parts)


def _last_lines(path: Path) -> str:
    try:
        with open(open_plain(path), "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return escape_text("\n".join(text.splitlines()[-LOG_LINES:]))


def _origin(view: RunView) -> Html | None:
    """How the run was started: the manifest, and the command that resumes it."""
    if view.redacted or not view.manifest.is_there:
        return None
    command = " ".join(map(shlex.quote, view.manifest.get("command", [str], [])))
    parts: list[Html | None] = []
    if command:
        folder = view.manifest.text("folder")
        parts += [
            element("h2", "How it was started"),
            element("p", "The same command starts it again; with checkpoints it resumes:"),
            element("pre", f"cd {shlex.quote(folder)}\n{command}", tabindex="0"),
        ]
    options = [[name, value] for name, value in view.run.options.items()]
    if options:
        shown = table(["option, setting or version", "value"], options)
        parts.append(element("details", element("summary", "Settings and versions"), shown))
    return joined(parts)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return read_json_object(path) or {}
    except HpcflowError:
        return {}


def _finite(value: float) -> float | None:
    """The value; None, which is JSON, for NaN and infinity."""
    return value if math.isfinite(value) else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and abs(value) < MOST_VALUE else 0.0


# -- several runs


def _several_runs(views: Sequence[RunView]) -> list[Html | None]:
    rows = [
        [
            view.name,
            view.run.state,
            view.run.mode,
            view.run.workers or "-",
            view.run.servers or "-",
            view.run.batch or "-",
            f"{view.run.steps:,}",
            duration(view.run.seconds),
            f"{view.run.rate:,.0f}" if view.run.rate else "-",
            view.limits[0].resource if view.limits else "computing",
        ]
        for view in views
    ]
    head = ["run", "state", "mode", "workers", "servers", "batch", "steps", "time", "samples/s",
            "limited by"]  # fmt: skip
    parts: list[Html | None] = [element("h2", "Runs"), table(head, rows)]
    shown = [view for view in views if not view.redacted]
    options = [view.run.options for view in shown]
    names = differing(options) if options else []
    if names:
        cells = [[v.name, *(v.run.options.get(n, "-") for n in names)] for v in shown]
        parts += [element("h2", "What differs"), table(["run", *names], cells)]
    results = all_names([view.results for view in views])
    if results:
        cells = [[v.name, *(v.results.get(n, "-") for n in results)] for v in views]
        parts += [element("h2", "Results"), table(["run", *results], cells)]
    parts.append(_curves(views))
    return parts


def _scaling(curves: Sequence[ScalingCurve]) -> Html | None:
    """Strong and weak scaling beside the ideal."""
    if not curves:
        return None
    parts: list[Html | None] = [element("h2", "Scaling")]
    for curve in curves:
        workers = [float(point.workers) for point in curve.points]
        ideal = Series("ideal", workers, [w / workers[0] for w in workers], dashed=True)
        found = Series("measured", workers, [p.speedup for p in curve.points], marked=True)
        title = f"{curve.kind} scaling: {curve.description}"
        rows = [
            [p.workers, f"{p.rate:,.0f}", f"{p.speedup:.2f}", _efficiency(p.efficiency), p.runs]
            for p in curve.points
        ]
        head = ["workers", "samples/s", "speedup", "efficiency", "runs"]
        chart = line_chart(title, [found, ideal], "workers", "speedup")
        parts += [element("div", chart, table(head, rows, title), class_="grid")]
    return joined(parts)


def _efficiency(value: float) -> str:
    """An efficiency; above 1 with a word that it needs a cause."""
    return f"{value:.0%}" + (" (above 1: caches, or a slow first point)" if value > 1.02 else "")
