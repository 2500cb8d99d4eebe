"""Scaling study: run a script on several numbers of ranks, and compare their samples per second.

Each run is `hpcflow run -n N --run-dir OUT/nN-K SCRIPT`, one after the other, in turns: on this
machine, or in the allocation of a job. The script writes its result (`session.result()`,
`Model.fit`). Runs that OUT already has are not repeated, so the same command goes on after it was
stopped. By default all runs have the script's batch (strong scaling). OUT gets report.html,
scaling.json and scaling.csv. Exit code: 0, 1 if a run failed, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcflow.cli import run as run_command
from hpcflow.cli.terminal_output import err, out
from hpcflow.errors import HpcflowError, LaunchError

TAKES_SCRIPT = True
OUT = "scaling"
EXIT_CODE, COMMAND = "exit_code", "command.json"  # files of a run: ended, and by what


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow scale`."""
    parser.usage = "%(prog)s --ranks 1,2,4 [options] SCRIPT [arguments of the script]"
    parser.add_argument("--ranks", required=True, metavar="LIST", help="numbers of ranks: 1,2,4,8")
    parser.add_argument("--repeats", type=int, default=3, metavar="K", help="runs of each (3)")
    parser.add_argument(
        "--weak",
        metavar="OPTION=N",
        help="weak scaling: give the script OPTION=N times the number of workers (--batch=64)",
    )
    parser.add_argument("--out", default=OUT, metavar="DIR", help=f"folder of the runs ({OUT})")
    run_command.add_settings(parser)


def main(args: argparse.Namespace) -> int:
    """Run what is missing, then print and write the study."""
    try:
        ranks, servers, weak = _numbers(args.ranks), args.ps or 0, _weak(args.weak)
        _check(args, ranks, servers)
        settings = run_command.set_options(run_command.chosen_settings(args))
    except HpcflowError as error:
        err(f"hpcflow scale: {error}")
        return 2
    folder, failed = Path(args.out), []
    runs = [(n, folder / f"n{n}-{k + 1}") for k in range(args.repeats) for n in ranks]
    try:
        for number, (n, place) in enumerate(runs, 1):
            more = [f"{weak[0]}={weak[1] * (n - servers)}"] if weak else []
            command = _command(n, place, settings, [args.script, *args.script_args, *more])
            if _rate(place) is not None and _is_same(place, command):
                continue
            out(f"run {number} of {len(runs)}: {n} rank{'s' if n > 1 else ''}, {place}")
            if not _run(place, command):
                failed.append(place)
    except OSError as error:
        err(f"hpcflow scale: {error}")
        return 1
    except KeyboardInterrupt:
        err("hpcflow scale: stopped; the same command goes on")
        return 130
    code = _tell(folder, runs, servers, "weak" if weak else "strong")
    for place in failed:
        err(f"hpcflow scale: the run {place} failed; its output is in {place}/output.txt")
    return max(code, int(bool(failed)))


def _check(args: argparse.Namespace, ranks: Sequence[int], servers: int) -> None:
    """Errors: LaunchError that names the wrong option."""
    if args.repeats < 1:
        raise LaunchError(f"--repeats {args.repeats}: give 1 or more")
    if args.run_dir:
        raise LaunchError("--run-dir: each run has its own", hint="give --out DIR")
    if min(ranks) <= servers:
        raise LaunchError(
            f"--ranks {min(ranks)} with --ps {servers} leaves no worker",
            hint=f"give at least {servers + 1} ranks",
        )


def _tell(folder: Path, runs: Sequence[tuple[int, Path]], servers: int, kind: str) -> int:
    """Print and write the study of the runs that have a rate; returns the exit code."""
    from hpcflow.report import run_page, scaling_study
    from hpcflow.train.result_files import write_text

    rates: dict[tuple[int, int], list[float]] = {}
    good = []
    for n, place in runs:
        rate = _rate(place)
        if rate is not None:
            rates.setdefault((n, n - servers), []).append(rate)
            good.append(place)
    if not rates:
        err(f"hpcflow scale: no run has a result.json with samples_per_second in {folder}")
        return 1
    found = scaling_study.study(rates, kind)
    out(scaling_study.as_text(found))
    _limits(good[-1])
    try:
        data = json.dumps(scaling_study.as_data(found), indent=1) + "\n"
        write_text(folder / "scaling.json", data)
        write_text(folder / "scaling.csv", scaling_study.as_csv(found))
        write_text(folder / "report.html", run_page.page_of(good).text)
    except (HpcflowError, OSError) as error:
        err(f"hpcflow scale: {error}")
        return 1
    out(f"written: {folder}/report.html, scaling.json, scaling.csv")
    return 0


def _numbers(text: str) -> list[int]:
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise LaunchError(f"--ranks {text}: give numbers such as 1,2,4,8")
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


def _command(ranks: int, place: Path, settings: Sequence[str], script: Sequence[str]) -> list[str]:
    several = ["-n", str(ranks)] if ranks > 1 else []
    command = [sys.executable, "-m", "hpcflow", "run", *several, *settings]
    return [*command, "--run-dir", str(place), script[0], "--", *script[1:]]


def _is_same(place: Path, command: Sequence[str]) -> bool:
    """Whether the run in a folder was started by this command, of this script."""
    try:
        return (place / COMMAND).read_text(encoding="utf-8") == _identity(command)
    except (OSError, ValueError):
        return False


def _identity(command: Sequence[str]) -> str:
    """The command and the digest of its script, as a text."""
    script = command[command.index("--") - 1]
    try:
        digest = hashlib.sha256(Path(script).read_bytes()).hexdigest()
    except OSError:
        digest = ""  # the run tells that there is no script
    return json.dumps([*command, digest]) + "\n"


def _run(place: Path, command: Sequence[str]) -> bool:
    """One run; its output goes to output.txt. Ctrl-C and SIGTERM reach it, and it may save."""
    place.mkdir(parents=True, exist_ok=True)
    (place / EXIT_CODE).unlink(missing_ok=True)
    (place / COMMAND).write_text(_identity(command), encoding="utf-8")
    with open(place / "output.txt", "w", encoding="utf-8") as file:
        run = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        before = signal.signal(signal.SIGTERM, lambda number, frame: run.terminate())
        try:
            code = run.wait()
        except KeyboardInterrupt:  # the terminal has sent it to the run, too
            run.wait()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
    (place / EXIT_CODE).write_text(f"{code}\n", encoding="utf-8")
    if code == 0 and _rate(place) is None:
        err(
            f"hpcflow scale: {place} has no result: the script calls neither session.result() "
            "nor Model.fit"
        )
    return _rate(place) is not None


def _rate(place: Path) -> float | None:
    """Samples per second of a run that has ended with exit code 0."""
    from hpcflow.report import run_outcome, run_summary

    try:
        if (place / EXIT_CODE).read_text(encoding="utf-8").strip() != "0":
            return None
    except (OSError, ValueError):
        return None
    (found,) = run_summary.load([str(place)])
    return found.rate if found.rate and found.state == run_outcome.FINISHED else None


def _limits(place: Path) -> None:
    """Print what limits the run with the most workers."""
    from hpcflow.report import run_summary, run_view

    (found,) = run_summary.load([str(place)])
    view = run_view.RunView(place, found, redacted=False)
    for one in view.limits:
        out(f"{place.name} is limited by {one.resource}: {one.text}")
