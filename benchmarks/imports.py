"""How long importing a framework takes, and how much memory the process has afterwards.

    python benchmarks/imports.py --torch PYTHON --tf PYTHON --jax PYTHON --out FILE

Each sample is a fresh process that imports one framework and nothing else; file caches are warm.
Time is that of the import alone, memory the resident set after it. hpcflow imports what a script
names when it does, so it is measured with all of its names as well; NumPy alone is shown beside.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import common
from common import Contender, Tournament, check

TIME = "seconds of import, ms"
OURS, WHOLE, NUMPY = "hpcflow", "hpcflow, all names", "numpy alone"
PEERS = {"TensorFlow": ("tf", "tensorflow"), "torch": ("torch", "torch"), "JAX": ("jax", "jax")}
PACKAGES = {"tensorflow": "tensorflow-cpu"}
LOOK = """
import json, sys, time
start = time.perf_counter()
{statement}
seconds = time.perf_counter() - start
pages = int(open("/proc/self/statm").read().split()[1])
import importlib.metadata, resource
found = {{name: importlib.metadata.version(name) for name in sys.argv[1:]}}
said = {{"seconds": seconds, "bytes": pages * resource.getpagesize(), "versions": found}}
print("@@ " + json.dumps(said))
"""


def command(python: str | None, statement: str, *packages: str) -> list[str]:
    """The command line of a process that imports, and says what it took."""
    look = LOOK.format(statement=statement)
    return [python or sys.executable, "-W", "ignore", "-c", look, *packages]


def contenders(arguments: argparse.Namespace) -> list[Contender]:
    made = [
        Contender(OURS, [command(None, "import hpcflow")]),
        Contender(WHOLE, [command(None, "from hpcflow import *")]),
        Contender(NUMPY, [command(None, "import numpy", "numpy")]),
    ]
    for name, (option, module) in PEERS.items():
        python = getattr(arguments, option)
        mine = command(python, f"import {module}", PACKAGES.get(module, module))
        made.append(common.peer(name, python, f"--{option}", mine))
    return made


def imported(contender: Contender) -> dict[str, Any]:
    """What one fresh process says.

    Errors: RuntimeError with the last words of one that fails.
    """
    (line,) = contender.commands
    environ = common.environ(contender)
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled files of what they installed
    ended = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=120)
    lines = [line for line in ended.stdout.splitlines() if line.startswith(common.MARK)]
    if not lines:
        raise RuntimeError("; ".join(ended.stderr.strip().splitlines()[-3:]))
    return json.loads(lines[-1][len(common.MARK) :])


def play(cup: Tournament, made: list[Contender], repeats: int) -> None:
    """All in turn; the first time, which fills file caches, does not count."""
    for repeat in range(repeats + 1):
        for contender in made:
            if contender.missing or contender.name in cup.absent:
                cup.absent.setdefault(contender.name, contender.missing)
                continue
            try:
                said = imported(contender)
            except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
                cup.absent[contender.name] = str(error)
                continue
            cup.versions[contender.name] = said["versions"]
            if repeat:
                cup.add(TIME, contender.name, said["seconds"] * 1e3)
                cup.add("memory after import, MiB", contender.name, said["bytes"] / 2**20)


def main() -> None:
    parser = common.parser(__doc__)
    arguments = parser.parse_args()
    cup = Tournament()
    play(cup, contenders(arguments), arguments.rounds * arguments.repeats)
    checks = [
        check(f"{case.partition(',')[0]}: {ours} by {name}", cup.ratio(case, ours, name), at_most=1)
        for case in cup.figures
        for ours in (OURS, WHOLE)
        for name in PEERS
    ]
    common.finish(cup.record(checks, "as said", 1.0), arguments.out)


if __name__ == "__main__":
    main()
