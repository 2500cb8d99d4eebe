"""Measured speeds: how fast ranks compute, relative to the predictions of `placement=auto`.

A run writes them (`train/task_speeds.py`), and the next start in its run directory places by them.

The file `placement.json` of a run directory has them, by rank and host:

    {"format": "hpcflow-placement-1", "plan": "3f...", "step_seconds": 0.061,
     "ranks": [{"rank": 2, "host": "n3", "speed": 0.34}]}

A speed of 0.5 takes twice the predicted time, in comparison with the other ranks of the replica.
`plan` is the digest of the plan that was measured, `step_seconds` its time of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcflow.platform.record_files import read_json_object, unreadable_error

NAME, FORMAT = "placement.json", "hpcflow-placement-1"
SLOW = 0.67  # predictions are not more exact: a speed from SLOW to 1 / SLOW counts as 1
WEIGHT = 0.5  # of the last run in the average with the earlier ones
FORGET = 0.1  # of the way to 1, in each run that does not measure a rank: it may have recovered
LEAST_SHARE = 0.1  # of the most predicted work of a task: less is not judged
LEAST_S = 1e-3  # own work in a step, and what it exceeds the prediction by: less is not judged
LOWEST, HIGHEST = 0.01, 100.0


class RankSpeed(NamedTuple):
    """The speed of a rank on a host."""

    host: str
    speed: float


class MeasuredSpeeds(NamedTuple):
    """The contents of the file; `ranks` is empty without one."""

    ranks: Mapping[int, RankSpeed] = {}
    plan: str = ""
    step_seconds: float = 0.0

    def data(self) -> dict[str, Any]:
        """Return it as the file has it."""
        rows = [
            {"rank": rank, "host": host, "speed": round(speed, 4)}
            for rank, (host, speed) in sorted(self.ranks.items())
        ]
        seconds = round(self.step_seconds, 7)
        return {"format": FORMAT, "plan": self.plan, "step_seconds": seconds, "ranks": rows}


def read_speeds(folder: Path) -> MeasuredSpeeds:
    """Read the file of a run directory.

    Errors: HpcflowError naming the file, and the row, if it is damaged or has a rank twice.
    """
    path = folder / NAME
    data = read_json_object(path, unique=True)
    if data is None:
        return MeasuredSpeeds()
    if data.get("format") != FORMAT:
        raise unreadable_error(path, f"its format is not {FORMAT!r}")
    rows, ranks = data.get("ranks"), dict[int, RankSpeed]()
    if not isinstance(rows, list):
        raise unreadable_error(path, "ranks is no list of ranks with their hosts and speeds")
    for number, row in enumerate(rows):
        known = _rank_speed(row)
        if known is None:
            raise unreadable_error(path, f"ranks[{number}] is no rank with its host and speed")
        if known[0] in ranks:
            raise unreadable_error(path, f"ranks[{number}] is rank {known[0]} a second time")
        ranks[known[0]] = known[1]
    plan: Any = data.get("plan")
    seconds: Any = data.get("step_seconds")
    if not isinstance(plan, str) or type(seconds) not in (int, float) or not 0 <= seconds <= 1e9:
        raise unreadable_error(path, "plan is no text, or step_seconds no time")
    return MeasuredSpeeds(ranks, plan, float(seconds))


def _rank_speed(row: Any) -> tuple[int, RankSpeed] | None:
    """Return the rank of a row of the file and its speed; None if the row is malformed."""
    if not isinstance(row, dict) or row.keys() != {"rank", "host", "speed"}:
        return None
    rank, host, speed = row["rank"], row["host"], row["speed"]
    if type(rank) is not int or not isinstance(host, str) or type(speed) not in (int, float):
        return None
    return (
        (rank, RankSpeed(host, float(speed))) if rank >= 0 and LOWEST <= speed <= HIGHEST else None
    )


def task_speeds(
    ranks: Mapping[int, RankSpeed],
    tasks: Iterable[Sequence[int]],
    hosts: Sequence[str] | None,
) -> tuple[float, ...]:
    """Return the speed of each task of a replica: the least of all replicas; () if all are 1.

    `tasks` has the ranks of each task, one of each replica. A rank that was measured on another
    host than `hosts[rank]` counts 1; without `hosts` the hosts are those of the file.
    """

    def of(rank: int) -> float:
        known = ranks.get(rank)
        if known is None or (hosts is not None and hosts[rank] != known.host):
            return 1.0
        return known.speed if not SLOW <= known.speed <= 1 / SLOW else 1.0

    speeds = tuple(min(map(of, peers)) for peers in tasks)
    return () if all(speed == 1.0 for speed in speeds) else speeds


def averaged(
    earlier: Mapping[int, RankSpeed], hosts: Sequence[str], measured: Mapping[int, float]
) -> dict[int, RankSpeed]:
    """Return the speeds of earlier runs averaged with those that this run has measured.

    What is known of a rank on another host is dropped.
    """
    speeds = {rank: known.speed for rank, known in earlier.items() if _is_here(rank, known, hosts)}
    for rank, speed in speeds.items():
        target, weight = (measured[rank], WEIGHT) if rank in measured else (1.0, FORGET)
        speeds[rank] = speed + (target - speed) * weight
    return {
        rank: RankSpeed(hosts[rank], min(max(speed, LOWEST), HIGHEST))
        for rank, speed in {**measured, **speeds}.items()
    }


def _is_here(rank: int, known: RankSpeed, hosts: Sequence[str]) -> bool:
    return 0 <= rank < len(hosts) and known.host == hosts[rank]


class TaskWork(NamedTuple):
    """The own work of a task in a step, in seconds: as measured, and by the speed of the others."""

    measured: float
    expected: float

    @property
    def speed(self) -> float:
        """The speed, relative to the prediction and to the other tasks."""
        return self.expected / self.measured

    @property
    def is_slow(self) -> bool:
        """Whether it takes clearly longer than expected."""
        return self.speed < SLOW and self.measured - self.expected >= LEAST_S


def compare(predicted: Mapping[int, float], measured: Mapping[int, float]) -> dict[int, TaskWork]:
    """Compare the tasks of a replica by predicted and measured own work of a step, in seconds.

    Absolute predictions are rough, so a task is as expected if it takes the predicted time times a
    factor: the median of the tasks, the lower one of two. Tasks with little work are left out.
    """
    least = LEAST_SHARE * max(predicted.values(), default=0.0)
    judged = [
        task
        for task, seconds in predicted.items()
        if seconds > 0 and seconds >= least and measured.get(task, 0.0) >= LEAST_S
    ]
    if len(judged) < 2:
        return {}
    factors = sorted(measured[task] / predicted[task] for task in judged)
    usual = factors[(len(factors) - 1) // 2]
    if not math.isfinite(usual):
        return {}
    return {task: TaskWork(measured[task], predicted[task] * usual) for task in judged}
