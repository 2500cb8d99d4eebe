"""Page of runs: one self-contained HTML file, for a browser without a network.

It shows what the files in the run directories tell; the page of a running job is of the moment when
it was written. Charts are SVG; the script of the page zooms and smooths them. Texts of files are
escaped. `redacted` pages have no hosts, users, paths, commands and logs.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcflow.platform.quantity_text import format_seconds
from hpcflow.report import run_outcome
from hpcflow.report.html_elements import Html, element, joined, unbroken, with_code
from hpcflow.report.page_comparison import comparison_sections, curves_section, scaling_section
from hpcflow.report.page_costs import (
    heat_section,
    limits_section,
    memory_section,
    operations_section,
    seconds_section,
    step_section,
    traffic_section,
)
from hpcflow.report.page_history import events_section, failure_section, origin_section, told_event
from hpcflow.report.page_plan import plan_section
from hpcflow.report.run_baseline import NO_BASELINE, Baseline, check_names
from hpcflow.report.run_summary import ScalingCurve, scalings
from hpcflow.report.run_view import RunView, finite, views_of

if TYPE_CHECKING:
    from hpcflow.report.sweep_facts import Sweep

ASSETS = Path(__file__).parent
MOST_EVENTS = 1000  # in the figures
BAD_STATES = (run_outcome.DIED, run_outcome.FAILED, run_outcome.STALLED, run_outcome.UNREADABLE)


class Page(NamedTuple):
    """A page and its figures as plain data."""

    text: str
    figures: dict[str, Any]


def page_of(
    folders: Sequence[str | Path],
    redacted: bool = False,
    refresh_s: int = 0,
    is_over: bool | None = None,
    asks_slurm: bool = False,
    baseline: Baseline = NO_BASELINE,
    title: str = "",
    conclusions: Sequence[str] = (),
    sweeps: Sequence[Sweep] = (),
    replays: bool = True,
) -> Page:
    """The page of some runs.

    With `refresh_s` a browser reads the page again after these seconds, while a run goes on.
    `is_over` says whether the runs have ended, if this process is one of theirs; else their locks.
    `baseline` is drawn in the charts of the metrics.
    `asks_slurm` for the accounting of their jobs, by `sacct`, which may take seconds.
    `conclusions` are lines below the `title`, which is otherwise the names of the runs.
    `sweeps` have charts of their metrics by parameter. `replays` as in `views_of`.
    Errors: HpcflowError if no folder has a run, or none has a metric of the baseline.
    """
    views = views_of(folders, redacted, is_over, asks_slurm, replays)
    curves = scalings([view.run for view in views])
    names = {name for view in views for name in (*view.run.values, *view.results)}
    check_names(baseline, sorted(names))
    text = page(views, curves, refresh_s, baseline, title, conclusions, sweeps)
    return Page(text, page_data(views, curves, baseline))


def page_data(
    views: Sequence[RunView],
    curves: Sequence[ScalingCurve],
    baseline: Baseline = NO_BASELINE,
) -> dict[str, Any]:
    """The figures of a page, as plain data."""
    return {
        "format": "hpcflow-report-1",
        "baseline": dict(baseline.values),
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
                "seconds_to_first_step": view.run.seconds_to_first_step,
                "samples_per_second": view.run.rate,
                "results": view.results,
                "last": {
                    name: finite(view.run.curve("step", name)[1][-1])
                    for name in view.run.values
                    if view.run.curve("step", name)[1]
                },
                "limits": [one._asdict() for one in view.limits],
                "usage": None if view.usage is None else view.usage._asdict(),
                "events": [told_event(view, one)._asdict() for one in view.events[-MOST_EVENTS:]],
                "faults": [view.told(fault) for fault in view.run.faults],
            }
            for view in views
        ],
        "scaling": [
            {
                "kind": curve.kind,
                "description": curve.description,
                "points": [point._asdict() for point in curve.points],
            }
            for curve in curves
        ],
    }


def _title(views: Sequence[RunView], sweeps: Sequence[Sweep]) -> str:
    if sweeps:
        return "hpcflow: " + ", ".join(
            f"sweep of {len(sweep.runs):,} runs by {sweep.metric}" for sweep in sweeps
        )
    more = " ..." if len(views) > 3 else ""
    return "hpcflow: " + ", ".join(view.name for view in views[:3]) + more


def page(
    views: Sequence[RunView],
    curves: Sequence[ScalingCurve],
    refresh_s: int = 0,
    baseline: Baseline = NO_BASELINE,
    title: str = "",
    conclusions: Sequence[str] = (),
    sweeps: Sequence[Sweep] = (),
) -> str:
    """The page as a text."""
    title = title or _title(views, sweeps)
    goes_on = refresh_s > 0 and any(view.run.state == run_outcome.RUNNING for view in views)
    sections: list[Html | None] = []
    if conclusions:
        lines = (element("li", *with_code(line)) for line in conclusions)
        sections.append(element("ul", *lines, class_="limits"))
    sections += _sweep_sections(views, sweeps)
    sections.append(scaling_section(curves))
    if len(views) == 1:
        sections += _one_run(views[0], baseline)
    else:
        sections += comparison_sections(views, baseline)
    if len(views) > 1:
        sections += [
            element("details", element("summary", view.name), *_one_run(view, baseline))
            for view in views
        ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="refresh", content=str(refresh_s)) if goes_on else None,
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


def _sweep_sections(views: Sequence[RunView], sweeps: Sequence[Sweep]) -> list[Html | None]:
    if not sweeps:
        return []
    from hpcflow.report.page_sweep import sweep_section  # a rank that writes its page has no sweep

    names = {str(view.folder): view.name for view in views}
    redacted = any(view.redacted for view in views)
    return [sweep_section(sweep, names, redacted) for sweep in sweeps]


def _one_run(view: RunView, baseline: Baseline) -> list[Html | None]:
    return [
        _facts(view, baseline),
        limits_section(view),
        curves_section([view], baseline),
        heat_section(view),
        seconds_section(view),
        step_section(view),
        memory_section(view),
        operations_section(view),
        traffic_section(view),
        plan_section(view),
        events_section(view),
        failure_section(view),
        origin_section(view),
    ]


def _facts(view: RunView, baseline: Baseline) -> Html:
    run, manifest = view.run, view.manifest
    bad = " bad" if run.state in BAD_STATES else ""
    places = f"{run.ranks} ranks" + (f" on {run.nodes} nodes" if run.nodes > 1 else "")
    if run.servers:
        places += f", {run.servers} server{'s' if run.servers > 1 else ''}"
    git = manifest.get("git", {}, {})
    facts: list[tuple[str, Any]] = [
        ("script", view.told(run.script) or "-"),
        ("state", element("b", run.state, class_="state" + bad)),
        ("mode", f"{run.mode or '-'}, {places}"),
        ("steps of each worker" if run.servers and run.replicas > 1 else "steps",
         f"{run.steps:,}"),
        ("time", format_seconds(run.seconds)),
        ("samples/s", f"{run.rate:,.0f}" if run.rate else "-"),
    ]  # fmt: skip
    if run.batch:
        facts.append(("global batch", f"{run.batch:,}"))
    if run.seconds_to_first_step is not None:
        facts.append(("launch to first step", format_seconds(run.seconds_to_first_step)))
    if view.seconds_left is not None:
        facts.append(("time left", format_seconds(view.seconds_left)))
    if view.usage is not None:
        facts.append((f"node-hours ({view.usage.source})", f"{view.usage.node_hours:.3g}"))
        if view.usage.queue_wait_s is not None:
            facts.append(("time in the queue", format_seconds(view.usage.queue_wait_s)))
    if git:
        facts.append(
            ("commit", f"{str(git.get('commit'))[:10]}{'*' if git.get('changed') else ''}")
        )
    if run.state == run_outcome.RUNNING and manifest.text("start"):
        facts.append(("started", manifest.text("start")))
    for name, value in view.results.items():
        level = baseline.values.get(name)
        facts.append((name, value if level is None else f"{value} (baseline {level:g})"))
    items = [
        element(
            "li",
            element("span", name),
            value if isinstance(value, Html) else element("b", unbroken(value)),
        )
        for name, value in facts
    ]
    parts: list[Html | None] = [element("ul", *items, class_="facts")]
    if run.ended:
        parts.append(element("p", view.told(run.ended), class_="state" + bad))
    parts += [element("p", view.told(fault), class_="bad") for fault in run.faults]
    return joined(parts)
