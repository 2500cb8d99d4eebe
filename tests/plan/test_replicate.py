"""Lowering: what the ops about replicas mean in each mode."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.distribution.replica_lowering import lower_replicas
from hpcflow.plan.distribution.variable_placement import place_variables
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.ir.program import Cluster, Ref
from hpcflow.settings import Settings

from .model import REPLICAS, SERVERS, SINGLE, Net, graph, spec


def lowered(g, fetches, cluster, replica=0, feeds=None):
    placements = place_variables(g, cluster, Settings())
    return lower_replicas(
        prune_to_fetches(g, fetches, feeds or {}), g, cluster, replica, placements
    )


def make():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        total = hf.replica_sum(hf.tanh(x, name="t"), name="total")
        share = hf.replica_share()
        y = hf.multiply(total, hf.cast(share, hf.float32, name="share32"), name="y")
    return g, x, y


@pytest.mark.parametrize("cluster", [SINGLE, SERVERS], ids=["single", "ps"])
def test_without_replicas_a_sum_is_its_input_and_the_share_one(cluster):
    g, x, y = make()
    program = lowered(g, [y], cluster, feeds={x: spec(2)})
    assert program.nodes["y"].inputs == (Ref("t"), Ref("share32"))
    share = program.nodes["replica_share"]
    assert share.type == "Const" and share.attrs["value"] == 1
    assert share.attrs["value"].dtype == np.float64


def test_replicas_sum_and_share_equally():
    g, x, y = make()
    program = lowered(g, [y], REPLICAS, feeds={x: spec(2)})
    total = program.nodes["total"]
    assert total.type == "AllReduce" and total.inputs == (Ref("t"),)
    assert (total.attrs["depth"], total.attrs["static"]) == (0, 8)
    assert program.nodes["replica_share"].attrs["value"] == 0.25


def test_a_fed_share_stays_fed():
    g, x, y = make()
    share = g.get_tensor_by_name("replica_share:0")
    program = lowered(g, [y], REPLICAS, feeds={x: spec(2), share: spec(dtype="float64")})
    assert program.nodes["replica_share"].type == "Feed"


def test_order_through_a_dropped_sum_is_kept():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        add = v.assign_add(1.0, name="add")
        with hf.control_dependencies([add]):
            total = hf.replica_sum(hf.constant(2.0, name="two"), name="total")
        with hf.control_dependencies([total]):
            last = hf.negative(total, name="last")
    program = lowered(g, [last], SINGLE)
    assert program.nodes["last"].inputs == (Ref("two"),)
    assert "add/value" in program.nodes["last"].control
    fetched = lowered(g, [total], SINGLE)
    assert fetched.fetches == (Ref("two"),) and fetched.targets == ("add/value",)


def test_depth_counts_the_collectives_before():
    with graph() as g:
        one = hf.replica_sum(hf.ones([2]), name="one")
        two = hf.replica_sum(hf.tanh(one), name="two")
        with hf.control_dependencies([two]):
            three = hf.replica_sum(hf.ones([2]), name="three")
    program = lowered(g, [two, three], REPLICAS)
    assert [program.nodes[n].attrs["depth"] for n in ("one", "two", "three")] == [0, 1, 2]


def test_a_sum_sized_by_feeds_has_no_static_size():
    with graph() as g:
        x = hf.placeholder(hf.float32, [None], name="x")
        total = hf.replica_sum(x, name="total")
    program = lowered(g, [total], REPLICAS, feeds={x: spec(9)})
    assert program.nodes["total"].attrs["static"] == -1


def test_replicas_start_from_the_first_ones_values():
    net = Net()
    program = lowered(net.graph, [net.init], REPLICAS)
    assign = program.nodes[net.variables["w1"].initializer.name]
    sent = program.nodes[assign.inputs[1].node]
    assert sent.type == "Broadcast" and sent.attrs["root"] == 0
    assert sum(n.type == "Broadcast" for n in program.nodes.values()) == 6


def test_with_servers_only_the_first_replica_initializes():
    net = Net()
    chief, other = (lowered(net.graph, [net.init], SERVERS, replica=r) for r in (0, 1))
    assert sum(n.type == "Assign" for n in chief.nodes.values()) == 6
    assert {n.type for n in other.nodes.values()} == {"Variable", "WaitInitialized", "NoOp"}
    assert all(n.inputs for n in other.nodes.values() if n.type == "WaitInitialized")


def test_later_assignments_are_everyones():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        later = v.assign(3.0, name="later")
    assert lowered(g, [later], SERVERS, 1).nodes["later"].type == "Assign"
    assert lowered(g, [later], Cluster(4)).nodes["later"].inputs[1] == Ref("Const")


def test_what_a_worker_keeps_it_initializes_itself():
    with graph() as g:
        with hf.device("/job:worker"):
            mine = hf.Variable(1.0, name="mine")
        theirs = hf.Variable(2.0, name="theirs")
        init = hf.global_variables_initializer()
    program = lowered(g, [init], SERVERS, replica=1)
    assert program.nodes[mine.initializer.name].type == "Assign"
    assert program.nodes[theirs.initializer.name].type == "WaitInitialized"


def test_local_variables_are_each_replicas_own():
    with graph() as g:
        v = hf.Variable(1.0, trainable=False, collections=["local_variables"], name="v")
    assert "Broadcast" not in {
        n.type for n in lowered(g, [v.initializer], Cluster(4)).nodes.values()
    }
    for replica in (0, 1):
        assert lowered(g, [v.initializer], SERVERS, replica).nodes["v/Assign"].type == "Assign"
    assert place_variables(g, SERVERS, Settings()) == {}
