"""Plan of a run as a section of its page: the picture that `plan.json` tells, and its costs."""

from __future__ import annotations

import functools
from pathlib import Path

from hpcflow.errors import HpcflowError
from hpcflow.platform.quantity_text import format_bytes, format_flops, format_milliseconds
from hpcflow.report.html_elements import Html, element, joined, table, with_code
from hpcflow.report.plan_facts import Measured, PictureFacts
from hpcflow.report.plan_file import NAME, DrawnPlan, read_plan
from hpcflow.report.plan_svg import svg_of
from hpcflow.report.run_events import time_of
from hpcflow.report.run_view import PROFILE, RunView, number_of, ranks_in

MOST_PAIRS = 64  # of tasks in the table of messages
NO_PLAN = (
    f"There is no {NAME}: `hpcflow run` writes it when training begins, not a script that was "
    "started without it (or with --set page=0)."
)
HEAD = ["box", "operations", "work", "read and written", "predicted", "measured"]


def plan_section(view: RunView) -> Html | None:
    """The picture of the first training plan; a line that says why if the file cannot be drawn."""
    plan, profile = view.folder / NAME, view.folder / PROFILE
    head = element("h2", "Plan of a step")
    if not plan.exists():
        return joined([head, element("p", *with_code(NO_PLAN))])
    try:
        written, drawn = _drawn(plan, (_stamp(plan), _stamp(profile)))
    except HpcflowError as error:
        why = error.message.replace(str(plan), NAME)
        return joined([head, element("p", f"no picture of the plan: {why}", class_="bad")])
    is_old = written < time_of(view.manifest.get("start", str, None))
    note = "It is of an earlier start of this run." if is_old else None
    return joined([head, element("p", note) if note else None, drawn])


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What tells that a file has changed; None if there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


@functools.lru_cache(maxsize=1)
def _drawn(path: Path, stamps: object) -> tuple[float, Html]:
    """When the plan was written, and its drawing; kept, as a page is written every few seconds."""
    plan = read_plan(path)
    if plan is None:
        raise HpcflowError(f"{NAME} was removed")
    measured = _measured(path.with_name(PROFILE))
    facts = PictureFacts(plan.picture, measured)
    figure = element(
        "figure",
        element("figcaption", _caption(plan)),
        element("p", _said(any(facts.measured(box)[1] for box in plan.picture.boxes))),
        element("div", svg_of(plan.picture, measured), class_="wide", tabindex="0", role="group",
                aria_label="picture of the plan"),
        class_="plan",
    )  # fmt: skip
    details = element("summary", "The same as a table")
    tables = [_messages(plan), element("details", details, _costs(facts))]
    return plan.written, joined([figure, *tables])


def _measured(path: Path) -> Measured:
    """The seconds of a call of each operation; of the first rank that tells them."""
    found: dict[tuple[str, str], float] = {}
    for rank in ranks_in(path):
        operations = rank.get("ops") if isinstance(rank, dict) else None
        for one in operations if isinstance(operations, list) else ():
            if isinstance(one, dict) and one.get("kind") == "kernels":
                seconds, calls = number_of(one.get("seconds")), number_of(one.get("calls"))
                if seconds >= 0 and calls >= 1:
                    key = str(one.get("task", "")), str(one.get("name", ""))
                    found.setdefault(key, seconds / calls)
    return found


def _caption(plan: DrawnPlan) -> str:
    operations = sum(op.count for op in plan.picture.operations)
    noun, count = ("worker", plan.workers)
    if plan.tasks_per_replica > 1:
        noun, count = "replica", plan.workers // plan.tasks_per_replica
    tasks = f"one {noun}" if count < 2 else f"one of {count:,} {noun}s"
    if plan.servers:
        tasks += f" with {plan.servers:,} server{'s' if plan.servers > 1 else ''}"
    return f"one step of {tasks}: {operations:,} operations, by layer"


def _said(is_measured: bool) -> str:
    measured = ", and for the time that the profile measured" if is_measured else ""
    return (
        "A box is a layer with its gradients and updates: the time that the plan predicts on one "
        "core, and the number of operations. Numbers on lines are bytes of a step. Point at a box "
        f"or at a line for its costs{measured}."
    )


def _messages(plan: DrawnPlan) -> Html | None:
    if not plan.traffic:
        return None
    rows = [
        (f"{one.source} to {one.dest}", f"{one.messages:,}", f"{one.nbytes:,}")
        for one in plan.traffic[:MOST_PAIRS]
    ]
    more = len(plan.traffic) - MOST_PAIRS
    left_out = f", without {more:,} more pairs of tasks" if more > 0 else ""
    caption = f"values that a step of a worker sends between tasks, by its plan{left_out}"
    return table(["tasks", "messages", "bytes"], rows, caption)


def _costs(facts: PictureFacts) -> Html:
    """The costs of the boxes that are seen."""
    picture, rows = facts.picture, []
    for place in sorted(set(picture.visible(picture.opened)) | picture.opened):
        box = picture.boxes[place]
        operations = [picture.operations[i] for i in box.members]
        seconds, known = facts.measured(box)
        count = facts.count(box)
        share = "" if known == count else f" ({known} of {count})"
        rows.append([
            box.name,
            f"{count:,}",
            format_flops(sum(op.flops for op in operations)),
            format_bytes(sum(op.nbytes for op in operations)),
            format_milliseconds(facts.seconds(box)),
            f"{format_milliseconds(seconds)}{share}" if known else "-",
        ])  # fmt: skip
    return table(HEAD, rows, "costs of a step by box; a task and an open layer are sums")
