"""Results of a ledger: as a table, as JSON, and as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from typing import Any

from hpcflow.platform.quantity_text import format_seconds
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report.run_tables import table
from hpcflow.sweep import run_ledger
from hpcflow.sweep.run_ledger import Ledger, LedgerRun, RunState
from hpcflow.sweep.search_space import best

FORMAT = "hpcflow-sweep-results-1"
MOST_ROWS = 40  # of the table on a terminal


def results(ledger: Ledger) -> list[tuple[LedgerRun, RunState]]:
    """The runs and their states, in the order of the ledger."""
    return [(run, ledger.state(run.name)) for run in ledger.runs]


def as_text(ledger: Ledger, found: list[tuple[LedgerRun, RunState]]) -> str:
    """The best runs, then the others; and how many are in which state.

    A scaling study has no mode, so no best run: its runs are in the order of the ledger.
    """
    metric, mode = ledger.spec.get("metric", ""), ledger.spec.get("mode", "")
    order = _order(found, mode if metric else "")
    names = list(dict.fromkeys(name for run, _ in found for name in run.values))
    head = ["run", "state", *names, *([metric] if metric else []), "seconds", "exit code"]
    rows = [_row(*found[n], names, bool(metric)) for n in order[:MOST_ROWS]]
    lines = [table([escape_line(word) for word in head], rows)]
    if len(order) > MOST_ROWS:
        lines.append(f"and {len(order) - MOST_ROWS:,} more")
    lines += [
        f"{run.name}: {state.state}: {state.reason}"
        for run, state in [found[n] for n in order][:MOST_ROWS]
        if state.reason
    ]
    if metric and mode and order and found[order[0]][1].value is not None:
        run, state = found[order[0]]
        chosen = " ".join(f"{name}={value}" for name, value in run.values.items())
        lines.append(f"best: {run.name}, {metric} {state.value:.6g}: {escape_line(chosen)}")
    return "\n".join([*lines, counts(found)])


def _order(found: list[tuple[LedgerRun, RunState]], mode: str) -> list[int]:
    """The order of the rows: later groups first, in each the best first; without values last."""
    order: list[int] = []
    for group in sorted({run.group for run, _ in found}, reverse=True):
        members = [n for n, (run, _) in enumerate(found) if run.group == group]
        values = {n: found[n][1].value for n in members}
        order += best(values, mode, len(members)) if mode else members
    rest = (n for n in range(len(found)) if n not in set(order))
    return [*order, *rest]


def counts(found: list[tuple[LedgerRun, RunState]]) -> str:
    """How many runs are in which state."""
    number = Counter(state.state for _, state in found)
    words = [f"{number[name]} {name.replace('_', ' ')}" for name in run_ledger.STATES
             if number[name]]  # fmt: skip
    return f"{len(found)} run{'s' if len(found) != 1 else ''}: {', '.join(words)}"


def _row(run: LedgerRun, state: RunState, names: list[str], has_metric: bool) -> list[str]:
    value = [f"{state.value:.6g}" if state.value is not None else "-"] if has_metric else []
    return [
        run.name,
        state.state.replace("_", " "),
        *(escape_line(str(run.values.get(name, "-"))) for name in names),
        *value,
        format_seconds(state.seconds) if state.seconds else "-",
        "-" if state.exit_code is None else f"{state.exit_code}",
    ]


def as_data(ledger: Ledger, found: list[tuple[LedgerRun, RunState]]) -> dict[str, Any]:
    """Id, state, exit code, seconds and metric of each run, as JSON."""
    return {
        "format": FORMAT,
        "folder": str(ledger.folder),
        "metric": ledger.spec.get("metric") or None,
        "mode": ledger.spec.get("mode") or None,
        "runs": [
            {
                "id": run.name,
                "group": run.group,
                "values": run.values,
                "state": state.state,
                "exit_code": state.exit_code,
                "seconds": state.seconds,
                "metric": state.value,
                "attempts": state.attempts,
                "reason": state.reason,
                "folder": str(ledger.run_folder(run.name)),
            }
            for run, state in found
        ],
    }


def as_csv(ledger: Ledger, found: list[tuple[LedgerRun, RunState]]) -> str:
    """The same as a table, a column for each axis."""
    data = as_data(ledger, found)["runs"]
    names = list(dict.fromkeys(name for row in data for name in row["values"]))
    head = ["id", "state", "exit_code", "seconds", "metric", "attempts"]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*head, *names])
    for row in data:
        writer.writerow([*(row[name] for name in head),
                         *(row["values"].get(name, "") for name in names)])  # fmt: skip
    return text.getvalue()
