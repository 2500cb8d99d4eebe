"""Rungs of a sweep: the runs it begins with, and those of the next rung of successive halving."""

from __future__ import annotations

from hpcflow.sweep import run_ledger
from hpcflow.sweep.run_ledger import Ledger, LedgerRun
from hpcflow.sweep.search_space import HALVING, Budget, best
from hpcflow.sweep.sweep_specification import SweepSpec


def first_runs(spec: SweepSpec) -> list[LedgerRun]:
    """The runs that a sweep begins with."""
    points = spec.configurations()
    return [spec.ledger_run(number, point) for number, point in enumerate(points)]


def next_rung(ledger: Ledger) -> list[LedgerRun]:
    """The runs of the next rung; [] if it was the last, or runs of it have not ended.

    The best 1 / factor of a rung, by the metric, get the next budget. Runs without a value are out.
    """
    if ledger.spec.get("search") != HALVING:
        return []
    budget = Budget(*ledger.spec["budget"])
    rung = max(run.group for run in ledger.runs)
    members = [run for run in ledger.runs if run.group == rung]
    states = [ledger.state(run.name) for run in members]
    if rung + 1 >= len(budget.rungs) or any(s.state not in run_ledger.ENDED for s in states):
        return []
    values = {number: state.value for number, state in enumerate(states)}
    chosen = best(values, ledger.spec["mode"], max(1, len(members) // budget.factor))
    first = len(ledger.runs)
    return [
        _raised(members[one], f"{first + number:04}", rung + 1, budget)
        for number, one in enumerate(chosen)
    ]


def _raised(run: LedgerRun, name: str, rung: int, budget: Budget) -> LedgerRun:
    """The same configuration with the budget of a rung."""
    option, amount = f"--{budget.argument}=", str(budget.rungs[rung])
    words = [word for word in run.words if not word.startswith(option)]
    return LedgerRun(
        name,
        run.ranks,
        run.settings,
        [*words, option + amount],
        {**run.values, budget.argument: amount},
        rung,
    )
