"""Setting advice: what a better value of a setting would have gained, from the files of a run.

The script does not run again. Settings that no module here judges need another plan of it
(`hpcflow predict --compare`).
"""

from __future__ import annotations

from pathlib import Path

from hpcflow.report.advised_run import LEAST_GAIN, Advice, advised_run
from hpcflow.report.allreduce_advice import allreduce_advice
from hpcflow.report.server_advice import fewer_servers, server_advice


def advice_of(folder: Path, is_over: bool | None = None) -> Advice | None:
    """The advice with the largest gain, if that is at least `LEAST_GAIN` of a step.

    Else the advice to start fewer servers, if they would do. Else None, also for runs that are no
    `AdvisedRun`. `is_over` is that of `outcome_of`.
    Errors: HpcflowError if a file of the run is not readable.
    """
    run = advised_run(folder, is_over)
    if run is None:
        return None
    found = {"collective": allreduce_advice, "ps": server_advice}
    mode = run.manifest.get("mode", str, "")
    advices = found[mode](run) if mode in found else []
    best = min(advices, key=lambda one: one.predicted, default=None)
    if best is not None and best.predicted <= (1 - LEAST_GAIN) * best.measured:
        return best
    return fewer_servers(run) if mode == "ps" else None
