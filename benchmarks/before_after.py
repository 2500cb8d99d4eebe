"""Training steps, step start, steps of a server, sums and import time beside an older hpcflow.

    python benchmarks/before_after.py --before COMMIT --out FILE

Both checkouts run the same programs in turns, one thread a process. A round has fresh processes.
Repeat i of one and repeat i of the other are a pair. The figure is the median of the pairs' ratios
with its 95 % interval, from order statistics (distribution-free). The older one is checked out
beside, from the history of this checkout.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import common
import imports
import null_step
import step_start
from common import Contender, Repeat, Tournament, check, per_call, role
from nets.contest import OURS
from nets.spec import NETS

BEFORE = "0495255"  # before the names, instructions and passes of version 2
SECONDS = 1.0  # of one repeat, about
ALLOWED = 1.05  # the upper end of the interval
OTHERS = ("step start", "null step", "sums", "import")
SUMMED = {"sum of 100 floats": 100, "sum of 25 MB": 25_000_000 // 4}


def act(name: str) -> None:
    """Be a process of one program, of the checkout that PYTHONPATH names."""
    if name == "sums":
        common.serve(sum_cases(), ["numpy", "mpi4py"], common.crew_of_workers(servers=0))
        return
    from nets import of_hpcflow

    step = of_hpcflow.step(name)
    calls = max(1, round(SECONDS / per_call(step, 2)))
    common.serve({name: lambda: per_call(step, calls)}, ["numpy", "llvmlite"])


def sum_cases() -> dict[str, Repeat]:
    """Steps of two replicas whose gradient is a feed, so that its sum is most of the step."""
    import numpy as np

    import hpcflow as hf

    session, cases = hf.Session(), {}
    for case, size in SUMMED.items():
        x = hf.placeholder(hf.float32, [size])
        v = hf.Variable(hf.zeros([size]))
        train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_sum(v * x))
        feeds = {x: np.ones(size, "f4")}
        session.run(hf.global_variables_initializer())
        calls = 500 if size < 1000 else 10
        cases[case] = lambda t=train, f=feeds, n=calls: per_call(lambda: session.run(t, f), n)
    return cases


def program(name: str) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment of the processes of a program."""
    if name in NETS:
        return role(None, __file__, name), {}
    if name == "step start":
        return role(None, step_start.__file__, "hpcflow"), {}
    if name == "null step":
        worker = role(None, null_step.__file__, "hpcflow", "--workers", 1)
        return common.ranks(2, worker, HPCFLOW_PS="1")
    return common.ranks(2, role(None, __file__, "sums"))


def interval(ratios: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The interval of the median from order statistics: at least `level`, by the binomial law."""
    n, ordered, cut, outside = len(ratios), sorted(ratios), 0, 0.0
    while (outside := outside + math.comb(n, cut) / 2.0**n) <= (1 - level) / 2:
        cut += 1
    if not cut:
        raise SystemExit(f"{n} pairs are too few for an interval of {level:.0%}")
    return ordered[cut - 1], ordered[n - cut]


def compare(cup: Tournament, before: str) -> list[dict[str, Any]]:
    """For each case the median ratio of the pairs, and the upper end of its interval."""
    checks = []
    for case, figures in cup.figures.items():
        if len(figures) == 2:
            ratios = [a / b for a, b in zip(figures[OURS], figures[before], strict=True)]
            low, high = interval(ratios)
            middle = statistics.median(ratios)
            checks.append(check(f"{case}: median of ratios, low end {low:.3f}", middle))
            checks.append(check(f"{case}: upper end of the 95 % interval", high, at_most=ALLOWED))
    return checks


def add_imports(cup: Tournament, before: str, folder: str, pairs: int) -> None:
    """Time of `import hpcflow` in fresh processes of both checkouts, in turns."""
    command, imported = imports.command(None, "import hpcflow"), Tournament()
    places = {OURS: str(common.ROOT), before: folder}
    made = [Contender(name, [command], {"PYTHONPATH": path}) for name, path in places.items()]
    imports.play(imported, made, pairs)
    cup.absent |= imported.absent
    for name, milliseconds in imported.figures[imports.TIME].items():
        for figure in milliseconds:
            cup.add("import", name, figure / 1e3)


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[str]:
    """A folder with this commit, while the block lasts."""
    git = ["git", "-C", str(common.ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*git, "add", "--quiet", "--detach", folder, commit], check=True)
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)


def main() -> None:
    parser = common.parser(__doc__)
    names = [*NETS, *OTHERS]
    parser.add_argument("--before", metavar="COMMIT", default=BEFORE, help="the older hpcflow")
    parser.add_argument("--programs", nargs="+", choices=names, default=names)
    parser.set_defaults(rounds=15, repeats=1)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.role)
        return
    cup, before = Tournament(arguments.realtime), f"hpcflow {arguments.before}"
    with checkout(arguments.before) as folder:
        for name in arguments.programs:
            if name == "import":
                add_imports(cup, before, folder, arguments.rounds * arguments.repeats)
                continue
            command, environ = program(name)
            made = [
                Contender(OURS, [command], environ | {"PYTHONPATH": str(common.ROOT)}),
                Contender(before, [command], environ | {"PYTHONPATH": folder}),
            ]
            cup.play(made, arguments.rounds, arguments.repeats)
    common.finish(cup.record(compare(cup, before), "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
