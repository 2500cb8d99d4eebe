"""What it costs to start a step, an op and a small subgraph, beside the peers.

    python benchmarks/step_start.py --torch PYTHON --tf PYTHON --jax PYTHON --out FILE

A scalar add with two feeds, arrays never seen before in every call, the result the caller's own,
100 other plans cached; then a chain of 1,000 dependent adds and a step that runs a small subgraph
on each of several ranks.
"""

from __future__ import annotations

import argparse
from typing import Any

import common
from common import Contender, Repeat, Tournament, check, peer, per_call, role

CALLS, OTHERS, CHAIN, RANKS = 3000, 100, 1000, (2, 3, 4)
OURS, OURS_MPI = "hpcflow Session.run", "hpcflow Session.run, mpirun -n 1"
TF_RUN, TF_CALL = "TF1 Session.run", "TF1 low-level callable"
TORCH, JAX = "torch eager", "JAX jit"


def fresh_pairs() -> list[tuple[Any, Any]]:
    import numpy as np

    made = np.arange(2 * CALLS, dtype="f4")
    return [(np.array(made[2 * i]), np.array(made[2 * i + 1])) for i in range(CALLS)]


def timed(call: Any) -> float:
    """Seconds per call of `call(x, y)` on fresh scalars; the last result is checked."""
    import time

    pairs, kept = fresh_pairs(), []
    keep = kept.append
    start = time.perf_counter()
    for x, y in pairs:
        keep(call(x, y))
    spent = (time.perf_counter() - start) / CALLS
    if [float(k) for k in kept[:3] + kept[-1:]] != [1.0, 5.0, 9.0, 4.0 * CALLS - 3]:
        raise SystemExit(f"a wrong sum: {kept[:3]}, {kept[-1]}")
    return spent


def hpcflow_cases() -> dict[str, Repeat]:
    import numpy as np

    import hpcflow as hf

    a, b = hf.placeholder(hf.float32, []), hf.placeholder(hf.float32, [])
    total, x = a + b, a
    for _ in range(CHAIN):
        x = x + b
    session, one = hf.Session(), np.array(1, "f4")
    for i in range(OTHERS):
        session.run(a * float(i), {a: one})
    run, both = session.run, {a: one, b: one}
    return {
        "add": lambda: timed(lambda p, q: run(total, {a: p, b: q})),
        "add, NumPy scalars": lambda: timed(lambda p, q: run(total, {a: p[()], b: q[()]})),
        "chain of 1000": lambda: per_call(lambda: run(x, both), 50),
    }


def tf_cases(low_level: bool) -> dict[str, Repeat]:
    import numpy as np
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2

    t1 = tf.compat.v1
    t1.disable_eager_execution()
    a, b = t1.placeholder(tf.float32, []), t1.placeholder(tf.float32, [])
    total, x = a + b, a
    for _ in range(CHAIN):
        x = tf.add(x, b)
    others = [a * float(i) for i in range(OTHERS)]
    config = t1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    if low_level:  # the honest floor: no thread pool, no Python around the call
        config.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"
    session, one = t1.Session(config=config), np.array(1, "f4")
    for other in others:
        session.run(other, {a: one})
    if low_level:

        def callable_of(fetch: Any) -> Any:
            options = config_pb2.CallableOptions(feed=[a.name, b.name], fetch=[fetch.name])
            return session._make_callable_from_options(options)

        add, chain = callable_of(total), callable_of(x)
        return {
            "add": lambda: timed(lambda p, q: add(p, q)[0]),
            "chain of 1000": lambda: per_call(lambda: chain(one, one), 50),
        }
    run = session.run
    return {
        "add": lambda: timed(lambda p, q: run(total, {a: p, b: q})),
        "add, NumPy scalars": lambda: timed(lambda p, q: run(total, {a: p[()], b: q[()]})),
        "chain of 1000": lambda: per_call(lambda: run(x, {a: one, b: one}), 50),
    }


def torch_cases() -> dict[str, Repeat]:
    import torch

    torch.set_num_threads(1)
    a, b = torch.tensor(1.0), torch.tensor(1.0)
    of = torch.from_numpy

    def chain() -> Any:
        x = a
        for _ in range(CHAIN):
            x = torch.add(x, b)
        return x

    return {
        "add, own tensors": lambda: per_call(lambda: a + b, CALLS),
        "add": lambda: timed(lambda p, q: (of(p) + of(q)).numpy()),
        "chain of 1000": lambda: per_call(chain, 50),
    }


def jax_cases() -> dict[str, Repeat]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    add, a, b = jax.jit(lambda p, q: p + q), jnp.float32(1), jnp.float32(1)
    return {
        "add, own tensors": lambda: per_call(lambda: add(a, b).block_until_ready(), CALLS),
        "add": lambda: timed(lambda p, q: np.asarray(add(p, q))),
    }


def subgraph_cases() -> dict[str, Repeat]:
    """One driver, a step that runs a small subgraph on every rank."""
    import hpcflow as hf

    session = hf.Session()
    made = []
    for task in range(session.context.size):
        with hf.device(f"/job:worker/task:{task}"):
            made.append(hf.Variable(hf.zeros([]), name=f"v{task}"))
    session.run(hf.global_variables_initializer())
    step = hf.group(*[v.assign_add(1.0) for v in made])
    return {"small subgraph": lambda: per_call(lambda: session.run(step), 500) / len(made)}


def act(name: str) -> None:
    """Be one contender's process."""
    packages = {
        "hpcflow": ["numpy"],
        "subgraph": ["numpy", "mpi4py"],
        "tf": ["tensorflow-cpu", "numpy"],
        "tf-low": ["tensorflow-cpu", "numpy"],
        "torch": ["torch", "numpy"],
        "jax": ["jax", "numpy"],
    }
    cases = {
        "hpcflow": hpcflow_cases,
        "subgraph": subgraph_cases,
        "tf": lambda: tf_cases(False),
        "tf-low": lambda: tf_cases(True),
        "torch": torch_cases,
        "jax": jax_cases,
    }
    common.serve(cases[name](), packages[name])


def contenders(arguments: argparse.Namespace) -> list[Contender]:
    me = __file__
    command, environ = common.ranks(1, role(None, me, "hpcflow"))
    return [
        Contender(OURS, [role(None, me, "hpcflow")]),
        Contender(OURS_MPI, [command], environ),
        peer(TF_RUN, arguments.tf, "--tf", role(arguments.tf, me, "tf")),
        peer(TF_CALL, arguments.tf, "--tf", role(arguments.tf, me, "tf-low")),
        peer(TORCH, arguments.torch, "--torch", role(arguments.torch, me, "torch")),
        peer(JAX, arguments.jax, "--jax", role(arguments.jax, me, "jax")),
    ]


def main() -> None:
    arguments = common.parser(__doc__).parse_args()
    if arguments.role:
        act(arguments.role)
        return
    cup = Tournament(arguments.realtime)
    cup.play(contenders(arguments), arguments.rounds, arguments.repeats)
    for n in RANKS:
        command, environ = common.ranks(n, role(None, __file__, "subgraph"))
        environ["HPCFLOW_TASKS_PER_REPLICA"] = str(n)
        cup.play(
            [Contender(f"hpcflow, {n} ranks", [command], environ)],
            arguments.rounds,
            arguments.repeats,
        )
    start = cup.middle("add", OURS_MPI)
    chain = cup.middle("chain of 1000", OURS)
    checks = [
        check("start of a step (ledger on)", start and start * 1e6, "µs", at_most=3.0),
        check("... by TF1's Session.run", cup.ratio("add", OURS, TF_RUN)),
        check("... by TF1's low-level callable", cup.ratio("add", OURS, TF_CALL)),
        check("... by torch, NumPy in and out", cup.ratio("add", OURS, TORCH)),
        check("... by torch, its own tensors", cup.ratio("add", OURS, TORCH, "add, own tensors")),
        check(
            "... by JAX, its own arrays", cup.ratio("add", OURS, JAX, "add, own tensors"), at_most=1
        ),
        check("chain of 1000 small operations", chain and chain * 1e6, "µs", at_most=20.0),
        check("... by TF1's low-level callable", cup.ratio("chain of 1000", OURS, TF_CALL)),
    ]
    for n in RANKS:
        each = cup.middle("small subgraph", f"hpcflow, {n} ranks")
        checks.append(check(f"small subgraphs over {n} ranks", each and 1e-3 / each, "k/s"))
    common.finish(cup.record(checks, "µs", 1e6), arguments.out)


if __name__ == "__main__":
    main()
