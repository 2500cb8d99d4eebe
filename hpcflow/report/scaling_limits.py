"""Limits of scaling: why the run with the most workers takes longer than its share.

The seconds of a worker are its own work, input and waiting for other ranks. Ideally N workers
divide the work of one (strong scaling), or each has the work of one (weak scaling), and wait for
nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hpcflow.platform.quantity_text import format_seconds
from hpcflow.report.run_view import RunView

LEAST_SHARE = 0.05  # of the time of the run: less is not told
ALIKE = 1.2  # batches of a worker that differ less than that are taken as equal


def scaling_limits(
    first: RunView, last: RunView, workers: float, kind: str, cores: int | None
) -> list[str]:
    """Lines, the largest loss first, for the last run beside the first.

    `workers` is how many times as many workers it has, `cores` those that its ranks shared, None if
    unknown.
    """
    seconds = last.run.seconds
    if not seconds or not last.work or not first.work or workers <= 1:
        return []
    share = _own(first) / (workers if kind == "strong" else 1.0)
    own = _own(last)
    waited, fed = statistics.fmean(last.waits or [0.0]), statistics.fmean(last.inputs or [0.0])
    crowded = cores is not None and last.run.ranks > cores
    cause = (
        f"{last.run.ranks} ranks share {cores} cores"
        if crowded
        else "what a step costs whatever the batch, or other programs on the cores"
    )
    whose = "that of one worker" if kind == "weak" else f"1/{workers:g} of one worker's"
    found = [
        (
            own - share,
            f"own work of a worker: {format_seconds(own)}, ideally {format_seconds(share)} "
            f"({whose}): {cause}",
        ),
        (waited, f"waiting for other ranks: {format_seconds(waited)}: {_waited_for(last)}"),
        (fed, f"waiting for input: {format_seconds(fed)}"),
    ]
    found.sort(reverse=True)
    return [
        f"{lost / seconds:.0%} of {last.name} is lost by {text}"
        for lost, text in found
        if lost >= LEAST_SHARE * seconds
    ]


def _waited_for(view: RunView) -> str:
    """What the workers wait for, and what to do if servers are the cause."""
    why = view.waiting_cause
    return "messages, or unequal steps" if why is None else f"{why.text}; {why.remedy}"


def _own(view: RunView) -> float:
    """Median own work of the workers, without input."""
    inputs = view.inputs if len(view.inputs) == len(view.work) else [0.0] * len(view.work)
    return statistics.median(w - i for w, i in zip(view.work, inputs, strict=True))


def batch_remark(runs: Sequence[tuple[int, int]], option: str | None) -> str:
    """The remark if the batches do not fit the kind of the study; (workers, global batch) of each.

    With `option` the batch of a worker should stay, without the global batch should.
    """
    known = [(workers, batch) for workers, batch in runs if workers and batch]
    if len({workers for workers, _ in known}) < 2:
        return ""
    sizes = [batch / workers if option else batch for workers, batch in known]
    if max(sizes) <= ALIKE * min(sizes):
        return ""
    told = ", ".join(f"{batch} with {workers}" for workers, batch in dict(known).items())
    if option:
        return (
            f"this is no weak scaling: the global batch is {told} workers; does the script use "
            f"{option}?"
        )
    return f"this is no strong scaling: the global batch is {told} workers"
