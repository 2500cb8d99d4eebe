"""Diagnose this installation, or all ranks of a job.

Alone, the command examines this machine. Under srun or mpirun, or with -n, every rank examines its
node, and the network is timed; `hpcflow costs` shows these times later. Rank 0 prints one page, and
with --topology writes a file that describes the ranks and links of the job.
Exit code: 0 if a job could run, otherwise 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from hpcflow.cli.terminal_output import err, out
from hpcflow.doctor import check_table, findings_report, rank_inspection
from hpcflow.doctor.rank_facts import JobFacts, RankFacts
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.launch import launcher_detection
from hpcflow.settings import Settings

STARTS_S = 60.0  # start-up limit of MPI in a single process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow doctor`."""
    parser.add_argument(
        "-n", dest="ranks", type=int, metavar="N", help="start N ranks and check them"
    )
    parser.add_argument(
        "--topology", metavar="FILE", help="write the job's topology, for --set topology=FILE"
    )
    parser.add_argument("--run-dir", metavar="DIR", help="the run directory of a job")
    parser.add_argument("--json", action="store_true", help="write findings and facts as JSON")
    parser.add_argument("--look", action="store_true", help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> int:
    """Gather the facts, run the checks and print the findings.

    Exit code: 0 if a job could run, otherwise 1.
    """
    try:
        _check(args)
        if args.run_dir is not None:
            os.environ["HPCFLOW_RUN_DIR"] = args.run_dir
        settings, place = Settings.from_environ(), launcher_detection.detect_launcher()
        if args.look:
            out(json.dumps(dataclasses.asdict(rank_inspection.inspect_rank(None, settings))))
            return 0
        if place is None and args.ranks is not None:
            _start(args)
        if args.topology and place is None:
            raise LaunchError(
                "doctor --topology describes the ranks of a job, and this is none",
                hint="start it with -n N, or under srun or mpirun",
            )
    except HpcflowError as error:
        err(f"hpcflow: {type(error).__name__}: {error}")
        return 2
    job = (
        JobFacts([_inspect_in_child(settings)])
        if place is None
        else _inspect_job(place, settings, bool(args.topology))
    )
    if job is None:
        return 0
    findings = check_table.run_checks(job)
    out((findings_report.as_json if args.json else findings_report.as_text)(job, findings), end="")
    is_written = not args.topology or _write_topology(args.topology, job)
    return findings_report.exit_code(findings) if is_written else 1


def _check(args: argparse.Namespace) -> None:
    """Raise LaunchError for a wrong number of ranks, or a run directory that is no folder."""
    if args.ranks is not None and args.ranks < 1:
        raise LaunchError(
            f"-n {args.ranks}: there must be at least one rank",
            hint="give the number of ranks, or leave -n out to examine this machine",
        )
    if args.run_dir is not None and Path(args.run_dir).exists() and not Path(args.run_dir).is_dir():
        raise LaunchError(f"--run-dir {args.run_dir} is no folder", hint="give a folder of a run")


def _write_topology(path: str, job: JobFacts) -> bool:
    """Write the topology of the job and tell it; whether it could be written."""
    from hpcflow.cli.measured_topology import write_topology

    if job.first.world_size != len(job.ranks):
        err("hpcflow: MPI did not start on all ranks, so there is no topology")
        return False
    try:
        err(f"hpcflow: {write_topology(path, job)}")
    except HpcflowError as error:
        err(f"hpcflow: {type(error).__name__}: {error}")
        return False
    except OSError as error:
        err(f"hpcflow: {path} cannot be written: {error.strerror}")
        return False
    return True


def _start(args: argparse.Namespace) -> None:
    program = [sys.executable, "-m", "hpcflow", "doctor", *(["--json"] if args.json else [])]
    program += ["--topology", args.topology] if args.topology else []
    start = launcher_detection.start_command(args.ranks, program)
    start.become()


def _inspect_in_child(settings: Settings) -> RankFacts:
    """The facts of this machine, gathered in a child process, since a broken MPI may end it."""
    command = [sys.executable, "-m", "hpcflow", "doctor", "--look"]
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=STARTS_S
        )
    except subprocess.TimeoutExpired:
        return RankFacts(
            node=os.uname().nodename,
            broken={"mpi4py": f"MPI does not start within {STARTS_S:.0f} s"},
        )
    try:
        return RankFacts.from_data(json.loads(completed.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        words = [line for line in completed.stderr.splitlines() if line.strip(" -")]
        why = " ".join(words[-3:]) or f"exit code {completed.returncode}"
        return RankFacts(node=os.uname().nodename, broken={"mpi4py": f"MPI does not start: {why}"})


def _inspect_job(
    launched_rank: launcher_detection.LaunchedRank, settings: Settings, with_racks: bool
) -> JobFacts | None:
    """The facts of this rank; on rank 0 those of the whole job, on others None.

    `with_racks`: also racks and their uplinks.
    """
    rank = rank_inspection.inspect_rank(launched_rank, settings)
    if rank.launch_error or not rank.world_size:  # no MPI world: the launcher's first rank reports
        return JobFacts([rank]) if launched_rank.rank == 0 else None
    from hpcflow.doctor import measured_links, network_benchmark

    try:
        job = network_benchmark.gather(rank, with_racks)
    except HpcflowError as error:  # report now: other ranks would wait for this rank's message
        err(f"hpcflow: rank {rank.rank} on {rank.node}: {error}")
        network_benchmark.mpi_communicator.world().abort(1)
        raise
    if job is not None:
        measured_links.keep_links(job, network_benchmark.ALLREDUCE_BYTES, settings.cost_cache)
    return job
