"""Parcels: what travels together, what does not, and that it is the same values."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import VerifyError
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.verification.plan_verifier import verify_plan

from .interpret import run_plan
from .model import graph, plan_of
from .test_verify import edited, first

SERVER, WORKER = Cluster(1, 1), "/job:worker/task:0"
PS = "/job:ps/task:0"
TWO = Cluster(2, tasks_per_replica=2)
W1 = "/job:worker/task:1"


def on(k):
    return hf.device(f"/job:worker/task:{k}")


def messages(plan):
    """(source, dest, bytes) of each message of a step, headers left out."""
    return sorted((e.source, e.dest, e.spec.nbytes) for e in plan.edges)


def stepped(shapes):
    """A step of gradient descent on variables of these shapes, all used in one loss."""
    with graph() as g:
        x = hf.placeholder(hf.float32, [], name="x")
        variables = [Variable(np.ones(s, "f4"), name=f"v{i}") for i, s in enumerate(shapes)]
        loss = hf.add_n([hf.reduce_sum(hf.square(v * x)) for v in variables])
        train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
        init = hf.global_variables_initializer()
    return g, x, loss, train, init


def test_small_variables_of_a_server_cross_in_one_message_each_way():
    shapes = [(3,), (), (5, 7), (1,), (2, 2), (64,)]
    sizes = [4 * int(np.prod(s)) for s in shapes]
    g, x, loss, train, _ = stepped(shapes)
    plan = plan_of(g, [loss, train], {x: ()}, SERVER)
    end = (PS, WORKER, 0)
    assert messages(plan) == [end, (PS, WORKER, sum(sizes)), (WORKER, PS, sum(sizes))]


@pytest.mark.parametrize("elements, together", [(16 << 10, True), ((16 << 10) + 1, False)])
def test_a_large_value_has_a_message_of_its_own(elements, together):
    g, x, loss, train, _ = stepped([(3,), (elements,), (5,)])
    plan = plan_of(g, [loss, train], {x: ()}, SERVER)
    pulls = [size for source, _, size in messages(plan) if source == PS and size]
    alone = [32, 4 * elements]
    assert pulls == ([32 + 4 * elements] if together else alone)


def test_a_parcel_is_full_at_some_size():
    g, x, loss, _, _ = stepped([(16 << 10,)] * 40)  # 40 times 64 KiB
    pulls = [e.spec.nbytes for e in plan_of(g, [loss], {x: ()}, SERVER).edges if e.source == PS]
    assert len(pulls) == 3 and sum(pulls) == 40 << 16 and max(pulls) <= 1 << 20


def far_work(after):
    """Task 0 makes a, works long, makes b; task 1 does `after` to a, and something to b."""
    with graph() as g:
        x = hf.placeholder(hf.float32, [300, 300], name="x")
        a = hf.reduce_sum(x, axis=0, name="a")
        b = hf.reduce_sum(hf.matmul(hf.matmul(x, x), x), axis=0, name="b")
        with on(1):
            both = [hf.reduce_sum(after(a)), hf.reduce_sum(hf.negative(b))]
        ends = [hf.identity(end) for end in both]
    return plan_of(g, ends, {x: (300, 300)}, TWO)


def work(a):
    big = hf.reshape(hf.tile(a, [300]), [300, 300])
    return hf.matmul(big, hf.matmul(big, big))


def test_a_value_that_much_waits_for_is_not_held_back():
    assert len([e for e in far_work(work).edges if e.dest == W1]) == 2


def test_a_value_that_little_waits_for_leaves_with_a_later_one():
    assert len([e for e in far_work(hf.negative).edges if e.dest == W1]) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_value_that_waits_for_an_answer_is_not_held_together_with_the_question(seed):
    """a -> task 1 -> answer -> b -> task 1: in one message a and b would wait for each other."""
    with graph() as g:
        x = hf.placeholder(hf.float32, [3], name="x")
        a, c = hf.tanh(x, name="a"), hf.negative(x, name="c")
        with on(1):
            answer = hf.square(a, name="answer")
        b = hf.add(answer, c, name="b")
        with on(1):
            end = a * b + c
        fetched = hf.identity(end)
    plan = plan_of(g, [fetched], {x: (3,)}, TWO)
    there = [e.spec.nbytes for e in plan.edges if e.dest == W1]
    assert sorted(there) == [12, 24]  # b alone; a and c together
    fed = np.array([0.5, -1, 2], "f4")
    (found,) = run_plan(plan, [fed], {}, np.random.default_rng(seed))
    np.testing.assert_allclose(found, np.tanh(fed) * (np.tanh(fed) ** 2 - fed) - fed, 1e-6)


def test_values_of_an_iteration_cross_together():
    with graph() as g:
        x = hf.placeholder(hf.float32, [3], name="x")

        def step(i, h):
            with on(1):
                a, b, c = hf.tanh(h), hf.sin(h), hf.reduce_sum(h)
            with on(0):
                return i + 1, a * b + c

        _, end = hf.while_loop(lambda i, h: i < 5, step, [hf.constant(0), x])
    plan = plan_of(g, [end], {x: (3,)}, TWO)
    inside = [e for e in plan.edges if e.frame and e.source == W1]
    assert [e.spec.nbytes for e in inside] == [28]


@pytest.mark.parametrize("attrs", [
    {"start": 2}, {"start": -4}, {"start": 1 << 20}, {"shape": (1 << 20,)}, {"shape": (None,)},
], ids=str)  # fmt: skip
def test_a_value_that_is_not_in_its_parcel_is_refused(attrs):
    g, x, loss, train, _ = stepped([(3,), (5,)])
    plan = plan_of(g, [loss, train], {x: ()}, SERVER)
    with pytest.raises(VerifyError) as caught:
        verify_plan(edited(plan, first(plan, "FromParcel"), attrs=attrs))
    assert caught.value.rule == "shape-rule"
