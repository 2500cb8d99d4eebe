"""A null step on one worker beside large updates by another, on the same parameter server.

    python benchmarks/fairness.py --tf PYTHON --mb 1024 --update adam --out FILE

Worker 0 adds 1 to a scalar on the server again and again and takes the time of each step; worker 1
meanwhile sends gradients of `--mb` MB, which the server applies to a variable of its own by plain
addition, gradient descent or Adam. The figures are the median, the 99th percentile and the longest
of worker 0's steps: of a server that does an update in one go they are the time of an update. The
case "alone" is the median without worker 1, "update" the time of one of worker 1's. TensorFlow 1
over gRPC runs the same graph.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import common
import tf_cluster
from common import Contender, Repeat, Tournament, check, role

OURS, TF = "hpcflow", "TF1 over gRPC"
ALONE, UPDATE, LIMIT_MS = "alone", "update", 5.0
FIGURES: dict[str, float] = {"median": 0.5, "99 %": 0.99, "longest": 1.0}


def null_worker(step: Callable[[], Any], seconds: float) -> dict[str, Repeat]:
    """Worker 0: a figure of the times of null steps for some seconds."""

    def figure(at: float) -> float:
        times, until = [], time.perf_counter() + seconds
        while (start := time.perf_counter()) < until or not times:
            step()
            times.append(time.perf_counter() - start)
        return sorted(times)[min(int(at * len(times)), len(times) - 1)]

    def beside() -> None:
        figure(0.5)

    figures = {name: lambda at=at: figure(at) for name, at in FIGURES.items()}
    return {ALONE: lambda: figure(0.5), **figures, UPDATE: beside}


def large_worker(step: Callable[[], Any], seconds: float) -> dict[str, Repeat]:
    """Worker 1: updates for as long; the figure is the time of one."""

    def each() -> float:
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < seconds or not done:
            step()
            done += 1
        return (time.perf_counter() - start) / done

    def beside() -> None:
        each()

    return {ALONE: lambda: None, **dict.fromkeys(FIGURES, beside), UPDATE: each}


def hpcflow_worker(options: argparse.Namespace) -> None:
    import hpcflow as hf

    session = hf.Session()  # the server's rank does not come back from here
    crew = common.crew_of_workers(servers=1)
    size = options.mb * (1 << 20) // 4
    count = hf.Variable(0.0, name="count")
    large = hf.Variable(hf.zeros([size]), name="large", trainable=True)
    with hf.device("/job:worker/task:0"):
        gradient = hf.Variable(
            hf.fill([size], 1e-6), name="gradient", collections=["local_variables"]
        )
        given = gradient.read_value()
    if options.update == "add":
        update = large.assign_add(given, read_value=False)
    else:
        kind = {
            "descent": hf.train.GradientDescentOptimizer,
            "adam": hf.train.AdamOptimizer,
            "adamw": functools.partial(hf.train.AdamWOptimizer, 0.01),
        }[options.update]
        update = kind(learning_rate=1e-3).apply_gradients([(given, large)])
    null = count.assign_add(1.0, read_value=False)
    session.run(hf.global_variables_initializer())
    session.run(hf.local_variables_initializer())
    cases = (
        large_worker(functools.partial(session.run, update), options.seconds)
        if crew.rank
        else null_worker(functools.partial(session.run, null), options.seconds)
    )
    common.serve(cases, ["numpy", "mpi4py"], crew)


def tf_process(options: argparse.Namespace) -> None:
    import tensorflow as tf

    t1 = tf.compat.v1
    _, target, config = tf_cluster.join(options)
    shape = [options.mb * (1 << 20) // 4]
    with tf.device("/job:ps/task:0"):
        zeros = t1.zeros_initializer()
        count = t1.get_variable("count", [], initializer=zeros, use_resource=True)
        large = t1.get_variable("large", shape, initializer=zeros, use_resource=True)
    with tf.device(f"/job:worker/task:{options.index}"):
        given = tf.fill(shape, 1e-6)
    if options.update == "add":
        update = large.assign_add(given, read_value=False)
    else:
        kind = t1.train.AdamOptimizer
        if options.update == "descent":
            kind = t1.train.GradientDescentOptimizer
        update = kind(1e-3).apply_gradients([(given, large)])
    null = count.assign_add(1.0, read_value=False)
    session = tf_cluster.session(options, target, config)
    cases = (
        large_worker(lambda: session.run(update), options.seconds)
        if options.index
        else null_worker(lambda: session.run(null), options.seconds)
    )
    tf_cluster.serve(cases)


def contenders(options: argparse.Namespace) -> list[Contender]:
    given = ["--mb", options.mb, "--update", options.update, "--seconds", options.seconds]
    command, environ = common.ranks(3, role(None, __file__, "hpcflow", *given))
    ours = Contender(OURS, [command], environ | {"HPCFLOW_PS": "1"})
    return [ours, tf_cluster.contender(TF, options.tf, __file__, 1, 2, *given)]


def checks_of(cup: Tournament) -> list[dict[str, Any]]:
    checks = []
    for case in (ALONE, *FIGURES, UPDATE):
        ours = cup.middle(case, OURS)
        limit = LIMIT_MS if case == "99 %" else None
        checks.append(
            check(
                case if case == UPDATE else f"null step, {case}",
                ours and ours * 1e3,
                "ms",
                at_most=limit,
            )
        )
        checks.append(check("... by TF1 over gRPC", cup.ratio(case, OURS, TF)))
    return checks


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--mb", type=int, default=1024, help="MB of each large update")
    parser.add_argument(
        "--update", default="add", choices=["add", "descent", "adam", "adamw"], help="how"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each repeat")
    tf_cluster.add_options(parser)
    options = parser.parse_args()
    if options.role:
        (hpcflow_worker if options.role == "hpcflow" else tf_process)(options)
        return
    if options.tf and options.update == "adamw":
        parser.error("TensorFlow 1 has no AdamW; leave --tf out")
    cup = Tournament(options.realtime)
    cup.play(contenders(options), options.rounds, options.repeats)
    common.finish(cup.record(checks_of(cup), "ms", 1e3), options.out)


if __name__ == "__main__":
    main()
