"""A script whose kernels take the time of the cost model; prints losses and modelled seconds.

slow_task_script.py STEPS: six equal towers, so that work can be moved between three ranks.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

import hpcflow as hf
from benchmarks import sleeping_kernels
from benchmarks.sleeping_kernels import sleep_in_kernels
from hpcflow.runtime.failure import fault_injection
from hpcflow.runtime.job.job_membership import current_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.train import task_speeds

STEPS, WIDTH, ROWS, TOWERS = int(sys.argv[1]), 256, 64, 6
SLOWDOWN = 12_000.0  # so much that no noise of the machine counts
task_speeds.WINDOW_S = 250.0
now, ahead = time.perf_counter, [0.0]


def sleep(seconds: float) -> None:
    """Takes no time: it puts the clock of this process forward."""
    ahead[0] += seconds


time.perf_counter = lambda: now() + ahead[0]
for module in (sleeping_kernels, fault_injection):
    module.time = SimpleNamespace(sleep=sleep, perf_counter=time.perf_counter)  # type: ignore
serve = RankContext.serve


def sleeping_serve(context: RankContext) -> None:
    """Serve with sleeping kernels."""
    observer = sleep_in_kernels(context, slowdown=SLOWDOWN)
    serve(context)
    print(f"MODELLED {context.rank} {observer.seconds:.4f}", flush=True)


RankContext.serve = sleeping_serve  # type: ignore[method-assign]
here = current_context()
mine = sleep_in_kernels(here, slowdown=SLOWDOWN)

hf.set_random_seed(3)
x = hf.placeholder(hf.float32, [None, WIDTH], name="x")
ends: list[Any] = []
for tower in range(TOWERS):
    h = x
    for k in range(2):
        w = hf.Variable(
            hf.random_normal([WIDTH, WIDTH], stddev=WIDTH**-0.5), name=f"tower_{tower}/dense_{k}/w"
        )
        with hf.name_scope(f"tower_{tower}/dense_{k}/"):
            h = hf.nn.relu(hf.matmul(h, w))
    ends.append(hf.reduce_sum(h, axis=1))
loss = hf.reduce_mean(hf.square(sum(ends) / TOWERS - 1))
train = hf.train.GradientDescentOptimizer(1e-6).minimize(loss)
losses = []
with hf.train.TrainingSession(checkpoints="saved", save_every=1000, resume=True) as session:
    for step in range(session.first_step, session.first_step + STEPS):
        rng = np.random.default_rng(step)
        batch = {x: rng.normal(size=(ROWS, WIDTH)).astype("float32")}
        losses.append(float(session.step([train, loss], batch)[1]))
    begun = session.first_step
    session.result()
print(f"MODELLED 0 {mine.seconds:.4f}", flush=True)
print("FOUND", json.dumps([begun, losses]), flush=True)
