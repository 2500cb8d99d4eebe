"""Costs of a run as sections of its page: waiting, seconds, memory, operations, traffic."""

from __future__ import annotations

import statistics

import numpy as np

from hpcflow.report.html_elements import Html, element, joined, table
from hpcflow.report.page_charts import bar_chart
from hpcflow.report.run_tables import duration, traffic_table
from hpcflow.report.run_view import RunView, json_of, number_of
from hpcflow.report.wait_heat_map import png_uri

MOST_OPERATIONS = 10
MOST_BARS = 64  # workers in a chart of bars


def limits_section(view: RunView) -> Html | None:
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


def heat_section(view: RunView) -> Html | None:
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


def seconds_section(view: RunView) -> Html | None:
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


def memory_section(view: RunView) -> Html | None:
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


def operations_section(view: RunView) -> Html | None:
    """The operations that take most, with the share of the machine's peak that they reach."""
    profile = json_of(view.folder / "profile.json")
    ranks = profile.get("ranks")
    if not isinstance(ranks, list) or not ranks or not isinstance(ranks[0], dict):
        return None
    rows: list[list[str]] = []
    operations = ranks[0].get("ops")
    for one in operations if isinstance(operations, list) else ():
        if isinstance(one, dict) and one.get("kind") == "kernels" and len(rows) < MOST_OPERATIONS:
            calls = max(number_of(one.get("calls")), 1.0)
            rows.append([
                str(one.get("name", ""))[:60],
                str(one.get("title") or one.get("type", ""))[:60],
                f"{number_of(one.get('share')):.1%}",
                f"{number_of(one.get('seconds')) / calls * 1e6:,.1f}",
                f"{number_of(one.get('gflops')):.3g}",
                f"{number_of(one.get('gbs')):.3g}",
                f"{number_of(one.get('peak_share')):.0%}",
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


def traffic_section(view: RunView) -> Html | None:
    """Bytes of a step to and from each server."""
    servers = view.run.traffic.get("servers") if view.run.traffic else None
    if not servers:
        return None
    head, rows = traffic_table(servers)
    return joined([
        element("h2", "Bytes of a step"), table(head, rows, "bytes of a step of one worker")
    ])  # fmt: skip
