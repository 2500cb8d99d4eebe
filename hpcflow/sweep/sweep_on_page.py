"""Sweep on a page: the runs of a ledger as the page draws them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcflow.report.sweep_facts import Sweep, SweepRun, best_first
from hpcflow.sweep import run_ledger, sweep_table
from hpcflow.sweep.run_ledger import Ledger, LedgerRun, RunState


def sweep_of(ledger: Ledger, found: Sequence[tuple[LedgerRun, RunState]]) -> Sweep | None:
    """The runs of a sweep by its metric; None without one, and for a scaling study."""
    spec = ledger.spec
    if not spec.get("metric") or "search" not in spec:
        return None
    runs = [
        SweepRun(
            run.name,
            str(ledger.run_folder(run.name)),
            run.values,
            state.state,
            state.value,
            state.reason,
            run.group,
        )
        for run, state in found
    ]
    budget = str(spec["budget"][0]) if spec.get("budget") else ""
    return Sweep(spec["metric"], spec["mode"], runs, budget)


def sweep_in(path: str) -> Sweep | None:
    """The sweep in a folder; None if it is that of a run, or has no metric."""
    ledger = Ledger.open(Path(path)) if run_ledger.is_sweep(Path(path)) else None
    return sweep_of(ledger, sweep_table.results(ledger)) if ledger is not None else None


def best_folders_first(folders: Sequence[str], sweeps: Sequence[Sweep]) -> list[str]:
    """The run directories, those of a sweep with its best runs first."""
    place = {
        str(Path(run.folder)): k
        for k, run in enumerate(run for sweep in sweeps for run in best_first(sweep))
    }
    known = iter(sorted((f for f in folders if f in place), key=lambda f: place[f]))
    return [next(known) if folder in place else folder for folder in folders]
