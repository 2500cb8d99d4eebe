"""Run prediction: a file of `hpcflow predict` beside what a run has measured."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

from hpcflow.errors import DataError
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.report.run_summary import RESULT
from hpcflow.report.run_tables import table
from hpcflow.report.run_view import rows_of_paces
from hpcflow.train.run_records import MANIFEST, PACES

NAME = "prediction.json"  # in a run directory, it is scored without being asked for
FORMAT = "hpcflow-prediction-1"
TIMES = {"median": float, "p90": float, "low": float, "high": float}


@dataclasses.dataclass(frozen=True)
class MeasuredSteps:
    """Seconds of a run's steps; `work`, by worker, is the part without waiting for other ranks.

    The elements of the lists are means of some steps of a worker, `counts` says of how many.
    """

    steps: list[float]
    work: dict[int, list[float]]
    counts: list[float]

    @property
    def median(self) -> float:
        """The median time of a step."""
        return statistics.median(self.steps)


def measured_steps(folder: Path) -> MeasuredSteps:
    """What a run says of its steps: the rows of paces.csv, or the sums in result.json.

    The first row of a worker is left out if it has more, because its first steps prepare the
    others. Errors: DataError if the run says nothing.
    """
    by_worker: dict[int, list[tuple[float, float, float]]] = {}
    for row in rows_of_paces(folder / PACES):
        if "worker" not in row:  # of a server
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
    )


def _totals(folder: Path) -> dict[int, list[tuple[float, float, float]]]:
    """Work and waiting in a mean step of each worker, and its steps; {} without a result."""
    result = FileFacts(folder / RESULT, [])
    work, waits = (result.get(f"{name}_seconds", [float], []) for name in ("work", "wait"))
    counts = result.get("steps", [int], [])
    rows = list(zip(work, waits, counts, strict=False))
    return {i: [(a / n, b / n, float(n))] for i, (a, b, n) in enumerate(rows) if n}


def score_text(folder: Path, file: Path) -> str:
    """Return the prediction of a file beside the measured times of the run in a folder.

    Errors: DataError if the file is no prediction, if it is one of another plan or of another
    number of ranks, or if the run has no times of steps.
    """
    prediction, manifest = _prediction(file), _facts(folder / MANIFEST)
    _check_same(prediction, manifest, file, folder)
    measured = measured_steps(folder).median
    times = prediction.get("step_seconds", TIMES, {})
    result = FileFacts(folder / RESULT, [])
    head = ["", "predicted", "interval", "measured", "measured / predicted"]
    interval = f"{_time(times['low'])} to {_time(times['high'])}"
    ratio = f"{measured / times['median']:.2f}" if times["median"] else "-"
    rows = [["time of a step", _time(times["median"]), interval, _time(measured), ratio]]
    predicted, rate = prediction.number("samples_per_second"), result.number("samples_per_second")
    if predicted and rate:
        shown = [f"{predicted:,.0f}", "-", f"{rate:,.0f}", f"{rate / predicted:.2f}"]
        rows.append(["samples/s", *shown])
    is_inside = times["low"] <= measured <= times["high"]
    where = "lies inside" if is_inside else "lies outside"
    return (
        f"prediction of {escape_line(str(file))}\n{table(head, rows)}\n"
        f"the measured median {where} the interval of the prediction"
    )


def _facts(path: Path) -> FileFacts:
    """The facts of a file that must be there."""
    faults: list[str] = []
    facts = FileFacts(path, faults)
    if faults or not facts.is_there:
        raise DataError(faults[0] if faults else f"there is no file {path}")
    return facts


def _prediction(file: Path) -> FileFacts:
    facts = _facts(file)
    if facts.get("format", str, "") != FORMAT or not facts.get("step_seconds", TIMES, {}):
        raise DataError(
            f"{file} is no prediction of this version of hpcflow",
            hint="write one by `hpcflow predict --out FILE`",
        )
    return facts


def _check_same(prediction: FileFacts, manifest: FileFacts, file: Path, folder: Path) -> None:
    """Raise DataError unless the run is one of the prediction's plan and ranks."""
    ranks, predicted = len(manifest.get("roles", [str], [])), prediction.count("ranks")
    if ranks != predicted:
        raise DataError(
            f"{file} predicts {predicted} ranks, and {folder} ran on {ranks}",
            hint=f"predict them: hpcflow predict --ranks {ranks} ...",
        )
    plan: Any = manifest.get("plan", str, "")
    if not plan:
        raise DataError(
            f"{folder / MANIFEST} has no digest of a plan, so {file} cannot be compared with it",
            hint="only runs that have made a step of TrainingSession.step have one",
        )
    if plan != prediction.get("plan", str, ""):
        raise DataError(
            f"{file} predicts another plan than {folder} ran: their digests differ",
            hint="predict the same script with the same arguments and settings",
        )


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
