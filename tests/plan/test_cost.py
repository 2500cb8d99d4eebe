"""Predicted costs: exact bytes and messages; rough seconds."""

from __future__ import annotations

import numpy as np

from hpcflow.graph.static_shape import Spec
from hpcflow.plan.cost import cost_model
from hpcflow.plan.cost.cost_model import HEADER_BYTES
from hpcflow.plan.ir.program import Cluster, Node, Ref

from .model import REPLICAS, SINGLE, Net

WORKER, PS0, PS1 = "/job:worker/task:0", "/job:ps/task:0", "/job:ps/task:1"
W1, B1, W2 = 6 * 8 * 4, 8 * 4, 8 * 4 * 4  # bytes of the variables of Net


def test_a_step_with_servers_moves_each_variable_once_each_way():
    rows = {(r.source, r.dest): r for r in cost_model.message_traffic(Net().step(Cluster(2, 2)))}
    # w1 (192 bytes) on server 0; b1 and w2 (32 + 128) on server 1, in one message
    assert (rows[PS0, WORKER].nbytes, rows[PS0, WORKER].messages) == (W1, 2)  # and a token
    assert (rows[PS1, WORKER].nbytes, rows[PS1, WORKER].messages) == (B1 + W2, 2)
    assert rows[WORKER, PS0].nbytes == HEADER_BYTES + W1 and rows[WORKER, PS0].headers == 1
    assert rows[WORKER, PS1].nbytes == HEADER_BYTES + B1 + W2
    assert rows[WORKER, PS1].messages == 2 and len(rows) == 4


def test_bytes_are_those_of_the_edges_and_headers():
    plan = Net().step(Cluster(1, 3))
    total = sum(edge.spec.nbytes for edge in plan.edges) + HEADER_BYTES * (len(plan.parts) - 1)
    assert sum(row.nbytes for row in cost_model.message_traffic(plan)) == total
    messages = len(plan.edges) + len(plan.parts) - 1
    assert sum(row.messages for row in cost_model.message_traffic(plan)) == messages


def test_one_task_sends_nothing():
    assert cost_model.message_traffic(Net().step(SINGLE)) == []


def test_collectives_count_their_input():
    plan = Net().step(REPLICAS)
    assert cost_model.collective_bytes(plan.parts[WORKER]) == {"replicas/bucket_0": W1 + B1 + W2}


def test_flops_of_a_product():
    a, b = Spec(np.dtype("f4"), (5, 7)), Spec(np.dtype("f4"), (7, 3))
    out = (Spec(np.dtype("f4"), (5, 3)),)
    node = Node("m", "MatMul", attrs={"transpose_a": False}, specs=out)
    assert cost_model.flops(node, [a, b]) == 2 * 5 * 7 * 3
    turned = node.but(attrs={"transpose_a": True})
    assert cost_model.flops(turned, [Spec(a.dtype, (7, 5)), b]) == 2 * 5 * 7 * 3


def test_flops_of_a_convolution():
    x, w, y = (Spec(np.dtype("f4"), s) for s in [(2, 9, 9, 3), (3, 3, 3, 8), (2, 9, 9, 8)])
    for type, inputs, out in [
        ("Conv", [x, w], y),
        ("ConvInputGrad", [y, w], x),
        ("ConvFilterGrad", [x, y], w),
    ]:
        attrs = {"strides": (1, 1), "dilations": (1, 1), "padding": "SAME", "first": False}
        made = Node("c", type, attrs=attrs, specs=(out,))
        assert cost_model.flops(made, inputs) == 2 * (2 * 3 * 8) * (3 * 9 - 2) ** 2


def test_seconds_grow_with_the_work_and_unknown_sizes_cost_a_start():
    def negative(*shape):
        spec = Spec(np.dtype("f4"), shape)
        return cost_model.predicted_seconds(Node("n", "Neg", (Ref("x"),), specs=(spec,)), [spec])

    assert negative(10**7) > 100 * negative(10) > 0
    assert negative(None) == cost_model.KERNEL_START_S


def test_what_only_waits_or_stands_takes_no_time():
    part = Net().step(Cluster(1, 1)).parts[WORKER]
    seconds = cost_model.predicted_seconds_in(part)
    assert all(seconds(n) == 0 for n in part.nodes.values() if n.type in ("Recv", "Feed", "Const"))
    assert seconds(part.nodes["MatMul"]) > 0
