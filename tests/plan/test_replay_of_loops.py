"""Loops over several tasks in step templates: each iteration sends its messages."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcflow as hf
from hpcflow.cli.plan import plans_of
from hpcflow.placement.durations import NOTHING, Seconds
from hpcflow.placement.job_replay import JobSettings, ReplicaClass, replay_job
from hpcflow.placement.network import Network
from hpcflow.plan.cost.replay_of_plan import MOST_PASSES, own_seconds, template_of
from hpcflow.plan.ir.program import Plan
from hpcflow.settings import Settings

SCRIPT = """
import sys
import numpy as np
import hpcflow as hf

trips, shape = int(sys.argv[2]), (32, 64)

def first():
    return hf.device("/job:worker/task:0")

def second():
    return hf.device("/job:worker/task:1")

x = hf.placeholder(hf.float32, shape, name="x")
with first():
    a = hf.constant(np.ones((64, 64), "f4"), name="a")
with second():
    b = hf.constant(np.ones((64, 64), "f4"), name="b")

def in_turns(i, y):
    with first():
        y = hf.matmul(y, a)
    with second():
        y = hf.matmul(y, b)
    return i + 1, y

def in_line(i, y, z):
    with first():
        y = hf.matmul(y, a)
    with second():
        z = hf.matmul(z, b) + y
    return i + 1, y, z

def both(y):
    with first():
        y = hf.matmul(y, a)
    with second():
        return hf.matmul(y, b)

def branches(i, y):
    return i + 1, hf.cond(hf.less(i, 1000), lambda: both(y), lambda: y + 1)

if sys.argv[1] == "in_line":
    y = hf.while_loop(lambda i, y, z: i < trips, in_line, [hf.constant(0), x, x])[2]
else:
    body = in_turns if sys.argv[1] == "in_turns" else branches
    y = hf.while_loop(lambda i, y: i < trips, body, [hf.constant(0), x])[1]
with hf.Session() as session:
    session.run(y, {x: np.zeros(shape, "f4")})
"""
NBYTES = 32 * 64 * 4
LATENCY, PRODUCT = 1e-3, 10e-3
MESSAGE = LATENCY + 1e-3  # NBYTES take a millisecond
NETWORK = Network(bandwidth=NBYTES / 1e-3, latency=LATENCY)


def planned(tmp_path: Path, kind: str, trips: int) -> Plan:
    path = tmp_path / "loop.py"
    path.write_text(SCRIPT)
    settings = Settings(tasks_per_replica=2)
    with hf.Graph().as_default():
        plans, _, code = plans_of(str(path), [kind, str(trips)], 2, settings)
    assert code == 0
    return plans[-1][0]


def seconds(node, inputs) -> Seconds:
    """Products take 10 ms, everything else nothing."""
    return Seconds(PRODUCT, PRODUCT, PRODUCT) if node.type == "MatMul" else NOTHING


def step_of(plan: Plan) -> float:
    template = template_of(plan, NETWORK, seconds)
    quiet = JobSettings(sigma=0.0, steps=5)
    return replay_job(template, NETWORK, [ReplicaClass(1)], quiet).quantile(0.5)


@pytest.mark.parametrize("trips", [1, 3, MOST_PASSES, 5 * MOST_PASSES])
def test_tasks_that_take_turns_wait_for_both_messages_of_an_iteration(tmp_path, trips) -> None:
    """The second task has the variable: it sends it, the first multiplies and sends it back."""
    plan = planned(tmp_path, "in_turns", trips)
    expected = 2 * MESSAGE + trips * 2 * (MESSAGE + PRODUCT)  # x there, and the result back
    assert step_of(plan) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("trips", [2, 7, MOST_PASSES])
def test_tasks_that_hand_on_work_in_a_loop_overlap(tmp_path, trips) -> None:
    """The second task adds what the first sent: it is a message and a sum behind it."""
    plan = planned(tmp_path, "in_line", trips)
    step = step_of(plan)
    alone = trips * PRODUCT  # of each task
    assert alone + 2 * MESSAGE <= step * 1.001
    assert step <= alone + PRODUCT + 4 * MESSAGE


@pytest.mark.parametrize("trips", [3, 7 * MOST_PASSES + 5])
def test_all_messages_of_all_iterations_have_their_bytes_and_latencies(tmp_path, trips) -> None:
    plan = planned(tmp_path, "in_turns", trips)
    template = template_of(plan, NETWORK, seconds)
    inside = [edge for edge in plan.edges if edge.frame]
    times = {edge.channel: trips + (edge.spec.nbytes == 1) for edge in inside}  # the predicate
    outside = [edge for edge in plan.edges if not edge.frame]
    headers = len(plan.parts) - 1
    count = sum(times.values()) + len(outside) + headers
    moved = sum(times[edge.channel] * edge.spec.nbytes for edge in inside)
    moved += sum(edge.spec.nbytes for edge in outside) + 64 * headers
    assert sum(task.messages for task in template.tasks if task.to) == pytest.approx(count)
    assert sum(task.nbytes for task in template.tasks) == pytest.approx(moved)
    assert len(template.tasks) < 20 * MOST_PASSES
    own = sum(task.seconds.median for task in template.tasks if task.rank == plan.driver)
    assert own == pytest.approx(own_seconds(plan, seconds).median) == pytest.approx(trips * PRODUCT)


def test_a_branch_in_a_loop_runs_the_program_that_takes_longer_on_all_tasks(tmp_path) -> None:
    plan = planned(tmp_path, "branches", 4)
    template = template_of(plan, NETWORK, seconds)
    both = [sum(t.seconds.median for t in template.tasks if t.rank == rank) for rank in plan.parts]
    assert both == pytest.approx([4 * PRODUCT, 4 * PRODUCT])
    assert step_of(plan) > 4 * 2 * (PRODUCT + LATENCY)
