"""Placement: wishes, colocation, defaults, reasons, and errors that name the flag."""

from __future__ import annotations

import pytest

import hpcflow as hf
from hpcflow.errors import PlacementError
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.plan.ir.program import Cluster

from .model import SINGLE, THREE_TASKS, Net, by_name, graph, plan_of

PS = Cluster(2, 2)
GPUS = Cluster(devices=("gpu:0", "cpu:0"))
HERE = "/job:worker/task:0/cpu:0"


def where(made, fetches, feeds=None, cluster=SINGLE):
    plan = plan_of(made, fetches, feeds, cluster)
    return {name: node.device for name, node in by_name(plan).items()}


def test_default_is_the_driver():
    with graph() as g:
        x = hf.placeholder(hf.float32, [], name="x")
        y = hf.tanh(x, name="y")
    plan = plan_of(g, [y], {x: ()}, THREE_TASKS)
    assert by_name(plan)["y"].device == HERE
    assert plan.reasons["y"] == "default: the driver" and plan.reasons["x"] == "fed by the driver"


@pytest.mark.parametrize("wish, device", [
    ("/job:worker/task:1", "/job:worker/task:1/cpu:0"),
    ("/job:worker", HERE),
    ("task:2", "/job:worker/task:2/cpu:0"),
    ("cpu:0", HERE),
    ("/job:worker/replica:0/task:1/device:CPU:0", "/job:worker/task:1/cpu:0"),
    ("cpu:*", HERE),
])  # fmt: skip
def test_partial_wishes(wish, device):
    with graph() as g:
        x = hf.placeholder(hf.float32, [], name="x")
        with hf.device(wish):
            y = hf.tanh(x, name="y")
    plan = plan_of(g, [y], {x: ()}, THREE_TASKS)
    assert by_name(plan)["y"].device == device
    assert plan.reasons["y"].startswith("asked for: ")


def test_the_first_device_of_a_rank_is_its_default_and_kinds_choose():
    with graph() as g:
        x = hf.placeholder(hf.float32, [], name="x")
        y = hf.tanh(x, name="y")
        with hf.device("cpu"):
            z = hf.negative(y, name="z")
    found = where(g, [z], {x: ()}, GPUS)
    assert found["y"] == "/job:worker/task:0/gpu:0" and found["z"] == HERE and found["x"] == HERE


def test_variables_and_what_uses_their_state_are_on_servers():
    net = Net()
    plan = net.step(PS)
    for name, node in by_name(plan).items():
        if node.type in ("Variable", "ReadVariable", "ApplyMomentum"):
            assert node.device.startswith("/job:ps"), name
        if node.type in ("MatMul", "Mul", "Tanh", "SumToShape"):
            assert node.device == HERE, name
    assert plan.reasons["w1"] == "variable: server with the least to do"
    assert plan.reasons["w1/m"] == "slot of w1"
    assert plan.reasons["w1/ApplyMomentum"] == "with w1"


def test_constants_are_copied_not_sent():
    plan = Net().step(Cluster(1, 3))
    users = {t for t, p in plan.parts.items() for n in p.nodes.values() if n.type == "Const"}
    assert {"/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:2"} <= users
    assert not any("Const" in edge.ref.node for edge in plan.edges)
    assert "constant: with its users" in plan.reasons.values()


def test_a_constant_with_a_wish_stays():
    with graph() as g:
        with hf.device("/job:worker/task:1"):
            c = hf.constant(1.0, name="c")
        y = hf.negative(c, name="y")
    assert where(g, [y], cluster=THREE_TASKS)["c"].startswith("/job:worker/task:1")


def test_a_fetched_constant_is_on_the_driver():
    with graph() as g:
        v = Variable(hf.zeros([2]), name="v")
        c = hf.constant([1.0, 2.0], name="c")
        add = v.assign_add(c, name="add")
    plan = plan_of(g, [c, add.op], {}, Cluster(1, 1))
    assert not [edge for edge in plan.edges if not edge.token]


def test_colocation_also_with_what_does_not_run():
    with graph() as g:
        x = hf.placeholder(hf.float32, [], name="x")
        with hf.device("/job:worker/task:2"):
            anchor = hf.tanh(x, name="anchor")
        with hf.colocate_with(anchor):
            y = hf.negative(x, name="y")
        with hf.colocate_with(y):
            z = hf.negative(x, name="z")
    found = where(g, [z], {x: ()}, THREE_TASKS)
    assert "anchor" not in found and found["z"].startswith("/job:worker/task:2")


def test_colocation_with_a_variable_goes_to_its_server():
    with graph() as g:
        v = Variable(hf.zeros([2]), name="v")
        with hf.colocate_with(v):
            y = hf.negative(hf.tanh(hf.random_uniform([2])), name="y")
    assert where(g, [y], {}, Cluster(1, 1))["y"] == "/job:ps/task:0/cpu:0"


def test_the_first_use_of_a_variable_beside_another_does_not_join_their_places():
    with graph() as g:
        a = Variable(hf.zeros([2]), name="a")
        b = Variable(hf.zeros([2]), name="b")
        with hf.colocate_with(a.op):
            moved = a.assign_add(b, name="moved")  # makes the read of b
            near = hf.tanh(b.value(), name="near")
            with hf.colocate_with(b.op, ignore_existing=True):
                there = hf.tanh(b.value(), name="there")
    found = where(g, [near, there, moved], cluster=PS)
    assert found["moved"] == found["near"] == found["a"] == "/job:ps/task:0/cpu:0"
    assert found["there"] == found["b/read"] == found["b"] == "/job:ps/task:1/cpu:0"


def test_sums_over_replicas_are_made_where_their_input_is():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        with hf.device("/job:worker/task:1"):
            y = hf.tanh(x, name="y")
        total = hf.replica_sum(y, name="total")
    plan = plan_of(g, [total], {x: (2,)}, Cluster(4, tasks_per_replica=2))
    (bucket,) = plan.collectives
    assert by_name(plan)[bucket].device.startswith("/job:worker/task:1")


# -- errors


def refused(wish, cluster):
    with graph() as g:
        x = hf.placeholder(hf.float32, [], name="x")
        with hf.device(wish):
            y = hf.tanh(x, name="y")
    with pytest.raises(PlacementError) as caught:
        plan_of(g, [y], {x: ()}, cluster)
    assert caught.value.op == "y" and "test_place.py" in caught.value.line
    return str(caught.value)


def test_another_workers_task_shows_the_flag():
    text = refused("/job:worker/task:2", Cluster(4))
    assert "--tasks-per-replica 3" in text and "a replica has 1 task(s)" in text
    assert "--tasks-per-replica 4" in refused("/job:worker/task:3", THREE_TASKS)


def test_servers_that_are_not_there_show_the_flag():
    assert "--ps 1" in refused("/job:ps", SINGLE)
    assert "--ps 6" in refused("/job:ps/task:5", PS)


def test_unknown_jobs_and_devices_are_named():
    assert "there is no job 'chief'" in refused("/job:chief", SINGLE)
    assert "has no device /gpu:0" in refused("gpu:0", SINGLE)
    assert "it has cpu:0" in refused("tpu:1", SINGLE)
    assert "has no device /gpu:1" in refused("gpu:1", GPUS)


def test_a_pinned_variable_on_a_server_that_is_not_there():
    with graph() as g:
        with hf.device("/job:ps/task:7"):
            v = Variable(hf.zeros([2]), name="v")
    with pytest.raises(PlacementError, match="--ps 8"):
        plan_of(g, [v.initializer], {}, PS)


def test_a_device_that_servers_lack_names_who_asked():
    with graph() as g:
        with hf.device("gpu:0"):
            v = Variable(hf.zeros([2]), name="v")
    with pytest.raises(PlacementError, match=r"/job:ps/task:0 has no device /gpu:0, which 'v'"):
        plan_of(g, [v.initializer], {}, Cluster(1, 1, devices=("gpu:0", "cpu:0")))


def test_contradicting_wishes_name_both():
    with graph() as g:
        with hf.device("/job:worker/task:1"):
            v = Variable(hf.zeros([2]), name="v")
        with hf.colocate_with(v):
            with hf.device("/job:worker/task:2"):
                y = hf.negative(hf.zeros([2]), name="y")
    with pytest.raises(PlacementError) as caught:
        plan_of(g, [y], {}, THREE_TASKS)
    text = str(caught.value)
    assert "'y' must be on" in text or "'v' must be on" in text
    assert "'v'" in text and "'y'" in text and text.count("test_place.py") == 2


def test_an_update_cannot_join_state_of_two_servers():
    from hpcflow.ops.variables.variable_ops import update

    with graph() as g:
        with hf.device("/job:ps/task:0"):
            v = Variable(hf.zeros([2]), name="v")
        with hf.device("/job:ps/task:1"):
            m = Variable(hf.zeros([2]), name="m")
        rate = hf.constant(0.1)
        both = update("ApplyMomentum", [v, m], [rate, rate, hf.zeros([2])], name="both")
    with pytest.raises(PlacementError) as caught:
        plan_of(g, [both], {}, PS)
    assert "'v'" in str(caught.value) and "'m'" in str(caught.value)
