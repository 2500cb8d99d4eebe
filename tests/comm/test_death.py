"""How ranks end: each case is a job of its own under mpirun with a time limit."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BESIDE = pathlib.Path(sys.executable).with_name("mpirun")
MPIRUN = str(BESIDE) if BESIDE.exists() else shutil.which("mpirun")
INSIDE_A_JOB = "OMPI_COMM_WORLD_SIZE" in os.environ or "PMI_SIZE" in os.environ
ENVIRON = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_osc": "^ucx",
    "PYTHONPATH": str(ROOT),
}

pytestmark = [
    pytest.mark.skipif(MPIRUN is None, reason="mpirun was not found"),
    pytest.mark.skipif(INSIDE_A_JOB, reason="a job cannot start jobs"),
]

START = """
import sys, time
import numpy as np
from hpcflow.comm.mpi_communicator import world
from hpcflow.comm.shared_memory_allreduce import SharedCommunicator
from hpcflow.comm.polling_backoff import wait_for_requests
comm = world()
"""


def job(program: str, n: int = 2, limit: float = 220) -> tuple[int, str]:
    """Exit code and output of `program` on `n` ranks."""
    command = [MPIRUN, "-n", str(n), sys.executable, "-c", START + textwrap.dedent(program)]
    process = subprocess.run(
        command,
        env={**os.environ, **ENVIRON},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )
    return process.returncode, process.stdout


PENDING = """
part = comm.split([1, 0])
channels = [c.recv_channel(np.zeros(9), s, 3) for c in (comm, part) for s in (0, 1, comm.ANY)]
for channel in channels:
    channel.start()
requests = [comm.recv(np.zeros(1 << 20), 0, 4), comm.recv(np.zeros(4), comm.ANY, 5)]
bucket = SharedCommunicator(comm).bucket(100_000, np.dtype("f4"))
"""


@pytest.mark.parametrize("ending", ["comm.close(); comm.close()", "pass", "sys.exit(0)"])
def test_pending_receives_do_not_hang_the_exit(ending):
    """Persistent and other receives in flight are cancelled, told to or not."""
    code, output = job(PENDING + f"{ending}\n")
    assert code == 0, output


def test_a_send_that_nobody_receives_does_not_hang_the_exit():
    """It is named in a warning; what arrived at the peer is dropped."""
    code, output = job("""
        sends = [comm.send(np.zeros(size), 1 - comm.rank, 6) for size in (3, 1 << 20)]
        sends += [comm.send_channel(np.zeros(1 << 20), 1 - comm.rank, 7)]
        sends[-1].start()
        comm.close()
        print("went on", flush=True)
    """)
    assert output.count("went on") == 2, output
    assert "closed while in flight" in output and "tag 7" in output
    assert code == 0, output


def test_the_last_messages_arrive_though_the_sender_closes():
    """close() lets sends finish that their receiver still takes."""
    code, output = job("""
        if comm.rank == 0:
            sends = [comm.send(np.full(1 << 20, i), 1, i) for i in range(3)]
            comm.close()
        else:
            time.sleep(0.2)
            for i in range(3):
                array = np.zeros(1 << 20, int)
                wait_for_requests(comm.recv(array, 0, i), timeout=220)
                assert (array == i).all()
            print("all came", flush=True)
    """)
    assert code == 0 and "all came" in output, output


def test_abort_ends_ranks_that_wait():
    """The exit code is the one given, and the others do not wait for ever, as the limit shows."""
    code, output = job("""
        if comm.rank == 1:
            time.sleep(0.5)
            print("last words")
            comm.abort(86)
        wait_for_requests(comm.barrier())
    """)
    assert code == 86 and "last words" in output, output


def test_a_thread_level_too_low_is_an_error():
    command = """
        import mpi4py; mpi4py.rc.thread_level = "single"
        from mpi4py import MPI
        import hpcflow.comm.mpi_communicator as mpi
        from hpcflow.errors import LaunchError
        MPI.Query_thread = lambda: MPI.THREAD_FUNNELED
        mpi.world.cache_clear()
        try:
            mpi.world()
        except LaunchError as error:
            print("told:", error)
    """
    code, output = job(command, n=1)
    assert code == 0 and "told: MPI gives thread level funneled" in output, output


def test_nothing_imports_mpi4py_before_world():
    modules = ("mpi_communicator", "shared_memory_allreduce", "nccl_allreduce")
    program = f"import sys, {', '.join(f'hpcflow.comm.{name}' for name in modules)}; "
    program += "sys.exit(any(name in sys.modules for name in ('mpi4py', 'cupy')))"
    environ = {**os.environ, **ENVIRON}
    assert subprocess.run([sys.executable, "-c", program], env=environ, timeout=220).returncode == 0


@pytest.mark.slow
def test_a_stalled_job_is_reported_and_ended(tmp_path):
    """Rank 1 never joins a sum: rank 0 writes who is missing, then the watchdog ends the job."""
    code, output = job(f"""
        import os
        from hpcflow.platform.rank_logging import set_up_logging
        from hpcflow.monitoring.wait_ledger import INSIDE, WaitLedger
        from hpcflow.monitoring.stall_watchdog import StallTimes, StallWatchdog
        set_up_logging(comm.rank, comm.size)
        def end(error):
            sys.stderr.flush()
            os._exit(85)
        ledger = WaitLedger({str(tmp_path / "ledger")!r}, comm.rank, comm.hosts[comm.rank])
        if comm.rank == 1:
            ledger.enter(12, "read_batch", -1, INSIDE)
        wait_for_requests(comm.barrier())
        dog = StallWatchdog(ledger, comm.size, {str(tmp_path)!r}, StallTimes(0.5, 1.5), end)
        if comm.rank == 0:
            ledger.enter(12, "grads/bucket3", -1, "collective")
            wait_for_requests(comm.barrier())
        time.sleep(200)
    """)
    assert code == 85, output
    report = (tmp_path / "stall-12.txt").read_text()
    assert "for 1 of 2 ranks" in output and "is inside 'read_batch'" in output
    assert "wait_for_requests" in report and "polling_backoff.py" in report
