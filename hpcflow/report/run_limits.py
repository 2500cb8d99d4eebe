"""Limits of a run: what its seconds were lost to, largest first, and what to do about it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LEAST_SHARE = 0.05  # of the run's time: less is not worth a line
INPUT_REMEDY = (
    "more `readers` or `read_ahead` in hf.data.Dataset, a cheaper `map`, or a faster disk"
)
SLOWER = 1.3  # times the median of the workers' own work


class Limit(NamedTuple):
    """What limits a run: seconds lost (mean of the workers), the resource, and what to do."""

    seconds: float
    resource: str
    text: str
    remedy: str


def limits(
    seconds: float,
    inputs: Sequence[float],
    work: Sequence[float],
    waits: Sequence[float],
    names: Sequence[str],
    saves: Mapping[str, Any],
    servers: Sequence[str],
) -> list[Limit]:
    """The limits of a run, from the seconds of each worker; `names` are those of the workers."""
    found = [
        _input(seconds, inputs, names),
        _waiting(seconds, work, inputs, waits, names, servers),
        _saving(seconds, saves),
    ]
    return sorted(
        (one for one in found if one is not None and one.seconds >= LEAST_SHARE * seconds),
        reverse=True,
    )


def _input(seconds: float, inputs: Sequence[float], names: Sequence[str]) -> Limit | None:
    if not inputs or not seconds:
        return None
    mean, worst = statistics.fmean(inputs), max(range(len(inputs)), key=inputs.__getitem__)
    text = f"every worker waited {mean:.3g} s ({mean / seconds:.0%}) for input data"
    others = [value for i, value in enumerate(inputs) if i != worst]
    if others and inputs[worst] > 2 * statistics.median(others) + 0.01 * seconds:
        waited = inputs[worst]
        text = (
            f"{_name(names, worst)} waited {waited:.3g} s ({waited / seconds:.0%}) for input data"
        )
    return Limit(mean, "input", text, INPUT_REMEDY)


def _waiting(
    seconds: float,
    work: Sequence[float],
    inputs: Sequence[float],
    waits: Sequence[float],
    names: Sequence[str],
    servers: Sequence[str],
) -> Limit | None:
    """Waiting for other ranks: for a slow worker if there is one, else for messages."""
    if not waits or not seconds:
        return None
    mean = statistics.fmean(waits)
    share = f"{mean:.3g} s ({mean / seconds:.0%})"
    if len(work) > 1 and len(work) == len(waits):
        slowest = max(range(len(work)), key=work.__getitem__)
        others = [value for i, value in enumerate(work) if i != slowest]
        median = statistics.median(others)
        if median > 0 and work[slowest] > SLOWER * median:
            lost = statistics.fmean(v for i, v in enumerate(waits) if i != slowest)
            fed = inputs[slowest] if len(inputs) == len(work) else 0.0
            is_fed = fed > 0.5 * (work[slowest] - median)
            why = "waiting for its input" if is_fed else "its own work"
            text = (
                f"{_name(names, slowest)} is slow: {why} took {work[slowest]:.3g} s, that of the "
                f"others {median:.3g} s; each of these waited {lost:.3g} s ({lost / seconds:.0%})"
            )
            if is_fed:
                return Limit(lost, "input", text, INPUT_REMEDY)
            remedy = "leave its node out, look for another job on it, or Dataset(balance=True)"
            return Limit(lost, "slow worker", text, remedy)
    if servers:
        more = f" and {len(servers) - 4} more" if len(servers) > 4 else ""
        whom = (
            f"the servers, to which all {len(waits)} workers send, or their network ports: "
            f"{', '.join(servers[:4])}{more}"
        )
        remedy = "more servers (--ps), fewer bytes (compression), or larger batches"
    else:
        whom = "sums over the ranks: the network, or unequal steps"
        remedy = "larger batches, fewer bytes (compression), or `hpcflow doctor` on these nodes"
    return Limit(mean, "messages", f"every worker waited {share} for {whom}", remedy)


def _name(names: Sequence[str], worker: int) -> str:
    return names[worker] if worker < len(names) else f"worker {worker}"


def _saving(seconds: float, saves: Mapping[str, Any]) -> Limit | None:
    held = saves.get("held_seconds")
    if not isinstance(held, (int, float)) or not 0 <= held < 1e15 or not seconds:
        return None
    text = f"training waited {held:.3g} s ({held / seconds:.0%}) for checkpoints"
    return Limit(float(held), "saving", text, "save less often (save_every), or to a faster disk")
