"""The supervisor of mpirun on several hosts, and the relays that hide a loss from it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcflow.errors import LaunchError
from hpcflow.launch import host_failure_tolerance, ssh_relay
from hpcflow.launch.launcher_detection import StartCommand

OPEN_MPI = StartCommand(["mpirun", "-n", "4", "train.py"], {}, "mpirun of Open MPI")
PRTED = (
    "nid2",
    "PRTE_PREFIX=/opt;export PRTE_PREFIX;/opt/bin/prted",
    "--prtemca",
    "prte_hnp_uri",
    '"prterun-nid1-7@0.0;tcp://10.0.0.1,10.1.0.1:4711:24,24;tcp6://[fe80::1]:4712:64"',
    "--prtemca",
    "prte_parent_uri",
    '"prterun-nid1-7@0.0;tcp://10.0.0.1,10.1.0.1:4711:24,24"',
)


class Running:
    """A supervisor of `ranks` that turns in a thread while the `with` block lasts."""

    def __init__(self, ranks: int) -> None:
        self.supervisor = host_failure_tolerance.RankSupervisor(ranks)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._turn)

    def _turn(self) -> None:
        while not self._over.is_set():
            self.supervisor.process_events()

    def __enter__(self) -> host_failure_tolerance.RankSupervisor:
        self._thread.start()
        return self.supervisor

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self.supervisor.close()


def said(where: str, host: str) -> bytes:
    """What becomes of `host`, which is gone."""
    connection = ssh_relay.call(where, f"gone {host}")
    assert connection is not None
    with connection:
        return connection.recv(1)


def line(where: str, rank: int) -> socket.socket:
    connection = ssh_relay.call(where, f"rank {rank}")
    assert connection is not None
    return connection


def wait_until(holds) -> None:  # the limit of tests ends it
    event = threading.Event()
    while not holds():
        event.wait(0.01)


def test_a_hostfile_is_given_to_the_launcher(tmp_path: Path) -> None:
    file = str(tmp_path / "hosts")
    with pytest.raises(LaunchError, match="no such file"):
        host_failure_tolerance.with_hosts(OPEN_MPI, file)
    Path(file).write_text("nid1 slots=2\n")
    start = host_failure_tolerance.with_hosts(OPEN_MPI, file)
    assert start.argv == ["mpirun", "--hostfile", file, "-n", "4", "train.py"]
    mpich = host_failure_tolerance.with_hosts(
        StartCommand(["mpirun", "-n", "4"], {}, "mpirun of MPICH"), file
    )
    assert mpich.argv == ["mpirun", "-f", file, "-n", "4"]
    with pytest.raises(LaunchError, match="places the ranks itself"):
        host_failure_tolerance.with_hosts(
            StartCommand(["srun", "-n", "4"], {}, "srun, in SLURM job 7"), file
        )


def test_only_open_mpi_5_is_watched() -> None:
    old = {"OMPI_MCA_hwloc_base_binding_policy": "none"}
    assert host_failure_tolerance.spans_hosts(
        OPEN_MPI, "file"
    ) and not host_failure_tolerance.spans_hosts(OPEN_MPI, None)
    assert not host_failure_tolerance.spans_hosts(
        StartCommand(["mpirun"], {}, "mpirun of MPICH"), "file"
    )
    assert not host_failure_tolerance.spans_hosts(
        StartCommand(["mpirun"], old, OPEN_MPI.reason), "file"
    )
    for env, several in (
        ({"PBS_NODEFILE": "f"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}, False),
        ({"SLURM_JOB_NUM_NODES": "2"}, False),
    ):
        assert (
            host_failure_tolerance.spans_hosts(StartCommand(["mpirun"], env, OPEN_MPI.reason), None)
            == several
        )


def test_a_daemon_is_told_the_relays_port() -> None:
    assert ssh_relay.mpirun_of(PRTED) == ("10.0.0.1", 4711)
    assert (
        ssh_relay.target_host(PRTED) == "nid2"
        and ssh_relay.target_host(("-p", "22", *PRTED)) == "nid2"
    )
    words = ssh_relay.relay_command(99, PRTED)
    assert words[4] == '"prterun-nid1-7@0.0;tcp://10.0.0.1,10.1.0.1:99:24,24"'
    assert words[7] == '"prterun-nid1-7@0.0;tcp://10.0.0.1,10.1.0.1:99:24,24"'
    assert words[:4] == list(PRTED[:4])
    with pytest.raises(ValueError, match="no address"):
        ssh_relay.mpirun_of(["nid2", "true"])


def test_the_others_of_a_lost_host_go_on_until_all_have_ended() -> None:
    """It holds only while ranks run; the code is the chief's, and 86 if it has told none."""
    with Running(3) as supervisor:
        ranks = [line(supervisor.address, rank) for rank in range(3)]
        ranks[2].close()
        assert said(supervisor.address, "nid2") == ssh_relay.HOLD
        assert supervisor.lost == ["nid2"] and not supervisor.is_over
        assert supervisor.code == host_failure_tolerance.ABORTED
        ranks[1].sendall(b"3\n")
        ranks[1].close()
        ranks[0].sendall(b"0\n")
        ranks[0].close()
        wait_until(lambda: supervisor.is_over)
        assert supervisor.code == 0
        assert said(supervisor.address, "nid1") == b"e", "it ends as the job is over"
        assert supervisor.lost == ["nid2"]


def test_a_job_that_still_starts_ends_with_its_host() -> None:
    with Running(2) as supervisor:
        first = line(supervisor.address, 0)
        assert said(supervisor.address, "nid2") == b"e"
        assert supervisor.lost == ["nid2"] and supervisor.code == host_failure_tolerance.ABORTED
        first.close()


def test_who_does_not_show_the_token_is_cut() -> None:
    with Running(1) as supervisor:
        addresses, port, token = supervisor.address.split(":")
        for wrong in (f"{addresses}:{port}:{token[:-1]}", f"{addresses}:{port}:x{token}"):
            assert ssh_relay.call(wrong, "rank 0") is None
        with socket.create_connection(("127.0.0.1", int(port))) as endless:
            endless.settimeout(60)
            with pytest.raises(OSError):  # cut, not kept
                while True:
                    endless.sendall(b"x" * 10_000)
        assert not supervisor.is_over and supervisor.code == 0


def test_mpiruns_0_is_none_if_the_chief_has_not_told_it() -> None:
    """PRRTE ends with 0 when it has lost a host."""
    supervisor = host_failure_tolerance.RankSupervisor(1)
    rank = (
        "import sys; from hpcflow.launch.host_failure_tolerance import SupervisorConnection; l = "
        "SupervisorConnection(0)"
    )
    rank += "; l.code = int(sys.argv[1])"
    rank += "; sys.argv[2:] and __import__('os').kill(__import__('os').getpid(), 9)"
    root = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": root, ssh_relay.SUPERVISOR: supervisor.address}
    for words, code in ((["0", "dies"], host_failure_tolerance.ABORTED), (["0"], 0), (["7"], 7)):
        program = [sys.executable, "-c", rank, *words]
        shell = ["sh", "-c", '"$@"; exit 0', "sh", *program]
        assert supervisor.run(subprocess.Popen(shell, env=env)) == code
    supervisor.close()


LINES = """
import os, resource, sys
from hpcflow.launch import host_failure_tolerance, ssh_relay
from hpcflow.errors import LaunchError

ranks, soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    supervisor = host_failure_tolerance.RankSupervisor(ranks)
except LaunchError as error:
    sys.exit(str(error))
children = []
for first in range(0, ranks, 40):  # processes with 40 lines each
    children.append(os.fork())
    if not children[-1]:
        ranks = range(first, first + 40)
        kept = [ssh_relay.call(supervisor.address, f"rank {rank}") for rank in ranks]
        while True:
            os.read(kept[0].fileno(), 1)
while supervisor._ranks_left < ranks:
    supervisor.process_events()
print(supervisor._ranks_left, flush=True)
for child in children:
    os.kill(child, 9)
"""


def lines(*numbers: int) -> tuple[str, str]:
    """What a supervisor of so many ranks says of their lines; it may have so many descriptors."""
    done = subprocess.run(
        [sys.executable, "-c", LINES, *map(str, numbers)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.stdout, done.stderr


def test_there_may_be_more_ranks_than_usual_descriptors() -> None:
    assert lines(400, 100, 1000) == ("400\n", "")
    out, err = lines(1000, 100, 1000)
    assert not out and "1000 ranks take 1064 file descriptors" in err and "may have 1000" in err


def test_a_rank_that_mpirun_has_left_ends_with_the_job() -> None:
    with Running(1) as supervisor:
        rank = (
            "import time; from hpcflow.launch.host_failure_tolerance import SupervisorConnection; "
            "SupervisorConnection(0)"
        )
        rank += "; print(1, flush=True)"
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        env[ssh_relay.SUPERVISOR] = supervisor.address
        left = subprocess.Popen(
            [sys.executable, "-c", f"{rank}; time.sleep(1000)"], env=env, stdout=subprocess.PIPE
        )
        assert left.stdout is not None and left.stdout.readline() == b"1\n"
        assert left.poll() is None
    with left.stdout:
        assert left.wait(60) == -signal.SIGKILL


@pytest.fixture
def between() -> Iterator[tuple[ssh_relay.SshRelay, socket.socket, socket.socket, socket.socket]]:
    """A relay whose daemon has come: it, mpirun's end, the daemon's end, mpirun's listener."""
    listener = socket.create_server(("127.0.0.1", 0))
    one = ssh_relay.SshRelay(("127.0.0.1", listener.getsockname()[1]))
    daemon = socket.create_connection(("127.0.0.1", one.port))
    while not one.has_come:
        one.forward_pending()
    mpirun = listener.accept()[0]
    yield one, mpirun, daemon, listener
    for end in (one, mpirun, daemon, listener):
        end.close()


def test_bytes_go_both_ways_and_a_loss_is_held(between) -> None:
    one, mpirun, daemon, _ = between
    for sender, receiver in ((daemon, mpirun), (mpirun, daemon)):
        sender.sendall(b"x" * 100)
        one.forward_pending()
        assert receiver.recv(200) == b"x" * 100
    daemon.close()
    left = None
    while left is None:
        is_there, left = one.forward_pending()
        assert is_there
    one.hold(left)
    mpirun.sendall(b"who is there")
    assert one.forward_pending() == (True, None)
    mpirun.setblocking(False)
    with pytest.raises(BlockingIOError):  # neither an answer nor the end
        mpirun.recv(1)
    mpirun.close()
    while is_there:
        is_there, _ = one.forward_pending()


def test_a_host_that_does_not_start_its_daemon_is_told_as_by_ssh() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    words = [word.replace("4711", str(listener.getsockname()[1])) for word in PRTED]
    for agent, code in (("sh -c exit\\ 7", 7), ("false", 1)):
        env = {**os.environ, ssh_relay.AGENT: agent}
        argv = [sys.executable, "-I", "-S", ssh_relay.__file__, *words]
        assert subprocess.run(argv, env=env, timeout=200).returncode == code
    listener.close()


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("echo 'PRTE has lost communication with a remote daemon.' >&2; exit 0", 86),
        ("printf 'PRTE has lost comm' >&2; sleep 1; echo 'unication with a remote daemon' >&2", 86),
        ("echo 'A daemon failed to report back after being spawned.' >&2", 86),
        ("echo 'lost communication with a remote daemon' >&2; exit 5", 5),
        ("kill -9 $$", 137),
    ],
)
def test_a_job_that_has_lost_a_host_does_not_end_with_0(script: str, code: int) -> None:
    """And without --survive nothing listens: the job is mpirun's, of which only words are read."""
    program = "import os, sys; from hpcflow.cli.run import run_mpirun\n"
    program += "from hpcflow.launch.launcher_detection import StartCommand\n"
    program += "from hpcflow.settings import Settings\n"
    program += (
        "start = StartCommand(['sh', '-c', sys.argv[1]], dict(os.environ), 'mpirun of Open MPI')\n"
    )
    program += "sys.exit(run_mpirun(start, 4, Settings(), several=True))"
    done = subprocess.run(
        [sys.executable, "-c", program, script], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == code, done.stderr
    assert ("remote daemon" in script) == ("remote daemon" in done.stderr)
