"""A step through one parameter server: read a value, send an update that the server adds.

    python benchmarks/null_step.py --tf PYTHON --out FILE

The worker computes v * 1e-6 + 1 from what it reads, the server adds it to v (OSDI'16, figure 6):
both directions carry the whole value. hpcflow and TensorFlow 1 over gRPC run the same graph, beside
bare mpi4py (bare_server.py), which is the floor. Each rank has one thread.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

import common
import tf_cluster
from common import Contender, Crew, Repeat, Tournament, check, per_call, role

OURS, BARE, TF = "hpcflow", "bare mpi4py", "TF1 over gRPC"
DENSE = 100 << 20
SCALAR_CALLS, DENSE_CALLS = 5000, 5


def cases_of(steps: dict[str, Any], calls: dict[str, int]) -> dict[str, Repeat]:
    return {name: lambda s=step, n=calls[name]: per_call(s, n) for name, step in steps.items()}


def sizes(workers: int) -> dict[str, int]:
    """Numbers in each value; the dense one is for one worker, who shares the cores with nobody."""
    return {"scalar": 1} | ({"dense 100 MB": DENSE // 4} if workers == 1 else {})


def calls_of(slow: bool = False) -> dict[str, int]:
    return {"scalar": SCALAR_CALLS // (5 if slow else 1), "dense 100 MB": DENSE_CALLS}


def hpcflow_worker(workers: int) -> None:
    import hpcflow as hf

    session = hf.Session()  # the server's rank does not come back from here
    crew = common.crew_of_workers(servers=1)
    steps: dict[str, Any] = {}
    for name, size in sizes(workers).items():
        v = hf.Variable(hf.zeros([] if size == 1 else [size]), name=name.split()[0])
        with hf.device("/job:worker/task:0"):
            update = v * 1e-6 + 1.0
        steps[name] = functools.partial(session.run, v.assign_add(update, read_value=False))
        if size == 1:
            value = v.read_value()
    session.run(hf.global_variables_initializer())
    prove(crew, steps["scalar"], lambda: float(session.run(value)))
    common.serve(cases_of(steps, calls_of()), ["numpy", "mpi4py"], crew)


def prove(crew: Crew, step: Any, value: Any) -> None:
    """Ten steps of each worker must all be in the value."""
    crew.barrier()
    for _ in range(10):
        step()
    crew.barrier()
    expected = 10 * crew.comm.size
    if crew.rank == 0 and abs((got := value()) - expected) > 0.01 * expected:
        print(f"{expected} updates by 1 made {got}", file=sys.stderr, flush=True)
        crew.comm.Abort(1)
    crew.barrier()


def bare_rank(workers: int) -> None:
    import bare_server
    import numpy as np
    from mpi4py import MPI

    values = [np.zeros(size, "f4") for size in sizes(workers).values()]
    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        bare_server.serve(values)
        return
    crew = common.crew_of_workers(servers=1)
    made = [bare_server.client(value, tag) for tag, value in enumerate(values)]
    steps = dict(zip(sizes(workers), made, strict=True))

    def value() -> float:
        made[0]()
        return float(values[0][0])

    prove(crew, steps["scalar"], value)
    common.serve(cases_of(steps, calls_of()), ["numpy", "mpi4py"], crew)
    bare_server.leave()


def tf_process(arguments: argparse.Namespace) -> None:
    import tensorflow as tf

    t1 = tf.compat.v1
    _, target, config = tf_cluster.join(arguments)
    ops = {}
    for name, size in sizes(arguments.workers).items():
        with tf.device("/job:ps/task:0"):
            zeros = t1.zeros_initializer()
            shape = [] if size == 1 else [size]
            v = t1.get_variable(name.split()[0], shape, initializer=zeros, use_resource=True)
        with tf.device(f"/job:worker/task:{arguments.index}"):
            update = tf.identity(v) * 1e-6 + 1.0
        ops[name] = v.assign_add(update, read_value=False)
    session = tf_cluster.session(arguments, target, config)
    steps = {name: lambda op=op: session.run(op) for name, op in ops.items()}
    tf_cluster.serve(cases_of(steps, calls_of(slow=True)))


def contenders(arguments: argparse.Namespace, workers: int) -> list[Contender]:
    made = []
    for name, kind, extra in ((OURS, "hpcflow", {"HPCFLOW_PS": "1"}), (BARE, "bare", {})):
        mine = role(None, __file__, kind, "--workers", workers)
        command, environ = common.ranks(workers + 1, mine)
        made.append(Contender(name, [command], environ | extra))
    given = ["--workers", workers]
    return [*made, tf_cluster.contender(TF, arguments.tf, __file__, 1, workers, *given)]


def act(arguments: argparse.Namespace) -> None:
    """Be one contender's process."""
    if arguments.role == "hpcflow":
        hpcflow_worker(arguments.workers)
    elif arguments.role == "bare":
        bare_rank(arguments.workers)
    else:
        tf_process(arguments)


def checks_of(cup: Tournament, counts: list[int]) -> list[dict[str, Any]]:
    checks = []
    for n in counts:
        case = f"scalar, {n} worker{'s' if n > 1 else ''}"
        ours = cup.middle(case, OURS)
        target = 30.0 if n == 1 else None
        checks.append(check(f"null step, {case}", ours and ours * 1e6, "µs", at_most=target))
        checks.append(check("... by TF1 over gRPC", cup.ratio(case, OURS, TF)))
        checks.append(check("... by bare mpi4py", cup.ratio(case, OURS, BARE)))
    if 1 in counts:
        case = "dense 100 MB, 1 worker"
        ours = cup.middle(case, OURS)
        checks.append(check("100 MB both ways", ours and ours * 1e3, "ms", at_most=40.0))
        checks.append(check("... by TF1 over gRPC", cup.ratio(case, OURS, TF)))
        checks.append(check("... by bare mpi4py", cup.ratio(case, OURS, BARE)))
    return checks


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    tf_cluster.add_options(parser)
    arguments = parser.parse_args()
    if arguments.role:
        arguments.workers = arguments.workers[0]
        act(arguments)
        return
    cup = Tournament(arguments.realtime)
    for n in arguments.workers:
        games = Tournament(arguments.realtime)
        games.play(contenders(arguments, n), arguments.rounds, arguments.repeats)
        cup.merge(games, f", {n} worker{'s' if n > 1 else ''}")
    record = cup.record(checks_of(cup, arguments.workers), "µs", 1e6)
    common.finish(record, arguments.out)


if __name__ == "__main__":
    main()
