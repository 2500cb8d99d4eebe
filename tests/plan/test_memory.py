"""The memory of a rank, known before it runs."""

from __future__ import annotations

import numpy as np

import hpcflow as hf
from hpcflow.kernels.kernel_registry import kernel_preferences
from hpcflow.lowering.arena_allocation import ALIGNED
from hpcflow.plan.cost.memory_estimate import predict_memory, with_plain_kernels
from hpcflow.plan.ir.program import Cluster
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.step.kernel_selection import memory_lowering

from .model import REPLICAS, SINGLE, Net, graph, plan_of

WORKER, PS0, PS1 = "/job:worker/task:0", "/job:ps/task:0", "/job:ps/task:1"
W1, B1, W2 = 6 * 8 * 4, 8 * 4, 8 * 4 * 4  # bytes of the variables of Net
CPU = Device()
CPU.preferences = kernel_preferences("plain")  # faster kernels have memory of their own
HERE = memory_lowering({"cpu:0": CPU})


def test_variables_and_their_slots():
    memory = predict_memory(Net().step(Cluster(2, 2)))
    assert memory[PS0].variables == 2 * W1 and memory[PS1].variables == 2 * (B1 + W2)
    assert memory[WORKER].variables == 0 and memory[PS0].constants == 8


def test_a_server_has_the_messages_of_every_worker():
    few, many = (predict_memory(Net().step(Cluster(n, 2)), HERE) for n in (2, 7))
    assert (few[PS0].steps, many[PS0].steps, many[WORKER].steps) == (2, 7, 1)
    each = W1 + W1  # a gradient comes; a read of so few bytes is copied before it goes
    assert few[PS0].messages == 2 * each and many[PS0].messages == 7 * each
    assert few[PS1].variables == many[PS1].variables
    assert few[WORKER].messages == W1 + B1 + W2  # all of them are pulled


def test_what_replicas_sum_lies_there_twice():
    memory = predict_memory(Net().step(REPLICAS))[WORKER]
    assert memory.sums == 2 * (W1 + B1 + W2)
    assert predict_memory(Net().step(SINGLE))[WORKER].sums == 0


def test_the_arena_of_a_chain():
    """Where each product is overwritten by its activation two matrices are alive at once."""
    with graph() as made:
        x = hf.placeholder(hf.float32, [64, 64])
        y = x
        for _ in range(9):
            y = hf.tanh(hf.matmul(y, x))
        y = hf.reduce_sum(y)
    plan = plan_of(made, [y], {x: (64, 64)})
    one, other = (
        predict_memory(plan, HERE)[WORKER],
        predict_memory(plan, with_plain_kernels)[WORKER],
    )
    assert one.buffers == 2 * 64 * 64 * 4 + ALIGNED == other.buffers
    assert one.results == 4 and one.unsized == 0
    assert one.total == one.buffers + one.constants


def test_views_and_values_in_place_need_no_memory():
    with graph() as made:
        x = hf.placeholder(hf.float32, [64, 64])
        y = hf.reduce_sum(hf.tanh(hf.reshape(hf.negative(x), [-1])))
    plan = plan_of(made, [y], {x: (64, 64)})
    assert predict_memory(plan, HERE)[WORKER].buffers == 64 * 64 * 4 + ALIGNED
    assert predict_memory(plan)[WORKER].buffers == 2 * 64 * 64 * 4 + ALIGNED


def test_loops_have_arenas_of_their_own():
    with graph() as made:
        x = hf.placeholder(hf.float32, [100, 100])
        body = [lambda i, v: (i + 1, hf.matmul(hf.matmul(v, x), x))]
        _, y = hf.while_loop(lambda i, v: i < 3, *body, [0, x])
    memory = predict_memory(plan_of(made, [y], {x: (100, 100)}), HERE)[WORKER]
    assert memory.buffers >= 100 * 100 * 4


def test_sizes_that_only_a_step_tells_are_counted():
    with graph() as made:
        x = hf.placeholder(hf.int32, [100])
        y, index = hf.unique(x)
        total = hf.reduce_sum(y * 2) + hf.reduce_sum(index)
    assert predict_memory(plan_of(made, [total], {x: (100,)}), HERE)[WORKER].unsized == 2


def test_versions_are_what_readers_may_hold():
    with graph() as made:
        v = hf.Variable(np.zeros(1000, "f4"), name="v")
        w = hf.Variable(np.zeros(500, "f4"), name="w")
        read = v.read_value()
        with hf.control_dependencies([read]):
            add = v.assign_add(np.ones(1000, "f4"))
        with hf.control_dependencies([add]):
            total = hf.reduce_sum(read) + hf.reduce_sum(w)
    assert predict_memory(plan_of(made, [total, add]), HERE)[WORKER].versions == 4000
