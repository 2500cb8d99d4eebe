"""The parent process of a rank under srun: it reports a death that the rank cannot report.

srun kills all tasks of a step as soon as one has died, so no other rank has time to report it.
Therefore the task of SLURM is this process, and the rank is its child. The parent forwards signals
and waits. If the rank is killed, the parent names it on stderr and in `failure.json` before SLURM
learns of the death.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any

from hpcflow.errors import ABORTED
from hpcflow.launch.launcher_detection import LaunchedRank, abort_hangs_srun, pmix_server_uri
from hpcflow.monitoring import failure_detector, failure_json
from hpcflow.monitoring.wait_ledger import first, ledger_folder, process_ledger

LAUNCHERS = ("srun",)  # they end all tasks before another rank can report
FORWARDED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT")
SAVE = (signal.SIGUSR1, signal.SIGUSR2)  # scripts of jobs send them, so that a job saves and stops
# Seconds by which Open MPI delays an abort: a rank that has lost a connection must not end the step
# before the parent of the dead rank has reported.
DELAY = "OMPI_MCA_mpi_abort_delay"
DELAY_S = 1
# Where an abort leaves srun hanging, the rank must be killed before it aborts: by this process if
# there is a run directory, else by SLURM after its KillWait (30 s by default).
LONG_DELAY_S = 120
POLL_MS = 500
DIED_EARLY = "has died before it had joined"
MAX_DESCRIPTORS = 4  # file descriptors in one message of the child
PR_SET_PDEATHSIG = 1  # Linux, <sys/prctl.h>
_to_parent: list[socket.socket] = []  # in a child that has not shared its connection yet


def become_child(launched_rank: LaunchedRank, run_dir: str) -> None:
    """Fork: returns in the child, which becomes the rank; the parent exits with its exit code.

    Must be called before a thread is started or MPI is loaded. Does nothing if the launcher of
    `launched_rank` lets the other ranks report.
    """
    if launched_rank.launcher not in LAUNCHERS or not hasattr(os, "pidfd_open"):
        return
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    sys.stdout.flush()
    sys.stderr.flush()
    numbers = {getattr(signal, name) for name in FORWARDED}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    since, parent, child = time.time(), os.getpid(), os.fork()
    if child:
        there.close()
        received = _forward_signals(child, numbers)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        must_kill = bool(run_dir) and abort_hangs_srun()
        failure = pathlib.Path(run_dir) / failure_json.NAME if must_kill else None
        _wait(child, here, received, failure)
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        os._exit(_end(child, since, received, launched_rank, run_dir))
    here.close()
    _to_parent.append(there)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ABORTED)
    os.environ.setdefault(DELAY, str(LONG_DELAY_S if abort_hangs_srun() else DELAY_S))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def share_connection() -> None:
    """Pass the connection to SLURM's PMIx server to the parent, so that it outlives this process.

    The server ends the step when the connection closes. Must be called after MPI_Init.
    """
    port = pmix_server_uri().rpartition(":")[2]
    while _to_parent:
        with _to_parent.pop() as parent:
            for name in os.listdir("/proc/self/fd") if port else ():
                with contextlib.suppress(OSError):
                    if _port_of_peer(int(name)) == port:
                        socket.send_fds(parent, [b"PMIx"], [int(name)])


def _port_of_peer(descriptor: int) -> str:
    """The peer port of a TCP connection, "" for other sockets. Errors: OSError for a non-socket."""
    connection = socket.socket(fileno=descriptor)
    try:
        internet = connection.family in (socket.AF_INET, socket.AF_INET6)
        return str(connection.getpeername()[1]) if internet else ""
    finally:
        connection.detach()


def _forward_signals(child: int, numbers: set[int]) -> set[int]:
    """Forward each signal to the child; returns the set of signals received so far."""
    received: set[int] = set()

    def forward(number: int, frame: FrameType | None) -> None:
        received.add(number)
        os.kill(child, number)

    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)
    return received


def _wait(
    child: int, connection: socket.socket, received: set[int], failure: pathlib.Path | None
) -> None:
    """Wait until the child has ended. It is not reaped, so that its PID is not reused.

    If `failure` is given, the child is killed once SIGTERM was received and that file exists:
    another rank has failed, and SLURM ends the step. A rank that lost its connection to the failed
    one sleeps in the abort of Open MPI and does not handle SIGTERM.
    """
    ended, poll = os.pidfd_open(child), select.poll()
    # a signal that comes just before the wait ends it by a byte, or its handler would never run
    heard, wake = socket.socketpair()
    for end in (heard, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    for descriptor in (ended, connection.fileno(), heard.fileno()):
        poll.register(descriptor, select.POLLIN)
    limit = POLL_MS if failure else None
    ready = dict(poll.poll(limit))
    while ended not in ready:
        if heard.fileno() in ready:
            heard.recv(4096)
        if connection.fileno() in ready:
            # the descriptors that it passes stay open until this process ends
            if not socket.recv_fds(connection, 16, MAX_DESCRIPTORS)[0]:
                poll.unregister(connection)
        if not ready and failure and signal.SIGTERM in received and failure.exists():
            os.kill(child, signal.SIGKILL)
        ready = dict(poll.poll(limit))
    signal.set_wakeup_fd(-1)


def _end(
    child: int, since: float, received: set[int], launched_rank: LaunchedRank, run_dir: str
) -> int:
    """The exit code of this task; reports the death of the child if a signal has killed it.

    The child was started after `since` (wall clock).
    """
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        return code
    is_early = -code in received and -code in SAVE  # the rank had no handler yet
    if {-code, signal.SIGTERM} & received and not is_early:  # SLURM sends SIGTERM before it kills
        return 128 - code
    cause = f"was killed by {signal.Signals(-code).name}"
    ledger = process_ledger(ledger_folder(), child, since)
    if ledger is None:  # it had not joined the job
        _report(
            failure_detector.external_death_facts(launched_rank.rank, child, cause, DIED_EARLY),
            True,
            run_dir,
        )
    elif not ledger[0].ending:
        entry, directory = ledger
        is_first = first(directory / failure_detector.DIED)
        _report(failure_detector.death_facts([entry], directory, cause), is_first, run_dir)
    return 128 - code if is_early else ABORTED


def _report(facts: dict[str, Any], is_first: bool, run_dir: str) -> None:
    """Write `failure.json`; also report on stderr if this is the first report."""
    if run_dir:
        is_first = failure_json.write_failure(pathlib.Path(run_dir), facts)
    if is_first:
        os.write(2, f"hpcflow: {facts['message']}\n".encode())
