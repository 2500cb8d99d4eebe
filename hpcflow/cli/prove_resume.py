"""Prove for a script that a stopped and resumed job ends with the same state.

The script runs until a rank gets SIGTERM, then resumes, and runs once more without interruption.
The last checkpoints are compared bit by bit: variables, position in the data, and random number
generators. All options of `hpcflow run` are accepted. Exit code: 0 if the checkpoints are equal, 1
if they differ, 2 if the check failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcflow.checkpoint.checkpoint_directory import find_checkpoints
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.compare_checkpoints import CheckpointDifference, diff, row_blocks
from hpcflow.cli import run
from hpcflow.cli.diff import row
from hpcflow.cli.export import newest
from hpcflow.cli.terminal_output import err, error_text, out
from hpcflow.errors import CheckpointError, HpcflowError, LaunchError
from hpcflow.launch import launcher_detection
from hpcflow.launch.slurm_requeue import TEMPORARY_FAILURE
from hpcflow.platform import fault_specification
from hpcflow.settings import PREFIX, Settings, new_seed

TAKES_SCRIPT = True
STEPS = 20  # before the signal
MAX_SHOWN = 5  # arrays listed
TAIL = 15  # output lines of a failed run


class ScriptRun(NamedTuple):
    """The exit code of one run of the script, and its last checkpoint."""

    code: int
    saved: SavedCheckpoint

    @property
    def step(self) -> int:
        """The step of the checkpoint."""
        return int(self.saved.facts["step"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow prove-resume`: those of `hpcflow run`, and two of its own."""
    run.add_arguments(parser)
    parser.usage = "%(prog)s [options] SCRIPT [arguments of the script]"
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        metavar="K",
        help=f"number of steps before the signal ({STEPS})",
    )
    parser.add_argument(
        "--folder",
        metavar="DIR",
        help="folder for checkpoints, on a file system of all nodes (the current folder)",
    )


def main(args: argparse.Namespace) -> int:
    """Run, compare and report."""
    try:
        return prove(args)
    except (HpcflowError, OSError) as error:
        err(f"hpcflow prove-resume: {error_text(error)}")
        return 2


def prove(args: argparse.Namespace) -> int:
    """Compare a resumed run with an uninterrupted one; returns the exit code.

    Errors: LaunchError or CheckpointError if a run gives no result to compare.
    """
    check(args)
    folder = Path(tempfile.mkdtemp(prefix="prove-resume-", dir=args.folder or ".")).absolute()
    script = ScriptRunner(args, folder)
    stopped = script.stopped()
    end = 2 * stopped.step
    out(f"stopped before step {stopped.step}; now resuming, until step {end}")
    resumed = script.run("resumed", "stopped", end)
    if resumed.step <= stopped.step:
        raise CheckpointError(
            f"the script did not continue after step {stopped.step}",
            hint=f"it ends there: use --steps less than {args.steps}; its output is in {folder}",
        )
    out(f"ended at step {resumed.step}; now running without interruption")
    reference = script.run("whole", "whole", end)
    diffs = differences(reference.saved, resumed.saved)
    if not diffs:
        out(f"bit-equal at step {reference.step}: {described(reference.saved)}")
        shutil.rmtree(folder)
        return 0
    out(f"ended at step {reference.step} with other bits; now repeating the uninterrupted run")
    repeated = script.run("again", "again", end)
    out("NOT bit-equal: the uninterrupted run and the resumed run")
    out("\n".join(rows(diffs)))
    for why in reasons(reference.saved, diffs, differences(reference.saved, repeated.saved)):
        out(f"  likely    {why}")
    out(f"  kept in   {folder}")
    return 1


def check(args: argparse.Namespace) -> None:
    """Raise LaunchError for a job that cannot run."""
    if launcher_detection.detect_launcher() is not None:
        raise LaunchError(
            "prove-resume starts its ranks itself and cannot run as a rank",
            hint="run it once, without srun or mpirun, with -n N",
        )
    if args.steps < 1:
        raise LaunchError(f"--steps {args.steps}: at least one step must precede the signal")
    settings = Settings.from_environ({**os.environ, **run.chosen_settings(args)})
    run.check(args.ranks, None, settings)


class ScriptRunner:
    """The user's script, which runs several times with other settings."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args, self._folder = args, folder
        chosen = run.chosen_settings(args)
        self._settings = {name[len(PREFIX) :].lower(): value for name, value in chosen.items()}
        if PREFIX + "RANDOM_SEED" not in os.environ:  # the same seed for all runs
            self._settings.setdefault("random_seed", str(new_seed()))
        self._faults = self._settings.pop("inject", os.environ.get(PREFIX + "INJECT", ""))

    def stopped(self) -> ScriptRun:
        """The first run: a rank gets SIGTERM in the middle.

        Errors: LaunchError if the script ends before all ranks know of the signal.
        """
        rank = 1 if (self._args.ranks or 1) > 1 else 0  # another rank than the chief, if any
        before = self._args.steps + 1
        out(f"running until rank {rank} gets SIGTERM before its step {before}")
        first = self.run("stopped", "stopped", 0, f"term:rank={rank}@step={before}")
        if first.code != TEMPORARY_FAILURE:
            raise LaunchError(
                f"the script ended at step {first.step}, before all ranks knew of the signal that "
                f"rank {rank} got before its step {before}",
                hint="use fewer --steps, or let the script train longer",
            )
        return first

    def run(self, name: str, subfolder: str, stop_at: int, fault: str = "") -> ScriptRun:
        """One run, which saves to the folder `subfolder` and resumes from the checkpoint in it.

        Errors: LaunchError if it fails, CheckpointError if it saves nothing.
        """
        place, log = self._folder / subfolder, self._folder / f"{name}.log"
        settings = {
            **self._settings,
            "run_dir": str(self._folder / "runs" / name),
            "checkpoints": str(place),
            "requeue": "0",
            "max_restarts": "-1",
            "stop_at": str(stop_at),
            "inject": fault_specification.SEPARATOR.join(filter(None, (self._faults, fault))),
        }
        with open(log, "w") as file:
            completed = subprocess.run(self._words(settings), stdout=file, stderr=subprocess.STDOUT)
        if completed.returncode not in (0, TEMPORARY_FAILURE):
            tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-TAIL:])
            raise LaunchError(
                f"the script failed with exit code {completed.returncode}:\n  {tail}",
                hint=f"its output is in {log}",
            )
        if not find_checkpoints(place):
            raise CheckpointError(
                "the script saved no checkpoint",
                hint="train by `step` of a hf.train.TrainingSession, or by a monitored "
                "session that "
                f"saves; its output is in {log}",
            )
        return ScriptRun(completed.returncode, newest(place))

    def _words(self, settings: Mapping[str, str]) -> list[str]:
        args = self._args
        words = [sys.executable, "-m", "hpcflow", "run"]
        words += [] if args.ranks is None else ["-n", str(args.ranks)]
        words += [f"--set={name}={value}" for name, value in settings.items()]
        return [*words, args.script, "--", *args.script_args]


def differences(a: SavedCheckpoint, b: SavedCheckpoint) -> list[CheckpointDifference]:
    """The differences between two checkpoints, including equal numbers with different bits."""
    diffs = list(diff(a, b))
    differing = {entry.name for entry in diffs}
    for name in sorted({*a.arrays, *b.arrays} - differing):
        of = list(row_blocks(a.arrays[name]))
        if any(a.rows(name, *at).tobytes() != b.rows(name, *at).tobytes() for at in of):
            diffs.append(
                CheckpointDifference(
                    name, "values", "equal numbers with different bits (-0.0, nan)"
                )
            )
    if not diffs and a.facts["draws"] != b.facts["draws"]:
        diffs.append(CheckpointDifference("draws", "fact", "the numbers of random draws differ"))
    return diffs


def described(saved: SavedCheckpoint) -> str:
    """Text: what was equal."""
    total = sum(array.nbytes for array in saved.arrays.values())
    datasets = len(saved.facts.get("position", []))
    draws = sum(count for _, _, count in saved.facts["draws"]["most"])
    return (
        f"{len(saved.arrays)} arrays ({total:,} bytes), the position in {datasets} dataset"
        f"{'' if datasets == 1 else 's'}, {draws:,} random draws"
    )


def rows(diffs: Sequence[CheckpointDifference]) -> list[str]:
    """Text: the first differences."""
    extra = len(diffs) - MAX_SHOWN
    shown = [row(entry) for entry in diffs[:MAX_SHOWN]]
    return shown + ([f"  ... {extra} more"] if extra > 0 else [])


def reasons(
    saved: SavedCheckpoint,
    diffs: Sequence[CheckpointDifference],
    baseline_diffs: Sequence[CheckpointDifference],
) -> list[str]:
    """Likely reasons, as far as checkpoints show them.

    `baseline_diffs` is the difference between two uninterrupted runs.
    """
    rule, places = saved.facts.get("sync", "all"), saved.facts.get("position", [])
    if rule != "all":
        return [
            f"asynchronous workers (sync={rule}): no two runs are equal"
            + ("" if baseline_diffs else ", though the two uninterrupted ones were")
            + "; use --sync all"
        ]
    if baseline_diffs:
        return [
            "two uninterrupted runs differ as well, so resuming is not the cause: random numbers "
            "without a seed (NumPy, Python), time, threads, or kernels that sum in any order"
        ]
    likely = []
    if any(entry.kind == "position" for entry in diffs):
        likely.append("the order of the data: the resumed run is at another position of a dataset")
    if places and not saved.facts.get("samples"):
        likely.append(
            "the data: steps were not fed with unchanged batches of hf.data, so their position was "
            "not counted; `session.step` on a batch of `hf.data` counts it, `session.run` does not"
        )
    if not places:
        likely.append(
            "the data: the script feeds its own data, so it restarted it; hf.data keeps "
            "its position"
        )
    if any(entry.kind == "fact" for entry in diffs):
        likely.append("additional random draws or steps of the resumed run")
    return likely or [
        "state outside the graph, which no checkpoint holds: counters of the script, "
        "draws by NumPy, "
        "or feeds by its own step number; a hf.Variable(trainable=False) is saved"
    ]
