"""A training step of eight networks beside the same step of an older hpcflow.

    python benchmarks/before_after.py --before COMMIT --out FILE

Both run the same networks (benchmarks/nets) with the same kernels, one process each with one
thread, in turns. The older one is checked out beside, from the history of this checkout.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator

import common
from common import Contender, Tournament, per_call, role
from nets.contest import OURS
from nets.spec import NETS

BEFORE = "ac9b542"  # variables were read once a step, wherever they were used
SECONDS = 0.4  # of one repeat, about
ALLOWED = 1.03  # what two runs of one checkout differ by


def act(net: str) -> None:
    """Be the process that trains one network, of the checkout that PYTHONPATH names."""
    from nets import of_hpcflow

    step = of_hpcflow.step(net)
    calls = max(1, round(SECONDS / per_call(step, 2)))
    common.serve({net: lambda: per_call(step, calls)}, ["numpy", "llvmlite"])


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
    parser.add_argument("--before", metavar="COMMIT", default=BEFORE, help="the older hpcflow")
    parser.add_argument("--nets", nargs="+", choices=[*NETS], default=[*NETS])
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.role)
        return
    cup, checks, before = Tournament(arguments.realtime), [], f"hpcflow {arguments.before}"
    with checkout(arguments.before) as folder:
        for net in arguments.nets:
            command = role(None, __file__, net)
            made = [
                Contender(OURS, [command], {"PYTHONPATH": str(common.ROOT)}),
                Contender(before, [command], {"PYTHONPATH": folder}),
            ]
            cup.play(made, arguments.rounds, arguments.repeats)
            checks.append(cup.by_best(net, OURS, ALLOWED))
    common.finish(cup.record(checks, "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
