"""The cut: what crosses, how often, and what the driver waits for."""

from __future__ import annotations

import numpy as np

import hpcflow as hf
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.plan.ir.program import Cluster, Ref

from .interpret import run_plan
from .model import SINGLE, THREE_TASKS, Net, by_name, graph, of_type, plan_of, types

W0, W1, W2 = (f"/job:worker/task:{k}" for k in range(3))


def test_nothing_is_cut_on_one_task():
    plan = Net().step(SINGLE)
    assert list(plan.parts) == [W0] and plan.edges == ()


def test_a_value_crosses_each_border_once():
    with graph() as g:
        x = hf.placeholder(hf.float32, [3], name="x")
        y = hf.tanh(x, name="y")
        ends = []
        for k in (1, 1, 2):
            with hf.device(f"/job:worker/task:{k}"):
                ends.append(hf.negative(hf.square(y)))
                ends.append(hf.add(y, y))
    plan = plan_of(g, ends, {x: (3,)}, THREE_TASKS)
    out = [(str(e.ref), e.dest) for e in plan.edges if e.source == W0]
    assert out == [("y:0", W1), ("y:0", W2)]
    assert [e.channel for e in plan.edges] == list(range(len(plan.edges)))
    assert all(e.spec.shape == (3,) for e in plan.edges if e.source == W0)


def test_a_send_stands_right_behind_what_it_sends():
    with graph() as g:
        x = hf.placeholder(hf.float32, [3], name="x")
        y = hf.tanh(x, name="y")
        z = hf.negative(y, name="z")
        with hf.device("/job:worker/task:1"):
            far = hf.square(y, name="far")
        end = hf.add(z, far, name="end")
    plan = plan_of(g, [end], {x: (3,)}, THREE_TASKS)
    assert types(plan.parts[W0]) == ["Feed", "Tanh", "Send", "Neg", "Recv", "Add"]
    assert types(plan.parts[W1]) == ["Recv", "Square", "Send"]


def test_order_crosses_as_a_token():
    with graph() as g:
        with hf.device("/job:worker/task:1"):
            v = Variable(hf.zeros([2]), name="v")
            add = v.assign_add(hf.ones([2]), name="add")
        x = hf.placeholder(hf.float32, [], name="x")
        with hf.control_dependencies([add]):
            y = hf.negative(x, name="y")
    plan = plan_of(g, [y], {x: ()}, THREE_TASKS)
    (edge,) = plan.edges
    assert edge.token and edge.spec.nbytes == 0 and edge.ref == Ref("add")
    (recv,) = of_type(plan, "Recv")
    assert by_name(plan)["y"].control == (recv.name,)


def test_a_value_that_crosses_needs_no_token():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        with hf.device("/job:worker/task:1"):
            y = hf.tanh(x, name="y")
        z = hf.negative(y, name="z")
        with hf.control_dependencies([y]):
            w = hf.square(x, name="w")
    plan = plan_of(g, [z, w], {x: (2,)}, THREE_TASKS)
    assert [e.token for e in plan.edges] == [False, False]
    recv = next(n for n in of_type(plan, "Recv") if n.attrs["source"] == W1)
    assert by_name(plan)["w"].control == (recv.name,)


def test_ends_of_one_task_join_into_one_token():
    with graph() as g:
        with hf.device("/job:worker/task:1"):
            adds = [Variable(hf.zeros([2])).assign_add(hf.ones([2])) for _ in range(5)]
        train = hf.group(*adds, name="train")
        x = hf.placeholder(hf.float32, [], name="x")
        with hf.control_dependencies([train]):
            y = hf.negative(x, name="y")
    for fetches in ([train], [y], [train, y]):
        plan = plan_of(g, fetches, {x: ()}, THREE_TASKS)
        assert [e.token for e in plan.edges] == [True]


def test_a_target_elsewhere_ends_the_step():
    with graph() as g:
        with hf.device("/job:worker/task:2"):
            add = Variable(hf.zeros([2])).assign_add(hf.ones([2]))
    plan = plan_of(g, [add], {}, THREE_TASKS)
    assert types(plan.parts[W0]) == ["Recv"]
    assert list(plan.parts) == [W0, W2]


def test_fetches_come_to_the_driver():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        with hf.device("/job:worker/task:1"):
            y = hf.tanh(x, name="y")
    plan = plan_of(g, [y, x, y], {x: (2,)}, THREE_TASKS)
    refs = plan.parts[W0].fetches
    assert by_name(plan)[refs[0].node].type == "Recv" and refs[1] == Ref("x")
    assert refs[0] == refs[2] and plan.parts[W1].fetches == ()


def test_devices_of_a_task_copy_once():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        y, z = hf.tanh(x, name="y"), hf.square(x, name="z")
        with hf.device("cpu:0"):
            a, b = hf.negative(y, name="a"), hf.add(y, z, name="b")
    plan = plan_of(g, [a, b], {x: (2,)}, Cluster(devices=("gpu:0", "cpu:0")))
    copies = of_type(plan, "Copy")
    assert [str(n.inputs[0]) for n in copies] == ["x:0", "y:0", "z:0"]
    assert [n.attrs["source"] for n in copies] == [f"{W0}/cpu:0", f"{W0}/gpu:0", f"{W0}/gpu:0"]


def test_a_fetch_of_a_gpu_value_is_copied_to_the_host():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        y = hf.tanh(x, name="y")
    plan = plan_of(g, [y], {x: (2,)}, Cluster(devices=("gpu:0", "cpu:0")))
    assert by_name(plan)[plan.parts[W0].fetches[0].node].device == f"{W0}/cpu:0"


def test_values_of_one_op_cross_by_themselves():
    with graph() as g:
        x = hf.placeholder(hf.float32, [4], name="x")
        left, right = hf.split(x, 2)
        with hf.device("/job:worker/task:1"):
            y = hf.negative(right, name="y")
    plan = plan_of(g, [y, left], {x: (4,)}, THREE_TASKS)
    assert [str(e.ref) for e in plan.edges if e.source == W0] == [f"{left.op.name}:1"]


def test_names_of_the_users_are_not_taken():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        odd = hf.negative(x, name="x/send_0_to_worker_1")
        with hf.device("/job:worker/task:1"):
            y = hf.tanh(x, name="y")
    plan = plan_of(g, [y, odd], {x: (2,)}, THREE_TASKS)
    found = run_plan(plan, [np.ones(2, "f4")], {})
    np.testing.assert_allclose(found[1], [-1, -1])
