"""The parent of a rank under srun, alone: which signals and files end its child."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcflow.launch.launcher_detection import abort_hangs_srun

RANK = """
import os, signal, sys, time
from hpcflow.launch.launcher_detection import LaunchedRank
from hpcflow.monitoring.srun_rank_supervisor import DELAY, become_child
become_child(LaunchedRank(1, 4, 1, 2, "srun"), sys.argv[1])
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as in the abort of Open MPI, which sleeps in C
signal.signal(signal.SIGUSR1, lambda *_: os._exit(75))
print(os.environ[DELAY], flush=True)
while True:
    time.sleep(1)
"""
PMIX = {"PMIX_SERVER_URI41": "pmix.1;tcp4://127.0.0.1:1"}
HETEROGENEOUS = {"SLURM_HET_SIZE": "2", **PMIX}


def start(
    folder: Path, environ: dict[str, str], program: str = RANK
) -> tuple[subprocess.Popen[str], int]:
    """The parent, and the seconds by which its child would delay an abort."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PMIX_", "OMPI_"))}
    process = subprocess.Popen([sys.executable, "-c", program, str(folder)], env=own | environ,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    ("environ", "hangs"),
    [(HETEROGENEOUS, True), (PMIX, False), ({"SLURM_HET_SIZE": "2"}, False), ({}, False)],
)
def test_an_abort_hangs_srun_in_a_heterogeneous_step_with_pmix(
    environ: dict[str, str], hangs: bool, tmp_path: Path
) -> None:
    assert abort_hangs_srun(environ) is hangs
    process, delay = start(tmp_path, environ)
    with process:
        assert (delay > 30) is hangs  # a long one: SLURM kills before the abort
        process.send_signal(signal.SIGUSR1)
        assert process.wait(100) == 75


def test_a_signal_to_save_that_comes_before_the_rank_handles_it_is_told(tmp_path: Path) -> None:
    without = RANK.replace("signal.signal(signal.SIGUSR1, lambda *_: os._exit(75))", "")
    process, _ = start(tmp_path, PMIX, without)
    with process:
        process.send_signal(signal.SIGUSR1)
        assert process.wait(100) == 128 + signal.SIGUSR1
    facts = json.loads((tmp_path / "failure.json").read_text())
    assert facts["kind"] == "death" and facts["rank"] == 1
    assert facts["cause"].endswith("was killed by SIGUSR1")


def test_a_signal_that_does_not_interrupt_the_wait_is_forwarded(tmp_path: Path) -> None:
    """As one that comes between the last look at signals and the wait: another thread takes it."""
    elsewhere = """
import signal, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
"""
    here = "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})\nprint("
    process, _ = start(tmp_path, PMIX, elsewhere + RANK.replace("print(", here))
    try:
        while not catches(process.pid, signal.SIGUSR1):  # the other thread does not block it
            time.sleep(0.01)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(100) == 75
    finally:
        process.kill()
        process.communicate()


def test_after_a_failure_sigterm_ends_a_rank_that_does_not_handle_it(tmp_path: Path) -> None:
    process, _ = start(tmp_path, HETEROGENEOUS)
    with process:
        process.send_signal(signal.SIGTERM)  # preemption: no rank has failed, it may still save
        time.sleep(1.5)
        assert process.poll() is None
        (tmp_path / "failure.json").write_text("{}")
        assert process.wait(100) == 128 + signal.SIGKILL


def test_sigterm_does_not_kill_a_rank_of_another_step(tmp_path: Path) -> None:
    process, _ = start(tmp_path, PMIX)
    with process:
        (tmp_path / "failure.json").write_text("{}")
        process.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
        assert process.wait(100) == 75


REUSED = """
import os, sys
from hpcflow.launch.launcher_detection import LaunchedRank
from hpcflow.monitoring import srun_rank_supervisor, wait_ledger
base, run = sys.argv[1:]
srun_rank_supervisor.ledger_folder = lambda: base
def earlier(pid):  # as a killed job leaves it, whose rank had the PID of the child
    os.getpid = lambda: pid
    ledger = wait_ledger.WaitLedger(base + "/" + wait_ledger.PREFIX + "earlier", 5, "n", "t")
    ledger.ends()
    ledger._times[wait_ledger._HEARTBEAT] -= 60.0
wait = srun_rank_supervisor._wait
srun_rank_supervisor._wait = lambda child, *more: (wait(child, *more), earlier(child))
srun_rank_supervisor.become_child(LaunchedRank(1, 4, 1, 2, "srun"), run)
os.kill(os.getpid(), 11)
"""


def test_the_death_of_a_rank_whose_pid_an_earlier_job_had_is_reported(tmp_path: Path) -> None:
    """The ledger of that job says that its rank had reported its end."""
    words = [sys.executable, "-c", REUSED, str(tmp_path), str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert (tmp_path / "run" / "failure.json").exists(), done.stderr
    facts = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert facts["rank"] == 1 and "SIGSEGV" in facts["cause"]
