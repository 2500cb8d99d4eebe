"""What a first training step of networks costs beyond the next ones, cold and warm.

    python benchmarks/compile_cost.py --torch PYTHON --jax PYTHON --out FILE

Each sample is a fresh process that builds one network of benchmarks/nets, initializes it and times
its first step, less the median of the three that follow: planning, compiling and loading are left.
Cold: the folders of what is compiled are empty. Warm: the process before has filled them. They are
hpcflow's plans and kernels, the cache of Inductor, and JAX's persistent compilation cache with
everything kept, however fast it was compiled. torch eager compiles nothing and stands for the rest
that a first step has: memory that is touched, primitives that libraries make.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import statistics
import subprocess
import tempfile
import time
from typing import Any

import common
from common import Contender, Tournament, check
from nets import contest
from nets.contest import OURS
from nets.spec import NETS
from training_step import LEFT_OUT

NAMES = ("torch eager", "torch.compile", "JAX jit")
NEXT = 3  # steps behind the first
LIMIT_S = 600.0


def act(of: str) -> None:
    """Be the process that is timed; its last line tells the seconds that its first step cost."""
    module, mode, net = of.split(":")
    step = importlib.import_module(f"nets.{module}").step(net, mode)
    spent = []
    for _ in range(1 + NEXT):
        start = time.perf_counter()
        step()
        spent.append(time.perf_counter() - start)
    print(f"{common.MARK}{spent[0] - statistics.median(spent[1:])!r}", flush=True)


def keeping(contender: Contender, folder: str) -> Contender:
    """The contender with all that it compiles kept in a folder."""
    return dataclasses.replace(
        contender,
        environ={
            **contender.environ,
            "HPCFLOW_PLAN_CACHE": f"{folder}/plans",
            "HPCFLOW_KERNEL_CACHE": f"{folder}/kernels",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        },
    )


def seconds(contender: Contender) -> float:
    """What the first step of a fresh process costs.

    Errors: RuntimeError with what it said if it made none.
    """
    try:
        done = subprocess.run(
            contender.commands[0],
            env=common.environ(contender),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no first step in {LIMIT_S:.0f} s") from None
    told = [line for line in done.stdout.splitlines() if line.startswith(common.MARK)]
    if done.returncode or not told:
        raise RuntimeError(done.stderr.strip()[-300:])
    return float(told[-1][len(common.MARK) :])


def checks_of(cup: Tournament, nets: list[str]) -> list[dict[str, Any]]:
    checks = []
    for net in nets:
        for when in ("cold", "warm"):
            case = f"{net}, {when}"
            middle = cup.middle(case, OURS)
            checks.append(check(case, None if middle is None else 1e3 * middle, "ms"))
            for name in NAMES[1:]:
                if cup.middle(case, name) is not None:
                    checks.append(check(f"... by {name}", cup.ratio(case, OURS, name)))
    return checks


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=NETS)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments.role)
        return
    cup = Tournament(arguments.realtime)
    for net in arguments.nets:
        names = [name for name in NAMES if (name, net) not in LEFT_OUT]
        for _ in range(arguments.repeats):
            for contender in contest.contenders(__file__, net, arguments, names):
                with tempfile.TemporaryDirectory() as folder:
                    run = functools.partial(_kept, folder)
                    for when in ("cold", "warm"):
                        cup.sample(f"{net}, {when}", contender, run, counts=True)
    cup.versions[OURS] = common.versions(["numpy", "llvmlite"])
    for option, package in {"torch": "torch", "jax": "jax"}.items():
        if python := getattr(arguments, option):
            cup.versions[package] = common.versions_beside(python, package)
    common.finish(cup.record(checks_of(cup, arguments.nets), "ms", 1e3), arguments.out)


def _kept(folder: str, contender: Contender) -> float:
    return seconds(keeping(contender, folder))


if __name__ == "__main__":
    main()
