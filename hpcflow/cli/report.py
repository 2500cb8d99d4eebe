"""Report on runs: a table; with --out also a figure of loss, throughput and scaling; or one page.

RUN is a run directory (`hpcflow run --run-dir DIR`), or the folder of a sweep. Runs of one script
with different numbers of ranks are compared: strong scaling for equal global batches, weak scaling
for equal batches per worker. --html writes one self-contained page, which a browser opens without a
network, also of a run that goes on. --csv, --wandb and --mlflow write the runs for other programs:
metrics by step, config, results, state and times. --predicted compares a run with a prediction.
Exit code: 0, 1 if a file could not be read or written (it is named), 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcflow.cli.terminal_output import err, error_text, out
from hpcflow.errors import HpcflowError, LaunchError, MissingPackageError
from hpcflow.report import run_summary, run_tables, run_view, scaling_plots
from hpcflow.sweep import run_ledger
from hpcflow.train.result_files import write_output, write_text

if TYPE_CHECKING:
    from hpcflow.report.run_summary import RunSummary, ScalingCurve
    from hpcflow.report.sweep_facts import Sweep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow report`."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run directories, or folders of sweeps"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="write report.txt, and report.png by matplotlib, into this folder",
    )
    parser.add_argument("--html", metavar="FILE", help="write one page instead of --out's files")
    parser.add_argument("--json", metavar="FILE", help="write the page's figures as JSON")
    parser.add_argument("--csv", metavar="FILE", help="write a table of run, step, metric, value")
    parser.add_argument("--wandb", metavar="DIR", help="write offline runs of Weights & Biases")
    parser.add_argument("--mlflow", metavar="DIR", help="add the runs to a file store of MLflow")
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="METRIC=VALUE|DIR",
        help="draw a value, or an earlier run, in the page's charts; may be repeated",
    )
    parser.add_argument(
        "--predicted",
        metavar="FILE",
        help="compare one run with a prediction of `hpcflow predict --out FILE`; without it, with "
        "the file prediction.json of its folder, if there is one",
    )
    parser.add_argument(
        "--redact", action="store_true", help="leave hosts, users, paths and logs out of the page"
    )


def main(args: argparse.Namespace) -> int:
    """Print the table and write the files; the exit code is 1 if something failed."""
    try:
        args.sweeps = _sweeps(args.runs) if args.html else []
        args.runs = [run for path in args.runs for run in run_ledger.runs_of(path)]
    except HpcflowError as error:
        err(f"hpcflow: {type(error).__name__}: {error}")
        return 1
    exports = args.csv or args.wandb or args.mlflow
    if args.predicted and (exports or args.html or args.json or len(args.runs) > 1):
        err("hpcflow report: --predicted is for the text of one run: give RUN alone")
        return 2
    if (args.redact or args.baseline) and (exports or not (args.html or args.json)):
        err("hpcflow report: --redact and --baseline are for a page: give --html FILE alone")
        return 2
    if args.html or args.json or exports:
        page = _write_page(args) if args.html or args.json else 0
        return max(page, _export(args) if exports else 0)
    try:
        views = run_view.views_of(args.runs)
        runs = [view.run for view in views]
        curves = run_summary.scalings(runs)
        table = run_tables.as_text(runs, curves, [line for v in views for line in v.limit_lines])
        table += "".join(f"\n{text}\n" for text in _scores(args))
        out(table, end="")
        if args.out:
            _write_files(Path(args.out), table, runs, curves)
    except MissingPackageError as error:
        err(f"hpcflow: {error}\n  written  {Path(args.out) / 'report.txt'} alone")
        return 1
    except (HpcflowError, OSError) as error:
        err(f"hpcflow: {error_text(error, typed=True)}")
        return 1
    return int(any(run.faults for run in runs))


def _write_files(
    folder: Path, table: str, runs: Sequence[RunSummary], curves: Sequence[ScalingCurve]
) -> None:
    """Write the table and the figure. Errors: MissingPackageError, after the table is written."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "report.txt", table)
    scaling_plots.draw([run for run in runs if run.is_readable], curves, folder / "report.png")
    out(f"\nwritten: {folder / 'report.png'}, {folder / 'report.txt'}")


def _sweeps(paths: Sequence[str]) -> list[Sweep]:
    """The sweeps with a metric among some folders."""
    from hpcflow.sweep import sweep_on_page

    found = (sweep_on_page.sweep_in(path) for path in paths)
    return [sweep for sweep in found if sweep is not None]


def _scores(args: argparse.Namespace) -> list[str]:
    """Predictions beside what was measured, for the runs that have one.

    Errors: DataError if a prediction is not one of its run.
    """
    from hpcflow.report import run_prediction

    folders = [path if path.is_dir() else path.parent for path in map(Path, args.runs)]
    if args.predicted:
        return [run_prediction.score_text(folders[0], Path(args.predicted))]
    files = [folder / run_prediction.NAME for folder in folders]
    return [run_prediction.score_text(file.parent, file) for file in files if file.is_file()]


def _write_page(args: argparse.Namespace) -> int:
    """Write the page, its figures, or both."""
    from hpcflow.report import run_baseline, run_page
    from hpcflow.sweep import sweep_on_page

    try:
        baseline = run_baseline.baseline_of(args.baseline)
        data = run_page.page_of(
            sweep_on_page.best_folders_first(args.runs, args.sweeps),
            args.redact,
            asks_slurm=True,
            baseline=baseline,
            sweeps=args.sweeps,
        )
        written = []
        if args.html:
            write_output(Path(args.html), data.text)
            written.append(args.html)
        if args.json:
            text = json.dumps(data.figures, indent=1) + "\n"
            write_output(Path(args.json), text)
            written.append(args.json)
    except LaunchError as error:
        err(f"hpcflow report: {error}")
        return 2
    except (HpcflowError, OSError) as error:
        err(f"hpcflow: {error_text(error, typed=True)}")
        return 1
    out(f"written: {', '.join(written)}")
    return int(any(run["faults"] for run in data.figures["runs"]))


def _export(args: argparse.Namespace) -> int:
    """Write the runs for other programs."""
    from hpcflow.report import experiment_trackers, run_export, run_page

    try:
        views = run_page.views_of(args.runs)
        runs = [run_export.exported(view) for view in views if view.run.is_readable]
        if args.csv:
            write_output(Path(args.csv), run_export.as_csv(runs))
            out(f"written: {args.csv}")
        if args.wandb:
            for folder in experiment_trackers.write_wandb(runs, Path(args.wandb)):
                out(f"written: {folder}")
        if args.mlflow:
            ids = experiment_trackers.write_mlflow(runs, Path(args.mlflow))
            out(f"written: {args.mlflow}, runs {', '.join(ids)}")
    except (HpcflowError, OSError) as error:
        err(f"hpcflow: {error_text(error, typed=True)}")
        return 1
    faults = [f"{view.run.name}: {fault}" for view in views for fault in view.run.faults]
    for fault in faults:
        err(f"hpcflow report: {fault}")
    return int(bool(faults))
