"""Profile summary: computes seconds by kind and by operation, and a trace, from recorded events."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hpcflow.graph.dtypes import OPAQUE
from hpcflow.kernels.roofline_peaks import RooflinePeaks
from hpcflow.lowering.buffer_assignment import has_kernel
from hpcflow.lowering.fusion import fused_node_label
from hpcflow.plan.cost.cost_model import input_specs
from hpcflow.plan.cost.op_flops_and_bytes import cost_input_specs, matmul_size, node_cost
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.profile import call_costs
from hpcflow.runtime.profile.profile_events import CodePlace, ProfileWindow
from hpcflow.runtime.step.step_instance import CompiledPartition

FORMAT = "hpcflow-profile-1"
PYTHON = ("strand", "turn", "frame", "python")
Span = tuple[int, int]


def seconds_by_kind(window: ProfileWindow) -> dict[str, float]:
    """The window's time by kind, in seconds; the kinds are disjoint and add up to the window.

    kernels; messages (copies into them, their starts, polls); results (copies of fetched values);
    python (between the statements of the generated code); engine (a step is in flight, but none of
    its code runs); waiting (for other ranks or state, within a step), and the same between steps;
    outside (the script: feeding, reading data, other work between steps).
    """
    events = clipped_events(window)
    exclusive = self_times(events)
    totals = Counter[str]()
    for (number, _, _), took in zip(events, exclusive, strict=True):
        totals[_event_kind(window.places[number])] += took
    segments = span_union(
        (a, b) for n, a, b in events if window.places[n].kind in ("strand", "turn")
    )
    steps = span_union(
        [*segments, *_spans_within(window, ((a, b) for _, a, b in window.steps_seen))]
    )
    idle = span_difference(span_union(_spans_within(window, window.idle)), segments)
    between = _span_length(span_difference(idle, steps))
    waiting = _span_length(idle) - between
    totals["waiting"], totals["waiting between steps"] = waiting, between
    totals["engine"] = _span_length(steps) - _span_length(segments) - waiting
    totals["outside"] = window.end - window.start - _span_length(steps) - between
    names = ("kernels", "messages", "results", "python", "engine", "waiting",
             "waiting between steps", "outside")  # fmt: skip
    return {name: totals[name] / 1e9 for name in names}


def operation_rows(window: ProfileWindow, peaks: dict[str, RooflinePeaks]) -> list[Json]:
    """A row for each operation and kind of time, sorted by descending time."""
    events = clipped_events(window)
    runs = _run_counts(window, events)
    times, each = dict[tuple[int, str, str], list[int]](), dict[int, CompiledPartition]()
    for (number, _, _), took in zip(events, self_times(events), strict=True):
        place = window.places[number]
        if place.kind not in PYTHON:
            operation = id(place.compiled), place.node, _event_kind(place)
            times.setdefault(operation, []).append(took)
            each[id(place.compiled)] = place.compiled
    joined: dict[tuple[str, ...], Json] = {}
    for (key, name, kind), spent in times.items():
        compiled, took = each[key], sum(spent)
        row = _operation_row(compiled, name, kind, runs[key, name], peaks)
        row["timings"] = call_costs.node_timings(compiled, row, spent)
        same = joined.setdefault((row["plan"], row["task"], name, kind), row | {"seconds": 0.0})
        if same is not row and same["seconds"]:
            same["calls"] += row["calls"]
            same["timings"] = call_costs.joined(same["timings"], row["timings"])
            for field in ("flops", "bytes", "least_seconds"):
                both = same[field], row[field]
                same[field] = None if None in both else sum(both)
        same["seconds"] += took / 1e9
    total = (window.end - window.start) / 1e9
    for row in joined.values():
        row["share"] = row["seconds"] / total
        row["gflops"], row["gbs"] = (_rate(row[k], row["seconds"]) for k in ("flops", "bytes"))
        least = row.pop("least_seconds")
        row["peak_share"] = least / row["seconds"] if least and row["seconds"] else None
    return sorted(joined.values(), key=lambda row: -row["seconds"])


def rows_by_type(op_rows: Sequence[Json]) -> list[Json]:
    """The rows of kernels summed by the type of operation, sorted by descending time."""
    sums: dict[str, Json] = {}
    for row in op_rows:
        if row["kind"] != "kernels":
            continue
        zero = {"calls": 0, "seconds": 0.0, "share": 0.0, "flops": 0, "bytes": 0, "peak": 0.0}
        acc = sums.setdefault(row["title"], {"type": row["title"], "ops": 0, **zero})
        acc["ops"] += 1
        for field in ("calls", "seconds", "share"):
            acc[field] += row[field]
        for field in ("flops", "bytes"):
            acc[field] = None if None in (acc[field], row[field]) else acc[field] + row[field]
        acc["peak"] += (row["peak_share"] or 0.0) * row["seconds"]
    for acc in sums.values():
        acc["gflops"], acc["gbs"] = (_rate(acc[k], acc["seconds"]) for k in ("flops", "bytes"))
        acc["peak_share"] = acc.pop("peak") / acc["seconds"] if acc["seconds"] else None
    return sorted(sums.values(), key=lambda acc: -acc["seconds"])


def roofline_seconds(op_rows: Sequence[Json]) -> float:
    """Seconds that the operations would take at the machine's peak (roofline)."""
    return sum((row["peak_share"] or 0.0) * row["seconds"] for row in op_rows)


def wait_rows(window: ProfileWindow) -> list[Json]:
    """The waits by name, with their time while nothing else could run.

    Each of several overlapping waits counts the full time.
    """
    idle = span_union(_spans_within(window, window.idle))
    begun: dict[int, tuple[str, int]] = {}
    totals: dict[str, list[float]] = {}
    for ph, _, name, _, at, number in window.waits:
        clock = at - window.offset
        if ph == "b":
            begun[number] = name, clock
        elif number in begun:
            name, start = begun.pop(number)
            spans = [(start, min(clock, window.end))] if start < window.end else []
            row = totals.setdefault(name, [0, 0.0])
            row[0] += 1
            row[1] += (_span_length(spans) - _span_length(span_difference(spans, idle))) / 1e9
    listed = [{"name": k, "times": int(n), "seconds": s} for k, (n, s) in totals.items()]
    return sorted(listed, key=lambda row: -float(str(row["seconds"])))


def _operation_row(
    compiled: CompiledPartition, name: str, kind: str, calls: int, peaks: dict[str, RooflinePeaks]
) -> Json:
    node = compiled.part.nodes.get(name)
    row: Json = {
        "name": name or "results",
        "type": node.type if node else "",
        "kind": kind,
    }
    row |= {"plan": compiled.label, "task": compiled.part.task, "line": node.line if node else ""}
    row |= {"device": node.device if node else "", "provider": "", "calls": calls}
    row["refused"] = []
    row |= {
        "fused": list(fused_node_label.fused_types(node)) if node and node.type == "Fused" else []
    }
    row |= {
        "holds": list(fused_node_label.fused_names(node)) if node and node.type == "Fused" else []
    }
    row |= {"title": fused_node_label.node_label(node) if node else ""}
    row |= {"product": None, "flops": None, "bytes": None, "least_seconds": None}
    if node is None or kind != "kernels":
        return row
    specs = cost_input_specs(node, compiled.part)
    row["product"], cost = matmul_size(node, specs), node_cost(node, specs)
    if has_kernel(node):
        device = compiled.device(node)
        choice = device.choose(node, input_specs(node, compiled.part))
        row["provider"] = device.provider(choice)
        row["refused"] = [{"provider": name, "reason": why} for name, why in choice.refused]
    if cost is None:
        return row
    row["flops"], row["bytes"] = cost.flops * calls, cost.nbytes * calls
    peak = peaks.get(node.device.rpartition("/")[2])
    if peak is not None:
        row["least_seconds"] = peak.share(cost.flops, cost.nbytes, 1.0, _node_dtype(node, compiled))
        row["least_seconds"] *= calls
    return row


def _node_dtype(node: Node, compiled: CompiledPartition) -> str:
    specs = [*node.specs, *cost_input_specs(node, compiled.part)]
    return next((str(spec.dtype) for spec in specs if spec.dtype not in OPAQUE), "float32")


def _rate(amount: float | None, seconds: float) -> float | None:
    return None if amount is None or not seconds else amount / seconds / 1e9


def _run_counts(
    window: ProfileWindow, events: Sequence[tuple[int, int, int]]
) -> Counter[tuple[int, str]]:
    """How often each operation ran: as often as its segment."""
    segments = Counter(n for n, _, _ in events if window.places[n].kind == "strand")
    counts = Counter[tuple[int, str]]()
    for number, count in segments.items():
        place = window.places[number]
        for name in (*place.compiled.code.segments[place.segment].nodes, ""):
            counts[id(place.compiled), name] += count
    return counts


def _event_kind(code_place: CodePlace) -> str:
    if code_place.kind in PYTHON:
        return "python"
    node = code_place.compiled.part.nodes.get(code_place.node)
    if code_place.kind == "op" and node is not None:
        if node.row.collective or node.row.message in ("send", "pack"):
            return "messages"
    return "kernels" if code_place.kind == "op" else code_place.kind


# -- spans of time


def clipped_events(window: ProfileWindow) -> list[tuple[int, int, int]]:
    """The events clipped to the window, in order of start; nested events follow their parents."""
    inside = [
        (number, start, min(end, window.end))
        for number, start, end in window.events
        if window.start <= start < window.end
    ]
    order = sorted(range(len(inside)), key=lambda i: (inside[i][1], -inside[i][2], -i))
    return [inside[i] for i in order]


def self_times(events: Sequence[tuple[int, int, int]]) -> list[int]:
    """The self time of each event: its duration without that of nested events."""
    exclusive = [end - start for _, start, end in events]
    stack: list[int] = []
    for i, (_, start, end) in enumerate(events):
        while stack and events[stack[-1]][2] <= start:
            stack.pop()
        if stack:
            exclusive[stack[-1]] -= end - start
        stack.append(i)
    return exclusive


def span_union(spans: Iterable[Span]) -> list[Span]:
    """The union of spans: disjoint, in order."""
    out: list[Span] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], end)
        else:
            out.append((start, end))
    return out


def span_difference(spans: Sequence[Span], subtracted: Sequence[Span]) -> list[Span]:
    """The difference `spans` minus `subtracted`; both are disjoint and in order."""
    out: list[Span] = []
    j = 0
    for start, end in spans:
        while j < len(subtracted) and subtracted[j][1] <= start:
            j += 1
        k = j
        while k < len(subtracted) and subtracted[k][0] < end:
            if subtracted[k][0] > start:
                out.append((start, subtracted[k][0]))
            start = max(start, subtracted[k][1])
            k += 1
        if start < end:
            out.append((start, end))
    return out


def _spans_within(window: ProfileWindow, spans: Iterable[Span]) -> Iterator[Span]:
    for start, end in spans:
        start, end = max(start, window.start), min(end, window.end)
        if start < end:
            yield start, end


def _span_length(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


# -- files


def profile_data(window: ProfileWindow, facts: Json, peaks: dict[str, RooflinePeaks]) -> Json:
    """The profile of one rank as plain data, as `profile/rank-N.json` has it."""
    rows = operation_rows(window, peaks)
    return {
        "format": FORMAT,
        **facts,
        "plan": window.label,
        "trains": window.trains,
        "steps": window.steps,
        "complete": not window.is_full,
        "peaks": {name: dataclasses.asdict(peak) for name, peak in peaks.items()},
        "wall_seconds": (window.end - window.start) / 1e9,
        "least_seconds": roofline_seconds(rows),
        "seconds": seconds_by_kind(window),
        "types": rows_by_type(rows),
        "ops": rows,
        "waits": wait_rows(window),
    }


def chrome_trace_events(window: ProfileWindow, facts: Json) -> list[Json]:
    """Chrome trace events: asynchronous ones for steps and waits, nested ones for code."""
    rank = facts["rank"]
    about = {"ph": "M", "pid": rank, "tid": 0, "ts": 0}
    title = f"rank {rank} {facts['task']} on {facts['host']}"
    out: list[Json] = [about | {"name": "process_name", "args": {"name": title}}]

    def complete(cat: str, name: str, start: int, end: int, **args: object) -> None:
        first, last = ((t + window.offset) / 1e3 for t in (start, end))
        event = {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": 0}
        out.append(event | {"ts": first, "dur": last - first, "args": args})

    for number, start, end in clipped_events(window):
        place = window.places[number]
        node = place.compiled.part.nodes.get(place.node)
        if place.segment >= 0:
            complete("strand", f"strand {place.segment}", start, end, plan=place.compiled.label)
        elif node is not None:
            details = {"type": fused_node_label.node_label(node), "line": node.line}
            complete(_event_kind(place), node.name, start, end, **details)
        else:
            complete(_event_kind(place), place.kind, start, end)
    for start, end in span_union(_spans_within(window, window.idle)):
        complete("waiting", "waiting", start, end)
    spans = [(ph, cat, name, at, number) for ph, cat, name, _, at, number in window.waits]
    for i, (label, start, end) in enumerate(window.steps_seen):
        spans.append(("b", "step", label, start + window.offset, i))
        spans.append(("e", "step", label, end + window.offset, i))
    begun, ended = ({(s[1], s[4]) for s in spans if s[0] == ph} for ph in "be")
    for ph, cat, name, at, number in spans:
        if (cat, number) in begun & ended:
            event = {"ph": ph, "cat": cat, "name": name, "pid": rank, "tid": 0}
            out.append(event | {"id": f"{cat}{number}", "ts": at / 1e3, "args": {}})
    return out


def write_json(path: Path, data: object) -> None:
    """Write a JSON file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(json.dumps(data))
    draft.replace(path)
