"""Homes of variables on servers, and large ones cut by rows."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import PlacementError
from hpcflow.ops.variables.variable_ops import Variable, update
from hpcflow.plan.distribution.variable_placement import (
    VariablePlacement,
    VariableShard,
    place_variables,
)
from hpcflow.plan.ir.program import Cluster
from hpcflow.settings import Settings
from hpcflow.train import AdamOptimizer

from .interpret import run_plan, whole_state
from .model import REPLICAS, SINGLE, Net, by_name, graph, of_type, plan_of

WHOLE = Settings()
CUT = Settings(shard_bytes=64)


def servers_of(placements):
    return {name: [p.server for p in home.pieces] for name, home in placements.items()}


def test_variables_go_to_the_server_with_the_fewest_bytes():
    with graph() as g:
        for name, size in (("a", 100), ("b", 10), ("c", 10), ("d", 70), ("e", 1)):
            Variable(hf.zeros([size]), name=name)
    placements = place_variables(g, Cluster(1, 2), WHOLE)
    assert servers_of(placements) == {"a": [0], "b": [1], "c": [1], "d": [1], "e": [1]}


def test_without_servers_there_are_no_homes():
    with graph() as g:
        Variable(1.0)
    assert place_variables(g, SINGLE, WHOLE) == place_variables(g, REPLICAS, WHOLE) == {}


def test_later_variables_move_no_earlier_ones():
    net, cluster = Net(), Cluster(2, 3)
    before = place_variables(net.graph, cluster, CUT)
    with net.graph.as_default():
        Variable(hf.zeros([1000]), name="late")
        hf.train.AdamOptimizer().minimize(net.loss)
    after = place_variables(net.graph, cluster, CUT)
    assert {name: after[name] for name in before} == before


def test_slots_sit_with_their_variable():
    placements = place_variables(Net().graph, Cluster(2, 3), CUT)
    for name in ("w1", "b1", "w2"):
        assert placements[f"{name}/m"] == placements[name]


def test_wishes_are_kept():
    with graph() as g:
        with hf.device("/job:ps/task:1"):
            Variable(hf.zeros([64]), name="pinned")
        with hf.device("/job:ps"):
            Variable(hf.zeros([64]), name="any")
        with hf.device("/job:worker"):
            mine = Variable(hf.zeros([64]), name="mine")
        with hf.colocate_with(mine):
            Variable(hf.zeros([64]), name="beside")
    placements = place_variables(g, Cluster(1, 2), CUT)
    assert servers_of(placements)["pinned"] == [1]
    assert "mine" not in placements and "beside" not in placements
    assert servers_of(placements)["any"] == [0, 1]


def test_cuts_cover_the_rows_once():
    with graph() as g:
        Variable(hf.zeros([10, 8]), name="v")
        Variable(hf.zeros([2, 100]), name="few")
    placements = place_variables(g, Cluster(1, 3), CUT)
    assert placements["v"] == VariablePlacement(
        (VariableShard(0, 0, 4), VariableShard(1, 4, 7), VariableShard(2, 7, 10)), "v"
    )
    assert [(p.start, p.stop) for p in placements["few"].pieces] == [(0, 1), (1, 2)]


def test_only_what_is_too_large_is_cut_and_into_no_more_than_needed():
    with graph() as g:
        Variable(hf.zeros([16]), name="fits")
        Variable(hf.zeros([32]), name="twice")
    placements = place_variables(g, Cluster(1, 4), CUT)
    assert [len(h.pieces) for h in placements.values()] == [1, 2]


def test_parts_tell_their_rows_and_the_whole():
    plan = Net().step(Cluster(1, 3), settings=CUT)
    part = by_name(plan)["w1/part_1"]
    assert part.attrs["piece"] == (2, 4) and part.attrs["whole"] == (6, 8)
    assert part.attrs["shape"] == (2, 8) and part.attrs["trainable"]
    assert part.device == "/job:ps/task:1/cpu:0"


def test_a_read_becomes_reads_of_parts_and_a_concat_on_the_worker():
    plan = Net().step(Cluster(1, 3), settings=CUT)
    joined = by_name(plan)["w1/read"]
    assert joined.type == "Concat" and joined.device.startswith("/job:worker")
    assert sum(n.name.startswith("w1/read/part") for n in of_type(plan, "ReadVariable")) == 3


def adam(feeds=True):
    with graph() as g:
        x = hf.placeholder(hf.float32, [6], name="x")
        v = Variable(np.arange(60, dtype="f4").reshape(6, 10), name="v")
        loss = hf.reduce_sum(hf.square(v.value() * hf.expand_dims(x, 1)))
        train = AdamOptimizer(0.1).minimize(loss)
        init = hf.global_variables_initializer()
    return g, x, v, loss, train, init


def test_a_scalar_slot_is_copied_to_each_part():
    g, x, _, _, train, init = adam()
    cluster = Cluster(1, 3)
    plan = plan_of(g, [train], {x: (6,)}, cluster, CUT)
    steps = [n for n in of_type(plan, "Variable") if "copy" in n.attrs]
    assert [n.attrs["copy"] for n in steps] == [(0, 3), (1, 3), (2, 3)]
    assert all(n.attrs["shape"] == () for n in steps)
    assert len(of_type(plan, "ApplyAdam")) == 3
    start = plan_of(g, [init], {}, cluster, CUT)
    state: dict = {}
    run_plan(start, [], state)
    assert len(whole_state([start], state)) == 3 + len(steps)  # v, m, v's v; each copy of the count


def test_initial_values_are_cut_when_planned_not_sent():
    for fetches in (Net(), None):
        if fetches is None:
            g, _, _, _, _, init = adam()
            plan = plan_of(g, [init], {}, Cluster(1, 3), CUT)
        else:
            plan = fetches.start(Cluster(1, 3), settings=CUT)
        assert all(edge.token for edge in plan.edges)


def test_following_a_cut_update_follows_all_its_parts():
    with graph() as g:
        v = Variable(hf.zeros([40]), name="v")
        add = v.assign_add(hf.ones([40]), name="add")
        with hf.control_dependencies([add]):
            after = v.read_value("after")
    plan = plan_of(g, [after], {}, Cluster(1, 2), CUT)
    assert by_name(plan)["v/after/part_1"].control != ()
    state: dict = {}
    run_plan(plan_of(g, [v.initializer], {}, Cluster(1, 2), CUT), [], state)
    for seed in range(5):
        (found,) = run_plan(plan, [], state, np.random.default_rng(seed))
        np.testing.assert_array_equal(found, np.full(40, seed + 1, "f4"))


def test_following_a_cut_read_follows_the_parts_reads():
    with graph() as g:
        v = Variable(hf.zeros([40]), name="v")
        read, ones = v.read_value("before"), hf.ones([40])
        with hf.control_dependencies([read]):
            add = v.assign_add(ones, name="add")
    plan = plan_of(g, [add.op], {}, Cluster(1, 2), CUT)
    assert "v/before" not in by_name(plan)  # the value itself is of no use
    assert {n.type for n in plan.parts["/job:worker/task:0"].nodes.values()} == {"Recv"}


def test_an_op_that_cannot_be_cut_says_so():
    from hpcflow.graph.op_registry import OPS, NoGrad, op

    op("PeekForTest", infer=lambda i, a: [], grad=NoGrad("test"), reads=(0,), stateful=True)
    try:
        with graph() as g:
            v = Variable(hf.zeros([40]), name="v")
            peek = g.create_op("PeekForTest", [v.handle], {}, "peek")
        with pytest.raises(PlacementError, match="cannot use 'v', a variable sharded") as caught:
            plan_of(g, [peek], {}, Cluster(1, 2), CUT)
        assert caught.value.op == "peek" and "SHARD_BYTES" in caught.value.hint
    finally:
        del OPS["PeekForTest"]


def test_a_slot_made_before_its_variable_still_joins_it():
    with graph() as g:
        m, v = Variable(hf.zeros([40]), name="m"), Variable(hf.zeros([40]), name="v")
        rate = hf.constant(0.1)
        both = update("ApplyMomentum", [v, m], [rate, rate, hf.ones([40])], name="both")
    placements = place_variables(g, Cluster(1, 2), CUT)
    assert placements["m"] == placements["v"] and len(placements["m"].pieces) == 2
    plan_of(g, [both], {}, Cluster(1, 2), CUT)


def test_sums_of_gradients_of_a_cut_variable_are_made_by_the_worker():
    with graph() as g:
        x = hf.placeholder(hf.float32, [4], name="x")
        v = Variable(hf.ones([4, 10]), name="v")
        wide = v.value() * hf.expand_dims(x, 1)
        loss = hf.reduce_sum(hf.square(wide) + hf.tanh(v.read_value()))
        train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
    plan = plan_of(g, [train], {x: (4,)}, Cluster(1, 2), CUT)
    for task in ("/job:ps/task:0", "/job:ps/task:1"):
        arithmetic = {"AddN", "Add", "Mul", "StridedSlice"}
        assert not arithmetic & {n.type for n in plan.parts[task].nodes.values()}
