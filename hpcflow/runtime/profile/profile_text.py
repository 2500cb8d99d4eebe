"""Profile tables as text: time by kind, by type of operation and by operation."""

from __future__ import annotations

from collections.abc import Sequence

from hpcflow.kernels.roofline_peaks import RooflinePeaks
from hpcflow.plan.listing.plan_text import format_table
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.runtime.dynamic_types import Json

MAX_ROWS = 15
MOST_ABOVE_BOUND = 3  # operations that are named with their bound
KIND_TEXTS = {
    "kernels": "operations",
    "messages": "messages: copies, starts, polls",
    "results": "copies of what was fetched",
    "python": "Python between operations",
    "engine": "engine: beginnings and ends of steps",
    "waiting": "waiting within steps",
    "waiting between steps": "waiting between steps",
    "outside": "outside of steps: script, feeds",
}


def profile_text(first: Json) -> str:
    """The tables of the profile of one rank."""
    each = first["wall_seconds"] / first["steps"]
    head = (
        f"profile of {_rank_label(first)}: {first['steps']} steps of {first['plan']}, "
        f"{format_seconds(each)} each"
    )
    if not first["complete"]:
        head += "\n  there were more events than are kept: the last steps are not in it"
    parts = [head, *(f"  peak of {name}: {_peak(peak)}" for name, peak in first["peaks"].items())]
    least = f"{format_seconds(first['least_seconds'] / first['steps'])} a step"
    share = _percent(first["least_seconds"] / first["wall_seconds"])
    parts.append(f"  with these all operations would take {least}, {share} of the time")
    parts += ["", _kind_table(first), "", _type_table(first), "", _op_table(first)]
    if excess := _excess_table(first):
        parts += ["", excess]
    if first["waits"]:
        parts += ["", _wait_table(first)]
    return "\n".join(parts)


def _rank_label(profile: Json) -> str:
    return f"rank {profile['rank']} ({profile['task']} on {profile['host']})"


def _peak(facts: Json) -> str:
    return RooflinePeaks(**facts).text()


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f} %"


def _number(value: float | None) -> str:
    return "" if not value else f"{value:.3g}"


def _kind_table(profile: Json) -> str:
    wall, steps = profile["wall_seconds"], profile["steps"]
    rows = [
        (KIND_TEXTS[name], format_seconds(took / steps), _percent(took / wall))
        for name, took in profile["seconds"].items()
        if took > 0
    ]
    return format_table(("where the time goes", "a step", "share"), rows)


def _type_table(profile: Json) -> str:
    rows = [(f"{row['type']} ({row['ops']})", *_columns(row, profile)) for row in profile["types"]]
    header = ("type (ops)", "calls", "a step", "share", "GFLOP/s", "GB/s", "of peak")
    return format_table(header, rows[:MAX_ROWS]) + _remaining_rows(rows)


def _op_table(profile: Json) -> str:
    listed = [row for row in profile["ops"] if row["kind"] == "kernels"]
    rows = [
        (row["name"], row["title"], *_columns(row, profile), row["provider"], row["line"])
        for row in listed
    ]
    header = ("operation", "type", "calls", "a step", "share", "GFLOP/s", "GB/s", "of peak",
              "by", "line")  # fmt: skip
    return format_table(header, rows[:MAX_ROWS]) + _remaining_rows(rows)


def _excess_table(profile: Json) -> str:
    """The operations that take the most time above their bound, with why no better kernel ran."""
    above = [
        (row["seconds"] * (1 - row["peak_share"]), row)
        for row in profile["ops"]
        if row["kind"] == "kernels" and row["peak_share"] is not None and row["peak_share"] < 1
    ]
    above.sort(key=lambda pair: -pair[0])
    rows = [
        (
            *(row["name"], row["title"], _step(row["seconds"], profile)),
            *(_step(row["seconds"] - excess, profile), _step(excess, profile), row["provider"]),
            "; ".join(f"{r['provider']}: {r['reason']}" for r in row["refused"]),
        )
        for excess, row in above[:MOST_ABOVE_BOUND]
    ]
    header = ("most above its bound", "type", "a step", "bound", "above", "by",
              "refused by")  # fmt: skip
    return format_table(header, rows) if rows else ""


def _columns(row: Json, profile: Json) -> tuple[str, ...]:
    calls, spent = row["calls"] / profile["steps"], row["seconds"] / profile["steps"]
    rates = (_number(row["gflops"]), _number(row["gbs"]), _percent(row["peak_share"]))
    return (f"{calls:,.4g}", format_seconds(spent), _percent(row["share"]), *rates)


def _wait_table(profile: Json) -> str:
    rows = [
        (row["name"], f"{row['times'] / profile['steps']:.3g}", _step(row["seconds"], profile))
        for row in profile["waits"]
        if row["seconds"] > 0
    ]
    return format_table(("waited for", "times", "a step"), rows[:MAX_ROWS]) if rows else ""


def _step(seconds: float, profile: Json) -> str:
    return format_seconds(seconds / profile["steps"])


def ranks_table(ranks: Sequence[Json]) -> str:
    """A table with a line for each rank."""
    rows = []
    for profile in ranks:
        by = profile["seconds"]
        waiting = by["waiting"] + by["waiting between steps"]
        python = by["python"] + by["engine"] + by["results"]
        kinds = (by["kernels"], by["messages"], python, waiting, by["outside"])
        spent = [_step(each, profile) for each in (profile["wall_seconds"], *kinds)]
        rows.append((_rank_label(profile), str(profile["steps"]), *spent))
    header = ("times of a step", "steps", "in all", "operations", "messages", "Python", "waiting",
              "outside")  # fmt: skip
    return format_table(header, rows)


def _remaining_rows(rows: Sequence[object]) -> str:
    return f"\n... and {len(rows) - MAX_ROWS} more" if len(rows) > MAX_ROWS else ""
