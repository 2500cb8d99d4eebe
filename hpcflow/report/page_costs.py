"""Costs of a run as sections of its page: waiting, seconds, memory, operations, traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.platform.quantity_text import format_seconds, rounded_bytes
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report.html_elements import Html, element, joined, table, unbroken, with_code
from hpcflow.report.page_charts import bar_chart
from hpcflow.report.page_diagrams import Mark, roofline
from hpcflow.report.page_task_diagram import ServerBytes, ring_diagram, servers_diagram
from hpcflow.report.run_directory_reader import has_type
from hpcflow.report.run_tables import traffic_table
from hpcflow.report.run_view import RunView, number_of
from hpcflow.report.wait_heat_map import png_uri

MOST_OPERATIONS = 10
MOST_DEVICES, MOST_ROOFS = 2, 4  # lines in the roofline
STEP_PARTS = {  # of profile.json
    "kernels": "operations", "messages": "messages", "results": "results", "python": "Python",
    "engine": "executor", "waiting": "waiting", "waiting between steps": "waiting between steps",
    "outside": "outside of steps",
}  # fmt: skip
MOST_BARS = 64  # workers in a chart of bars
MOST_NAMED = 16  # workers whose rows of the map have a name each


def limits_section(view: RunView) -> Html | None:
    """What the seconds of the run were lost to, largest first, and then what is left."""
    if not view.run.seconds or not (view.waits or view.inputs):
        return None
    items = [
        element("li", element("b", f"{one.resource}: "), *_told(one.text), element("br"),
                element("span", *_told(one.remedy), class_="remedy"))
        for one in view.all_limits
    ]  # fmt: skip
    if view.faults:
        items.insert(0, element("li", element("b", "injected faults: "), ", ".join(view.faults),
                                element("br"), element("span", "they were asked for by --inject",
                                                       class_="remedy")))  # fmt: skip
    computing, count = view.computing, len(view.own)
    whose = "" if count < 2 else ", of a worker on average" if count == 2 else (
        f", the median of {count:,} workers")  # fmt: skip
    where = "see the operations below" if _heaviest(view) else "`hpcflow run --profile` tells more"
    share = f"{format_seconds(computing)} ({computing / view.run.seconds:.0%})"
    said = f"computing {share}{whose}; {where}"
    items.append(element("li", element("b", "the rest: "), *_told(said)))
    return joined([element("h2", "What the time went to"), element("ul", *items, class_="limits")])


def _told(text: str) -> list[Html]:
    """A text with code between back quotes, and no line break between a number and its unit."""
    return [part if isinstance(part, Html) else unbroken(part) for part in with_code(text)]


def heat_section(view: RunView) -> Html | None:
    """Workers by time: who waited, for others or for input, and who was waited for."""
    found = view.map
    if found is None or len(found.waiting) < 2:
        return None
    if np.isnan(found.waiting).all(axis=1).any():
        return None  # workers without work and waiting
    workers = round(len(found.waiting) * found.workers_in_a_row)
    shares = [
        waited / (own + waited) if own + waited > 0 else 0.0
        for own, waited in zip(view.work, view.waits, strict=False)
    ]
    said = _waiting_said(shares)
    if workers <= MOST_NAMED:
        rows = element("div", *(
            joined([element("span", f"worker {k}", title=name), _cells(view, slice(k, k + 1), 1,
                    f"worker {k}: waiting for others {share:.0%} of its time")])
            for k, (name, share) in enumerate(zip(view.workers, shares, strict=False))
        ), class_="heat-rows")  # fmt: skip
    else:
        axis = element("div", element("span", "worker 0"), element("span", f"{workers - 1}"),
                       class_="heat-axis")  # fmt: skip
        height = min(384, 8 * len(found.waiting))
        rows = element("div", axis, _cells(view, slice(None), height, said), class_="heat-row")
    times = element("div", element("span", "0 s"), element("span", unbroken(_end_said(view))),
                    class_="heat-time")  # fmt: skip
    own, *fed = (
        ["own work", "waiting for input"]
        if any("input" in row for row in view.paces)
        else ["own work and waiting for input"]
    )
    keys = [own, "waiting for others", *fed]
    keys += ["not recorded: the first step, and the last ones"] if np.isnan(
        found.waiting).any() else []  # fmt: skip
    looks = {own: "heat-own", "waiting for others": "c1", "waiting for input": "c2"}
    legend = element("ul", *(
        element("li", element("span", class_=f"swatch {looks.get(key, 'heat-none')}"), key)
        for key in keys
    ), class_="legend")  # fmt: skip
    hint = element(
        "p", "a row with little orange among orange ones is a worker that the others waited for"
    )
    figure = element("figure", element("figcaption", said), rows, times, legend, hint)
    return joined([element("h2", "Own work and waiting, by worker and time"), figure])


def _cells(view: RunView, which: slice, height: int, said: str) -> Html:
    """The picture of some rows of the map."""
    assert view.map is not None
    uri = png_uri(view.map.waiting[which], view.map.input[which])
    return element("img", src=uri, alt=said, title=said, class_="heat", height=height)


def _waiting_said(shares: Sequence[float]) -> str:
    """The least and the largest share of waiting in words."""
    least, most = (pick(range(len(shares)), key=shares.__getitem__) for pick in (min, max))
    if f"{shares[least]:.0%}" == f"{shares[most]:.0%}":
        return f"waiting for others: {shares[least]:.0%} of the time"
    return (
        f"waiting for others: from {shares[least]:.0%} of its time (worker {least}) to "
        f"{shares[most]:.0%} (worker {most})"
    )


def _end_said(view: RunView) -> str:
    """The end of the axis of the map; records may begin before the first step."""
    assert view.map is not None
    end, run = format_seconds(view.map.seconds), format_seconds(view.run.seconds)
    return (
        end if end == run else f"{end} since the session began, {run} of them from the first step"
    )


def seconds_section(view: RunView) -> Html | None:
    """Where the seconds of each worker and server went, on one scale."""
    work, waits, inputs = view.work, view.waits, view.inputs
    if not work or len(waits) != len(work):
        return None
    inputs = inputs if len(inputs) == len(work) else [0.0] * len(work)
    rows = [
        (name, [max(own - fed, 0.0), waited, fed, 0.0])
        for name, own, fed, waited in zip(view.workers, work, inputs, waits, strict=False)
    ]
    loads = [
        (name, [own, 0.0, 0.0, idle])
        for name, own, idle in zip(view.servers, view.server_work, view.server_waits, strict=False)
    ]
    title = "seconds of each worker" + (" and server" if loads else "")
    if max(len(rows), len(loads)) > MOST_BARS:
        title += f", the first {MOST_BARS} of {len(rows):,} workers"
        title += f" and of {len(loads):,} servers" if loads else ""
    kinds = ["own work", "waiting for ranks", "waiting for input", "idle"][: 4 if loads else 3]
    shown = [(name, values[: len(kinds)]) for name, values in rows[:MOST_BARS] + loads[:MOST_BARS]]
    chart = bar_chart(title, shown, kinds, ["work", "ranks", "input", "idle"])
    return joined([element("h2", "Seconds by rank"), chart]) if chart else None


def step_section(view: RunView) -> Html | None:
    """Where a step of each rank went, by its profile."""
    rows: list[tuple[str, list[float]]] = []
    for one in view.profiled_ranks:
        seconds = one.get("seconds") if isinstance(one, dict) else None
        steps = number_of(one.get("steps")) if isinstance(one, dict) else 0.0
        if isinstance(seconds, dict) and steps >= 1 and len(rows) < MOST_BARS:
            parts = [max(number_of(seconds.get(kind)), 0.0) / steps for kind in STEP_PARTS]
            rows.append((f"rank {len(rows)}", parts))
    chart = bar_chart("a step of each rank, by its profile", rows, list(STEP_PARTS.values()))
    return joined([element("h2", "Where a step went"), chart]) if chart else None


def memory_section(view: RunView) -> Html | None:
    """Predicted and measured bytes of each rank."""
    reports = view.result.get("memory", [{}], [])
    rows = []
    for rank, report in enumerate(reports):
        predicted, peak = report.get("predicted"), report.get("peak")
        if has_type(predicted, int) and has_type(peak, int):
            rows.append([f"rank {rank}", rounded_bytes(predicted), rounded_bytes(peak)])
    if not rows:
        return None
    left_out = f", the first {MOST_BARS} of {len(rows):,} ranks" if len(rows) > MOST_BARS else ""
    head = ["rank", "predicted", "measured peak"]
    shown = table(head, rows[:MOST_BARS], f"memory on devices{left_out}")
    return joined([element("h2", "Memory"), shown])


def operations_section(view: RunView) -> Html | None:
    """The operations that take most, with the share of the machine's peak that they reach."""
    kernels = _heaviest(view)
    if not kernels:
        return None
    rows = [_operation_row(view, i, one) for i, one in enumerate(kernels, 1)]
    head = ["operation", "type", "of the step", "us a call", "GFLOP/s", "GB/s", "of the peak",
            "kernel", "line"]  # fmt: skip
    caption = "the ten heaviest operations beside the peaks of this machine"
    return joined([
        element("h2", "Heaviest operations of rank 0"),
        _roofline(kernels, view.profiled_ranks[0].get("peaks")),
        table(head, rows, caption, texts={1, 7, 8}),
    ])  # fmt: skip


def _heaviest(view: RunView) -> list[dict[str, Any]]:
    """The operations of rank 0 that take most, by its profile; [] without one."""
    ranks = view.profiled_ranks
    operations = ranks[0].get("ops") if ranks and isinstance(ranks[0], dict) else None
    return [
        one
        for one in (operations if isinstance(operations, list) else ())
        if isinstance(one, dict) and one.get("kind") == "kernels"
    ][:MOST_OPERATIONS]


def _operation_row(view: RunView, place: int, one: Mapping[str, Any]) -> list[str]:
    calls = max(number_of(one.get("calls")), 1.0)
    return [
        f"{place} {str(one.get('name', ''))[:60]}",
        str(one.get("title") or one.get("type", ""))[:60],
        f"{number_of(one.get('share')):.1%}",
        f"{number_of(one.get('seconds')) / calls * 1e6:,.1f}",
        f"{number_of(one.get('gflops')):.3g}",
        f"{number_of(one.get('gbs')):.3g}",
        f"{number_of(one.get('peak_share')):.0%}",
        view.told(str(one.get("provider", ""))),
        view.told(str(one.get("line", ""))),
    ]


def _roofline(kernels: Sequence[Mapping[str, Any]], peaks: Any) -> Html:
    """The picture of the operations below the peaks that the profile has measured."""
    marks = []
    for place, one in enumerate(kernels, 1):
        flops, nbytes = number_of(one.get("flops")), number_of(one.get("bytes"))
        if flops > 0 and nbytes > 0:
            name = str(one.get("name", ""))[:60]
            marks.append(Mark(place, name, flops / nbytes, number_of(one.get("gflops"))))
    roofs: dict[str, float] = {}
    slopes: dict[str, float] = {}
    for device, peak in peaks.items() if isinstance(peaks, dict) else ():
        if not isinstance(peak, dict) or len(slopes) >= MOST_DEVICES:
            continue
        rates = peak.get("flops")
        for dtype, rate in rates.items() if isinstance(rates, dict) else ():
            if len(roofs) < MOST_ROOFS:
                roofs[f"{device} {dtype}"] = number_of(rate) / 1e9
        slopes[str(device)] = number_of(peak.get("nbytes")) / 1e9
    return roofline(marks, roofs, slopes)


def traffic_section(view: RunView) -> Html | None:
    """Bytes of a step between workers and servers, or around the ring of replicas."""
    servers = view.run.traffic.get("servers") if view.run.traffic else None
    if servers:
        head, rows = traffic_table(servers)
        boxes = [ServerBytes(escape_line(row["task"]), *(
            (float(row["predicted"][way]), float(row["measured"][way]))
            for way in ("received", "sent"))) for row in servers]  # fmt: skip
        caption = "bytes of a step of one worker"
        shown = table(head, rows[:MOST_BARS], caption)
        return joined([
            element("h2", "Bytes of a step"), servers_diagram(view.run.replicas, boxes), shown
        ])  # fmt: skip
    sent, steps = view.result.get("bytes_sent", [int], []), view.result.get("steps", [int], [])
    spans = view.result.get("tasks_per_replica", int, 1)
    if view.run.mode != "collective" or spans != 1 or len(sent) != len(steps) or not all(steps):
        return None
    ring = ring_diagram([nbytes / count for nbytes, count in zip(sent, steps, strict=True)])
    return joined([element("h2", "Bytes of a step"), ring]) if ring else None
