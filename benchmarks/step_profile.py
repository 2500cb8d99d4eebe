"""Where the time of a training step of eight networks goes, beside the machine's measured peaks.

    python benchmarks/step_profile.py --out FILE

The networks of benchmarks/training_step.py with the setting `profile`: the five types of operation
that take longest, with their share of the peak, Python, and the rest. `all at peak` is what the
step would take if each operation had the peak of products or of memory, whichever it needs.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile
from typing import Any

import common
from common import Contender, Tournament, check, role
from nets.spec import NETS

STEPS = 60  # enough for nets that make gradients without using them
LISTED = 5  # types of operation
PRODUCTS = ("MatMul", "Conv", "ConvInputGrad", "ConvFilterGrad")


def act(net: str) -> None:
    """Be the process that trains one network; it is profiled by its environment."""
    from nets import of_hpcflow

    from hpcflow.runtime.profile import SKIPPED
    from hpcflow.runtime.profile import STEPS as PROFILED

    step = of_hpcflow.step(net)
    for _ in range(STEPS if net == "alexnet" else SKIPPED + PROFILED + 2):
        step()


def profiled(net: str, threads: int, folder: pathlib.Path) -> dict[str, Any]:
    """The profile of the one rank that trains `net`; peaks are measured for the first one."""
    environ = common.environ(Contender(net, threads=threads))
    environ |= {"HPCFLOW_PROFILE": "1", "HPCFLOW_RUN_DIR": str(folder)}
    done = subprocess.run(
        role(None, __file__, net), env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{net}: {done.stderr}")
    return json.loads((folder / "profile.json").read_text())["ranks"][0]


def enter(cup: Tournament, net: str, one: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a step as figures, and its shares of the peaks."""
    steps, wall = one["steps"], one["wall_seconds"]
    cup.add(net, "a step", wall / steps)
    cup.add(net, "all at peak", one["least_seconds"] / steps)
    listed = one["types"][:LISTED]
    for row in listed:
        cup.add(net, f"{row['type']} ({row['peak_share']:.0%} of peak)", row["seconds"] / steps)
    others = one["seconds"]["kernels"] - sum(row["seconds"] for row in listed)
    cup.add(net, "other operations", others / steps)
    python = one["seconds"]["python"] + one["seconds"]["engine"] + one["seconds"]["results"]
    cup.add(net, "Python between operations", python / steps)
    cup.add(net, "outside: feeds, the script", one["seconds"]["outside"] / steps)
    least = 100 * one["least_seconds"] / wall
    made = [check(f"{net}: time at the peaks, of a step", least, "%")]
    products = [row for row in one["types"] if row["type"] in PRODUCTS]
    spent = sum(row["seconds"] for row in products)
    if spent:
        share = sum(row["peak_share"] * row["seconds"] for row in products) / spent
        made.append(check(f"{net}: products and convolutions, of peak", 100 * share, "%"))
    return made


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=NETS)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.role)
        return
    cup, checks = Tournament(arguments.realtime), []
    cup.versions["hpcflow"] = common.versions(["numpy"])
    with tempfile.TemporaryDirectory() as name:
        for net in arguments.nets:
            one = profiled(net, arguments.threads, pathlib.Path(name))
            checks += enter(cup, net, one)
        peak = next(iter(one["peaks"].values()))
    checks.append(check("peak of products, float32", peak["flops"]["float32"] / 1e9, "GFLOP/s"))
    checks.append(check("peak of copies in memory", peak["nbytes"] / 1e9, "GB/s"))
    common.finish(cup.record(checks, "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
