"""Facts of a sweep for its page: what varies, and the last run of each configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpcflow.report.chart_axes import number_of

DONE, PENDING = "done", "pending"  # states of runs
MOST_LISTED, MOST_REASONS = 8, 4  # runs of a kind, and causes, in words


class SweepRun(NamedTuple):
    """A run: its folder and its parameters; the metric is None without a finite value.

    Runs of successive halving have a `rung`, from 0, and the budget of it among the parameters.
    """

    name: str
    folder: str
    values: Mapping[str, str | bool]
    state: str
    metric: float | None
    reason: str = ""
    rung: int = 0


class Sweep(NamedTuple):
    """The runs of a sweep by a metric, of which `mode`, min or max, says what is better.

    `budget` is the parameter that successive halving raises, or "".
    """

    metric: str
    mode: str
    runs: Sequence[SweepRun]
    budget: str = ""


class Point(NamedTuple):
    """A configuration: its last run, and whether successive halving ended it before the last rung.

    `values` are the varied parameters as texts; `metric` is None if it cannot be drawn.
    """

    run: SweepRun
    values: Mapping[str, str]
    metric: float | None
    is_early: bool


def shown(value: str | bool) -> str:
    """A parameter as a text; an option without a value is given or not."""
    return value if isinstance(value, str) else ("yes" if value else "no")


def varied(sweep: Sweep, redacted: bool = False) -> dict[str, dict[str, str]]:
    """The parameters that differ, but the budget: the text of each value in the page.

    In a redacted page values that are no numbers, such as paths, are numbered.
    """
    found: dict[str, dict[str, str]] = {}
    names = dict.fromkeys(name for run in sweep.runs for name in run.values)
    for name in names:
        texts = list(dict.fromkeys(shown(run.values.get(name, "-")) for run in sweep.runs))
        if name == sweep.budget or len(texts) < 2:
            continue
        hidden = redacted and any(number_of(text) is None for text in texts)
        found[name] = {t: f"value {k}" if hidden else t for k, t in enumerate(texts, 1)}
    return found


def points_of(sweep: Sweep, parameters: Mapping[str, Mapping[str, str]]) -> list[Point]:
    """The configurations, the best first, those without a value last.

    Of a configuration that ran in several rungs, it is the run of the last rung. Those of a later
    rung come first: metrics of different budgets do not compare.
    """
    last: dict[tuple[str, ...], SweepRun] = {}
    for run in sweep.runs:
        key = tuple(shown(run.values.get(name, "-")) for name in parameters)
        key += () if sweep.budget else (run.name,)
        if key not in last or run.rung >= last[key].rung:
            last[key] = run
    top = max((run.rung for run in sweep.runs), default=0)
    points = [
        Point(
            run,
            {n: texts[shown(run.values.get(n, "-"))] for n, texts in parameters.items()},
            number_of(run.metric),
            run.rung < top and number_of(run.metric) is not None,
        )
        for run in last.values()
    ]
    place = {run.name: k for k, run in enumerate(best_first(sweep))}
    return sorted(points, key=lambda point: place[point.run.name])


def best_first(sweep: Sweep) -> list[SweepRun]:
    """The runs, those of a later rung first and in each the best first; without a value last."""
    sign = -1.0 if sweep.mode == "max" else 1.0

    def order(run: SweepRun) -> tuple[bool, int, float, str]:
        value = number_of(run.metric)
        return value is None, -run.rung, 0.0 if value is None else sign * value, run.name

    return sorted(sweep.runs, key=order)


def levels(points: Sequence[Point], mode: str, count: int) -> list[tuple[int, float, float]]:
    """Groups of values by their rank, the best first: number, least and largest value.

    The numbers are spread over 0 to `count` - 1; equal values are in the same group.
    """
    values = sorted({p.metric for p in points if p.metric is not None}, reverse=mode == "max")
    groups: dict[int, list[float]] = {}
    for rank, value in enumerate(values):
        spread = rank / max(1, len(values) - 1) * (count - 1)
        groups.setdefault(math.floor(spread + 0.5), []).append(value)
    return [(number, min(group), max(group)) for number, group in groups.items()]


def missing_words(sweep: Sweep, names: Mapping[str, str], redacted: bool) -> list[str]:
    """What is to be known of the runs without a value: how many of each kind, and which."""
    kinds: dict[str, list[str]] = {}
    for run in sweep.runs:
        if number_of(run.metric) is None:
            kind = run.state.replace("_", " ") if run.state != DONE else "done, without a value"
            kinds.setdefault(kind, []).append(names.get(run.folder, run.name))
    words = []
    for kind, found in kinds.items():
        listed = ", ".join(found[:MOST_LISTED]) + (" ..." if len(found) > MOST_LISTED else "")
        verb = "run is" if len(found) == 1 else "runs are"
        words.append(f"{len(found)} {verb} not drawn: {kind} ({listed})")
    if not redacted:
        reasons = dict.fromkeys(run.reason for run in sweep.runs if _says_why(run))
        words += [f"why: {reason}" for reason in list(reasons)[:MOST_REASONS]]
    return words


def _says_why(run: SweepRun) -> bool:
    return run.state != PENDING and number_of(run.metric) is None and bool(run.reason)
