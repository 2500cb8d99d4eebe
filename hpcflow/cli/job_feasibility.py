"""Job feasibility: checks of a job before submission or start: script, ranks, time limit."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from hpcflow.cli import run
from hpcflow.cli.main import shared_option, split_script
from hpcflow.errors import LaunchError
from hpcflow.launch.launcher_detection import LaunchedRank
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.settings import Settings
from hpcflow.train.checkpoint_interval import SPARE_S, UNKNOWN_S

LEAST_S = SPARE_S + UNKNOWN_S  # a job that saves first stops this long before its end
EARLY_S = 60.0  # SLURM's polling interval: a signal may come this much earlier
TOLD_BY = {"USR1", "TERM", "10", "15"}  # signals that stop a job
PS = re.compile(r"--ps[ =]\"?\$\{(\w+):-(\d+)\}")  # as in a job script
ENVIRONMENT = {
    "time": "SBATCH_TIMELIMIT",
    "partition": "SBATCH_PARTITION",
    "signal": "SBATCH_SIGNAL",
}
PASSED_ON = ("time", "partition", "chdir")  # inherited from the job's previous part


@dataclasses.dataclass(frozen=True)
class JobRequest:
    """The resources that one part of a job requests of SLURM.

    A heterogeneous job has several parts. None stands for an option that is absent or not parsed.
    """

    nodes: int | None = None  # the minimum
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus: int = 1  # per task
    seconds: float | None = None
    partition: str | None = None
    signal: str = ""  # as given
    chdir: str = "."

    @property
    def ranks(self) -> int | None:
        """The number of tasks; None if the site's defaults decide it."""
        if self.tasks is not None:
            return self.tasks
        return None if self.nodes is None else self.nodes * (self.tasks_per_node or 1)

    @property
    def lead_s(self) -> float | None:
        """Seconds between the stop signal and the end of the job; None without a signal."""
        flags, _, spec = self.signal.rpartition(":")
        name, _, seconds = spec.partition("@")
        if not spec or "B" in flags or name.upper().removeprefix("SIG") not in TOLD_BY:
            return None
        return float(seconds) if seconds.isdigit() else 60.0


class RaisingParser(argparse.ArgumentParser):
    """An argument parser whose errors are LaunchErrors."""

    def error(self, message: str) -> NoReturn:
        """Raise LaunchError."""
        raise LaunchError(message)


# -- the script


def check_script(name: str, folder: str | Path = ".") -> None:
    """Check that Python can compile a script, given relative to `folder`.

    Errors: LaunchError if it cannot.
    """
    path = Path(folder, name)
    if not path.is_file():
        raise LaunchError(
            f"there is no script {name!r} in {Path(folder).absolute()}",
            hint="give a path from this folder, or an absolute one",
        )
    try:
        source = path.read_bytes()
    except OSError as error:
        raise _unreadable(name, path, error) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise LaunchError(
            f"the script is not Python: {name}:{error.lineno or 1}: {error.msg}",
            hint=f"python -m py_compile {shlex.quote(str(path))} shows the line",
        ) from None
    except ValueError as error:
        raise LaunchError(f"the script is not Python: {name}: {error}") from None


def _unreadable(name: str, path: Path, error: OSError) -> LaunchError:
    """The error that a script cannot be read."""
    return LaunchError(
        f"the script {name!r} cannot be read: {error.strerror}", hint=f"chmod u+r {path}"
    )


# -- requested resources


def parts_of(text: str, options: Sequence[str], environ: Mapping[str, str]) -> list[JobRequest]:
    """The requests of each part of a job: `#SBATCH` lines, then environment, then options.

    Later sources override earlier ones. Command line options apply to the first part, as in
    `sbatch`.
    Errors: LaunchError for a line that cannot be parsed.
    """
    groups: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH"):
            try:
                words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError as error:
                raise LaunchError(f"the line {line!r} cannot be parsed: {error}") from None
            if words == ["hetjob"] or words == ["packjob"]:
                groups.append([])
            groups[-1] += words
    parts, before = [], argparse.Namespace()
    for number, words in enumerate(groups):
        given = _parsed(words, {k: getattr(before, k, None) for k in PASSED_ON})
        if number == 0:
            told = {name: environ[v] for name, v in ENVIRONMENT.items() if v in environ}
            given = _parsed(options, {**vars(given), **told})
        parts.append(_parse_request(given))
        before = given
    return parts


def _parsed(words: Sequence[str], before: Mapping[str, str | None]) -> argparse.Namespace:
    parser = RaisingParser(add_help=False, allow_abbrev=False)
    for names in (("-N", "--nodes"), ("-n", "--ntasks"), ("--ntasks-per-node",), ("--signal",),
                  ("-c", "--cpus-per-task"), ("-t", "--time"), ("-p", "--partition"),
                  ("-D", "--chdir")):  # fmt: skip
        parser.add_argument(*names, default=None)
    parser.set_defaults(**before)
    return parser.parse_known_args(list(words))[0]


def _parse_request(namespace: argparse.Namespace) -> JobRequest:
    least = None if namespace.nodes is None else namespace.nodes.partition("-")[0]
    return JobRequest(
        nodes=_number(least),
        tasks=_number(namespace.ntasks),
        tasks_per_node=_number(namespace.ntasks_per_node),
        cpus=_number(namespace.cpus_per_task) or 1,
        seconds=None if namespace.time is None else seconds_of(namespace.time),
        partition=namespace.partition,
        signal=namespace.signal or "",
        chdir=namespace.chdir or ".",
    )


def _number(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d{1,9})([kK]?)", text or "")
    return None if match is None else int(match[1]) * (1024 if match[2] else 1)


def seconds_of(text: str) -> float | None:
    """Parse a SLURM time: `30`, `30:00`, `1:30:00`, `2-12`, `2-12:00:00`, `UNLIMITED`."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1", "0"):
        return math.inf
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return None
    days, *rest = (None if part is None else int(part) for part in match.groups())
    clock_parts = [part for part in rest if part is not None]
    if days is None and len(clock_parts) < 3:  # minutes first
        clock_parts = [0, *clock_parts]
    hours, minutes, seconds = (*clock_parts, 0, 0)[:3]
    return float((((days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


# -- checks


def check(
    script: str, arguments: Sequence[str], options: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Warnings about a job script that is to be submitted.

    Errors: LaunchError, with a remedy, if the job is certain to fail.
    """
    try:
        text = Path(script).read_text(errors="replace")
    except OSError as error:
        raise _unreadable(script, Path(script), error) from None
    parts = parts_of(text, options, environ)
    doubts = [doubt for part in parts for doubt in _doubts_of_time(script, part)]
    doubts += _doubts_of_place(script, text, environ)
    for part in parts:
        _check_partition(part)
    if "hpcflow run" in text and '"$@"' in text:  # then its arguments are those of hpcflow run
        _check_words(text, arguments, parts, environ)
    return doubts


def _doubts_of_time(script: str, part: JobRequest) -> list[str]:
    limit, lead = part.seconds, part.lead_s
    if limit is None or limit == math.inf:
        return []
    if lead is not None and limit <= lead:
        raise LaunchError(
            comes_at_once(limit, lead), hint=f"increase --time in {script} or --sbatch"
        )
    if limit <= LEAST_S:
        return [too_short(limit)]
    if lead is not None and limit <= lead + EARLY_S:
        return [
            f"the job may run for {format_seconds(limit)}, and the signal {format_seconds(lead)} "
            "before the end may "
            "come a minute earlier: it stops right after its start"
        ]
    return []


def too_short(left_s: float) -> str:
    """The warning that a job that saves would stop right after its start."""
    return (
        f"the job may run for {format_seconds(left_s)}, and if it saves it stops "
        f"{format_seconds(LEAST_S)} before "
        "its end: at its first step, and is queued again without progress"
    )


def _doubts_of_place(script: str, text: str, environ: Mapping[str, str]) -> list[str]:
    """Warn if the job cannot find hpcflow; checks the PATH line of the provided job scripts."""
    command = Path(".venv", "bin", "hpcflow").absolute()
    reachable = command.exists() or shutil.which("hpcflow", path=environ.get("PATH", ""))
    if reachable or "$SLURM_SUBMIT_DIR/.venv/bin" not in text:
        return []
    return [
        f"neither {command.parent} nor PATH has hpcflow: set its folder in the line `export PATH=` "
        f"of {script}; this hpcflow is in {Path(sys.prefix, 'bin')}"
    ]


def comes_at_once(left_s: float, lead_s: float) -> str:
    """The warning that the time limit is shorter than the lead time of the stop signal."""
    return (
        f"the job may run for {format_seconds(left_s)}, and --signal asks for the signal "
        f"{format_seconds(lead_s)} "
        "before its end: it comes at once, so the job saves, is queued again, forever"
    )


def _check_words(
    text: str, arguments: Sequence[str], parts: Sequence[JobRequest], environ: Mapping[str, str]
) -> None:
    parser = RaisingParser(add_help=False, allow_abbrev=False)
    run.add_arguments(parser)
    parser_words, script, _ = split_script(parser, arguments)
    if script is None:
        raise LaunchError(
            "the job script needs a script to run", hint="give it after the job script"
        )
    check_script(script, parts[0].chdir)
    shared = shared_option(parser, arguments, script, str(Path(parts[0].chdir, script)))
    if shared:
        raise LaunchError(shared)
    chosen = run.chosen_settings(parser.parse_args(parser_words))
    ps_match = PS.search(text)
    if ps_match is not None:
        chosen.setdefault("HPCFLOW_PS", environ.get(ps_match[1]) or ps_match[2])
    settings = Settings.from_environ({**environ, **chosen})
    ranks = parts[0].ranks
    if len(parts) == 1 and ranks is not None and re.search(r"^\s*srun\b", text, re.MULTILINE):
        _check_ranks(ranks, settings)


def _check_ranks(ranks: int, settings: Settings) -> None:
    try:
        run.check(None, LaunchedRank(0, ranks, None, None, "srun"), settings)
    except LaunchError as error:
        advice = "ask for more tasks (--sbatch=--ntasks-per-node=N), or fewer servers"
        raise LaunchError(error.message, hint=error.hint if settings.survive else advice) from None
    workers, k = ranks - settings.ps, settings.tasks_per_replica
    if workers % k:
        raise LaunchError(
            f"{workers} workers of {ranks} tasks cannot be divided into replicas of {k}",
            hint=f"ask for {settings.ps + -(-workers // k) * k} tasks (--sbatch=--ntasks=N)",
        )


def _check_partition(part: JobRequest) -> None:
    """Compare the request with the limits of the partition, if sinfo reports them."""
    limits = _sinfo(part.partition)
    if not limits:
        return
    name, nodes, most_s, cpus = limits
    if part.nodes is not None and part.nodes > nodes:
        raise LaunchError(
            f"the job asks for {part.nodes} nodes, but the partition {name} has {nodes}",
            hint="use --sbatch=--nodes=N, or another --partition; sinfo -s lists them",
        )
    if part.seconds is not None and part.seconds > most_s:
        raise LaunchError(
            f"the job asks for {format_seconds(part.seconds)}, but the partition {name} gives "
            f"{format_seconds(most_s)}",
            hint="use less --time: a job that saves is queued again and resumes",
        )
    per_node = part.tasks_per_node
    if per_node is not None and per_node * part.cpus > cpus:
        raise LaunchError(
            f"{per_node} tasks of {part.cpus} CPUs do not fit a node of {name}, which has "
            f"{cpus} CPUs",
            hint="reduce --ntasks-per-node or --cpus-per-task",
        )


def _sinfo(partition: str | None) -> tuple[str, int, float, int] | None:
    """Name, nodes, longest time and CPUs per node of a partition; None is the default partition.

    The result is None for several partitions, or if SLURM reports nothing.
    """
    if shutil.which("sinfo") is None or (partition and "," in partition):
        return None
    words = ["sinfo", "-h", "-o", "%P|%D|%l|%c", *(["-p", partition] if partition else [])]
    try:
        completed = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [line.split("|") for line in completed.stdout.splitlines()]
    rows = [row for row in rows if len(row) == 4 and (partition or row[0].endswith("*"))]
    if completed.returncode or not rows:
        return None
    nodes = sum(_number(row[1]) or 0 for row in rows)
    most_s = max(seconds_of(row[2]) or math.inf for row in rows)
    cpus = max(_number(row[3].rstrip("+")) or 0 for row in rows)
    return (rows[0][0].rstrip("*"), nodes, most_s, cpus) if nodes and cpus else None
