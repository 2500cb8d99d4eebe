"""Folders of sweeps that have run, without processes: for tests of what is shown of them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcflow.sweep.run_ledger import SWEEP, Ledger, LedgerRun, RunState
from tests.test_report import write


class Made(NamedTuple):
    """A run: its parameters, the metric, and how it ended."""

    values: dict[str, Any]
    metric: float | None
    state: str = "done"
    reason: str = ""
    rung: int = 0


def made_sweep(
    folder: Path, runs: Sequence[Made], search: str = "grid", mode: str = "min", budget: str = ""
) -> Path:
    """The folder of a sweep by the metric `loss`; a run that has begun has a loss by step."""
    spec = {"metric": "loss", "mode": mode, "search": search}
    spec |= {"budget": [budget, 1, 9, 3] if budget else None}
    data = {"format": "hpcflow-sweep-1", "id": "0", "cwd": str(folder), "script": "train.py"}
    ledger = Ledger(folder, {**data, "spec": spec, "runs": []})
    folder.mkdir(parents=True)
    ledger.add(
        [LedgerRun(f"{k:04}", 1, {}, [], run.values, run.rung) for k, run in enumerate(runs)]
    )
    for k, run in enumerate(runs):
        if run.state == "pending":
            continue
        path = Path(write(ledger.run_folder(f"{k:04}"), 1, 64, 900.0 + k, rows=()))
        losses(path, 2.0 if run.metric is None else run.metric)
        ledger.record(f"{k:04}", RunState(run.state, 1, value=run.metric, reason=run.reason))
    assert (folder / SWEEP).is_file()
    return folder


def losses(path: Path, last: float) -> None:
    """Add a loss by step that ends at `last`."""
    with open(path / "metrics.csv", "a", newline="") as file:
        for step in range(1, 41):
            loss = last * (1 + 4 / step)
            csv.writer(file).writerow([step, step / 10, step, 1, 64 * step, 1000.0, loss])
