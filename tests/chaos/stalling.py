"""A job that trains a few steps and then stalls as its first argument says: see test_stalls.py.

    mpirun -n 3 python stalling.py KIND SEED

Every rank runs this file; servers leave it at the first call that needs the ranks.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time

import numpy as np

import hpcflow as hf
from hpcflow.ops.replicas.replica_ops import replica_sum
from hpcflow.runtime.job.job_membership import current_context
from hpcflow.runtime.step import step_channels

KIND, SEED = sys.argv[1], int(sys.argv[2])
chance = random.Random(SEED)
STEPS, BAD = chance.randint(1, 5), chance.randrange(2)  # steps that end well; who stalls
BATCH = np.ones(3, np.float32)
FOR_EVER_S = 1000


def lateness() -> None:
    threading.Event().wait(FOR_EVER_S)


def an_endless_loop() -> None:
    while True:
        pass


def a_sleep() -> None:
    time.sleep(FOR_EVER_S)


def a_read() -> None:
    os.read(os.pipe()[0], 1)


PLACES = {"late": lateness, "loop": an_endless_loop, "sleep": a_sleep, "save": a_read}
slow = hf.op("Slow", grad=None)


@hf.kernel("Slow", "out")
def _slow(xp, node):
    """Ends at once while the steps end well; then it sleeps in C, with the GIL or without."""
    library = ctypes.CDLL(None) if SEED % 2 else ctypes.PyDLL(None)
    calls = iter([0] * STEPS)

    def kernel(x, out):
        np.copyto(out, x)
        library.sleep(next(calls, FOR_EVER_S if is_bad() else 0))

    return kernel


def is_bad() -> bool:
    return current_context().replica == BAD


def withhold() -> None:
    """The server sends no values any more after so many steps: the messages never leave."""

    def withheld(make):
        def hook(self, instance):
            send = make(self, instance)

            def sends(*args):
                if self.executor.rank != 2 or instance.step <= STEPS:
                    send(*args)

            return sends

        return hook

    for name in ("send", "send_loose", "send_sized"):
        setattr(
            step_channels.PartitionPeers,
            name,
            withheld(getattr(step_channels.PartitionPeers, name)),
        )


def stop(pid: int) -> None:
    """Stop a process a moment later, when its step has begun or is over."""
    threading.Timer(chance.random() / 10, os.kill, (pid, signal.SIGSTOP)).start()


def main() -> None:
    if KIND == "withheld":
        withhold()
    context = current_context()
    x = hf.placeholder(hf.float32, [3], name="x")
    v = hf.Variable(np.zeros(3, np.float32), name="v")
    given = slow(x, name="slow") if KIND == "kernel" else x
    if context.cluster.mode == "ps":
        loss = hf.reduce_sum(hf.square(v.value() - given))
        step = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
    else:
        step = v.assign_add(replica_sum(given))
    taken = None
    if KIND == "queue":
        with hf.device("/job:ps/task:0"):
            taken = hf.FIFOQueue(1, hf.float32, shapes=[(3,)], name="elements").dequeue(
                name="taken"
            )
    folder = os.path.join(os.environ["HPCFLOW_RUN_DIR"], "saved") if KIND == "save" else None
    with hf.train.TrainingSession(checkpoints=folder, save_every=100_000) as session:
        pids = {r["rank"]: int(r["pid"]) for r in context.reports() or ()}
        for _ in range(STEPS):
            session.run(step, {x: BATCH})
        run(context, session, pids, step, {x: BATCH}, taken)


def run(context, session, pids, step, feeds, taken) -> None:
    """Stall."""
    if KIND == "server" and context.is_chief:
        os.kill(pids[2], signal.SIGSTOP)
    if KIND == "worker" and context.is_chief:
        stop(pids[BAD] if BAD else os.getpid())
    if KIND in PLACES and is_bad():
        PLACES[KIND]()
    if KIND == "save":
        session.save()
    if KIND == "queue" and is_bad():
        session.run(taken)
    if KIND == "lonely" and is_bad():
        session.run(step, feeds)
    while KIND not in ("queue", "lonely"):
        session.run(step, feeds)


if __name__ == "__main__":
    main()
