"""The global order: as the graph was made, collectives early, the same every time."""

from __future__ import annotations

import pytest

import hpcflow as hf
from hpcflow.errors import VerifyError
from hpcflow.plan.communication.step_order import order_step
from hpcflow.plan.ir.program import Node, Program, Ref
from hpcflow.settings import Settings

from .model import REPLICAS, SINGLE, Net, graph, plan_of


def test_creation_order():
    with graph() as g:
        x = hf.placeholder(hf.float32, [], name="x")
        names = [hf.tanh(x, name="b"), hf.negative(x, name="a"), hf.square(x, name="c")]
    plan = plan_of(g, names, {x: ()})
    assert list(plan.parts[plan.driver].nodes) == ["x", "b", "a", "c"]


def test_a_sum_starts_as_soon_as_its_inputs_are_there():
    plan = Net().step(REPLICAS, settings=Settings(bucket_bytes=1))
    nodes = list(plan.parts[plan.driver].nodes.values())
    last_backward = max(i for i, n in enumerate(nodes) if n.name.startswith("gradients/"))
    first_sum = next(i for i, n in enumerate(nodes) if n.type == "AllReduce")
    needed = {ref.node for ref in nodes[first_sum].inputs}
    assert nodes[first_sum - 1].name in needed
    assert first_sum < len(nodes) and last_backward > 0


def test_sums_leave_before_the_backward_pass_ends():
    with graph() as g:
        x = hf.placeholder(hf.float32, [4, 8], name="x")
        ws = [hf.Variable(hf.zeros([8, 8]), name=f"w{i}") for i in range(4)]
        h = x
        for w in ws:
            h = hf.tanh(hf.matmul(h, w))
        train = hf.train.GradientDescentOptimizer(0.1).minimize(hf.reduce_mean(h))
    plan = plan_of(g, [train], {x: (4, 8)}, REPLICAS, Settings(bucket_bytes=1))
    nodes = list(plan.parts[plan.driver].nodes.values())
    sums = [i for i, n in enumerate(nodes) if n.type == "AllReduce"]
    backward = [i for i, n in enumerate(nodes) if n.name.startswith("GradientDescent/gradients")]
    backward = backward or [i for i, n in enumerate(nodes) if "gradients" in n.name]
    assert len(sums) == 4 and sums[0] < backward[-1] and sums[2] < backward[-1]
    of = [nodes[i].attrs["of"][0] for i in sums]
    assert of == [f"w{i}/gradient" for i in (3, 2, 1, 0)]


def test_it_is_the_same_every_time():
    one, two = (next(iter(Net().step(SINGLE).parts.values())).nodes for _ in range(2))
    assert list(one) == list(two)


def test_a_circle_is_told():
    nodes = {
        "a": Node("a", "Neg", (Ref("b"),), line="model.py:1"),
        "b": Node("b", "Neg", (Ref("a"),), line="model.py:2"),
    }
    with pytest.raises(VerifyError, match="acyclic: 'a' waits for itself"):
        order_step(Program(nodes))
