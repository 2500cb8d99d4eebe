"""Listing of passes: the pass list as it ran for a plan, and what one pass changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.graph.dtypes import name_of
from hpcflow.graph.static_shape import Spec, shape_text
from hpcflow.plan.ir.program import Node, Partition, Plan, Program
from hpcflow.plan.listing.plan_text import format_table
from hpcflow.plan.pass_row import Form, Pass
from hpcflow.platform.quantity_text import format_seconds

FORMAT = "hpcflow-passes-1"
MAX_VALUE_LENGTH = 60  # characters of a value in the text


class PassRun(NamedTuple):
    """One run of a pass: on which program or partition, before and after, and its time."""

    row: Pass
    subject: str
    before: Any
    after: Any
    seconds: float


class PassRecord:
    """Records the runs of passes; call it as the `watch` of a run."""

    def __init__(self) -> None:
        self.runs: list[PassRun] = []

    def __call__(self, row: Pass, subject: str, before: Any, after: Any, seconds: float) -> None:
        """Record a run."""
        self.runs.append(PassRun(row, subject, before, after, seconds))


# -- the list


def passes_data(rows: Sequence[Pass], record: PassRecord) -> dict[str, Any]:
    """Return the list as plain data: each pass with its runs, nodes and seconds."""
    runs: dict[str, list[PassRun]] = {}
    for run in record.runs:
        runs.setdefault(run.row.name, []).append(run)
    return {"format": FORMAT, "passes": [_row_data(row, runs.get(row.name, [])) for row in rows]}


def _row_data(row: Pass, runs: Sequence[PassRun]) -> dict[str, Any]:
    return {
        "name": row.name,
        "phase": row.phase,
        "takes": row.takes.value,
        "gives": row.gives.value,
        "why": row.rationale,
        "holds": row.holds,
        "when": row.when,
        "bodies": row.in_bodies,
        "line": row.line,
        "runs": len(runs),
        "changed": sum(not _is_same(run) for run in runs),
        "nodes_before": sum(_count(run.before) for run in runs),
        "nodes_after": None if row.gives is Form.CODE else sum(_count(run.after) for run in runs),
        "seconds": sum(run.seconds for run in runs),
    }


def passes_text(rows: Sequence[Pass], record: PassRecord) -> str:
    """Return the list as a table, a row for each pass; one that did not run says when it does."""
    lines = []
    for row in passes_data(rows, record)["passes"]:
        form = row["takes"] if row["takes"] == row["gives"] else f"{row['takes']} > {row['gives']}"
        if row["runs"]:
            nodes = ["" if n is None else str(n) for n in (row["nodes_before"], row["nodes_after"])]
            cells = [
                str(row["runs"]),
                str(row["changed"]),
                *nodes,
                format_seconds(row["seconds"]),
                "",
            ]
        else:
            cells = ["0", "", "", "", "", f"only with: {row['when']}"]
        lines.append((row["name"], form, *cells))
    header = ("pass", "form", "runs", "changed", "nodes before", "after", "time", "")
    return format_table(header, lines)


# -- what a pass changed


def diff_data(rows: Sequence[Pass], record: PassRecord) -> list[dict[str, Any]]:
    """Return one object for each run of these passes: nodes added, removed and changed."""
    names = {row.name for row in rows}
    return [_diff(run) for run in record.runs if run.row.name in names]


def _diff(run: PassRun) -> dict[str, Any]:
    before, after = dict(_nodes(run.before)), dict(_nodes(run.after))
    return {
        "pass": run.row.name,
        "what": run.subject,
        "nodes_before": len(before),
        "nodes_after": len(after),
        "added": [_node_summary(name, node) for name, node in after.items() if name not in before],
        "removed": [
            _node_summary(name, node) for name, node in before.items() if name not in after
        ],
        "changed": [
            {"name": name, "type": node.type, "fields": fields}
            for name, node in after.items()
            if name in before and (fields := dict(_changes(before[name], node)))
        ],
    }


def diff_text(rows: Sequence[Pass], record: PassRecord) -> str:
    """Return the changes as text: + added, - removed, ~ changed."""
    blocks = []
    for change in diff_data(rows, record):
        lines = [
            f"{change['pass']}, {change['what']}: {change['nodes_before']} nodes before, "
            f"{change['nodes_after']} after"
        ]
        for sign, key in (("-", "removed"), ("+", "added")):
            lines += [
                f"  {sign} {node['name']}  {node['type']}({', '.join(node['inputs'])})"
                for node in change[key]
            ]
        for node in change["changed"]:
            lines.append(f"  ~ {node['name']}  {node['type']}")
            lines += [f"      {key}: {a} -> {b}" for key, (a, b) in node["fields"].items()]
        blocks.append("\n".join(lines if len(lines) > 1 else [*lines, "  nothing changed"]))
    if not blocks:
        when = "; ".join(dict.fromkeys(row.when for row in rows))
        return f"{', '.join(row.name for row in rows)} did not run; only with: {when}"
    return "\n\n".join(blocks)


def _node_summary(name: str, node: Node) -> dict[str, Any]:
    return {"name": name, "type": node.type, "inputs": [str(ref) for ref in node.inputs]}


def _changes(old: Node, new: Node) -> Iterator[tuple[str, list[str]]]:
    """Yield the fields that differ, with both values as text; attributes one by one."""
    for field in dataclasses.fields(Node):
        a, b = getattr(old, field.name), getattr(new, field.name)
        if field.name == "attrs":
            for key in dict.fromkeys((*a, *b)):
                if not _equal(a.get(key), b.get(key)):
                    yield f"attrs.{key}", [_text(a.get(key)), _text(b.get(key))]
        elif not _equal(a, b):
            yield field.name, [_text(a), _text(b)]


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, (Program, Partition)) and isinstance(b, (Program, Partition)):
        return _equal(a.nodes, b.nodes) and a.fetches == b.fetches
    if isinstance(a, Node) and isinstance(b, Node):
        return not any(_changes(a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return list(a) == list(b) and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        same = np.shape(a) == np.shape(b) and getattr(a, "dtype", 0) == getattr(b, "dtype", 1)
        return same and bool(np.array_equal(a, b))
    return type(a) is type(b) and bool(a == b)


def _text(value: Any) -> str:
    if isinstance(value, (Program, Partition)):
        return f"{len(value.nodes)} nodes"
    if isinstance(value, Spec):
        return f"{name_of(value.dtype)} {shape_text(value.shape)}"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        text = ", ".join(map(_text, value))
    else:
        text = " ".join(str(value).split())
    text = text or "none"
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 3]}..."


def _nodes(value: Any) -> Iterator[tuple[str, Node]]:
    """Yield the nodes of a form with their names, which name the task in a plan of several."""
    if isinstance(value, Plan):
        for task, part in value.parts.items():
            for name, node in part.nodes.items():
                yield (name if len(value.parts) == 1 else f"{name} on {task}"), node
    else:
        part = getattr(value, "part", value)  # of segments, buffers
        if isinstance(part, (Program, Partition)):
            yield from part.nodes.items()


def _count(value: Any) -> int:
    if isinstance(value, tuple):  # the graph, and what is asked of it
        return len(value[0].get_operations())
    return sum(1 for _ in _nodes(value))


def _is_same(run: PassRun) -> bool:
    if run.before is run.after:
        return True
    before, after = dict(_nodes(run.before)), dict(_nodes(run.after))
    return run.row.takes is run.row.gives and _equal(before, after)
