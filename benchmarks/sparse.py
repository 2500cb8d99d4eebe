"""A step through parameter servers that reads 32 random rows of a table and adds to them.

    python benchmarks/sparse.py --tf PYTHON --out FILE

A row has 128 floats. The worker computes rows * 1e-6 + 1 from what it reads, the servers add it to
the rows (OSDI'16, figure 6, "sparse"): 16 kB each way, whatever the table has, so a step of the
largest table should cost one of the smallest. Over two servers the table is cut: hpcflow does that
by itself, the graph for TensorFlow 1 over gRPC by dynamic_partition and dynamic_stitch. Each rank
has one thread.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable
from typing import Any

import common
import tf_cluster
from common import Contender, Tournament, check, per_call, role

OURS, TF = "hpcflow", "TF1 over gRPC"
ROWS, WIDTH = 32, 128  # of a step
CALLS = 500
CASE = "step"
COPIES = 3.5  # of the largest table, in memory at once: both contenders', and what they start from


def rows_of(megabytes: int) -> int:
    return (megabytes << 20) // (4 * WIDTH)


def batches(rows: int) -> Callable[[], Any]:
    """Indices of a step, drawn before it: enough that pages and caches do not repeat soon."""
    import numpy as np

    drawn = np.random.default_rng(1).integers(0, rows, (4096, ROWS))
    turn = itertools.cycle(drawn)
    return lambda: next(turn)


def hpcflow_worker(megabytes: int, servers: int) -> None:
    import hpcflow as hf

    session = hf.Session()  # the servers' ranks do not come back from here
    crew = common.crew_of_workers(servers)
    rows = rows_of(megabytes)
    v = hf.Variable(hf.zeros([rows, WIDTH]), name="table")
    ids = hf.placeholder(hf.int64, [ROWS])
    with hf.device("/job:worker/task:0"):
        update = hf.gather(v, ids) * 1e-6 + 1.0
    add, total = hf.scatter_add(v, ids, update).op, hf.reduce_sum(hf.gather(v, ids))
    session.run(hf.global_variables_initializer())
    step, draw = session.make_callable(add, [ids]), batches(rows)
    step(range(ROWS))
    if abs((found := float(session.run(total, {ids: range(ROWS)}))) - ROWS * WIDTH) > 1:
        print(f"a step added {found}, not {ROWS * WIDTH}", file=sys.stderr, flush=True)
        os._exit(1)
    common.serve({CASE: lambda: per_call(lambda: step(draw()), CALLS)}, ["numpy", "mpi4py"], crew)


def tf_process(arguments: argparse.Namespace, megabytes: int, servers: int) -> None:
    import tensorflow as tf

    t1 = tf.compat.v1
    _, target, config = tf_cluster.join(arguments, servers)
    rows, pieces = rows_of(megabytes), []
    for s in range(servers):
        with tf.device(f"/job:ps/task:{s}"):
            shape = [rows // servers, WIDTH]
            zeros = t1.zeros_initializer()
            pieces.append(t1.get_variable(f"t{s}", shape, initializer=zeros, use_resource=True))
    with tf.device("/job:worker/task:0"):
        ids = t1.placeholder(tf.int64, [ROWS])
        owner = tf.cast(ids % servers, tf.int32)
        theirs = t1.dynamic_partition(ids // servers, owner, servers)
        places = t1.dynamic_partition(tf.range(ROWS), owner, servers)
        read = [t1.gather(piece, at) for piece, at in zip(pieces, theirs, strict=True)]
        update = t1.dynamic_stitch(places, read) * 1e-6 + 1.0
        parts = t1.dynamic_partition(update, owner, servers)
        triples = zip(pieces, theirs, parts, strict=True)
        add = tf.group(*(t1.scatter_add(piece, at, part) for piece, at, part in triples))
    session = tf_cluster.session(arguments, target, config)
    draw, repeats = batches(rows), CALLS // 5
    step = session.make_callable(add, [ids])
    tf_cluster.serve({CASE: lambda: per_call(lambda: step(draw()), repeats)})


def contenders(arguments: argparse.Namespace, megabytes: int, servers: int) -> list[Contender]:
    given = ["--sizes", megabytes, "--servers", servers]
    command, environ = common.ranks(1 + servers, role(None, __file__, "hpcflow", *given))
    environ["HPCFLOW_PS"] = str(servers)
    environ["HPCFLOW_SHARD_BYTES"] = str((megabytes << 20) // servers)
    tf = tf_cluster.contender(TF, arguments.tf, __file__, servers, 1, *given)
    return [Contender(OURS, [command], environ), tf]


def name_of(megabytes: int, servers: int) -> str:
    size = f"{megabytes} MB" if megabytes < 1024 else f"{megabytes // 1024} GB"
    return f"{size}, {servers} server{'s' if servers > 1 else ''}"


def fitting(sizes: list[int]) -> list[int]:
    """The sizes that memory has room for; the others are told."""
    left = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    found = [size for size in sizes if size * COPIES < left]
    for size in sorted(set(sizes) - set(found)):
        print(f"a table of {size} MB is left out: {left} MB of memory are free", file=sys.stderr)
    return found


def checks_of(cup: Tournament, sizes: list[int], counts: list[int]) -> list[dict[str, Any]]:
    checks = []
    for servers in counts:
        smallest = f"{CASE}, {name_of(sizes[0], servers)}"
        for size in sizes:
            case = f"{CASE}, {name_of(size, servers)}"
            ours = cup.middle(case, OURS)
            checks.append(check(f"sparse {case}", ours and ours * 1e6, "µs"))
            checks.append(check("... by TF1 over gRPC", cup.ratio(case, OURS, TF)))
            if size != sizes[0]:
                ratio = cup.ratio(case, OURS, OURS, smallest)
                checks.append(check(f"... by that of {sizes[0]} MB", ratio))
    return checks


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 256, 1024, 4096], help="MB")
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2])
    tf_cluster.add_options(parser)
    arguments = parser.parse_args()
    if arguments.role:
        of = arguments.sizes[0], arguments.servers[0]
        if arguments.role == "hpcflow":
            hpcflow_worker(*of)
        else:
            tf_process(arguments, *of)
        return
    cup, sizes = Tournament(arguments.realtime), fitting(arguments.sizes)
    for servers, size in itertools.product(arguments.servers, sizes):
        games = Tournament(arguments.realtime)
        games.play(contenders(arguments, size, servers), arguments.rounds, arguments.repeats)
        cup.merge(games, f", {name_of(size, servers)}")
    record = cup.record(checks_of(cup, sizes, arguments.servers), "µs", 1e6)
    common.finish(record, arguments.out)


if __name__ == "__main__":
    main()
