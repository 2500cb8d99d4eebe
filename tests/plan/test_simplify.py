"""Simplification: fewer nodes, the same values and effects."""

from __future__ import annotations

import numpy as np

import hpcflow as hf
from hpcflow.plan.distribution.replica_lowering import lower_replicas
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.frontend.identity_elimination import NOOP_EDGES, eliminate_noops
from hpcflow.plan.ir.program import Ref

from .interpret import pure
from .model import SINGLE, graph, simplify, spec


def evaluate(node, arrays):
    return pure(node.type, node.attrs, arrays, node.specs)


def simple(g, fetches, feeds=None, folding=True, **more):
    program = lower_replicas(prune_to_fetches(g, fetches, feeds or {}), g, SINGLE)
    return simplify(program, evaluate if folding else None, **more)


def test_constants_fold():
    with graph() as g:
        a = hf.add(hf.constant(1.0), hf.constant(2.0), name="a")
        x = hf.placeholder(hf.float32, [], name="x")
        y = hf.multiply(x, hf.negative(a, name="minus"), name="y")
    program = simple(g, [y], {x: spec()})
    assert list(program.nodes) == ["x", "minus", "y"]
    assert program.nodes["minus"].attrs["value"] == -3
    assert [n.type for n in simple(g, [y], {x: spec()}, folding=False).nodes.values()].count(
        "Const"
    ) == 2


def test_floats_can_be_left_to_the_device():
    with graph() as g:
        f = hf.add(hf.constant(1.0), hf.constant(2.0), name="f")
        i = hf.add(hf.constant(1), hf.constant(2), name="i")
    program = simple(g, [f, i], fold_floats=False)
    assert program.nodes["f"].type == "Add" and program.nodes["i"].type == "Const"


def test_large_results_and_impure_ops_do_not_fold():
    with graph() as g:
        big = hf.negative(hf.zeros([1000, 1000]), name="big")
        drawn = hf.random_uniform([2], name="drawn")
    program = simple(g, [big, drawn])
    assert program.nodes["big"].type == "Neg" and program.nodes["drawn"].type != "Const"


def test_what_shapes_tell_becomes_a_constant():
    with graph() as g:
        x = hf.placeholder(hf.float32, [None, 3], name="x")
        rows = hf.shape(x, name="shape")
        y = hf.reshape(x, [-1], name="y")
    program = simple(g, [rows, y], {x: spec(5, 3)}, folding=False)
    np.testing.assert_array_equal(program.nodes["shape"].attrs["value"], [5, 3])


def test_an_op_that_others_follow_is_not_folded_away():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        drawn = hf.random_uniform([2], name="drawn")
        anchor = hf.shape(hf.negative(drawn), name="anchor")
        with hf.control_dependencies([anchor]):
            add = v.assign_add(1.0, name="add")
    assert "anchor" in prune_to_fetches(g, [add], {}).nodes
    program = simple(g, [add])
    assert set(program.nodes["add"].control) <= set(program.nodes)


def test_equal_nodes_merge():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        one, two = hf.tanh(x, name="one"), hf.tanh(x, name="two")
        ends = [hf.add(one, two, name="a"), hf.add(two, one, name="b")]
        with hf.device("/job:worker/task:0"):
            elsewhere = hf.tanh(x, name="elsewhere")
    program = simple(g, [*ends, elsewhere], {x: spec(2)})
    assert program.fetches == (Ref("a"), Ref("a"), Ref("elsewhere"))
    assert list(program.nodes) == ["x", "one", "a", "elsewhere"]


def test_attributes_and_constants_tell_nodes_apart():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2, 2], name="x")
        sums = [hf.reduce_sum(x, axis=a) for a in (0, 1)]
        consts = [hf.constant(v) for v in (0.0, -0.0, 0, True)]
        draws = [hf.random_uniform([2]) for _ in range(2)]
    program = simple(g, [*sums, *consts, *draws], {x: spec(2, 2)})
    assert len(set(program.fetches)) == 8


def test_reads_merge_unless_an_order_separates_them():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        before, also = v.read_value(), v.read_value()
        add = v.assign_add(1.0, name="add")
        with hf.control_dependencies([add]):
            after, later = v.read_value(), v.read_value()
    program = simple(g, [before, also, after, later])
    assert program.fetches[0] == program.fetches[1] != program.fetches[2] == program.fetches[3]


def test_identities_go_unless_they_mean_something():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        x = hf.placeholder(hf.float32, [2], name="x")
        a = hf.negative(hf.identity(hf.stop_gradient(x)), name="a")
        same = hf.negative(hf.reshape(x, [2]), name="same")
        with hf.control_dependencies([v.assign_add(1.0, name="add")]):
            ordered = hf.identity(x, name="ordered")
        with hf.device("/job:worker/task:0"):
            placed = hf.identity(x, name="placed")
    program = simple(g, [a, same, ordered, placed], {x: spec(2)})
    assert program.nodes["a"].inputs == (Ref("x"),)
    assert program.fetches == (Ref("a"), Ref("a"), Ref("ordered"), Ref("placed"))
    assert program.nodes["ordered"].control == ("add/value",)


def test_groups_dissolve():
    with graph() as g:
        v, w = hf.Variable(1.0, name="v"), hf.Variable(1.0, name="w")
        both = hf.group(v.assign_add(1.0, name="a"), w.assign_add(1.0, name="b"), name="both")
        outer = hf.group(both, name="outer")
        with hf.control_dependencies([outer]):
            read = v.read_value("after")
    program = simple(g, [outer, read])
    assert program.targets == ("a/value", "b/value")
    assert program.nodes["v/after"].control == ("a/value", "b/value")


def test_a_group_that_saves_edges_stays():
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        many = [v.assign_add(1.0) for _ in range(20)]
        gate = hf.group(*many, name="gate")
        with hf.control_dependencies([gate]):
            after = [v.assign_sub(1.0) for _ in range(20)]
    assert 20 * 20 > NOOP_EDGES
    assert "gate" in eliminate_noops(prune_to_fetches(g, after, {})).nodes


def test_feeds_survive_everything():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2], name="x")
        c = hf.constant(1.0, name="c")
    assert simple(g, [c], {x: spec(2)}).feeds == ("x",)
    assert "x" in simple(g, [c], {x: spec(2)}).nodes


def test_what_shapes_tell_behind_an_update_still_runs_the_update():
    """Else whether it happens would depend on which shapes are known."""
    with graph() as g:
        v = hf.Variable(np.zeros((2, 2), np.float32), name="v")
        x = hf.placeholder(hf.float32, [None, 2], name="x")
        with hf.control_dependencies([v.assign_add(np.ones((2, 2), np.float32), name="up")]):
            y = hf.matmul(x, v.read_value())
        rows = hf.shape(y, name="rows")
        before = hf.shape(hf.matmul(x, v), name="before")
    program = simple(g, [rows, before], {x: spec(3, 2)})
    assert "up" in program.nodes
    assert program.nodes["before"].type == "Const"


def test_a_read_of_which_only_the_size_was_used_is_dropped():
    """An update follows it to leave it the value before: no reason to keep it."""
    with graph() as g:
        v = hf.Variable(np.zeros((8, 3)), name="v")
        ids = hf.placeholder(hf.int64, [None], name="ids")
        rows = v.sparse_read(ids, name="rows")
        up = hf.assign_add(v, hf.zeros([8, 3], hf.float64) + hf.cast(hf.size(rows), hf.float64))
    fed = {ids: spec(4, dtype="int64")}
    alone = simple(g, [up.op], fed)
    assert "rows" not in alone.nodes and "AssignAdd" in types(alone)
    assert {"rows", "AssignAdd"} <= {*simple(g, [up.op, rows], fed).nodes, *types(alone)}


def test_what_follows_a_dropped_read_follows_what_the_read_followed():
    with graph() as g:
        v = hf.Variable(np.zeros((8, 3)), name="v")
        ids = hf.placeholder(hf.int64, [None], name="ids")
        queue = hf.FIFOQueue(1, [hf.int64], shapes=[[]])
        rows = v.sparse_read(ids + queue.dequeue(name="first"), name="rows")
        with hf.control_dependencies([rows]):
            up = hf.assign_add(v, hf.zeros([8, 3], hf.float64) + hf.cast(hf.size(rows), v.dtype))
    program = simple(g, [up.op], {ids: spec(4, dtype="int64")})
    assert "rows" not in program.nodes
    (update,) = (n.name for n in program.nodes.values() if n.type == "AssignAdd")
    assert "first" in followed(program, update)


def followed(program, name):
    """All nodes that a node follows."""
    found, stack = set(), [name]
    while stack:
        new = set(program.nodes[stack.pop()].before()) - found
        found |= new
        stack += new
    return found


def types(program):
    return [node.type for node in program.nodes.values()]


def test_a_read_that_the_user_orders_but_never_uses_stays():
    """Without a value it is an error, as in TensorFlow."""
    with graph() as g:
        v = hf.Variable(1.0, name="v")
        with hf.control_dependencies([v.read_value()]):
            done = hf.no_op(name="done")
    assert "ReadVariable" in types(simple(g, [done]))
