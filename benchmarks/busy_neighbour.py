"""Training steps with two threads while other processes keep cores busy, by OpenMP's wait policy.

    python benchmarks/busy_neighbour.py --out FILE

Each neighbour is a process of its own that computes without a pause. The contenders are hpcflow
with one thread, with two threads as it comes, and with two threads and another spin count of
libgomp: how often a thread of the pool looks for work before it sleeps (`GOMP_SPINCOUNT`; libgomp's
own default is 300,000 times, some milliseconds). Without a neighbour it shows what sleeping costs.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import common
from common import Contender, Tournament, per_call, role
from nets.spec import NETS

SECONDS = 0.4  # of one repeat, about
NEIGHBOURS = (0, 1, 2)
ONE, DEFAULT = "hpcflow, 1 thread", "hpcflow, 2 threads"
SPINS = (0, 1_000, 10_000, 300_000)
ALLOWED = 1.3  # of two threads beside one busy neighbour, to one thread beside it


def act(net: str) -> None:
    """Be the process that trains one network."""
    from nets import of_hpcflow

    step = of_hpcflow.step(net)
    calls = max(1, round(SECONDS / per_call(step, 2)))
    common.serve({net: lambda: per_call(step, calls)}, ["numpy", "llvmlite"])


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many busy processes, while the block lasts."""
    children = []
    try:
        for _ in range(count):
            if (child := os.fork()) == 0:
                while True:
                    pass
            children.append(child)
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def contenders(net: str, spins: list[int]) -> list[Contender]:
    command = [role(None, __file__, net)]
    made = [Contender(ONE, command), Contender(DEFAULT, command, threads=2)]
    for spin in spins:
        policy = {"GOMP_SPINCOUNT": str(spin)}
        made.append(Contender(f"2 threads, spin count {spin:,}", command, policy, threads=2))
    return made


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument(
        "--nets", nargs="+", choices=[*NETS], default=["mlp_sgd", "lenet", "transformer"]
    )
    parser.add_argument("--neighbours", nargs="+", type=int, default=[*NEIGHBOURS])
    parser.add_argument("--spins", nargs="*", type=int, default=[*SPINS])
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.role)
        return
    cup, checks = Tournament(arguments.realtime), []
    for net in arguments.nets:
        for count in arguments.neighbours:
            part = Tournament(arguments.realtime)
            with neighbours(count):
                part.play(contenders(net, arguments.spins), arguments.rounds, arguments.repeats)
            case = f"{net}, {count} busy"
            cup.merge(part, f", {count} busy")
            ratio = cup.ratio(case, DEFAULT, ONE)
            checks.append(
                common.check(f"{case}: by {ONE}", ratio, at_most=ALLOWED if count < 2 else None)
            )
    common.finish(cup.record(checks, "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
