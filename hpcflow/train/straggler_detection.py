"""Straggler detection: names persistently slow workers and their hosts, to find faulty nodes.

If ranks outnumber a node's cores, they compete for them, and a worker's own work depends on the
others. Such workers are not judged, unless slow workers are injected as a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.platform import fault_specification
from hpcflow.platform.quantity_text import format_ratio, format_seconds
from hpcflow.platform.rank_logging import say_once
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.train.speed_exchange import Rows

FACTOR = 1.5  # times the median work of all workers,
LEAST_S = 1e-3  # and so many seconds more per step is slow;
INPUT_SHARE = 0.5  # of its time without waiting for ranks: the cause is input
STEPS, TIMES = 20, 3  # for so many steps and reports in a row: persistent


class StragglerDetector:
    """Finds persistently slow workers in the reports of all workers."""

    def __init__(self, context: RankContext) -> None:
        roles = context.roles
        self._places = [(rank, context.hosts[rank]) for rank in roles.drivers]
        self._left_out = self._crowded(context)
        self._work: dict[int, float] = {}  # last report of each worker
        self._slow: dict[int, tuple[int, int]] = {}  # slow ones: steps and reports
        self._found: dict[int, tuple[float, bool]] = {}  # factor, and whether it is by input

    def _crowded(self, context: RankContext) -> set[int]:
        """The workers on oversubscribed hosts, as the chief reports."""
        rehearsed = any(
            f.kind == "slow" for f in fault_specification.parse_faults(context.settings.inject)
        )
        hosts = frozenset() if rehearsed else context.crowded_hosts
        if hosts and context.is_chief and len(self._places) > 1:
            names = ", ".join(sorted(hosts))
            say_once(f"slow workers are not detected on {names}: it has more ranks than cores")
        return {w for w, (_, host) in enumerate(self._places) if host in hosts}

    def add(self, rows: Rows) -> list[str]:
        """The log lines of newly found stragglers."""
        self._work.update((worker, row.work) for worker, row in rows)
        usual = sorted(self._work.values())[(len(self._work) - 1) // 2] if rows else 0.0
        lines = []
        for worker, row in rows:
            if worker in self._left_out:
                continue
            if row.work <= FACTOR * usual or row.work - usual < LEAST_S:
                self._slow.pop(worker, None)
                continue
            steps, times = self._slow.get(worker, (0, 0))
            self._slow[worker] = steps, times = steps + int(row.steps), times + 1
            if steps < STEPS or times < TIMES:
                continue
            is_new = worker not in self._found
            is_input = row.input > INPUT_SHARE * row.mean_work
            self._found[worker] = round(row.work / usual, 2), is_input
            if is_new:
                lines.append(self._line(worker, steps, row.work, usual))
        return lines

    def _line(self, worker: int, steps: int, work: float, usual: float) -> str:
        rank, host = self._places[worker]
        what = _what(self._found[worker][1])
        others = _others(len(self._places))
        return (
            f"worker {worker} (rank {rank} on {host}) is slow: for {steps} steps its {what} took "
            f"{format_seconds(work)} a step, {format_ratio(work / usual)} {others} "
            f"({format_seconds(usual)})"
        )

    def stragglers(self) -> list[dict[str, Any]]:
        """All stragglers found, with their last slowdown."""
        found = []
        for worker, (factor, is_input) in sorted(self._found.items()):
            rank, host = self._places[worker]
            found.append({"worker": worker, "rank": rank, "host": host, "factor": factor})
            found[-1]["cause"] = "input" if is_input else "work"
        return found


def straggler_texts(stragglers: Sequence[dict[str, Any]], workers: int) -> list[str]:
    """Text of `stragglers` among so many workers, for a report."""
    texts = []
    for report in stragglers:
        cause = report.get("cause")  # absent in records of older versions
        what = "own work and input" if cause is None else _what(cause == "input")
        texts.append(
            "worker {worker} (rank {rank} on {host}) was slow for a long time: ".format(**report)
            + f"its {what} took {report['factor']:g} times {_others(workers)}"
        )
    return texts


def _what(is_input: bool) -> str:
    return "own work and input, mostly waiting for input data," if is_input else "own work"


def _others(workers: int) -> str:
    if workers == 2:
        return "that of the other worker"
    return f"the median of {workers} workers" if workers else "the median of all workers"
