"""Change of the metric of a sweep: its runs are compared anew, from their folders."""

from __future__ import annotations

import dataclasses

from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.sweep import run_ledger
from hpcflow.sweep.run_ledger import Ledger
from hpcflow.sweep.search_space import HALVING, SweepError


def choose_metric(ledger: Ledger, metric: str, mode: str) -> None:
    """Compare the runs of a sweep by another metric, `mode` min or max, from their folders.

    The caller holds the lock of the sweep.
    Errors: SweepError if a later rung was chosen by the metric, or a run goes on.
    """
    if (metric, mode) == (ledger.spec.get("metric", ""), ledger.spec.get("mode", "")):
        return
    if bool(metric) != (mode in ("min", "max")):
        raise SweepError("a metric needs a direction, and a direction a metric",
                         hint="give --metric NAME --mode min")  # fmt: skip
    if any(run.group for run in ledger.runs):
        raise SweepError(
            f"the later rungs of {ledger.folder} were chosen by {ledger.spec['metric']} "
            f"({ledger.spec['mode']}): the metric cannot change",
            hint="give another folder by --out",
        )
    if not metric and ledger.spec.get("search") == HALVING:
        raise SweepError("successive halving needs a metric and its mode")
    going = [run.name for run in ledger.runs if ledger.is_held(run.name)]
    if going:
        raise SweepError(
            f"the run {going[0]} goes on: the metric can change when it has ended",
            hint=f"hpcflow watch {ledger.folder}",
        )
    ledger.settle()
    ledger.spec.update(metric=metric, mode=mode)
    for run in ledger.runs:
        state = ledger.recorded(run.name)
        if state.state == run_ledger.DONE:
            value, reason = ledger.value_of(run.name)
            changed = dataclasses.replace(state, value=value, reason=escape_line(reason))
            ledger.record(run.name, changed)
    ledger.add([])  # last: after an end in between, the same call begins again
