"""Jobs that go on without a dead replica: no state changes before all sums are there."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.plan.communication.atomic_step_commit import COMMIT
from hpcflow.settings import Settings

from .model import REPLICAS, SERVERS, SINGLE, Net, graph, of_type, plan_of

SURVIVE = Settings(survive=True, bucket_bytes=40)  # several buckets


def before(part, name):
    """The names of all that a node needs, however remotely."""
    found, stack = set(), [name]
    while stack:
        for one in part.nodes[stack.pop()].before():
            if one not in found:
                found.add(one)
                stack.append(one)
    return found


def test_every_update_waits_for_the_last_sum_and_that_for_all_others():
    net = Net()
    plan = net.step(REPLICAS, settings=SURVIVE)
    (part,) = plan.parts.values()
    assert len(plan.collectives) >= 3
    assert plan.collectives[-1] == COMMIT
    assert set(plan.collectives[:-1]) <= before(part, COMMIT)
    written = [node.name for node in part.nodes.values() if node.row.writes]
    assert len(written) == len(net.updates)
    for name in written:
        assert COMMIT in before(part, name)


@pytest.mark.parametrize("cluster", [SINGLE, SERVERS, REPLICAS])
def test_elsewhere_and_unless_asked_plans_are_as_ever(cluster):
    net = Net()
    settings = Settings() if cluster is REPLICAS else SURVIVE
    plan = net.step(cluster, settings=settings)
    assert COMMIT not in plan.collectives


def test_a_sum_that_is_only_fetched_is_made_by_all_or_none():
    with graph() as g:
        total = hf.replica_sum(hf.tanh(hf.zeros([4])))
    plan = plan_of(g, [total], {}, REPLICAS, SURVIVE)
    assert plan.collectives[-1] == COMMIT


def test_an_update_inside_of_a_branch_waits_too():
    with graph() as g:
        v = Variable(np.zeros(2, np.float32), name="v")
        x = hf.placeholder(hf.float32, [2])
        total = hf.replica_sum(x)
        act = hf.cond(hf.reduce_sum(x) > 0, lambda: v.assign_add(x), lambda: v.assign_sub(x))
    plan = plan_of(g, [total, act], {x: [2]}, REPLICAS, SURVIVE)
    (part,) = plan.parts.values()
    (branch,) = of_type(plan, "Branch")
    assert COMMIT in before(part, branch.name)


def test_a_step_whose_sum_needs_its_own_update_is_left_alone():
    with graph() as g:
        v = Variable(np.zeros(2, np.float32), name="v")
        with hf.control_dependencies([v.assign_add(np.ones(2, np.float32))]):
            total = hf.replica_sum(v.read_value())
    plan = plan_of(g, [total], {}, REPLICAS, SURVIVE)
    assert COMMIT not in plan.collectives
