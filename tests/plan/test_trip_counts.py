"""Trip counts of loops: those of the plan against iterations that ran, and what predictions use."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.cost.cost_model import input_specs, predicted_seconds
from hpcflow.plan.cost.memory_estimate import predict_memory
from hpcflow.plan.cost.replay_of_plan import own_seconds
from hpcflow.plan.cost.step_features import step_features
from hpcflow.plan.ir.control_flow_nodes import TRIPS, nested_nodes

from .model import graph, lowered, plan_of

WORKER = "/job:worker/task:0"


def loops(plan):
    nodes = nested_nodes(plan.parts[plan.driver].nodes)
    return [n for n in (*plan.parts[plan.driver].nodes.values(), *nodes)
            if n.row.control_flow == "loop"]  # fmt: skip


def trips(fetch, feeds=None):
    """Of the only loop of a plan; None if it is not known."""
    (loop,) = loops(plan_of(fetch.graph, [fetch], feeds or {}))
    return loop.attrs.get(TRIPS)


def counted(cond, step, start):
    """A loop over an integer, and how often it ran."""
    _, ran = hf.while_loop(
        lambda i, n: cond(i), lambda i, n: (step(i), n + 1), [hf.constant(start), hf.constant(0)]
    )
    return ran


@pytest.mark.parametrize("start", [-3, 0, 7, 10, 12])
@pytest.mark.parametrize(
    ("cond", "step"),
    [
        (lambda i: i < 10, lambda i: i + 1),
        (lambda i: i <= 10, lambda i: i + 3),
        (lambda i: hf.less(2 * i - i, 10), lambda i: i + 2 - 1),
        (lambda i: 10 > i, lambda i: 4 + i),
        (lambda i: i > -5, lambda i: i - 2),
        (lambda i: i >= -5, lambda i: i - 2),
        (lambda i: i + 3 < 12 - i, lambda i: i + 1),
        (lambda i: hf.logical_and(i < 10, i < 9), lambda i: i + 1),
    ],
)
def test_the_plan_knows_how_often_a_loop_runs(cond, step, start):
    with graph() as made:
        ran = counted(cond, step, start)
    with hf.Session(graph=made) as session:
        assert trips(ran) == session.run(ran)


@pytest.mark.parametrize(
    ("cond", "step", "start"),
    [
        (lambda i: i < 10, lambda i: i * 2, 1),  # changes by another number each time
        (lambda i: i < 10, lambda i: hf.constant(11) + 0 * i, 0),
        (lambda i: hf.not_equal(i, 10), lambda i: i + 1, 0),
        (lambda i: i < 10, lambda i: hf.random_uniform([], 1, 3, hf.int32) + i, 0),
        (lambda i: hf.logical_or(i < 10, i < 12), lambda i: i + 1, 0),
    ],
)
def test_no_number_is_claimed_that_is_not_known(cond, step, start):
    with graph():
        assert trips(counted(cond, step, start)) is None


def test_bounds_that_are_fed_are_not_known():
    with graph():
        n = hf.placeholder(hf.int32, [])
        ran = counted(lambda i: i < n, lambda i: i + 1, 0)
        assert trips(ran, {n: ()}) is None


def test_maximum_iterations_bound_a_condition_of_values():
    with graph():
        x = hf.placeholder(hf.float32, [4])
        y = hf.while_loop(
            lambda y: hf.reduce_sum(y) < 9.0, lambda y: y * 2.0, [x], maximum_iterations=6
        )
        assert trips(y, {x: (4,)}) == 6


def test_a_gradient_runs_as_often_as_its_loop():
    with graph():
        w = hf.Variable(np.ones((3, 3), "f4"))
        x = hf.placeholder(hf.float32, [5, 2, 3])
        y = hf.foldl(lambda h, row: hf.tanh(hf.matmul(h + row, w)), x, hf.zeros([2, 3]))
        (grad,) = hf.gradients(hf.reduce_sum(y), [w])
        plan = plan_of(w.graph, [grad], {x: (5, 2, 3)})
    assert [loop.attrs[TRIPS] for loop in loops(plan)] == [5, 5]


def test_a_loop_in_a_loop():
    def inner(h):
        return hf.while_loop(lambda j, h: j < 4, lambda j, h: (j + 1, hf.sin(h)), [0, h])[1]

    with graph():
        x = hf.placeholder(hf.float32, [8])
        y = hf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, inner(h)), [0, x])[1]
        plan = plan_of(x.graph, [y], {x: (8,)})
    assert sorted(loop.attrs[TRIPS] for loop in loops(plan)) == [3, 4]
    (sine,) = [one for one in step_features(plan, lowered(plan)).operations
               if one.type == "Sin"]  # fmt: skip
    assert sine.calls == 12


def chain(steps, unrolled):
    """The same products, in a loop or one after the other."""
    with graph():
        x = hf.placeholder(hf.float32, [64, 64])
        w = hf.placeholder(hf.float32, [64, 64])
        if unrolled:
            y = x
            for _ in range(steps):
                y = hf.matmul(y, w)
        else:
            y = hf.while_loop(
                lambda i, y: i < steps, lambda i, y: (i + 1, hf.matmul(y, w)), [0, x]
            )[1]
        return plan_of(x.graph, [y], {x: (64, 64), w: (64, 64)})


def test_a_loop_costs_what_its_iterations_cost():
    loop, flat = chain(9, False), chain(9, True)
    (node,) = loops(loop)
    part = loop.parts[loop.driver]
    assert predicted_seconds(node, input_specs(node, part)) == pytest.approx(
        own_seconds(flat).median,
        rel=0.2,  # the counter and the condition
    )
    assert own_seconds(loop).median == pytest.approx(own_seconds(flat).median, rel=0.2)
    products = [
        one.calls for one in step_features(loop, lowered(loop)).operations if one.flops == 2 * 64**3
    ]
    assert products == [9]


def test_a_branch_costs_what_its_dearer_side_costs():
    with graph():
        x = hf.placeholder(hf.float32, [64, 64])
        p = hf.placeholder(hf.bool, [])
        y = hf.cond(p, lambda: hf.matmul(hf.matmul(x, x), x), lambda: hf.matmul(x, x))
        plan = plan_of(x.graph, [y], {x: (64, 64), p: ()})
    (calls,) = [one.calls for one in step_features(plan, lowered(plan)).operations
                if one.flops == 2 * 64**3]  # fmt: skip
    assert calls == 2


@pytest.mark.parametrize("steps", [3, 30])
def test_memory_of_the_values_that_a_loop_keeps(steps):
    with graph():
        x = hf.placeholder(hf.float32, [16, 8])
        y = hf.while_loop(lambda i, y: i < steps, lambda i, y: (i + 1, hf.sin(y)), [0, x])[1]
        (grad,) = hf.gradients(hf.reduce_sum(y), [x])
        plan = plan_of(x.graph, [grad], {x: (16, 8)})
    assert predict_memory(plan)[WORKER].lists == steps * 16 * 8 * 4


def test_a_loop_over_lengths_is_bounded_by_the_padded_size():
    with graph():
        x = hf.placeholder(hf.float32, [3, 7, 2])
        lengths = hf.placeholder(hf.int32, [3])
        outputs, _ = hf.nn.dynamic_rnn(hf.nn.rnn_cell.BasicRNNCell(4), x, lengths, dtype=hf.float32)
        assert trips(outputs, {x: (3, 7, 2), lengths: (3,)}) == 7
