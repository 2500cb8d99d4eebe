"""The script of test_soak.py, run by every rank: trains with random delays, counts what is left.

mpirun -n 4 python soak.py STEPS
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time

import hpcflow as hf
from hpcflow.runtime.executor.executor import Executor
from hpcflow.runtime.job.job_membership import current_context
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.nets import data, net

WARM_UP = 300  # steps of all workers: plans are made, pools and caches fill
DELAYED, LONGEST_S = 0.02, 0.002  # this share of polls waits up to so long

poll, report = Executor.poll, RankContext.report
rng = random.Random()


def delayed_poll(executor):
    """Now and then a rank is slow."""
    if rng.random() < DELAYED:
        time.sleep(rng.random() * LONGEST_S)
    return poll(executor)


def counted_report(context):
    """The report of a rank, with all that it holds."""
    gc.collect()
    states = [state for store in context.stores for state in store.states.values()]
    served = context.control.served.values()
    instances = [i for one in served for i in one.instances.values()]
    held = {
        "waits": len(context.executor.waits),
        "ready": len(context.executor.ready),
        "live": len(context.world.live),
        "channels": len(context.world.channels),
        "instances": len(instances),
        "busy": sum(bool(i.unfinished) for i in instances),
        "pins": sum(state.pins for state in states),
        "old versions": sum(len(state.old) for state in states),
        "compiled": len(context.control.compiled),
        "inbox": len(context.executor.inbox),
    }
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {
        **report(context),
        "held": held,
        "blocks": sys.getallocatedblocks(),
        "resident": pages * 4096,
    }


def main(steps: int) -> None:
    """Train; the chief prints what all ranks held after the warm-up and at the end."""
    Executor.poll, RankContext.report = delayed_poll, counted_report
    context = current_context()
    rng.seed(context.rank)
    features, labels = data(96)
    x, y, loss, train, _ = net()
    dataset = hf.data.Dataset({x: features, y: labels}, batch=8, seed=1)
    told = []
    with hf.train.TrainingSession() as session:
        workers = context.roles.replicas
        for batch in dataset.epochs(10**9):
            if session.steps in (WARM_UP // workers, (WARM_UP + steps) // workers):
                session.wait()
                context.reports()  # the first one makes what the next one needs
                told.append(context.reports())
            if session.steps == (WARM_UP + steps) // workers:
                break
            session.step([train, loss], batch)
        session.wait()
        if session.is_chief:
            print("TOLD", json.dumps(told), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
