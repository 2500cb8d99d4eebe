"""Sweep: run a script with many settings and arguments, and compare the runs.

WHAT is a TOML file, a script with --grid or --random, or the folder of an earlier sweep, which goes
on. Each run is `hpcflow run` of a copy of the code, in a folder of its own. On this machine several
runs go on at a time, each on cores of its own; with --slurm they are job arrays, and the command
returns at once. The same command goes on where it was: what has ended is not run again. One run
that fails stops no other. `hpcflow watch DIR` and `hpcflow report DIR` show it.

    hpcflow sweep train.py --grid rate=0.1 --grid rate=0.01 --metric loss --mode min
    hpcflow sweep train.py --random rate=1e-4:0.1:log --runs 27 --metric loss --mode min \
        --search halving --budget epochs=1:27

Exit code: 0 if all runs are done, or are submitted; 1 if some have failed; 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcflow.cli import run as run_command
from hpcflow.cli.terminal_output import err, error_text, out
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.settings import PREFIX

if TYPE_CHECKING:
    from hpcflow.sweep.run_ledger import Ledger, LedgerRun, RunState
    from hpcflow.sweep.sweep_specification import SweepSpec

TAKES_SCRIPT = True
OUT = "sweeps"
OF_SEARCH = ("grid", "random", "search", "runs", "seed", "metric", "mode", "budget", "arg", "ranks")
OF_METRIC = ("metric", "mode")  # may change: the folders of the runs have the values
MOST_ON_PAGE = 16  # runs on the page: the best


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow sweep`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "%(prog)s [options] FILE.toml | SCRIPT | DIR [arguments of the script]"
    add = parser.add_argument
    add("--grid", action="append", default=[], metavar="NAME=VALUE",
        help="a value of an argument of the script (or setting); once for each value")  # fmt: skip
    add("--random", action="append", default=[], metavar="NAME=LOW:HIGH",
        help="a range to draw from; :log or :int behind it")  # fmt: skip
    add("--search", choices=["grid", "random", "halving"], help="how to search (grid)")
    add("--runs", type=int, metavar="K", help="runs of a random search")
    add("--seed", type=int, metavar="N", help="seed of a random search (0)")
    add("--metric", metavar="NAME", help="value to compare: of session.result() or metrics.csv")
    add("--mode", choices=["min", "max"], help="whether a small or a large metric is better")
    add("--budget", metavar="NAME=LEAST:MOST[:FACTOR]",
        help="argument that successive halving raises, such as epochs=1:27")  # fmt: skip
    add("--arg", action="append", default=[], metavar="WORD", help="an argument of all runs")
    add("-n", dest="ranks", type=int, metavar="N", help="ranks of each run (1)")
    add("--at-once", type=int, metavar="K", help="runs at a time (as many as cores allow)")
    add("--limit", metavar="TIME", help="longest time of a run: 90m, 2:00:00")
    add("--out", metavar="DIR", help=f"folder of the sweep ({OUT}/NAME)")
    add("--retry", action="store_true", help="run again what has failed")
    add("--slurm", action="store_true", help="submit job arrays, and return")
    add("--sbatch", metavar="OPTIONS", default="", help="options for sbatch; implies --slurm")
    add("--json", action="store_true", help="print the results as JSON")
    add("--dry-run", action="store_true", help="show the runs, and start none")
    run_command.add_settings(parser)


def main(args: argparse.Namespace) -> int:
    """Begin a sweep or go on with it."""
    from hpcflow.sweep import slurm_arrays

    try:
        limit_s = _limit(args.limit)
        if args.at_once is not None and args.at_once < 1:
            raise LaunchError(f"--at-once {args.at_once}: give 1 or more")
        if PREFIX + "RUN_DIR" in run_command.chosen_settings(args):
            raise LaunchError("--run-dir (run_dir): each run has its own", hint="give --out DIR")
        options = slurm_arrays.options_of(args.sbatch)
        ledger, spec = _found(args)
        if args.dry_run:
            return _show(ledger, spec)
        if args.slurm or args.sbatch:
            slurm_arrays.check_slurm()
        ledger = _claimed(args) if spec is None else _made(args, spec)
        return _go_on(ledger, args, limit_s, options)
    except (HpcflowError, OSError) as error:
        err(f"hpcflow sweep: {error_text(error)}")
        return 2


def _limit(text: str | None) -> float:
    from hpcflow.launch.time_limit import seconds

    if text is None:
        return math.inf
    try:
        limit = seconds(text)
    except HpcflowError as error:
        raise LaunchError(f"--limit {text} is no time", hint=error.hint) from None
    if not limit:
        raise LaunchError(f"--limit {text}: no run ends in that time")
    return limit


def _found(args: argparse.Namespace) -> tuple[Ledger | None, SweepSpec | None]:
    """An earlier sweep, or the specification of one."""
    from hpcflow.sweep import run_ledger, sweep_specification

    path = Path(args.script)
    of_search = [name for name in OF_SEARCH if getattr(args, name) not in (None, [])]
    chosen = run_command.chosen_settings(args)
    if path.is_dir():
        ledger = run_ledger.Ledger.open(path)
        if ledger is None:
            raise LaunchError(f"{path} is no folder of a sweep", hint="give its --out")
        if "search" not in ledger.spec:
            raise LaunchError(f"{path} is a scaling study", hint=f"hpcflow scale {path}")
        of_search = [name for name in of_search if name not in OF_METRIC]
        of_search += ["out"] if args.out else []
        if of_search or chosen or args.script_args:
            raise LaunchError(f"{path} says what runs; leave out {_option(of_search, chosen)}")
        return ledger, None
    if path.suffix == ".toml":
        if of_search or chosen or args.script_args:
            raise LaunchError(f"{path} says what runs; put {_option(of_search, chosen)} into it")
        return None, sweep_specification.of_file(path)
    return None, _of_options(args, chosen)


def _option(names: Sequence[str], chosen: dict[str, str]) -> str:
    if names:
        return f"--{names[0].replace('_', '-')}"
    return f"the setting {next(iter(chosen))}" if chosen else "the arguments"


def _of_options(args: argparse.Namespace, chosen: dict[str, str]) -> SweepSpec:
    """The specification that the options are."""
    from hpcflow.sweep import search_space, sweep_specification

    script = Path(args.script)
    if not script.is_file():
        raise LaunchError(f"there is no script {args.script!r} in {os.getcwd()}")
    if args.runs is not None and args.runs < 1:
        raise LaunchError(f"--runs {args.runs}: give 1 or more")
    axes, remarks = sweep_specification.axes_of_options(args.grid, args.random, script)
    for remark in remarks:
        err(f"hpcflow sweep: {remark}")
    settings = {name[len(PREFIX) :].lower(): value for name, value in chosen.items()}
    if args.ranks is not None:
        settings[sweep_specification.RANKS] = str(args.ranks)
    return sweep_specification.SweepSpec(
        script=script.resolve(),
        words=(*args.arg, *args.script_args),
        settings=settings,
        axes=tuple(axes),
        search=args.search or (search_space.RANDOM if args.random else search_space.GRID),
        runs=args.runs or 0,
        seed=args.seed or 0,
        metric=args.metric or "",
        mode=args.mode or "",
        budget=sweep_specification.budget_of(args.budget) if args.budget else None,
    ).check()


def _show(ledger: Ledger | None, spec: SweepSpec | None) -> int:
    """The runs of a specification, or those that an earlier sweep has left to do."""
    from hpcflow.sweep import halving_rungs, run_ledger

    if spec is not None:
        name, runs = spec.script.name, halving_rungs.first_runs(spec)
    else:
        assert ledger is not None
        name, ended = ledger.script, run_ledger.ENDED
        runs = [run for run in ledger.runs if ledger.state(run.name).state not in ended]
    for run in runs:
        several = ["-n", str(run.ranks)] if run.ranks > 1 else []
        settings = [f"--set={field}={value}" for field, value in run.settings.items()]
        words = ["hpcflow", "run", *several, *settings, name, "--", *run.words]
        out(f"{run.name}: {escape_line(shlex.join(words))}")
    out(f"{len(runs)} runs")
    return 0


def _claimed(args: argparse.Namespace) -> Ledger:
    """The ledger of a folder, locked before it is read: another command may just have added runs.

    Errors: LaunchError if another command has it, or it is gone.
    """
    from hpcflow.monitoring import run_directory_lock
    from hpcflow.sweep.metric_change import choose_metric
    from hpcflow.sweep.run_ledger import LEDGER, Ledger

    folder = Path(args.script)
    run_directory_lock.claim_directory(folder / LEDGER, "the sweep")
    ledger = Ledger.open(folder)
    if ledger is None:
        raise LaunchError(f"{folder} is no folder of a sweep", hint="give its --out")
    if args.metric or args.mode:
        metric, mode = ledger.spec.get("metric", ""), ledger.spec.get("mode", "")
        choose_metric(ledger, args.metric or metric, args.mode or mode)
    return ledger


def _made(args: argparse.Namespace, spec: SweepSpec) -> Ledger:
    """The ledger of a specification, locked: the one that is there, if it is of the same."""
    from hpcflow.monitoring import run_directory_lock
    from hpcflow.sweep import code_snapshot, halving_rungs
    from hpcflow.sweep.metric_change import choose_metric
    from hpcflow.sweep.run_ledger import LEDGER, Ledger

    folder = Path(args.out) if args.out else Path(OUT, Path(args.script).stem)
    code_snapshot.check_place(spec.script, folder)
    files, runs = code_snapshot.code_files(spec.script), halving_rungs.first_runs(spec)
    run_directory_lock.claim_directory(folder / LEDGER, "the sweep")
    ledger = Ledger.open(folder)
    if ledger is not None:
        ledger.check_same(spec.as_data(), files, may_differ=OF_METRIC)
        choose_metric(ledger, spec.metric, spec.mode)
        return ledger
    ledger = Ledger.create(folder, spec.as_data(), spec.script, files)
    ledger.add(runs)
    return ledger


def _go_on(ledger: Ledger, args: argparse.Namespace, limit_s: float, options: Sequence[str]) -> int:
    """Run or submit what is left, and tell."""
    from hpcflow.sweep import halving_rungs

    if not Path(ledger.cwd).is_dir():
        raise LaunchError(f"the folder {ledger.cwd}, in which the runs started, is gone")
    ledger.settle()
    if args.retry:
        ledger.forget_failures()
    while True:
        if args.slurm or args.sbatch:
            is_over = _submit(ledger, args, limit_s, options)
        elif not _run_here(ledger, args, limit_s):
            err("hpcflow sweep: stopped; the same command goes on")
            return 130
        else:
            is_over = True
        rung = halving_rungs.next_rung(ledger) if is_over else []
        if not rung:
            return _tell(ledger, args.json, is_over)
        ledger.add(rung)


def _run_here(ledger: Ledger, args: argparse.Namespace, limit_s: float) -> bool:
    """Run what is left; False if a signal stopped it."""
    from hpcflow.sweep.local_runs import LocalRuns

    widest = max(run.ranks for run in ledger.runs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    at_once = args.at_once or max(1, (cores or 1) // widest)
    left = len(ledger.left())
    count = len(ledger.runs) - left
    if left:
        err(f"hpcflow sweep: {left} to run, {at_once} at a time, in {ledger.folder}")

    def tell(run: LedgerRun, state: RunState) -> None:
        nonlocal count
        count += 1
        value = f", {ledger.spec['metric']} {state.value:.6g}" if state.value is not None else ""
        values = escape_line(" ".join(f"{name}={value}" for name, value in run.values.items()))
        reason = f": {state.reason}" if state.reason else ""
        err(f"hpcflow sweep: {count} of {len(ledger.runs)}: {run.name} {state.state} after "
            f"{format_seconds(state.seconds)}{value} ({values}){reason}")  # fmt: skip

    return LocalRuns(ledger, at_once, limit_s, tell).run(ledger.runs)


def _submit(
    ledger: Ledger, args: argparse.Namespace, limit_s: float, options: Sequence[str]
) -> bool:
    """Submit what is left; whether nothing was left."""
    from hpcflow.sweep.slurm_arrays import submit_arrays

    again = [sys.executable, "-m", "hpcflow", "sweep", str(ledger.folder.resolve()), "--slurm"]
    again += [f"--sbatch={args.sbatch}"] if args.sbatch else []
    again += [f"--at-once={args.at_once}"] if args.at_once else []
    again += [f"--limit={args.limit}"] if args.limit else []
    left = ledger.left()
    group = min((run.group for run in left), default=0)
    runs = [run for run in left if run.group == group]
    jobs, waiting = submit_arrays(ledger, runs, options, args.at_once, limit_s, again)
    if jobs:
        err(f"hpcflow sweep: submitted {', '.join(jobs)}; hpcflow watch {ledger.folder}")
    if waiting:
        err(f"hpcflow sweep: {waiting} runs are in the queue already")
    return not jobs and not waiting


def _tell(ledger: Ledger, as_json: bool, is_over: bool) -> int:
    """Print the results, and write them and the page; the exit code."""
    from hpcflow.sweep import run_ledger, sweep_table
    from hpcflow.train.result_files import write_text

    found = sweep_table.results(ledger)
    data = json.dumps(sweep_table.as_data(ledger, found), indent=1, allow_nan=False)
    out(data if as_json else sweep_table.as_text(ledger, found))
    if not is_over:
        return 0
    write_text(ledger.folder / "results.json", data + "\n")
    write_text(ledger.folder / "results.csv", sweep_table.as_csv(ledger, found))
    _write_page(ledger, found)
    metric = ledger.spec.get("metric")
    if metric and all(state.value is None for _, state in found):
        err(f"hpcflow sweep: no run has a value of the metric {metric}\n"
            f"  next  hpcflow sweep {ledger.folder} --metric NAME --mode min|max compares the "
            "same runs by another")  # fmt: skip
        return 1
    return int(any(state.state != run_ledger.DONE for _, state in found))


def _write_page(ledger: Ledger, found: Sequence[tuple[LedgerRun, RunState]]) -> None:
    """report.html of the best runs that have written records."""
    from hpcflow.report import run_page, run_summary
    from hpcflow.sweep import run_ledger, search_space, sweep_on_page
    from hpcflow.train.result_files import write_text

    done = {n: s.value for n, (_, s) in enumerate(found) if s.state == run_ledger.DONE}
    if ledger.spec.get("metric"):
        chosen = search_space.best(done, ledger.spec["mode"], MOST_ON_PAGE)
    else:
        chosen = list(done)[:MOST_ON_PAGE]
    folders = [str(ledger.run_folder(found[n][0].name)) for n in chosen]
    folders = [run for run in folders if run_summary.load([run], is_over=True)[0].is_readable]
    if folders:
        metric = ledger.spec.get("metric")
        by = f", by {metric} ({ledger.spec['mode']})" if metric else ""
        sweep = sweep_on_page.sweep_of(ledger, found)
        page = run_page.page_of(
            folders,
            title=f"hpcflow sweep: {ledger.script}",
            conclusions=[f"{len(folders)} of {len(found)} runs{by}, the best first"],
            sweeps=[sweep] if sweep is not None else [],
        )
        write_text(ledger.folder / "report.html", page.text)
    files = ["report.html"] * bool(folders) + ["results.json", "results.csv"]
    err(f"hpcflow sweep: written: {ledger.folder}/{', '.join(files)}")
