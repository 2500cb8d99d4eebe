"""History of a run as sections of its page: starts, saves, warnings, failure, command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from hpcflow.platform.quantity_text import format_seconds
from hpcflow.platform.record_files import open_plain
from hpcflow.platform.terminal_escaping import escape_text
from hpcflow.report.html_elements import Html, element, joined, table
from hpcflow.report.page_diagrams import timeline
from hpcflow.report.run_events import END, FAILURE, STALL, START, Event, clock_text
from hpcflow.report.run_view import HIDDEN, RunView, number_of
from hpcflow.train.run_records import SAVE, SAVE_FAILED, WARNING
from hpcflow.train.straggler_detection import straggler_texts

LOG_BYTES, LOG_LINES = 64 << 10, 40  # of the log of a rank that failed
TELLING = (WARNING, SAVE_FAILED, STALL, FAILURE)  # events with texts of logs
MOST_EVENTS, MOST_SAVES = 50, 10  # in the table


def events_section(view: RunView) -> Html | None:
    """When it ran, a timeline and a table of its events, and what has no time."""
    parts: list[Html | None] = []
    events = [told_event(view, one) for one in view.events]
    if events:
        marks: dict[str, list[tuple[float, str]]] = {}
        for one in events:
            marks.setdefault(one.kind, []).append((one.time, one.text))
        parts.append(timeline(_spans(view, events), marks))
        saves = [one for one in events if one.kind == SAVE]
        others = [one for one in events if one.kind != SAVE]
        shown = sorted(others[-MOST_EVENTS:] + saves[-MOST_SAVES:], key=lambda one: one.time)
        has_steps = any(one.step is not None for one in shown)
        rows = [
            [clock_text(one.time), one.kind,
             *(["" if one.step is None else f"{one.step:,}"] if has_steps else []), one.text]
            for one in shown
        ]  # fmt: skip
        left_out = len(events) - len(shown)
        caption = "events" + (f" ({left_out:,} earlier ones are left out)" if left_out else "")
        head = ["time", "event", *(["step"] if has_steps else []), "what"]
        parts.append(table(head, rows, caption, texts={1, len(head) - 1}))
    items = _without_times(view)
    if items:
        parts.append(element("ul", *(element("li", item) for item in items)))
    return joined([element("h2", "Events"), *parts]) if parts else None


def told_event(view: RunView, event: Event) -> Event:
    """An event; in a redacted page without a text that may name hosts, users or paths."""
    return event._replace(text=view.told(event.text)) if event.kind in TELLING else event


def _spans(view: RunView, events: Sequence[Event]) -> list[tuple[float, float]]:
    """When the run ran: from each start to its end, or to the last that is known of it."""
    spans: list[tuple[float, float]] = []
    start = None
    for one in events:
        if one.kind == START:
            if start is not None:
                spans.append((start, one.time))
            start = one.time
        elif one.kind == END and start is not None:
            spans.append((start, one.time))
            start = None
    if start is not None:
        spans.append((start, max(start, view.last_seen or start, events[-1].time)))
    return spans


def _without_times(view: RunView) -> list[str]:
    """Saves in all, stragglers, and the warnings of all ranks with their counts."""
    items: list[str] = []
    saves = view.result.get("saves", {}, {})
    if saves:
        items.append(
            f"{saves.get('written', 0)} checkpoints written, {saves.get('failed', 0)} failed; "
            f"training waited {format_seconds(number_of(saves.get('held_seconds')))} for them"
        )
    items += map(view.told, straggler_texts(view.run.stragglers, view.run.replicas))
    warnings = view.result.said.get("warnings")
    if isinstance(warnings, dict):
        items += [view.told(f"warning: {text} ({said})") for text, said in warnings.items()]
    elif isinstance(warnings, list):
        items += [view.told(f"warning: {text}") for text in warnings]
    return items


def failure_section(view: RunView) -> Html | None:
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


def origin_section(view: RunView) -> Html | None:
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
