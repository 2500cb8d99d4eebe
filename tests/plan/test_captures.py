"""Reads move out of bodies only where they see the same updates; constants move in."""

from __future__ import annotations

import tracemalloc

import numpy as np

import hpcflow as hf
from hpcflow.plan.frontend.capture_hoisting import hoist_variable_reads, sink_constants
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.ir.control_flow_nodes import nested_programs

from .model import graph, spec


def bodies(program):
    """The types of the nodes in each body of the loops and branches of a program."""
    return {
        key: [n.type for n in body.nodes.values()]
        for node in program.nodes.values()
        if node.row.control_flow
        for key, body in nested_programs(node)
    }


def reads_in(program):
    """How many reads are in the bodies of all loops and branches."""
    return sum(
        [n.type for n in body.nodes.values()].count("ReadVariable")
        for node in program.nodes.values()
        if node.row.control_flow
        for _, body in nested_programs(node)
    )


def test_a_read_in_a_loop_that_updates_nothing_is_made_once_in_front():
    with graph() as g:
        w, x = hf.Variable(np.ones((2, 2), "f4"), name="w"), hf.placeholder(hf.float32, [3, 2])
        y = hf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, hf.matmul(a, w)), [0, x])[1]
        slopes = hf.gradients(y, [w])
    program = prune_to_fetches(g, [y], {x: spec(3, 2)})
    assert reads_in(program) == 1
    moved = hoist_variable_reads(program)
    assert reads_in(moved) == 0
    assert [n.type for n in moved.nodes.values()].count("ReadVariable") == 1
    nested = hoist_variable_reads(prune_to_fetches(g, slopes, {x: spec(3, 2)}))
    assert reads_in(nested) == 0  # neither forward nor backward


def test_a_read_in_both_branches_is_made_in_front():
    with graph() as g:
        w, p = hf.Variable(1.0, name="w"), hf.placeholder(hf.bool, [])
        y = hf.cond(p, lambda: hf.sin(w), lambda: hf.tanh(w) * 2.0)
    assert reads_in(hoist_variable_reads(prune_to_fetches(g, [y], {p: spec(dtype="?")}))) == 0


def test_a_read_stays_in_a_body_that_updates_its_variable():
    with graph() as g:
        w = hf.Variable(1.0, name="w")

        def body(i, a):
            with hf.control_dependencies([w.assign_add(1.0)]):
                return i + 1, a * 1.0

        _, y = hf.while_loop(lambda i, _: i < 3, lambda i, a: body(i, a + w), [0, 0.0])
    assert reads_in(hoist_variable_reads(prune_to_fetches(g, [y], {}))) == 1


def test_a_read_stays_behind_an_update_in_front_of_the_loop():
    with graph() as g:
        w = hf.Variable(1.0, name="w")
        begin = w.assign_add(1.0)
        _, y = hf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a + w), [0, begin])
    assert reads_in(hoist_variable_reads(prune_to_fetches(g, [y], {}))) == 1


def test_a_read_stays_behind_control_inputs_in_a_body():
    with graph() as g:
        w, p = hf.Variable(1.0, name="w"), hf.placeholder(hf.bool, [])

        def branch():
            with hf.control_dependencies([hf.no_op()]):
                return w * 2.0

        y = hf.cond(p, branch, lambda: w * 3.0)
    assert reads_in(hoist_variable_reads(prune_to_fetches(g, [y], {p: spec(dtype="bool")}))) == 1


def test_a_read_stays_behind_the_test_whether_there_is_a_value():
    with graph() as g:
        w = hf.Variable(1.0, name="w")
        y = w.initialized_value()
    assert reads_in(hoist_variable_reads(prune_to_fetches(g, [y], {}))) == 1


def test_a_read_stays_behind_a_test_in_a_branch_and_in_a_body_that_tests():
    with graph() as g:
        v, p = hf.Variable(1.0, name="v"), hf.placeholder(hf.bool, [], name="p")
        there = hf.cond(p, lambda: hf.is_variable_initialized(v), lambda: hf.constant(False))
        branch = hf.cond(there, lambda: v * 2.0, lambda: hf.constant(-1.0))
        loop = hf.while_loop(lambda a: hf.logical_and(there, a < 3.0), lambda a: a + v, [0.0])

        def more(a):
            return hf.logical_and(hf.is_variable_initialized(v), a < 3.0)

        alone = hf.while_loop(more, lambda a: a + v, [0.0])
    for fetch in (branch, loop, alone):
        assert (
            reads_in(hoist_variable_reads(prune_to_fetches(g, [fetch], {p: spec(dtype="?")}))) == 1
        )
    with hf.Session(graph=g) as session:  # as TensorFlow 1
        assert session.run([branch, loop, alone], {p: True}) == [-1.0, 0.0, 0.0]
        session.run(v.initializer)
        assert session.run([branch, loop, alone], {p: True}) == [2.0, 3.0, 3.0]


def test_a_gradient_reads_no_variable_that_its_loop_or_branch_tests():
    """Without a value nothing runs that uses it; with 2 the derivative of 2^n is n 2^(n-1)."""
    with graph() as g:
        v = hf.Variable(2.0, name="v")

        def more(a):
            return hf.logical_and(hf.is_variable_initialized(v), a < 20.0)

        def maybe(a):
            return hf.cond(hf.is_variable_initialized(v), lambda: a * v * v, lambda: a)

        fours = hf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, maybe(a)), [0, 1.0])[1]
        twos = hf.while_loop(more, lambda a: a * v, [1.0])
        square = hf.cond(hf.is_variable_initialized(v), lambda: v * v, lambda: 1.0)
        slopes = [hf.gradients(y, [v])[0] for y in (twos, fours, square)]
    with hf.Session(graph=g) as session:
        assert session.run(slopes) == [0.0, 0.0, 0.0]
        session.run(v.initializer)
        assert session.run(slopes) == [5 * 2.0**4, 6 * 2.0**5, 4.0]


def test_small_constants_are_where_they_are_used_unless_they_are_fed():
    with graph() as g:
        c, h = hf.constant(2.0, name="c"), hf.placeholder(hf.float32, [], name="h")
        y = hf.cond(h > 0.0, lambda: h * c, lambda: h)
    inside = bodies(sink_constants(prune_to_fetches(g, [y], {h: spec()})))
    assert "Const" in inside["then"]
    fed = bodies(sink_constants(prune_to_fetches(g, [y], {h: spec(), c: spec()})))
    assert "Const" not in fed["then"] and fed["then"].count("Feed") == 2


def test_a_constant_behind_an_update_stays_there():
    with graph() as g:
        w, h = hf.Variable(1.0, name="w"), hf.placeholder(hf.float32, [], name="h")
        with hf.control_dependencies([w.assign(7.0)]):
            c = hf.constant(9.0, name="c")
        y = hf.cond(h > 0.0, lambda: c * 1.0, lambda: h)
    program = sink_constants(prune_to_fetches(g, [y], {h: spec()}))
    assert bodies(program)["then"].count("Feed") == 1 and "c" in program.nodes


def test_of_many_variables_the_reads_of_those_updated_before_a_loop_stay():
    with graph() as g:
        many, read = [hf.Variable(1.0, name=f"v{i}") for i in range(1000)], []
        x = hf.constant(1.0)
        for v in many[::2]:  # each update follows the one before it
            x = v.assign_add(x)
        for at in (0, 1, 98, 99, 998, 999):
            read.append(hf.while_loop(lambda a: a < 3, lambda a, v=many[at]: a + v, [x]))
    program = prune_to_fetches(g, read, {})
    tracemalloc.start()
    moved = hoist_variable_reads(program)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    reads = [n for n in moved.nodes.values() if n.type == "ReadVariable" and not n.control]
    assert [n.inputs[0].node for n in reads] == ["v1", "v99", "v999"]
    assert peak < 1000 * len(program.nodes)  # no set of all variables for each node
