"""Show the measured costs of this machine, and how well they predict operations.

A run with --profile, `hpcflow costs --calibrate` and `hpcflow doctor -n 2` measure them. They are
in one file for each kind of node, in the folder of the setting cost_cache. The error of a type is
that of its rows when each is predicted by the others. With RUN, the run directory of a profiled
run, the command compares predictions with the measured times of the run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hpcflow.cli.terminal_output import err, error_text, out
from hpcflow.errors import HpcflowError
from hpcflow.kernels.machine_facts import own_profile_file
from hpcflow.plan.cost.operation_costs import OperationCosts
from hpcflow.plan.cost.profile_costs import ProfiledOperation, profiled_operations
from hpcflow.platform.artifact_cache import COSTS
from hpcflow.platform.machine_profile import FORMAT, MachineProfile, ProfileFile
from hpcflow.platform.record_files import read_json_object, unreadable_error
from hpcflow.report import cost_tables
from hpcflow.settings import Settings

CALIBRATION_S, LONGEST_S = 10.0, 3600.0  # the first for each number of threads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow costs`."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="the run directory of a profiled run")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--calibrate", action="store_true", help="measure operations of a few types and sizes"
    )
    which.add_argument("--clear", action="store_true", help="remove the costs of this machine")
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help=f"time of --calibrate ({CALIBRATION_S:g} for each number of threads)",
    )
    parser.add_argument(
        "--threads",
        metavar="N,...",
        help="numbers of threads of a rank for --calibrate (the one that you have set, else the "
        "powers of two up to the cores)",
    )
    parser.add_argument("--json", action="store_true", help="write JSON")


def main(args: argparse.Namespace) -> int:
    """Print the costs of this machine, or the predictions of a run.

    Exit code: 1 if a file cannot be read, written or removed, 2 for wrong arguments.
    """
    wrong = _wrong_arguments(args)
    if wrong:
        err(f"hpcflow costs: {wrong}")
        return 2
    try:
        settings = Settings.from_environ()
        file = own_profile_file(settings.cost_cache)
        if file is None:
            err(f"hpcflow costs: no costs are kept ({COSTS.setting}=none)")
            return 1
        if args.clear:
            return _clear(file)
        if args.calibrate and not _calibrate(args, file, settings):
            return 1
        profile = file.read()
        _show_run(args, file, profile) if args.run is not None else _show(args, file, profile)
    except (HpcflowError, OSError) as error:
        err(f"hpcflow costs: {error_text(error)}")
        return 1
    return 0


def _wrong_arguments(args: argparse.Namespace) -> str:
    """What is wrong with the arguments; "" if nothing is."""
    for name in ("seconds", "threads"):
        if getattr(args, name) is not None and not args.calibrate:
            return f"--{name} is for --calibrate, which is not given"
    if args.seconds is not None and not 0 < args.seconds <= LONGEST_S:
        return f"--seconds takes more than 0 and at most {LONGEST_S:g} seconds"
    if args.run is not None and (args.calibrate or args.clear):
        return "RUN is for neither --calibrate nor --clear"
    if args.threads is not None:
        from hpcflow.cli.thread_calibration import wrong_numbers

        return wrong_numbers(args.threads)
    return ""


def _clear(file: ProfileFile) -> int:
    removed = file.clear()
    out(f"removed {file.path}" if removed else f"there is no file {file.path}")
    return 0


def _calibrate(args: argparse.Namespace, file: ProfileFile, settings: Settings) -> bool:
    """Measure with each number of threads; False if a measurement fails or cannot be kept."""
    from hpcflow.cli.thread_calibration import calibrate_threads, numbers_of

    numbers = numbers_of(args.threads)
    seconds = CALIBRATION_S * len(numbers) if args.seconds is None else args.seconds
    return calibrate_threads(numbers, seconds, file, settings)


def _show(args: argparse.Namespace, file: ProfileFile, profile: MachineProfile) -> None:
    if not args.json:
        facts = file.machine
        libraries = [f"{name} {facts[name]}" for name in ("numpy", "llvmlite") if facts[name]]
        out(f"{facts['cpu']}, {facts['cores']} CPUs, {', '.join(libraries)}\n{file.path}\n")
        out(cost_tables.profile_text(profile))
        return
    data = {"format": FORMAT, "file": str(file.path), "machine": file.machine}
    types = {"types": cost_tables.profile_data(profile)}
    types |= {"threads": cost_tables.threads_data(profile)}
    errors = {"step_errors": cost_tables.steps_data(profile)}
    out(json.dumps({**data, **types, **errors, **profile.as_data()}))


def _show_run(args: argparse.Namespace, file: ProfileFile, profile: MachineProfile) -> None:
    """Errors: HpcflowError if the run has no profile, or one that cannot be read."""
    ranks = _profiled_ranks(Path(args.run) / "profile.json")
    predicted = cost_tables.predicted_operations(OperationCosts(profile.operations), ranks)
    if not args.json:
        out(cost_tables.run_text(predicted))
        return
    rows = [{**operation._asdict(), "error": operation.error} for operation in predicted]
    data = {"format": FORMAT, "file": str(file.path), "run": args.run}
    out(json.dumps({**data, "types": cost_tables.run_data(predicted), "operations": rows}))


def _profiled_ranks(path: Path) -> dict[int, list[ProfiledOperation]]:
    data: dict[str, Any] | None = read_json_object(path)
    if data is None:
        if not path.parent.is_dir():
            hint = "give the folder of a run (hpcflow run --profile --run-dir DIR)"
            raise HpcflowError(f"there is no run directory {path.parent}", hint=hint)
        raise HpcflowError(f"there is no {path}", hint="run it with hpcflow run --profile")
    profiles = data.get("ranks")
    if not isinstance(profiles, list) or not all(isinstance(p, dict) for p in profiles):
        raise unreadable_error(path, "it has no profiles of ranks")
    try:
        return {number: profiled_operations(profile) for number, profile in enumerate(profiles)}
    except ValueError as error:
        raise unreadable_error(path, f"{error}") from None
