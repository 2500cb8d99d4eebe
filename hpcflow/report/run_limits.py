"""Limits of a run: what its seconds were lost to, largest first, and what to do about it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcflow.report.server_limits import MESSAGES, Servers, cause

LEAST_SHARE = 0.05  # of the run's time: less is not worth a line
INPUT = "input"
INPUT_REMEDY = (
    "more `readers` or `read_ahead` in hf.data.Dataset, a cheaper `map`, or a faster disk"
)
SLOWER = 1.3  # times the median of the workers' own work


class Limit(NamedTuple):
    """What limits a run: seconds by which it is longer, the resource, and what to do."""

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
    servers: Servers,
) -> list[Limit]:
    """The limits of a run, from the seconds of each worker; `names` are those of the workers."""
    waiting = _waiting(seconds, work, inputs, waits, names, servers)
    is_input = any(one.resource == INPUT for one in waiting)
    found = [
        None if is_input else _input(seconds, inputs, names),
        *waiting,
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
    text = f"the workers waited {mean:.3g} s ({mean / seconds:.0%}) for input data, on average"
    others = [value for i, value in enumerate(inputs) if i != worst]
    if others and inputs[worst] > 2 * statistics.median(others) + 0.01 * seconds:
        waited = inputs[worst]
        text = (
            f"{_name(names, worst)} waited {waited:.3g} s ({waited / seconds:.0%}) for input data"
        )
    return Limit(mean, INPUT, text, INPUT_REMEDY)


def _waiting(
    seconds: float,
    work: Sequence[float],
    inputs: Sequence[float],
    waits: Sequence[float],
    names: Sequence[str],
    servers: Servers,
) -> list[Limit]:
    """Waiting for other ranks: for a slow worker, and what that one waits for itself.

    Without a slow worker it is what all wait for, on average.
    """
    if not waits or not seconds:
        return []
    if len(work) > 1 and len(work) == len(waits):
        slowest = max(range(len(work)), key=work.__getitem__)
        median = statistics.median(v for i, v in enumerate(work) if i != slowest)
        if median > 0 and work[slowest] > SLOWER * median:
            fed = inputs if len(inputs) == len(work) else [0.0] * len(work)
            slow = _slow_worker(seconds, work, fed, slowest, names)
            if slow.seconds >= LEAST_SHARE * seconds:
                rest = [waits[slowest]] * len(waits)
                return [slow, _messages(seconds, [], rest, servers)]
    return [_messages(seconds, work, waits, servers)]


def _messages(
    seconds: float, work: Sequence[float], waits: Sequence[float], servers: Servers
) -> Limit:
    mean = statistics.fmean(waits)
    share = f"{mean:.3g} s ({mean / seconds:.0%})"
    if servers.names:
        why = cause(seconds, work, waits, servers)
        return Limit(mean, why.resource, f"the workers waited {share} for {why.text}", why.remedy)
    text = f"the workers waited {share} for sums over the ranks: the network, or unequal steps"
    remedy = "larger batches, fewer bytes (compression), or `hpcflow doctor` on these nodes"
    return Limit(mean, MESSAGES, text, remedy)


def _slow_worker(
    seconds: float,
    work: Sequence[float],
    inputs: Sequence[float],
    slowest: int,
    names: Sequence[str],
) -> Limit:
    """The others wait for the slowest worker; the run is longer by what it takes above them."""
    median = statistics.median(v for i, v in enumerate(work) if i != slowest)
    lost = min(work[slowest] - median, seconds)
    fed = statistics.median(v for i, v in enumerate(inputs) if i != slowest)
    without = f"without that the run would take about {seconds - lost:.3g} s, not {seconds:.3g} s"
    if inputs[slowest] - fed > 0.5 * (work[slowest] - median):
        text = (
            f"{_name(names, slowest)} waited {inputs[slowest]:.3g} s for its input data, the "
            f"others {fed:.3g} s, and then for it: {without}"
        )
        return Limit(lost, INPUT, text, INPUT_REMEDY)
    text = (
        f"{_name(names, slowest)} is slow: its own work took {work[slowest]:.3g} s, that of the "
        f"others {median:.3g} s: {without}"
    )
    remedy = (
        "look for another job on its cores or node, leave the node out, or Dataset(balance=True)"
    )
    return Limit(lost, "slow worker", text, remedy)


def _name(names: Sequence[str], worker: int) -> str:
    return names[worker] if worker < len(names) else f"worker {worker}"


def _saving(seconds: float, saves: Mapping[str, Any]) -> Limit | None:
    held = saves.get("held_seconds")
    if not isinstance(held, (int, float)) or not 0 <= held < 1e15 or not seconds:
        return None
    text = f"training waited {held:.3g} s ({held / seconds:.0%}) for checkpoints"
    return Limit(float(held), "saving", text, "save less often (save_every), or to a faster disk")
