"""A job in which one rank waits for another one for long, again and again, and nothing is wrong.

    mpirun -n 3 python healthy.py STALL_S

with one server. The waits are longer than STALL_S together, and some of them alone.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import hpcflow as hf
from hpcflow.runtime.job.job_membership import current_context

STALL_S = float(sys.argv[1])
BATCH = np.ones(3, np.float32)


def main() -> None:
    context = current_context()
    x = hf.placeholder(hf.float32, [3], name="x")
    v = hf.Variable(np.zeros(3, np.float32), name="v")
    train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_sum(hf.square(v.value() - x)))
    own = hf.reduce_sum(x * 2)
    with hf.train.TrainingSession() as session:
        for _ in range(4):  # slow data: each batch comes before a wait for it would be a stall
            if not context.is_chief:
                time.sleep(STALL_S / 3)
            session.step(train, {x: BATCH})
            context.barrier()
        if context.is_chief:  # a long evaluation, on this rank alone
            until = time.monotonic() + 2.5 * STALL_S
            while time.monotonic() < until:
                session.run(own, {x: BATCH})
        context.barrier()
        until = time.monotonic() + 2.5 * STALL_S
        while not context.is_chief and time.monotonic() < until:  # the other one has no steps left
            session.step(train, {x: BATCH})
    print("ENDED", flush=True)


if __name__ == "__main__":
    main()
