"""Measured steps: what the files of a run say of the work and the waiting of its workers."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from hpcflow.errors import DataError, HpcflowError
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.report.run_summary import RESULT
from hpcflow.train.run_records import PACES, read_rows

if TYPE_CHECKING:
    from hpcflow.placement.job_replay import ReplicaClass

PACE_COLUMNS = ("seconds", "step", "work", "wait")  # of each row
MOST_SPEEDS = 16  # classes of replicas with different speeds
MOST_VALUE, MOST_WORKERS = 1e15, 1 << 16  # of paces.csv: more is damage


def rows_of_paces(path: Path) -> list[dict[str, float]]:
    """The rows of paces.csv since the last start, of workers and servers; [] if there are none."""
    rows: list[dict[str, float]] = []
    try:
        for words in read_rows(path):
            try:
                row = {name: float(text) for name, text in words.items() if text != ""}
            except ValueError:
                continue
            if not all(0 <= row.get(name, -1.0) < MOST_VALUE for name in PACE_COLUMNS):
                continue
            rank = row.get("worker", row.get("server", -1.0))
            if not 0 <= rank < MOST_WORKERS or rank != int(rank):
                continue
            if rows and row["seconds"] < rows[-1]["seconds"]:
                rows.clear()  # a later start
            rows.append(row)
    except HpcflowError:
        return []
    return rows


@dataclasses.dataclass(frozen=True)
class MeasuredSteps:
    """Seconds of a run's steps; `work`, by worker, is the part without waiting for other ranks.

    The elements of the lists are means of some steps of a worker, `counts` says of how many.
    `server_shares` has the share of the time in which each server works, where it was measured.
    """

    steps: list[float]
    work: dict[int, list[float]]
    counts: list[float]
    server_shares: dict[int, float] = dataclasses.field(default_factory=dict)

    @property
    def median(self) -> float:
        """The median time of a step."""
        return statistics.median(self.steps)

    def classes(self, replicas: int) -> list[ReplicaClass]:
        """Return the speeds of the workers as those of `replicas` replicas."""
        from hpcflow.placement.job_replay import ReplicaClass  # a page of a job replays nothing

        medians = sorted(statistics.median(rows) for rows in self.work.values())
        middle = statistics.median(medians)
        count = min(len(medians), replicas, MOST_SPEEDS)
        factors = [medians[(2 * i + 1) * len(medians) // (2 * count)] / middle
                   for i in range(count)] if middle else [1.0]  # fmt: skip
        cuts = [replicas * i // len(factors) for i in range(len(factors) + 1)]
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        return [ReplicaClass(*pair) for pair in zip(sizes, factors, strict=True)]


def measured_steps(folder: Path) -> MeasuredSteps:
    """What a run says of its steps: the rows of paces.csv, or the sums in result.json.

    The first row of a worker is left out if it has more, because its first steps prepare the
    others. Errors: DataError if the run says nothing.
    """
    by_worker: dict[int, list[tuple[float, float, float]]] = {}
    by_server: dict[int, list[tuple[float, float]]] = {}
    for row in rows_of_paces(folder / PACES):
        if "worker" not in row:
            by_server.setdefault(int(row["server"]), []).append((row["work"], row["wait"]))
            continue
        pace = row["work"], row["wait"], row.get("steps", 1.0)
        by_worker.setdefault(int(row["worker"]), []).append(pace)
    by_worker = {worker: rows[1:] or rows for worker, rows in by_worker.items()}
    by_worker = by_worker or _totals(folder)
    if not by_worker:
        raise DataError(
            f"{folder} has no times of steps",
            hint="give the folder of a run that has trained by TrainingSession.step",
        )
    rows = [row for paces in by_worker.values() for row in paces]
    return MeasuredSteps(
        [work + wait for work, wait, _ in rows],
        {worker: [work for work, _, _ in paces] for worker, paces in by_worker.items()},
        [count for _, _, count in rows],
        {server: _share(loads[1:] or loads) for server, loads in by_server.items()},
    )


def _share(loads: list[tuple[float, float]]) -> float:
    """The share of work in times of work and of waiting."""
    work, waits = (sum(column) for column in zip(*loads, strict=True))
    return work / (work + waits) if work + waits else 0.0


def _totals(folder: Path) -> dict[int, list[tuple[float, float, float]]]:
    """Work and waiting in a mean step of each worker, and its steps; {} without a result."""
    result = FileFacts(folder / RESULT, [])
    work, waits = (result.get(f"{name}_seconds", [float], []) for name in ("work", "wait"))
    counts = result.get("steps", [int], [])
    rows = list(zip(work, waits, counts, strict=False))
    return {i: [(a / n, b / n, float(n))] for i, (a, b, n) in enumerate(rows) if n}
