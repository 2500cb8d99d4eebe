"""TensorFlow 1's parameter servers and workers on this host, over gRPC: a contender of many."""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import common
from common import Contender, peer, role


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of `contender`'s processes."""
    parser.add_argument("--index", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=json.loads, help=argparse.SUPPRESS)


def contender(
    name: str, python: str | None, script: str, servers: int, workers: int, *given: object
) -> Contender:
    """Its processes have the roles `tf-ps` and `tf-worker`, and the options `given`."""
    ports = json.dumps(common.free_ports(servers + workers))
    jobs = [*(("ps", i) for i in range(servers)), *(("worker", i) for i in range(workers))]
    more = [*given, "--ports", ports, "--index"]
    return peer(
        name, python, "--tf", *(role(python, script, f"tf-{job}", *more, i) for job, i in jobs)
    )


def join(arguments: argparse.Namespace, servers: int = 1, server_threads: int = 1) -> Any:
    """Start this process's server: (cluster, target, config); a parameter server stays inside."""
    import tensorflow as tf

    t1 = tf.compat.v1
    t1.disable_eager_execution()
    where = [f"127.0.0.1:{port}" for port in arguments.ports]
    job, index = arguments.role.removeprefix("tf-"), arguments.index
    config = t1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    if job == "ps":
        config.inter_op_parallelism_threads = server_threads
    else:
        config.device_filters.extend(["/job:ps", f"/job:worker/task:{index}"])
    cluster = t1.train.ClusterSpec({"ps": where[:servers], "worker": where[servers:]})
    server = t1.train.Server(cluster, job_name=job, task_index=index, config=config)
    if job == "ps":
        common.serve({}, ["tensorflow-cpu"])
        os._exit(0)
    return cluster, server.target, config


def session(arguments: argparse.Namespace, target: str, config: Any) -> Any:
    """A session once the first worker has initialized all variables."""
    import tensorflow as tf

    t1 = tf.compat.v1
    initialize, missing = t1.global_variables_initializer(), t1.report_uninitialized_variables()
    made = t1.Session(target, config=config)
    if arguments.index == 0:
        made.run(initialize)
    while len(made.run(missing)):
        time.sleep(0.1)
    return made


def serve(cases: Any) -> None:
    """Be a worker until there is no one to ask; its server has no other end than the process's."""
    common.serve(cases, ["tensorflow-cpu", "numpy"])
    os._exit(0)
