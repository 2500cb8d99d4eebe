"""Predicted times of training steps under parallel strategies beside measured ones.

    python benchmarks/training_times.py --fit FIT.csv --predict ROWS.csv --allreduce DIR --out FILE
    python benchmarks/training_times.py --protocol MEASURED.csv --allreduce DIR --out RESULT.json

The first fits the constants of hpcflow's cost model to the rows of FIT.csv and writes the rows of
ROWS.csv with a predicted time. The second draws 20 rows five times, fits to them, predicts the
others, and takes in each group (same model, GPUs and global batch) the strategy that is predicted
to be the fastest.
"""

from __future__ import annotations

import argparse
import csv
import io
import pathlib
import sys
from typing import Any

import common
import numpy as np
from training_rows import COLUMNS, MEASURED, PREDICTED, FileError, Rows, read_rows, read_tables

from hpcflow.errors import HpcflowError
from hpcflow.placement.allreduce_tables import AllreduceTables
from hpcflow.placement.strategy_fit import MINIMUM_ROWS, fit_predictor
from hpcflow.platform.terminal_escaping import escape_text
from hpcflow.train.result_files import write_text

DRAWN, SEEDS = 20, range(5)
VOCABULARY = 51200  # 50,257 words, padded to a multiple of 1,024
ERROR = "error of predictions"
MEAN, TAIL, WORST = (f"choice, {what}" for what in ("mean", "95th percentile", "worst"))
OURS, AT_RANDOM = "hpcflow", "a strategy at random"


def predict(arguments: argparse.Namespace) -> None:
    """Write the rows with a predicted time."""
    tables = read_tables(arguments.allreduce)
    fit = read_rows(arguments.fit, arguments.vocabulary, measured=True)
    rows = read_rows(arguments.predict, arguments.vocabulary, measured=False)
    if len(fit.setups) < MINIMUM_ROWS:
        few = f"{len(fit.setups)} rows, but a fit needs {MINIMUM_ROWS}"
        raise FileError(fit.file, fit.lines[-1], few)
    if PREDICTED in rows.head:
        raise FileError(rows.file, 1, f"the column {PREDICTED!r} is there already")
    fit.check_tables(tables)
    rows.check_tables(tables)
    seconds = fit_predictor(fit.setups, fit.seconds, tables).seconds(rows.setups)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*rows.head, PREDICTED])
    for cells, time in zip(rows.cells, seconds, strict=True):
        writer.writerow([*cells, f"{1e3 * time:.6f}"])
    write_text(arguments.out, text.getvalue())


def protocol(arguments: argparse.Namespace) -> dict[str, Any]:
    """The result: errors and choices of each draw, beside their targets."""
    cup = common.Tournament()
    tables = read_tables(arguments.allreduce)
    rows = read_rows(arguments.protocol, arguments.vocabulary, measured=True)
    if len(rows.setups) <= DRAWN:
        few = f"{len(rows.setups)} rows, but the protocol draws {DRAWN} and predicts others"
        raise FileError(rows.file, rows.lines[-1], few)
    rows.check_tables(tables)
    cup.versions[OURS] = common.versions(["numpy"])
    draws = [draw(rows, tables, seed) for seed in SEEDS]
    for error, slower in draws:
        figures = {ERROR: error, MEAN: slower.mean(), TAIL: np.percentile(slower, 95)}
        for case, figure in (figures | {WORST: slower.max()}).items():
            cup.add(case, OURS, float(figure))
    cup.add(MEAN, AT_RANDOM, at_random(rows))
    mean = {case: 100 * float(np.mean(found[OURS])) for case, found in cup.figures.items()}
    checks = [
        common.check("mean absolute error of predictions", mean[ERROR], "%", at_most=8),
        common.check("choice slower than the best, mean", mean[MEAN], "%", at_most=2),
        common.check("... 95th percentile", mean[TAIL], "%", at_most=10),
        common.check("... worst of all draws", 100 * max(cup.figures[WORST][OURS]), "%"),
    ]
    return cup.record(checks, "%", 100)


def draw(rows: Rows, tables: AllreduceTables, seed: int) -> tuple[float, np.ndarray]:
    """Mean absolute relative error of the rows not drawn; of each group's choice, how much slower.

    The choice is the strategy with the least predicted time of its group.
    """
    measured = np.array(rows.seconds)
    drawn = np.random.default_rng(seed).choice(len(measured), DRAWN, replace=False)
    setups = [rows.setups[row] for row in drawn]
    predicted = fit_predictor(setups, measured[drawn], tables).seconds(rows.setups)
    misses = np.delete(np.abs(predicted / measured - 1), drawn)
    slower = [
        measured[group[int(np.argmin(predicted[group]))]] / measured[group].min() - 1
        for group in rows.groups()
    ]
    return float(misses.mean()), np.array(slower)


def at_random(rows: Rows) -> float:
    """How much slower than the best of its group a strategy is on average, over all groups."""
    measured = np.array(rows.seconds)
    groups = [measured[group] for group in rows.groups()]
    return float(np.mean([group.mean() / group.min() - 1 for group in groups]))


def parser() -> argparse.ArgumentParser:
    """The options; --help describes the columns."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = "\n".join(f"  {name}" for name in (*COLUMNS, MEASURED))
    made.epilog = (
        f"columns of the CSV files, in any order, others are kept:\n{names}\n"
        f"ROWS.csv may lack the last; the output has the column {PREDICTED!r} more.\n"
        "global batch = micro batch x micro-batches x data parallelism; "
        "GPUs = the product of the three degrees.\n"
        "exit status 2: a file cannot be used; the message names the file and the line."
    )
    path = pathlib.Path
    made.add_argument("--fit", type=path, metavar="CSV", help="measured rows to fit to")
    made.add_argument("--predict", type=path, metavar="CSV", help="rows to predict")
    made.add_argument("--protocol", type=path, metavar="CSV", help="measured rows of the protocol")
    made.add_argument(
        "--allreduce",
        type=path,
        metavar="DIR",
        required=True,
        help="tables AR_GPU{n}_* of all-reduces: bytes, nanoseconds",
    )
    made.add_argument("--out", metavar="FILE", help="the predicted rows, or the result as JSON")
    made.add_argument(
        "--vocabulary",
        type=int,
        metavar="N",
        default=VOCABULARY,
        help=f"words of the vocabulary with padding ({VOCABULARY})",
    )
    return made


def main() -> None:
    """Run one of the two; what is wrong with a file is exit status 2."""
    made = parser()
    arguments = made.parse_args()
    if bool(arguments.protocol) == bool(arguments.fit or arguments.predict):
        made.error("give either --protocol, or --fit and --predict")
    if arguments.vocabulary < 1:
        made.error("--vocabulary must be positive")
    if not arguments.protocol and not (arguments.fit and arguments.predict and arguments.out):
        made.error("--fit, --predict and --out belong together")
    try:
        if arguments.protocol:
            common.finish(protocol(arguments), arguments.out)
        else:
            arguments.out = pathlib.Path(arguments.out)
            predict(arguments)
    except (HpcflowError, OSError) as error:
        print(f"training_times: {escape_text(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
