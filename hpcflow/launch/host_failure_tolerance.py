"""Host failure tolerance: a job on several hosts, started by mpirun of Open MPI 5, survives a host.

PRRTE, Open MPI's launcher, ends the job when the daemon of a host is lost. Its exit code is then 0,
which `hpcflow run` changes to 86. With `--survive` mpirun runs under a *supervisor*, this process.
Each rank holds a TCP connection to it (`SupervisorConnection`). The kernel closes the connection
when the rank ends for any reason; before that the rank sends its exit code. mpirun starts the
daemons of other hosts through relays (`ssh_relay.py`), which hide the loss of a host from it.
mpirun then waits for the lost ranks without limit. When all connections are closed the job is
over, and the supervisor ends mpirun.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import dataclasses
import hmac
import os
import resource
import secrets
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hpcflow.errors import ABORTED, LaunchError
from hpcflow.launch import ssh_relay
from hpcflow.launch.launcher_detection import StartCommand, has_ulfm

if TYPE_CHECKING:
    import subprocess

    from hpcflow.launch.mpirun_supervisor import MpirunProcess
LET_DAEMONS_END_S = 2.0  # daemons of live hosts
OTHER_DESCRIPTORS = 64  # of the supervisor, besides one connection per rank
MOST_LINE = 4096  # bytes of a text line: token, word, name
SIOCGIFCONF = 0x8912  # Linux ioctl: list the interfaces
LOST = (  # messages of mpirun about a lost host
    b"lost communication with a remote daemon",
    b"daemon failed to report back",
    b"died unexpectedly",
)

AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent")
HOSTFILES = ("PRTE_MCA_prte_default_hostfile", "PBS_NODEFILE")
# Options with which Open MPI survives the loss of a host. All ranks' addresses are known from the
# start, as a later request would go to the dead daemon. Ranks report deaths to each other. All
# daemons connect to mpirun directly. The collectives of `han` crash when a member has died.
OPTIONS = (
    *("--prtemca", "plm_ssh_no_tree_spawn", "1"),
    *("--mca", "mpi_add_procs_cutoff", "1000000", "--mca", "mpi_ft_propagator_with_rbcast", "1"),
    *("--mca", "coll", "^han"),
)


def with_hosts(start: StartCommand, file: str) -> StartCommand:
    """`start` with the hosts of a hostfile.

    Errors: LaunchError if there is no such file, it is empty, or the launcher takes no hostfile.
    """
    if not os.path.isfile(file) or not os.path.getsize(file):
        wrong = "it is empty" if os.path.isfile(file) else "no such file"
        raise LaunchError(
            f"--hostfile {file}: {'it is a folder' if os.path.isdir(file) else wrong}",
            hint="a line for each host: nid1 slots=4 (MPICH: nid1:4)",
        )
    if not start.reason.startswith("mpirun"):
        raise LaunchError(
            f"--hostfile: {start.reason} places the ranks itself",
            hint="leave --hostfile out: SLURM knows the hosts of its job",
        )
    option = "--hostfile" if "Open MPI" in start.reason else "-f"
    return dataclasses.replace(start, argv=[start.argv[0], option, file, *start.argv[1:]])


def spans_hosts(start: StartCommand, file: str | None) -> bool:
    """Whether `start` is mpirun of Open MPI 5 on several hosts, from a hostfile or SLURM."""
    spread = file or any(start.env.get(name) for name in HOSTFILES) or slurm_node_count(start) > 1
    return bool(spread) and start.is_openmpi and has_ulfm(start)


def slurm_node_count(start: StartCommand) -> int:
    """The number of nodes of the SLURM allocation that mpirun uses; 0 outside an allocation."""
    nodes = start.env.get("SLURM_JOB_NUM_NODES", "1") if "SLURM_JOB_ID" in start.env else "0"
    return int(nodes) if nodes.isdecimal() else 1


def watch_mpirun(mpirun: MpirunProcess) -> int:
    """Wait for mpirun of Open MPI 5 on several hosts, and copy its stdout and stderr to ours.

    Returns its exit code, or 86 if it has told of a lost host, on either, but exits with 0.
    """
    assert mpirun.process.stdout is not None and mpirun.process.stderr is not None
    lost: list[bytes] = []
    output = mpirun.process.stdout.fileno()
    copying = threading.Thread(target=_copy, args=(output, 1, lost), daemon=True)
    copying.start()
    _copy(mpirun.process.stderr.fileno(), 2, lost)
    copying.join()
    return mpirun.wait() or (ABORTED if lost else 0)


def _copy(source: int, target: int, lost: list[bytes]) -> None:
    """Copy a pipe to its end; what tells of a lost host is added to `lost`."""
    tail = b""
    while data := os.read(source, ssh_relay.READ_BYTES):
        with contextlib.suppress(OSError):  # the reader has gone; mpirun is to go on
            written = 0
            while written < len(data):
                written += os.write(target, data[written:])
        tail = tail[-100:] + data
        lost += [words for words in LOST if words in tail]


def run_supervised(
    start: StartCommand, ranks: int, run: Callable[[StartCommand], MpirunProcess]
) -> int:
    """Start mpirun by `run` such that the job survives a host; returns the job's exit code.

    With SLURM the job needs all hosts, because mpirun starts its daemons by srun there.
    """
    supervisor, env = RankSupervisor(ranks), dict(start.env)
    env[ssh_relay.SUPERVISOR] = supervisor.address
    options = ["-x", ssh_relay.SUPERVISOR]
    if not slurm_node_count(start):
        env[ssh_relay.AGENT] = next((env[name] for name in AGENTS if env.get(name)), "ssh")
        through = f"{sys.executable} -I -S {os.path.abspath(ssh_relay.__file__)}"
        radix = ["--prtemca", "rml_base_radix", str(max(ranks, 64))]
        options += ["--prtemca", "plm_ssh_agent", through, *radix, *OPTIONS]
    start = dataclasses.replace(start, argv=[start.argv[0], *options, *start.argv[1:]], env=env)
    mpirun = run(start).process
    try:
        return supervisor.run(mpirun)
    finally:
        supervisor.close()
        if mpirun.poll() is None:
            mpirun.kill()
            mpirun.wait()
            start.sweep(mpirun.pid)


class RankSupervisor:
    """Counts the `ranks` that still run, and decides whether the job continues without a host."""

    def __init__(self, ranks: int) -> None:
        raise_descriptor_limit(ranks)
        self._ranks = ranks
        self._token = secrets.token_hex(16)
        self._listener = socket.create_server(("0.0.0.0", 0), backlog=1024)
        port = self._listener.getsockname()[1]
        self.address = f"{','.join(host_addresses())}:{port}:{self._token}"
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._listener, selectors.EVENT_READ)
        self._names: dict[socket.socket, str] = {}  # identified ranks
        self._buffers: dict[socket.socket, bytes] = {}  # incomplete text line of each connection
        self._codes: dict[int, int] = {}  # rank -> the exit code that it has sent
        self._come = 0  # ranks that have connected
        self.lost: list[str] = []  # lost hosts

    def run(self, mpirun: subprocess.Popen[bytes]) -> int:
        """Run until the job is over; its exit code."""
        while mpirun.poll() is None and not self.is_over:
            self.process_events()
        mpirun.terminate()
        late = time.monotonic() + LET_DAEMONS_END_S
        while (mpirun.poll() is None or self._ranks_left) and time.monotonic() < late:
            self.process_events()
        returned = mpirun.poll()
        if returned and not self.lost:
            return returned if returned > 0 else 128 - returned
        return self.code

    def close(self) -> None:
        """Close all connections."""
        for connection in (self._listener, *self._buffers):
            connection.close()
        self._ready.close()

    @property
    def is_over(self) -> bool:
        """Whether mpirun waits only for ranks of a lost host."""
        return bool(self.lost) and not self._ranks_left

    @property
    def _ranks_left(self) -> int:
        return sum(name.startswith("rank ") for name in self._names.values())

    @property
    def code(self) -> int:
        """The job's exit code if mpirun's is not usable.

        Rank 0's; if rank 0 sent none, the largest nonzero code of the others; else 86.
        """
        if not self._come:
            return 0  # no rank has connected: the program does not use hpcflow
        return self._codes.get(0, max(self._codes.values(), default=0) or ABORTED)

    def process_events(self) -> None:
        """Process incoming connections and messages, for up to LOOK_S."""
        for key, _ in self._ready.select(ssh_relay.LOOK_S):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is self._listener:
                new = ssh_relay.watch_relay(self._listener.accept()[0])
                new.setblocking(False)
                self._buffers[new] = b""
                self._ready.register(new, selectors.EVENT_READ)
            else:
                self._receive(connection)

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(MOST_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._buffers[connection] = (self._buffers[connection] + data).split(b"\n")
        fits = len(self._buffers[connection]) <= MOST_LINE
        if not all([self._is_heard(connection, line) for line in lines]) or not data or not fits:
            self._ready.unregister(connection)
            self._names.pop(connection, None)
            del self._buffers[connection]
            connection.close()

    def _is_heard(self, connection: socket.socket, line: bytes) -> bool:
        """Process a text line; False if the connection is to be closed."""
        words = line.decode(errors="replace").split()
        if connection in self._names:  # the exit code of a rank
            rank = int(self._names[connection].split()[1])
            if words and words[0].isdecimal():
                self._codes[rank] = int(words[0])
            return True
        if len(words) != 3 or not hmac.compare_digest(words[0].encode(), self._token.encode()):
            return False
        _, event, name = words
        if event == "rank" and name.isdecimal():
            self._names[connection], self._come = f"rank {name}", self._come + 1
            connection.send(b"\n")
            return True
        if event == "gone":
            connection.send(b"\n" + (ssh_relay.HOLD if self._survives_host(name) else b"e"))
        return False

    def _survives_host(self, host: str) -> bool:
        """Whether the job continues without `host`, whose daemon is lost."""
        if not self._ranks_left:  # a daemon that ends after all ranks
            return False
        goes_on = self._come == self._ranks
        outcome = "the others go on if they can" if goes_on else "the job, which still starts, ends"
        print(f"hpcflow: host {host} is lost: {outcome}", file=sys.stderr, flush=True)
        self.lost.append(host)
        return goes_on


def raise_descriptor_limit(ranks: int) -> None:
    """Raise the limit of file descriptors (usually 1,024): one connection for each rank.

    Errors: LaunchError if the hard limit is too low.
    """
    need = ranks + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and need > hard:
        raise LaunchError(
            f"--survive on several hosts: {ranks} ranks take {need} file descriptors of the "
            f"process that starts them, which may have {hard}",
            hint=f"ulimit -Hn {need}, as the system's administrator allows, or leave --survive out",
        )
    if soft != resource.RLIM_INFINITY and need > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def host_addresses() -> list[str]:
    """This host's IPv4 addresses, loopback addresses last."""
    import fcntl

    entry = struct.calcsize("16s16s8x")  # a name, an address
    buffer = array.array("B", bytes(128 * entry))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        ask = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
        reply = fcntl.ioctl(any_socket.fileno(), SIOCGIFCONF, ask)
    size = struct.unpack("iP", reply)[0]
    addresses = [socket.inet_ntoa(buffer[at + 20 : at + 24]) for at in range(0, size, entry)]
    return sorted(addresses, key=lambda address: address.startswith("127."))


class SupervisorConnection:
    """A rank's connection to the supervisor; without a supervisor it does nothing.

    When the supervisor closes it, the kernel kills the rank: a rank that mpirun has left behind
    would otherwise continue to sleep or compute.
    """

    def __init__(self, rank: int, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get(ssh_relay.SUPERVISOR)
        self._connection = ssh_relay.call(address, f"rank {rank}") if address else None
        self.code = 0
        if self._connection is not None:
            os.register_at_fork(after_in_child=self._connection.close)
            self._is_to_kill(True)
            atexit.register(self._end)  # runs after all handlers registered later
        elif address:
            print(
                f"hpcflow: rank {rank} cannot reach {address.rpartition(':')[0]}, where the job "
                "was started: it will not survive a host",
                file=sys.stderr,
            )

    def _is_to_kill(self, cut: bool) -> None:
        """Set whether the kernel kills this process when the connection is closed.

        It sends SIGKILL as the I/O signal (O_ASYNC, F_SETSIG): the supervisor sends no data here.
        """
        import fcntl

        assert self._connection is not None
        fd = self._connection.fileno()
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_ASYNC if cut else flags & ~os.O_ASYNC)

    def _end(self) -> None:
        assert self._connection is not None
        self._is_to_kill(False)
        with contextlib.suppress(OSError):
            self._connection.sendall(f"{self.code}\n".encode())
