"""Run tables: runs as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcflow.platform.quantity_text import format_seconds
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report.run_comparison import all_names, differing
from hpcflow.report.run_summary import RunSummary, ScalingCurve
from hpcflow.report.scaling_points import interval_text
from hpcflow.train.straggler_detection import straggler_texts

LEFT = ("mode", "state", "queue", "warning or end")  # columns of text
MOST_NAMES = 12  # columns of a table of names


def as_text(
    runs: Sequence[RunSummary], curves: Sequence[ScalingCurve], limits: Sequence[str] = ()
) -> str:
    """A row for each run, details of the outcomes, faults, differing options, results, traffic of
    servers, stragglers, lines about what `limits` the runs, then the scaling curves."""
    parts = [table(_HEAD, [_row(run) for run in runs])]
    ended = [f"{run.name}: {run.ended}" for run in runs if run.ended]
    if ended:
        parts.append("\n".join(ended))
    faults = [f"{run.name}: {escape_line(fault)}" for run in runs for fault in run.faults]
    if faults:
        parts.append("\n".join(faults))
    with_options = [run for run in runs if run.options]
    options, results = [run.options for run in with_options], [run.results for run in runs]
    parts += _by_name("options that differ", with_options, options, differing(options))
    parts += _by_name("results", runs, results, all_names(results))
    parts += [_traffic(run) for run in runs if run.traffic]
    slow = [
        f"{run.name}: {line}"
        for run in runs
        for line in map(escape_line, straggler_texts(run.stragglers, run.replicas))
    ]
    if slow:
        parts.append("\n".join(slow))
    if limits:
        parts.append("\n".join(limits))
    for curve in curves:
        rows = [
            [
                f"{p.workers}",
                f"{p.rate:,.0f}",
                f"{p.speedup:.2f}",
                f"{p.efficiency:.0%}",
                interval_text(p),
                f"{p.runs}",
                first_step_text(p.seconds_to_first_step),
            ]
            for p in curve.points
        ]
        head = ["workers", "samples/s", "speedup", "efficiency", "interval", "runs", "first step"]
        parts.append(f"{curve.kind} scaling: {curve.description}\n{table(head, rows)}")
    return "\n\n".join(parts) + "\n"


def loss_name(names: Sequence[str]) -> str:
    """The name of the training loss among those of metrics; "" if none is a loss."""
    found = [name for name in names if "loss" in name and not name.startswith("val_")]
    return "loss" if "loss" in found else next(iter(found), "")


_HEAD = ["run", "mode", "workers", "servers", "nodes", "batch", "steps", "loss", "samples/s",
         "first step", "time", "input wait", "rank wait", "state"]  # fmt: skip


def _row(run: RunSummary) -> list[str]:
    name = loss_name(run.values)
    losses = run.curve("step", name)[1] if name else []
    return [
        run.name,
        run.mode,
        f"{run.workers or '-'}",
        f"{run.servers or '-'}",
        f"{run.nodes or '-'}",
        f"{run.batch or '-'}",
        f"{run.steps or '-'}",
        f"{losses[0]:.4g} -> {losses[-1]:.4g}" if losses else "-",
        f"{run.rate:,.0f}" if run.rate else "-",
        first_step_text(run.seconds_to_first_step),
        format_seconds(run.seconds),
        _waited(run, run.input_wait),
        _waited(run, run.waited),
        run.state,
    ]


def _by_name(
    title: str, runs: Sequence[RunSummary], values: Sequence[Mapping[str, str]], names: list[str]
) -> list[str]:
    """A table with a row for each run and a column for each name; [] without names."""
    shown, omitted = names[:MOST_NAMES], len(names) - MOST_NAMES
    if not names:
        return []
    rows = [
        [run.name, *(run_values.get(name, "-") for name in shown)]
        for run, run_values in zip(runs, values, strict=True)
    ]
    title += f" ({omitted:,} more are not shown)" if omitted > 0 else ""
    return [f"{title}\n{table(['run', *shown], rows)}"]


def _traffic(run: RunSummary) -> str:
    """Bytes per step by server, predicted by the plan and measured."""
    head, rows = traffic_table(run.traffic["servers"])
    return f"{run.name}: bytes of a step of one worker\n{table(head, rows)}"


def traffic_table(servers: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table of the bytes that each server receives and sends."""
    rows = [
        [
            escape_line(row["task"]),
            *(
                f"{row[how][direction]:,}"
                for direction in ("received", "sent")
                for how in _TRAFFIC_KINDS
            ),
        ]
        for row in servers
    ]
    return ["server", "receives, predicted", "measured", "sends, predicted", "measured"], rows


_TRAFFIC_KINDS = ("predicted", "measured")


def first_step_text(seconds: float | None) -> str:
    """The time from the launch to the end of the first step."""
    return "-" if seconds is None else format_seconds(seconds)


def _waited(run: RunSummary, waited: float | None) -> str:
    """Waiting time and its share of the run, as `0.31 s (4%)`."""
    if waited is None or not run.seconds:
        return "-"
    return f"{format_seconds(waited)} ({waited / run.seconds:.0%})"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table with minimal column widths; text is left-aligned, numbers right-aligned."""
    lines = [head, *rows]
    wide = [max(len(line[i]) for line in lines) for i in range(len(head))]
    left_columns = {0, *(i for i in range(len(head)) if head[i] in LEFT)}
    return "\n".join(
        "  ".join(w.ljust(n) if i in left_columns else w.rjust(n)
                  for i, (w, n) in enumerate(zip(line, wide, strict=True))).rstrip()
        for line in lines
    )  # fmt: skip
