"""Training with a parameter server: updates of a small network by 1, 2 and 4 workers.

    python benchmarks/server_training.py --tf PYTHON --out FILE

784-256-256-10 with ReLU, plain gradient descent, 128 samples a worker and step. Asynchronous,
synchronous, and synchronous with one worker in reserve; hpcflow over MPI and TensorFlow 1 over gRPC
(SyncReplicasOptimizer) train the same network. Each rank has one thread. A figure is the time of an
update of the variables, of the fastest worker's clock where they differ.
"""

from __future__ import annotations

import argparse
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import common
import numpy as np
import tf_cluster
from common import Contender, Tournament, check, role

OURS, TF = "hpcflow", "TF1 over gRPC"
SIZES, BATCH, RATE = (784, 256, 256, 10), 128, 0.01
STEPS = 60  # a repeat of ours, by each worker
SECONDS = 1.0  # a repeat of TensorFlow: its synchronous workers cannot stop at a number of steps
CASES = [(sync, n) for n in (1, 2, 4) for sync in ("async", "all", "backup:1")]
GAMES = [(sync, n) for sync, n in CASES if n > 1 or sync == "async"]
TARGETS = {"async": 4.0, "all": 10.0, "backup:1": 10.0}  # times TensorFlow's


def name_of(sync: str, workers: int) -> str:
    words = {"async": "asynchronous", "all": "synchronous", "backup:1": "one in reserve"}
    return f"{words[sync]}, {workers} worker{'s' if workers > 1 else ''}"


def batch(worker: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(worker)
    images = rng.standard_normal((BATCH, SIZES[0]), np.float32)
    return images, rng.integers(0, SIZES[-1], BATCH)


def starts() -> list[tuple[np.ndarray, np.ndarray]]:
    """Initial weights and biases, the same for all contenders."""
    rng = np.random.default_rng(0)
    made = []
    for i, o in itertools.pairwise(SIZES):
        weights = rng.standard_normal((i, o), np.float32) * np.float32(i**-0.5)
        made.append((weights, np.zeros(o, np.float32)))
    return made


def hpcflow_worker() -> None:
    import hpcflow as hf
    from hpcflow.runtime.job.job_membership import current_context

    context = current_context()  # the server's rank does not come back from here
    crew = common.crew_of_workers(servers=1)
    x = hf.placeholder(hf.float32, [BATCH, SIZES[0]])
    y = hf.placeholder(hf.int64, [BATCH])
    h = x
    for i, (weights, bias) in enumerate(starts()):
        h = hf.matmul(h, hf.Variable(weights, name=f"w{i}")) + hf.Variable(bias, name=f"b{i}")
        h = hf.nn.relu(h) if i < len(SIZES) - 2 else h
    loss = hf.reduce_mean(hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h))
    count = hf.train.get_or_create_global_step()
    train = hf.train.GradientDescentOptimizer(RATE).minimize(loss, global_step=count)
    made = count.value()
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    images, labels = batch(context.replica)
    feeds = {x: images, y: labels}

    def repeat() -> float:
        context.barrier()
        before = int(session.run(made))
        context.barrier()
        start = time.perf_counter()
        for _ in range(STEPS):
            session.run([train, loss], feeds)
        context.barrier()
        seconds = time.perf_counter() - start
        updates = int(session.run(made)) - before
        return seconds / updates

    case = name_of(os.environ.get("HPCFLOW_SYNC", "async"), crew.comm.size)
    common.serve({case: repeat}, ["numpy", "mpi4py"], crew)


class Endless:
    """Steps in a thread that pauses between repeats: a worker may be held inside of one."""

    def __init__(self, step: Callable[[], int]) -> None:
        self._step, self._goes = step, threading.Event()
        self._seen: list[tuple[float, int]] = []  # time, updates made by then
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._goes.wait()
            made = self._step()
            self._seen.append((time.perf_counter(), made))

    def repeat(self) -> float:
        self._seen.clear()
        self._goes.set()
        time.sleep(SECONDS)
        self._goes.clear()
        seen = list(self._seen)
        if len(seen) < 2 or seen[-1][1] == seen[0][1]:
            return float("inf")  # held: others were faster
        return (seen[-1][0] - seen[0][0]) / (seen[-1][1] - seen[0][1])


def tf_process(arguments: argparse.Namespace) -> None:
    import tensorflow as tf

    t1 = tf.compat.v1
    sync, workers, index = arguments.sync, arguments.workers, arguments.index
    # a token queue keeps one of the server's threads
    cluster, target, config = tf_cluster.join(arguments, server_threads=4)
    own = f"/job:worker/task:{index}"
    with t1.device(t1.train.replica_device_setter(worker_device=own, cluster=cluster)):
        x = t1.placeholder(tf.float32, [BATCH, SIZES[0]])
        y = t1.placeholder(tf.int64, [BATCH])
        h = x
        for i, (weights, bias) in enumerate(starts()):
            w = t1.get_variable(f"w{i}", initializer=weights, use_resource=True)
            b = t1.get_variable(f"b{i}", initializer=bias, use_resource=True)
            h = tf.matmul(h, w) + b
            h = tf.nn.relu(h) if i < len(SIZES) - 2 else h
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h)
        loss = tf.reduce_mean(losses)
        count = t1.train.get_or_create_global_step()
        optimizer, hooks = t1.train.GradientDescentOptimizer(RATE), []
        if sync != "async":
            needed = workers if sync == "all" else workers - 1
            optimizer = t1.train.SyncReplicasOptimizer(optimizer, needed, workers)
            hooks = [optimizer.make_session_run_hook(index == 0)]
        train = optimizer.minimize(loss, global_step=count)
    session = t1.train.MonitoredTrainingSession(
        target,
        is_chief=index == 0,
        hooks=hooks,
        config=config,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=None,
    )
    run = session._tf_sess().run  # as its users' loops without hooks
    images, labels = batch(index)
    feeds = {x: images, y: labels}
    endless = Endless(lambda: int(run([train, loss, count], feeds)[2]))
    tf_cluster.serve({name_of(sync, workers): endless.repeat})


def contenders(arguments: argparse.Namespace, sync: str, workers: int) -> list[Contender]:
    command, environ = common.ranks(workers + 1, role(None, __file__, "hpcflow"))
    ours = Contender(OURS, [command], environ | {"HPCFLOW_PS": "1", "HPCFLOW_SYNC": sync})
    given = ["--sync", sync, "--workers", workers]
    return [ours, tf_cluster.contender(TF, arguments.tf, __file__, 1, workers, *given)]


def checks_of(cup: Tournament, games: list[tuple[str, int]]) -> list[dict[str, Any]]:
    checks = []
    for sync, workers in games:
        case = name_of(sync, workers)
        ours = cup.middle(case, OURS)
        checks.append(check(f"{case}: updates", ours and 1 / ours, "/s"))
        times = cup.ratio(case, TF, OURS)
        checks.append(check("... times TF1 over gRPC", times, at_least=TARGETS[sync]))
    return checks


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--sync", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help="only this number of workers")
    tf_cluster.add_options(parser)
    arguments = parser.parse_args()
    if arguments.role == "hpcflow":
        hpcflow_worker()
        return
    if arguments.role:
        tf_process(arguments)
        return
    cup = Tournament(arguments.realtime)
    games = [g for g in GAMES if arguments.workers in (None, g[1])]
    for sync, workers in games:
        cup.play(contenders(arguments, sync, workers), arguments.rounds, arguments.repeats)
    common.finish(cup.record(checks_of(cup, games), "µs", 1e6), arguments.out)


if __name__ == "__main__":
    main()
