"""Tasks of a run and the bytes between them as SVG: workers with servers, or a ring of replicas."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.platform.quantity_text import rounded_bytes
from hpcflow.report.html_elements import Html, element
from hpcflow.report.page_charts import WIDTH

MOST_TASKS = 16  # drawn one by one; more are drawn as groups
BOX_WIDTH, BOX_HEIGHT, GAP = 130, 34, 44
AGREE = 0.01  # of the predicted bytes: a larger difference is coloured


class ServerBytes(NamedTuple):
    """Bytes of a step between one worker and a server: (predicted, measured) of each direction."""

    name: str
    received: tuple[float, float]
    sent: tuple[float, float]


def servers_diagram(workers: int, servers: Sequence[ServerBytes]) -> Html:
    """Workers on the left, servers on the right; at each server the bytes of a worker's step.

    More than MOST_TASKS of either are drawn as groups of neighbours; the bytes of a group of
    servers are sums.
    """
    if not servers or workers < 1:
        return Html("")
    left = [_span_name("worker", a, b) for a, b in _groups(workers)]
    right = [_joined_servers(servers[a:b], a, b) for a, b in _groups(len(servers))]
    lines = max(len(left), len(right))
    height = lines * (BOX_HEIGHT + GAP) + 8
    ys = [_centres(len(side), height) for side in (left, right)]
    near, far = 12 + BOX_WIDTH, WIDTH - 12 - BOX_WIDTH
    parts = [
        element("path", d=f"M{near} {a:.1f}L{far} {b:.1f}", class_="edge")
        for a in ys[0]
        for b in ys[1]
    ]
    parts += [_box(12, y, name) for name, y in zip(left, ys[0], strict=True)]
    for one, y in zip(right, ys[1], strict=True):
        parts.append(_box(far, y, one.name))
        for dy, sign, pair in ((15, "in", one.received), (30, "out", one.sent)):
            middle = far + BOX_WIDTH / 2
            parts.append(_bytes_label(middle, y + BOX_HEIGHT / 2 + dy, sign, pair))
    said = "; ".join(
        f"{one.name} receives {rounded_bytes(one.received[1])}, sends {rounded_bytes(one.sent[1])}"
        for one in right
    )
    picture = element("svg", *parts, viewBox=f"0 0 {WIDTH} {height}", role="img", class_="bars",
                      aria_label=f"bytes of a step of one worker, measured: {said}")  # fmt: skip
    caption = "bytes of a step of one worker: measured (predicted by the plan)"
    return element("figure", element("figcaption", caption), picture)


def ring_diagram(sent: Sequence[float]) -> Html:
    """A ring of replicas; at each the bytes that its rank sent a step, the mean in a group."""
    if len(sent) < 2:
        return Html("")
    spans = _groups(len(sent))
    wide, high = WIDTH / 2 - BOX_WIDTH / 2 - 60, 60.0 if len(spans) < 5 else 150.0
    high = 0.0 if len(spans) == 2 else high
    centre = WIDTH / 2, high + BOX_HEIGHT
    places, parts = [], []
    for k in range(len(spans)):
        angle = 2 * math.pi * k / len(spans) + math.pi
        places.append((centre[0] + wide * math.cos(angle), centre[1] + high * math.sin(angle)))
    ring = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    parts.append(element("path", d=f"M{ring}Z", class_="edge"))
    values = []
    for (first, last), (x, y) in zip(spans, places, strict=True):
        mean = statistics.fmean(sent[first:last])
        name = _span_name("rank", first, last)
        values.append(f"{name}: {rounded_bytes(mean)}")
        box = element("rect", x=f"{x - BOX_WIDTH / 2 + 10:.1f}", y=f"{y - 18:.1f}",
                      width=BOX_WIDTH - 20, height=36, rx=5, class_="task")  # fmt: skip
        parts.append(box)
        for dy, text in ((-3, name), (12, rounded_bytes(mean))):
            parts.append(element("text", text, x=f"{x:.1f}", y=f"{y + dy:.1f}", class_="x-tick"))
    height = round(2 * high + 2 * BOX_HEIGHT)
    said = "; ".join(values)
    picture = element("svg", *parts, viewBox=f"0 0 {WIDTH} {height}", role="img", class_="bars",
                      aria_label=f"bytes that each rank sent a step: {said}")  # fmt: skip
    caption = "bytes that each rank sent, divided by its steps (all messages, measured)"
    return element("figure", element("figcaption", caption), picture)


def _groups(count: int) -> list[tuple[int, int]]:
    """Numbers from 0 in at most MOST_TASKS groups of neighbours: (first, one after the last)."""
    size = -(-count // MOST_TASKS)
    return [(k, min(k + size, count)) for k in range(0, count, size)]


def _span_name(noun: str, first: int, end: int) -> str:
    return f"{noun} {first}" if end - first == 1 else f"{noun}s {first}-{end - 1}"


def _joined_servers(servers: Sequence[ServerBytes], first: int, end: int) -> ServerBytes:
    """A group of servers as one, with the sums of their bytes."""

    def total(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
        return sum(predicted for predicted, _ in pairs), sum(measured for _, measured in pairs)

    name = servers[0].name if end - first == 1 else _span_name("server", first, end)
    received, sent = [one.received for one in servers], [one.sent for one in servers]
    return ServerBytes(name, total(received), total(sent))


def _centres(count: int, height: float) -> list[float]:
    return [height * (k + 0.5) / count - GAP / 3 for k in range(count)]


def _box(x: float, y: float, name: str) -> Html:
    box = element("rect", x=x, y=f"{y - BOX_HEIGHT / 2:.1f}", width=BOX_WIDTH, height=BOX_HEIGHT,
                  rx=5, class_="task")  # fmt: skip
    text = element("text", name[:20], x=x + BOX_WIDTH // 2, y=f"{y + 5:.1f}", class_="x-tick")
    return element("g", element("title", name), box, text)


def _bytes_label(x: float, y: float, sign: str, pair: tuple[float, float]) -> Html:
    predicted, measured = pair
    differs = abs(measured - predicted) > AGREE * max(predicted, 1.0)
    text = f"{sign}: {rounded_bytes(measured)} ({rounded_bytes(predicted)})"
    return element(
        "text", text, x=x, y=f"{y:.1f}", class_="x-tick" + (" differs" if differs else "")
    )
