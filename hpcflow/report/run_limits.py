"""Limits of a run: what its seconds were lost to, largest first, and what to do about it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcflow.platform.quantity_text import format_seconds
from hpcflow.report.server_limits import MESSAGES, Servers, cause

LEAST_SHARE = 0.05  # of the run's time: less is not worth a line
INPUT, UNEQUAL = "input", "unequal steps"
INPUT_REMEDY = (
    "more `readers` or `read_ahead` in hf.data.Dataset, a cheaper `map`, or a faster disk"
)
SLOWER = 1.3  # times the median of the workers' own work


class Joint(NamedTuple):
    """Seconds of waiting for other ranks, after the first step."""

    common: float  # all workers waited at the same time
    in_turn: float  # the others, on average


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
    joint: Joint | None = None,
) -> list[Limit]:
    """The limits of a run, from the seconds of each worker; `names` are those of the workers.

    `joint` is how the workers waited, if that is known: where workers wait for each other, no slow
    worker explains what all waited at the same time.
    """
    if servers.names and not servers.joins:
        joint = None
    waiting = _waiting(seconds, work, inputs, waits, names, servers, joint)
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
    text = f"the workers waited {_part(mean, seconds)} for input data, on average"
    others = [value for i, value in enumerate(inputs) if i != worst]
    if others and inputs[worst] > 2 * statistics.median(others) + 0.01 * seconds:
        text = f"{_name(names, worst)} waited {_part(inputs[worst], seconds)} for input data"
    return Limit(mean, INPUT, text, INPUT_REMEDY)


def _waiting(
    seconds: float,
    work: Sequence[float],
    inputs: Sequence[float],
    waits: Sequence[float],
    names: Sequence[str],
    servers: Servers,
    joint: Joint | None,
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
            rest = waits[slowest] if joint is None else min(waits[slowest], joint.common)
            slow = _slow_worker(seconds, work, fed, slowest, names, waits[slowest] - rest)
            if slow.seconds >= LEAST_SHARE * seconds:
                rests = [rest] * len(waits)
                return [slow, _messages(seconds, [], rests, servers, joint is not None)]
    if joint is None or servers.names:
        return [_messages(seconds, work, waits, servers)]
    common = _messages(seconds, work, [joint.common], servers, is_common=True)
    return [common, _in_turn(seconds, joint.in_turn)]


def _messages(
    seconds: float,
    work: Sequence[float],
    waits: Sequence[float],
    servers: Servers,
    is_common: bool = False,
) -> Limit:
    """Waiting for messages; `is_common` if all waited at the same time, not for each other."""
    mean = statistics.fmean(waits)
    share = _part(mean, seconds)
    if servers.names:
        why = cause(seconds, work, waits, servers)
        text = f"the workers waited {share} for {why.text}"
        if why.seconds:
            text += f"; if that took no time, {_without(seconds, why.seconds)}"
        return Limit(mean, why.resource, text, why.remedy)
    where = "messages between processes of one node" if servers.nodes == 1 else "the network"
    why_not = "" if is_common else ", or unequal steps"
    text = f"the workers waited {share} for sums over the ranks: {where}{why_not}"
    remedy = "larger batches, fewer bytes (compression), or `hpcflow doctor` on these nodes"
    if servers.nodes == 1:
        remedy = "a core for each thread of each rank (fewer ranks), or larger batches"
    return Limit(mean, MESSAGES, text, remedy)


def _in_turn(seconds: float, lost: float) -> Limit:
    """Workers of equal work wait for each other: now one is late, then another."""
    text = (
        f"the workers waited {_part(lost, seconds)} for each other in turn, on average: their "
        "steps take unequal times"
    )
    remedy = "a core for each thread of each rank, batches of equal cost, or --ps 1 --sync async"
    return Limit(lost, UNEQUAL, text, remedy)


def _slow_worker(
    seconds: float,
    work: Sequence[float],
    inputs: Sequence[float],
    slowest: int,
    names: Sequence[str],
    explained: float,
) -> Limit:
    """The others wait for the slowest worker; the run is longer by what it takes above them.

    `explained` are the seconds in which it waited for others that were late.
    """
    median = statistics.median(v for i, v in enumerate(work) if i != slowest)
    lost = min(work[slowest] - median, seconds)
    fed = statistics.median(v for i, v in enumerate(inputs) if i != slowest)
    if inputs[slowest] - fed > 0.5 * (work[slowest] - median):
        least = max(seconds - inputs[slowest] - explained, 0.0)
        text = (
            f"{_name(names, slowest)} waited {format_seconds(inputs[slowest])} for its input data, "
            f"the {_others(work)} {format_seconds(fed)} (workers read ahead while they wait), and "
            f"then for it; if it waited as little as the {_others(work)}, "
            f"{_without(seconds, lost)}, and "
            f"without any waiting for input about {format_seconds(least)}"
        )
        return Limit(lost, INPUT, text, INPUT_REMEDY)
    text = (
        f"{_name(names, slowest)} is slow: its own work took {format_seconds(work[slowest])}, that "
        f"of the {_others(work)} {format_seconds(median)}; if it were as fast, "
        f"{_without(seconds, lost)}"
    )
    remedy = (
        "look for another job on its cores or node, leave the node out, or Dataset(balance=True)"
    )
    return Limit(lost, "slow worker", text, remedy)


def _without(seconds: float, lost: float) -> str:
    return (
        f"the run would take about {format_seconds(seconds - lost)}, not {format_seconds(seconds)}"
    )


def _part(part: float, seconds: float) -> str:
    """A time, and its share of all `seconds`."""
    return f"{format_seconds(part)} ({part / seconds:.0%})"


def _others(work: Sequence[float]) -> str:
    return "others" if len(work) > 2 else "other one"


def start_limit(
    seconds: float, start: float | None, compiled: Sequence[Mapping[str, Any]]
) -> Limit | None:
    """The time from the launch to the first step, beside the `seconds` of training.

    `compiled` is the field `compile` of result.json. None if it is short, or not known.
    """
    if start is None or start < LEAST_SHARE * (start + seconds):
        return None
    text = f"{format_seconds(start)} passed from the launch to the end of the first step"
    plans, kernels = (
        max((_seconds(one.get(f"{kind}_seconds")) for one in compiled), default=0.0)
        for kind in ("plan", "kernel")
    )
    if compiled:
        text += (
            f"; plans took at most {format_seconds(plans)} of a rank and kernels "
            f"{format_seconds(kernels)}, the rest is the launch, imports and the script"
        )
    remedy = (
        "`hpcflow pack` for many ranks on a shared file system, fewer imports, and less work of "
        "the script before its first step"
    )
    if plans + kernels > 0.25 * start:
        remedy = (
            "a run of the same graph loads plans and kernels from the cache, if its folder stays: "
            "`hpcflow cache`, HPCFLOW_PLAN_CACHE, HPCFLOW_KERNEL_CACHE"
        )
    return Limit(start, "start", text, remedy)


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e15 else 0.0


def _name(names: Sequence[str], worker: int) -> str:
    return names[worker] if worker < len(names) else f"worker {worker}"


def _saving(seconds: float, saves: Mapping[str, Any]) -> Limit | None:
    held = saves.get("held_seconds")
    if not isinstance(held, (int, float)) or not 0 <= held < 1e15 or not seconds:
        return None
    text = f"training waited {_part(held, seconds)} for checkpoints"
    return Limit(float(held), "saving", text, "save less often (save_every), or to a faster disk")
