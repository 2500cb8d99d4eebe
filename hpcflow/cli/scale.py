"""Scaling study: run a script on several numbers of ranks, and compare their samples per second.

Each run is `hpcflow run -n N` of a copy of the code, one after the other, in turns: on this machine
or in the allocation of a job; with --slurm as job arrays that wait for each other, and the command
returns at once. The script writes its result (`session.result()`, `Model.fit`). What has ended is
not run again, so the same command goes on after it was stopped, and so does `hpcflow scale DIR`. By
default all runs have the script's batch (strong scaling). DIR gets report.html, scaling.json and
scaling.csv. Exit code: 0 if all runs are done or are submitted, 1 if a run failed, 2 for wrong
arguments.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcflow.cli import run as run_command
from hpcflow.cli.terminal_output import err, error_text, out
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.placement.topology import MOST_RANKS
from hpcflow.settings import PREFIX, Settings
from hpcflow.sweep.search_space import MOST_RUNS

if TYPE_CHECKING:
    from hpcflow.report.scaling_study import Study
    from hpcflow.sweep.run_ledger import Ledger, LedgerRun, RunState

TAKES_SCRIPT = True
OUT = "scaling"
RATE = "samples_per_second"  # of result.json
NO_RESULT = "the script calls neither session.result() nor Model.fit"
NO_SAMPLES = "its result has no samples: those of batches of an hf.data.Dataset are counted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow scale`."""
    parser.usage = "%(prog)s --ranks 1,2,4 [options] SCRIPT [arguments of the script]"
    parser.add_argument("--ranks", metavar="LIST", help="numbers of ranks: 1,2,4,8")
    parser.add_argument("--repeats", type=int, default=3, metavar="K", help="runs of each (3)")
    parser.add_argument(
        "--weak",
        metavar="OPTION=N",
        help="weak scaling: give the script OPTION=N times the number of workers (--batch=64)",
    )
    parser.add_argument("--out", default=OUT, metavar="DIR", help=f"folder of the runs ({OUT})")
    parser.add_argument("--retry", action="store_true", help="run again what has failed")
    parser.add_argument("--slurm", action="store_true", help="submit job arrays, and return")
    parser.add_argument(
        "--sbatch", metavar="OPTIONS", default="", help="options for sbatch; implies --slurm"
    )
    run_command.add_settings(parser)


def main(args: argparse.Namespace) -> int:
    """Run or submit what is missing, then print and write the study."""
    from hpcflow.monitoring import run_directory_lock
    from hpcflow.sweep import slurm_arrays
    from hpcflow.sweep.run_ledger import LEDGER

    try:
        options = slurm_arrays.options_of(args.sbatch)
        if args.slurm or args.sbatch:
            slurm_arrays.check_slurm()
        is_folder = Path(args.script).is_dir()
        folder = Path(args.script if is_folder else args.out)
        if is_folder:
            _check_folder(args)
            run_directory_lock.claim_directory(folder / LEDGER, "the study")
            ledger = _opened(folder)
        else:
            ledger = _made(args, folder)
        ledger.settle()
        if args.retry:
            ledger.forget_failures()
        if args.slurm or args.sbatch:
            is_over = _submit(ledger, args, options)
        elif not _run_here(ledger):
            err("hpcflow scale: stopped; the same command goes on")
            return 130
        else:
            is_over = True
    except (HpcflowError, OSError) as error:
        err(f"hpcflow scale: {error_text(error)}")
        return 2
    return _tell(ledger) if is_over else 0


def _check_folder(args: argparse.Namespace) -> None:
    if args.ranks or args.weak or args.script_args or run_command.chosen_settings(args):
        raise LaunchError(f"{args.script} says what runs; leave out the other options")


def _opened(folder: Path) -> Ledger:
    from hpcflow.sweep.run_ledger import Ledger

    ledger = Ledger.open(folder)
    if ledger is None or "repeats" not in ledger.spec:
        raise LaunchError(f"{folder} is no folder of a scaling study", hint="give its --out")
    return ledger


def _made(args: argparse.Namespace, folder: Path) -> Ledger:
    """The ledger of the study: the one that is there, if it is of the same."""
    from hpcflow.monitoring import run_directory_lock
    from hpcflow.sweep import code_snapshot
    from hpcflow.sweep.run_ledger import LEDGER, Ledger, LedgerRun

    ranks, weak = _numbers(args.ranks), _weak(args.weak)
    chosen = run_command.chosen_settings(args)
    servers = Settings.from_environ({**os.environ, **chosen}).ps
    _check(args, chosen, ranks, servers)
    script = Path(args.script)
    if not script.is_file():
        raise LaunchError(f"there is no script {args.script!r} in {Path.cwd()}")
    script = script.resolve()
    code_snapshot.check_place(script, folder)
    files = code_snapshot.code_files(script)
    settings = {name[len(PREFIX) :].lower(): value for name, value in chosen.items()}
    settings.setdefault("default_checkpoints", "")  # a run that resumes would measure less
    spec: dict[str, Any] = {
        "script": str(script),
        "words": args.script_args,
        "settings": settings,
        "ranks": ranks,
        "repeats": args.repeats,
        "weak": args.weak,
        "metric": RATE,
    }
    run_directory_lock.claim_directory(folder / LEDGER, "the study")
    ledger = Ledger.open(folder)
    if ledger is not None:
        ledger.check_same(spec, files, "scale")
        return ledger
    ledger = Ledger.create(folder, spec, script, files)
    runs = []
    for repeat in range(1, args.repeats + 1):
        for n in ranks:
            more = [f"{weak[0]}={weak[1] * (n - servers)}"] if weak else []
            words = [*args.script_args, *more]
            runs.append(LedgerRun(f"n{n}-{repeat}", n, settings, words, {"ranks": n}))
    ledger.add(runs)
    return ledger


def _check(
    args: argparse.Namespace, chosen: Mapping[str, str], ranks: Sequence[int], servers: int
) -> None:
    """Errors: LaunchError that names the wrong option."""
    if args.repeats < 1:
        raise LaunchError(f"--repeats {args.repeats}: give 1 or more")
    if args.repeats * len(ranks) > MOST_RUNS:
        raise LaunchError(
            f"these are {args.repeats * len(ranks):,} runs, more than {MOST_RUNS:,}",
            hint="give fewer --repeats",
        )
    if PREFIX + "RUN_DIR" in chosen:
        raise LaunchError("--run-dir (run_dir): each run has its own", hint="give --out DIR")
    if min(ranks) <= servers:
        raise LaunchError(
            f"--ranks {min(ranks)} with --ps {servers} leaves no worker",
            hint=f"give at least {servers + 1} ranks",
        )


def _numbers(text: str | None) -> list[int]:
    try:
        numbers = sorted({int(word) for word in (text or "").split(",")})
    except ValueError:
        numbers = []
    if text is None:
        raise LaunchError("--ranks is missing", hint="give numbers such as --ranks 1,2,4,8")
    if not numbers or numbers[0] < 1 or numbers[-1] > MOST_RANKS:
        raise LaunchError(
            f"--ranks {text}: give numbers such as 1,2,4,8", hint=f"at most {MOST_RANKS:,}"
        )
    return numbers


def _weak(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    name, equals, number = text.rpartition("=")
    if not equals or not number.isdigit() or not int(number) or not name.startswith("-"):
        raise LaunchError(
            f"--weak {text}: give an option of the script and its value for one worker",
            hint="write --weak=--batch=64",
        )
    return name, int(number)


def _run_here(ledger: Ledger) -> bool:
    """One run after the other; False if a signal stopped it."""
    from hpcflow.sweep.local_runs import LocalRuns

    left = ledger.left()
    count = len(ledger.runs) - len(left)
    if left:
        err(f"hpcflow scale: {len(left)} runs, one after the other, in {ledger.folder}")

    def tell(run: LedgerRun, state: RunState) -> None:
        nonlocal count
        count += 1
        rate = f", {state.value:,.0f} samples/s" if state.value else ""
        plural = "s" if run.ranks > 1 else ""
        out(f"run {count} of {len(ledger.runs)}: {run.ranks} rank{plural}, {run.name}, "
            f"{state.state}{rate}")  # fmt: skip

    return LocalRuns(ledger, 1, math.inf, tell).run(left)


def _submit(ledger: Ledger, args: argparse.Namespace, options: Sequence[str]) -> bool:
    """Submit what is left; whether nothing was left."""
    from hpcflow.sweep.slurm_arrays import submit_arrays

    again = [sys.executable, "-m", "hpcflow", "scale", str(ledger.folder.resolve()), "--slurm"]
    again += [f"--sbatch={args.sbatch}"] if args.sbatch else []
    jobs, waiting = submit_arrays(ledger, ledger.runs, options, 1, math.inf, again, in_turn=True)
    if jobs:
        out(f"submitted {', '.join(jobs)}; hpcflow watch {ledger.folder}")
    if waiting:
        out(f"{waiting} runs are in the queue already")
    return not jobs and not waiting


def _tell(ledger: Ledger) -> int:
    """Print and write the study of the runs that have a rate; returns the exit code."""
    from hpcflow.report import run_page, run_summary, scaling_study
    from hpcflow.sweep import run_ledger
    from hpcflow.train.result_files import write_text

    rates: dict[tuple[int, int], list[float]] = {}
    firsts: dict[tuple[int, int], list[float]] = {}
    good: list[tuple[LedgerRun, RunState]] = []
    batches, failed = [], 0
    for run in ledger.runs:
        state, place = ledger.state(run.name), ledger.run_folder(run.name)
        if state.state != run_ledger.DONE or not state.value:
            failed += 1
            err(f"hpcflow scale: {run.name} {state.state}: {_reason(ledger, run, state)}; its "
                f"output is in {place}/{run_ledger.OUTPUT}")  # fmt: skip
            continue
        good.append((run, state))
        key = run.ranks, run.ranks - int(run.settings.get("ps", 0))
        rates.setdefault(key, []).append(state.value)
        (found,) = run_summary.load([str(place)], is_over=True)
        batches.append((key[1], found.batch))
        if found.seconds_to_first_step is not None:
            firsts.setdefault(key, []).append(found.seconds_to_first_step)
    if not rates:
        err(f"hpcflow scale: no run in {ledger.folder} has a result with {RATE}")
        return 1
    kind = "weak" if ledger.spec.get("weak") else "strong"
    study = scaling_study.study(rates, kind, firsts)
    conclusions = _conclusions(ledger, study, good, batches)
    out("\n".join([scaling_study.as_text(study), *conclusions]))
    try:
        data = {**scaling_study.as_data(study), "conclusions": conclusions}
        write_text(ledger.folder / "scaling.json", json.dumps(data, indent=1) + "\n")
        write_text(ledger.folder / "scaling.csv", scaling_study.as_csv(study))
        told = [*scaling_study.fit_lines(study), *study.remarks, *conclusions]
        page = run_page.page_of(
            [str(ledger.run_folder(run.name)) for run, _ in good],
            title=f"hpcflow scale: {ledger.script}, {kind} scaling",
            conclusions=told,
        )
        write_text(ledger.folder / "report.html", page.text)
    except (HpcflowError, OSError) as error:
        err(f"hpcflow scale: {error_text(error)}")
        return 1
    out(f"written: {ledger.folder}/report.html, scaling.json, scaling.csv")
    return int(failed > 0)


def _reason(ledger: Ledger, run: LedgerRun, state: RunState) -> str:
    """Why a run has no rate."""
    from hpcflow.report.run_summary import RESULT
    from hpcflow.sweep import run_ledger

    if state.state != run_ledger.DONE:
        return state.reason
    has_result = (ledger.run_folder(run.name) / RESULT).exists()
    return NO_SAMPLES if has_result else NO_RESULT


def _conclusions(
    ledger: Ledger,
    study: Study,
    good: Sequence[tuple[LedgerRun, RunState]],
    batches: Sequence[tuple[int, int]],
) -> list[str]:
    """What limits the scaling, by the median runs of the fewest and of the most workers."""
    from hpcflow.report import scaling_limits
    from hpcflow.report.run_view import views_of

    remark = scaling_limits.batch_remark(batches, ledger.spec.get("weak"))
    ends = []
    for point in (study.points[0], study.points[-1]):
        alike = [pair for pair in good if pair[0].ranks == point.ranks]
        alike.sort(key=lambda pair: pair[1].value or 0.0)
        ends.append(alike[len(alike) // 2])
    first, last = views_of([ledger.run_folder(run.name) for run, _ in ends], is_over=True)
    cores = len(ends[1][1].cores) or None
    times = study.points[-1].workers / study.points[0].workers
    found = scaling_limits.scaling_limits(first, last, times, study.kind, cores)
    return [*([remark] if remark else []), *found]
