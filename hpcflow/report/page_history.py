"""History of a run as sections of its page: starts, saves, warnings, failure, command."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from hpcflow.platform.record_files import open_plain
from hpcflow.platform.terminal_escaping import escape_text
from hpcflow.report.html_elements import Html, element, joined, table
from hpcflow.report.run_view import HIDDEN, RunView, number_of

LOG_BYTES, LOG_LINES = 64 << 10, 40  # of the log of a rank that failed


def events_section(view: RunView) -> Html | None:
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
            f"training waited {number_of(saves.get('held_seconds')):.3g} s for them"
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
