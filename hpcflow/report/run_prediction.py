"""Run prediction: a file of `hpcflow predict` beside what a run has measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcflow.errors import DataError
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report.measured_steps import measured_steps
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.report.run_summary import RESULT
from hpcflow.report.run_tables import table
from hpcflow.train.run_records import MANIFEST

NAME = "prediction.json"  # in a run directory, it is scored without being asked for
FORMAT = "hpcflow-prediction-1"
TIMES = {"median": float, "p90": float, "low": float, "high": float}


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
    ratio = f"{measured / times['median']:.2f}" if times["median"] else "-"
    low, median, high, own = map(
        format_seconds, (times["low"], times["median"], times["high"], measured)
    )
    rows = [["time of a step", median, f"{low} to {high}", own, ratio]]
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
