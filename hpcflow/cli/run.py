"""Run a script on one rank or many.

Under a launcher (srun, mpirun, ...) this process is one rank. Otherwise -n N starts N ranks: with
srun inside a SLURM allocation, else with mpirun. Without -n the script runs as a single rank.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hpcflow.cli.terminal_output import err, error_text
from hpcflow.errors import ABORTED, HpcflowError, LaunchError
from hpcflow.launch import host_failure_tolerance, launcher_detection
from hpcflow.launch.time_limit import LAUNCH_TIME, seconds, seconds_running
from hpcflow.monitoring import run_directory_lock, srun_rank_supervisor
from hpcflow.monitoring.run_directory_lock import RUN_DIR
from hpcflow.monitoring.stack_dump import raised_at
from hpcflow.monitoring.wait_ledger import ledger_folder as ledgers
from hpcflow.platform import fault_specification
from hpcflow.ps import script_rules
from hpcflow.settings import JUDGED, PREFIX, Settings

if TYPE_CHECKING:
    from hpcflow.report.live_page import LivePage

TAKES_SCRIPT = True
MOST_RANKS = 1 << 20  # that of a topology, in placement/topology.py
LET_RANK_0_SPEAK_S = 2.0  # launchers end all ranks when one has failed
ADD_FOLDER = "hpcflow_script_folder"  # -X option: Python was started with -P by hpcflow


class SettingOption(argparse.Action):
    """An option that is a setting: it appends FIELD=VALUE to those of `--set`.

    So of several values of a setting the last on the command line counts, in either spelling. Only
    faults of `--inject` add up.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store and append the value; an option without one is a switch that is turned on."""
        value: Any = True if self.nargs == 0 else values
        if self.dest == "inject":
            given = [text for text in namespace.set if text.startswith("inject=")]
            before = given[-1].partition("=")[2] if given else ""
            value = fault_specification.SEPARATOR.join(filter(None, (before, value)))
        setattr(namespace, self.dest, value)
        namespace.set = [*namespace.set, f"{self.dest}={value}"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow run`; each but -n is a setting and a variable `HPCFLOW_<FIELD>`."""
    parser.usage = "%(prog)s [options] SCRIPT [arguments of the script]"
    parser.add_argument("-n", dest="ranks", type=int, metavar="N", help="number of ranks")
    parser.add_argument("--hostfile", metavar="FILE", help="file of hosts for mpirun, one per line")
    add_settings(parser)
    parser.add_argument(
        "--serve",
        action=SettingOption,
        nargs=0,
        help="all ranks of this command are servers; other commands of the job need no --ps",
    )
    parser.add_argument(
        "--survive",
        action=SettingOption,
        nargs=0,
        help="the other workers continue if one dies (mpirun of Open MPI 5)",
    )
    parser.add_argument(
        "--replace",
        action=SettingOption,
        nargs=0,
        help="with --survive: the others save and stop, and the next start has all workers again",
    )
    parser.add_argument(
        "--inject",
        action=SettingOption,
        metavar="FAULT",
        help="inject a failure; may be repeated: " + ", ".join(fault_specification.USAGES),
    )
    parser.add_argument(
        "--max-restarts",
        action=SettingOption,
        type=int,
        metavar="N",
        help="resume a job at most N times",
    )
    parser.add_argument(
        "--profile",
        action=SettingOption,
        nargs=0,
        help="profile the time of a step by operation, with a trace in the run directory",
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The options of every command that has the settings of a script."""
    parser.add_argument(
        "--ps", action=SettingOption, type=int, metavar="P", help="number of parameter servers"
    )
    parser.add_argument(
        "--tasks-per-replica",
        action=SettingOption,
        type=int,
        metavar="K",
        help="number of worker ranks per replica (model parallelism)",
    )
    parser.add_argument(
        "--sync",
        action=SettingOption,
        metavar="RULE",
        help="synchronization rule: async, all, backup:K, stale:S or a script's own",
    )
    parser.add_argument(
        "--run-dir", action=SettingOption, metavar="DIR", help="folder for results and reports"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="any setting; may be repeated: of several values of a setting the last counts",
    )


def main(args: argparse.Namespace) -> int:
    """Join the job as a rank, or start the launcher that starts the ranks."""
    place = None
    try:
        place = launcher_detection.detect_launcher()
        script_rules.look_in(args.script)
        chosen = chosen_settings(args)
        settings = Settings.from_environ({**os.environ, **chosen})
        check(args.ranks, place, settings)
        if not os.path.isfile(args.script):
            raise LaunchError(
                f"there is no script {args.script!r} in {os.getcwd()}",
                hint="give a path from this folder, or an absolute one",
            )
        if place is None and args.ranks is not None:
            return start_ranks(args, chosen)
        os.environ.update(chosen)
        if place is not None:
            srun_rank_supervisor.become_child(place, settings.run_dir)
        line = (
            host_failure_tolerance.SupervisorConnection(place.rank) if place is not None else None
        )
        serving = enter()
        if place is not None and place.rank == 0 and LAUNCH_TIME not in os.environ:
            from hpcflow.cli import pack_choice

            pack_choice.advise(place, settings)
    except HpcflowError as error:
        _print_refusal(error, place)
        return 2
    if serving is not None:
        serving()
        return 0
    code = 1
    page = live_page(settings)
    try:
        code = run_script(args.script, args.script_args)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and place is not None:
            _summarize_exit(end, code, place.rank)
        raise
    finally:
        if line is not None:
            line.code = code
        if page is not None:
            _end_page(page, settings, code)
    return code


def _end_page(page: LivePage, settings: Settings, code: int) -> None:
    """Write the last page; a run that ended well adds its steps to the machine profile."""
    page.close()
    if code:
        return
    from hpcflow.kernels.machine_facts import own_profile_file

    page.keep_step(own_profile_file(settings.cost_cache))


def _print_refusal(error: HpcflowError, place: launcher_detection.LaunchedRank | None) -> None:
    """Print on rank 0 why the job does not start: the other ranks have the same error."""
    if place is not None and place.rank > 0:
        time.sleep(LET_RANK_0_SPEAK_S)
        return
    from hpcflow.monitoring import failure_summary

    err(f"hpcflow: {type(error).__name__}: {error}")
    cause = f"{type(error).__name__}: {error.message}"
    failure_summary.write_summary(range(place.size if place else 1), cause, None, error.hint)


def _summarize_exit(end: SystemExit, code: int, rank: int) -> None:
    """Leave the line of the script that ended it, for the last line of `hpcflow run -n N`."""
    from hpcflow.monitoring import failure_summary
    from hpcflow.train.preemption import Preempted

    if isinstance(end, Preempted):
        if end.said:  # on the chief
            failure_summary.write_stop(end.reason, end.said)
        return
    text = "" if isinstance(end.code, int) else f": {end.code}"
    cause = f"the script ended with exit code {code}{text}"
    failure_summary.write_summary(
        [rank], cause, raised_at(end), "`hpcflow help exit-codes` lists those of hpcflow"
    )


def live_page(settings: Settings) -> LivePage | None:
    """The page of this run, which the chief writes while the script runs."""
    if not (settings.run_dir and settings.page):
        return None
    from hpcflow.runtime.job.job_membership import current_context

    context = current_context()
    if not context.is_chief:
        return None
    from hpcflow.report.live_page import LivePage

    page = LivePage(settings.run_dir)
    context.plans.on_training_plan = page.take_plan
    return page


def chosen_settings(args: argparse.Namespace) -> dict[str, str]:
    """The `HPCFLOW_*` variables of `--set` and of the options that are settings.

    Errors: LaunchError for a `--set` of an unknown field of `Settings`.
    """
    fields = [field.name for field in dataclasses.fields(Settings)]
    chosen: dict[str, str] = {}
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals or name not in fields:
            near = get_close_matches(name, fields, n=1)
            field = f" with FIELD {near[0]}" if near else ": `hpcflow help settings` lists all"
            raise LaunchError(
                f"--set {text}: "
                + ("there is no such setting" if equals else "the value is missing"),
                hint=f"write --set FIELD=VALUE{field}",
            )
        chosen[name] = value
    return {PREFIX + name.upper(): value for name, value in chosen.items()}


def set_options(chosen: Mapping[str, str]) -> list[str]:
    """`HPCFLOW_*` variables as `--set` options of a command."""
    return [f"--set={name[len(PREFIX) :].lower()}={value}" for name, value in chosen.items()]


def check(
    requested_ranks: int | None,
    launched_rank: launcher_detection.LaunchedRank | None,
    settings: Settings,
) -> None:
    """Check the options before the ranks start.

    Errors: LaunchError naming the option and a valid number; HpcflowError for a wrong time limit.
    """
    _check_rank_count(requested_ranks, launched_rank)
    seconds(settings.time_limit or "0")
    if settings.replace and not settings.survive:
        raise LaunchError(
            "--replace needs --survive: otherwise a worker's death ends the job",
            hint="give both options, or neither",
        )
    if settings.survive:
        launcher_detection.check_survive(launched_rank)
    ranks = launched_rank.size if launched_rank is not None else requested_ranks or 1
    fault_specification.check_faults(settings.inject, ranks)
    ps, k = settings.ps, settings.tasks_per_replica
    workers = ranks - ps
    if workers < 1:
        raise LaunchError(
            f"{ps} of {ranks} rank{'s' if ranks > 1 else ''} would serve variables, "
            "which leaves no worker",
            hint=f"start at least {ps + k} ranks (-n {ps + k}), or fewer servers (--ps)",
        )
    if launched_rank is None and workers % k:  # started ranks may include servers (--serve)
        rank_count = ps + -(-workers // k) * k
        raise LaunchError(
            f"{workers} worker{'s' if workers > 1 else ''} cannot be divided into replicas of {k} "
            f"({ranks} ranks, {ps} of them servers)",
            hint=f"start {rank_count} ranks (-n {rank_count}), or change --tasks-per-replica",
        )


def _check_rank_count(
    requested_ranks: int | None, launched_rank: launcher_detection.LaunchedRank | None
) -> None:
    if requested_ranks is None:
        return
    if requested_ranks < 1:
        raise LaunchError(
            f"-n {requested_ranks}: there must be at least one rank",
            hint="give the number of ranks, or leave -n out for one rank",
        )
    if requested_ranks > MOST_RANKS:
        raise LaunchError(f"-n {requested_ranks}: a job has at most {MOST_RANKS:,} ranks")
    if launched_rank is not None and requested_ranks != launched_rank.size:
        raise LaunchError(
            f"-n {requested_ranks}, but {launched_rank.launcher} has already started "
            f"{launched_rank.size} ranks",
            hint=f"leave -n out, or ask {launched_rank.launcher} for {requested_ranks} ranks",
        )


def start_ranks(args: argparse.Namespace, chosen: Mapping[str, str]) -> int:
    """Become srun, or run mpirun as a child (mpirun_supervisor); returns the job's exit code.

    Errors: LaunchError if there is no launcher.
    """
    from hpcflow.cli.pack_choice import pack_for_ranks
    from hpcflow.monitoring import failure_summary
    from hpcflow.platform import pack_importer

    program = [sys.executable, *path_options(), "-m", "hpcflow", "run", "-n", str(args.ranks)]
    program += [*set_options(chosen), args.script, "--", *args.script_args]
    check_folder()
    settings = Settings.from_environ({**os.environ, **chosen})
    if settings.run_dir:
        run_directory_lock.refuse_directory(Path(settings.run_dir), RUN_DIR)
    packed, why = pack_for_ranks(settings, args.ranks)
    environ = {k: v for k, v in os.environ.items() if k != pack_importer.VARIABLE} | packed
    environ[LAUNCH_TIME] = f"{time.time() - seconds_running():.3f}"
    by_srun = not settings.survive
    start = launcher_detection.start_command(args.ranks, program, environ, by_srun=by_srun)
    if settings.survive:
        start = launcher_detection.with_survival_option(start)
    if args.hostfile:
        start = host_failure_tolerance.with_hosts(start, args.hostfile)
    noun = "rank" if args.ranks == 1 else "ranks"
    one_file = f"; modules from one file, as {why}" if why else ""
    err(f"hpcflow: starting {args.ranks} {noun} by {start.reason}{one_file}")
    sys.stdout.flush()
    try:
        if not start.reason.startswith("mpirun"):
            start.become()
        several = host_failure_tolerance.spans_hosts(start, args.hostfile)
        started = time.time()
        with failure_summary.SummaryReader(settings.run_dir) as summary:
            start.env.update(summary.variables())
            code = run_mpirun(start, args.ranks, settings, several)
            if code and settings.run_dir and settings.page:  # the ranks may have been killed
                from hpcflow.report.live_page import write_last_page

                write_last_page(Path(settings.run_dir))
            if code and settings.trace:
                merge_trace(settings.trace, started)
            if code:  # mpirun's last line may be incomplete
                err(f"\nhpcflow: {summary.last_lines(code)}")
        if not code and settings.run_dir and settings.changed().keys() & set(JUDGED):
            tell_advice(settings)
        return code
    except OSError as error:
        raise LaunchError(f"{start.argv[0]} cannot be started: {error.strerror}") from None


def tell_advice(settings: Settings) -> None:
    """Print the advice on a setting of a run whose ranks have ended well, if there is one.

    The ranks have left the advice on servers out of the page of the run.
    """
    if line := advice_line(settings.run_dir):
        err(f"hpcflow: {line}")
        if settings.ps and settings.page:
            from hpcflow.report.live_page import write_last_page

            write_last_page(Path(settings.run_dir))


def advice_line(run_dir: str) -> str:
    """The advice on a setting of a run whose ranks have ended, "" without one; raises nothing."""
    from hpcflow.report.live_page import no_failure_of_the_job
    from hpcflow.report.setting_advice import advice_of

    lines = []
    with no_failure_of_the_job("the advice on settings"):
        advice = advice_of(Path(run_dir), is_over=True)
        lines += [advice.text(run_dir)] if advice is not None else []
    return "".join(lines)


def merge_trace(name: str, since: float) -> None:
    """Merge what the ranks of this host have left of the trace of a job that has failed.

    Parts last written before `since` (wall clock) belong to an earlier job.
    """
    from hpcflow.runtime.profile import trace_part
    from hpcflow.runtime.profile.trace_merge import merge_parts

    folder = trace_part.node_folder(name)
    parts = [part for part in trace_part.parts_in(folder) if part.stat().st_mtime >= since]
    if not parts:
        return
    try:
        trace = merge_parts(parts, trace_part.trace_path(name))
    except (HpcflowError, OSError) as error:
        err(f"hpcflow: the parts of the trace in {folder} cannot be merged: {error_text(error)}")
        return
    err(
        f"hpcflow: trace of {len(trace.ranks)} of {trace.size} ranks until the failure: "
        f"{trace.path}"
    )
    if len(trace.ranks) == trace.size:
        trace_part.remove_parts(folder, trace.job)


def run_mpirun(
    start: launcher_detection.StartCommand, ranks: int, settings: Settings, several: bool
) -> int:
    """Run mpirun on this host or on `several`, wait for its end, and return the job's exit code."""
    import subprocess

    from hpcflow.launch.mpirun_banner import (
        LET_OUTPUT_END_S,
        copy_without_banners,
        pipes_without_banners,
    )
    from hpcflow.launch.mpirun_supervisor import MpirunProcess
    from hpcflow.monitoring.launcher_watchdog import LauncherWatchdog
    from hpcflow.monitoring.stall_watchdog import StallTimes

    if several and settings.survive:
        return host_failure_tolerance.run_supervised(start, ranks, MpirunProcess)
    times = StallTimes(settings.stall_s, settings.stall_abort_s)
    witness = LauncherWatchdog(ledgers(), times, not several) if hasattr(os, "pidfd_open") else None
    joined = witness.have_joined if witness is not None and not several else lambda: True
    pipe = subprocess.PIPE if several else None
    folds = start.is_openmpi and not several and not settings.full_traceback
    output, errors = pipes_without_banners() if folds else (pipe, pipe)
    mpirun = MpirunProcess(start, joined, stdout=output, stderr=errors)
    process = mpirun.process
    copier = copy_without_banners(process.stderr or process.stdout) if folds else None
    if witness is not None:
        witness.give_up = lambda text: mpirun.end_at_once(ABORTED, text)
    code = host_failure_tolerance.watch_mpirun(mpirun) if several else mpirun.wait()
    if copier is not None:
        copier.join(LET_OUTPUT_END_S)
    goes_on = settings.survive and code not in (0, ABORTED) and code < 128  # without the dead
    if witness is not None and code and not mpirun.stopping and not goes_on:
        # the exit code of MPICH's mpirun may be the number of the signal that killed a rank
        is_signal = not start.is_openmpi and code in {number.value for number in signal.Signals}
        exited = code < 128 and code != ABORTED and not is_signal
        has_died = witness.report_failure(settings.run_dir, code, exited)
        code = ABORTED if has_died and is_signal else code
    return code


def path_options() -> list[str]:
    """Options of Python by which ranks do not import files of the current folder.

    A file `queue.py` there would replace Python's module. `run_script` then adds the script's
    folder. Where hpcflow itself is in the current folder there are none.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    is_safe = getattr(sys.flags, "safe_path", True)  # Python 3.10 has no option -P
    if is_safe or os.path.samefile(root, os.getcwd()):
        return []
    return ["-P", "-X", ADD_FOLDER]


def check_folder() -> None:
    """Check that ranks, which run `python -m hpcflow`, would import this hpcflow.

    Python searches the current folder first.
    Errors: LaunchError if another hpcflow is there.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in ("hpcflow.py", os.path.join("hpcflow", "__init__.py")):
        if os.path.isfile(name) and not os.path.samefile(os.path.dirname(name) or ".", root):
            raise LaunchError(
                f"{os.path.abspath(name)} would be imported instead of {root}",
                hint="rename it, or start from another folder",
            )


def enter() -> Callable[[], object] | None:
    """Join the job; returns the service function on a server rank, None on others."""
    from hpcflow.runtime.job import job_membership

    return job_membership.serve if job_membership.join_job().is_server else None


def run_script(script: str, script_args: list[str]) -> int:
    """Run the script in this process as `python SCRIPT ...` would; returns 1 after an exception.

    The exception goes to `sys.excepthook` with a traceback that begins in the script, not in this
    file.
    """
    sys.argv[:] = [script, *script_args]
    folder = os.path.dirname(os.path.abspath(script))
    if ADD_FOLDER in sys._xoptions:
        sys.path.insert(0, folder)
    elif not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != script:
            trace = trace.tb_next
        if trace is None and isinstance(error, OSError):
            err(f"hpcflow: {script} cannot be read: {error.strerror or error}")
            return 1
        if isinstance(error, IndexError) and "sys.argv" in _last_line(trace):
            given = f"{len(script_args)} argument{'' if len(script_args) == 1 else 's'}"
            error.args = (
                f"{error}: the script was given {given}\n"
                f"  next  give them after the script: hpcflow run {script} ARGUMENT ...",
            )
        shown = error.with_traceback(trace)  # None if the script did not begin (syntax error)
        sys.excepthook(type(shown), shown, shown.__traceback__)
        return 1
    return 0


def _last_line(trace: TracebackType | None) -> str:
    """The source of the line where an error was raised."""
    frames = traceback.extract_tb(trace)
    return (frames[-1].line or "") if frames else ""
