"""Random graphs over four tasks: they verify, never hang, and compute what the uncut graph does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.errors import VerifyError
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.plan.ir.program import Cluster, Plan
from hpcflow.plan.verification.plan_verifier import verify_plan
from hpcflow.settings import Settings

from .interpret import run_graph, run_plan, whole_state
from .model import graph, plan_of

CLUSTER = Cluster(4, tasks_per_replica=4, devices=("cpu:0", "cpu:1"))
SIDE = 3


class RandomGraph:
    """Ops, variables, updates and control edges scattered over tasks and devices."""

    def __init__(self, seed: int, count: int = 40, scatter: bool = True) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.scatter = scatter
        with graph() as self.graph:
            self.x = hf.placeholder(hf.float32, [None, SIDE], name="x")
            self.values, self.updates = [hf.matmul(self.x, np.eye(SIDE, dtype="f4"))], []
            self.variables: list[Variable] = []
            self.last: dict[str, list] = {}  # uses of a variable since its last update
            for _ in range(count):
                with self._somewhere(), self._after():
                    rng.choice([self._op, self._op, self._op, self._variable, self._update])()
            self.init = hf.global_variables_initializer() if self.variables else hf.no_op()
            self.fetches = [self.values[i] for i in rng.integers(0, len(self.values), 3)]
            self.fetches += list(self.updates)

    def _somewhere(self):
        task, cpu = self.rng.integers(0, 4), self.rng.integers(0, 2)
        anywhere = not self.scatter or self.rng.random() < 0.3
        return hf.device("" if anywhere else f"/job:worker/task:{task}/cpu:{cpu}")

    def _after(self):
        known = [v.op for v in self.values] + self.updates
        picks = [known[i] for i in self.rng.integers(0, len(known), self.rng.integers(0, 3))]
        return hf.control_dependencies(picks if self.rng.random() < 0.3 else [])

    def _any(self):
        return self.values[self.rng.integers(0, len(self.values))]

    def _op(self):
        f = self.rng.choice([hf.add, hf.subtract, hf.multiply, hf.maximum, hf.tanh, hf.negative])
        made = f(self._any()) if f in (hf.tanh, hf.negative) else f(self._any(), self._any())
        self.values.append(hf.tanh(made))

    def _variable(self):
        value = self.rng.normal(size=(SIDE, SIDE)).astype("f4")
        self.variables.append(Variable(value, name=f"v{len(self.variables)}"))
        self.last[self.variables[-1].name] = []
        self._read(self.variables[-1])

    def _read(self, v):
        """A read after the last update of its variable, so that the result is defined."""
        with hf.control_dependencies(self.last[v.name][:1]):
            read = v.read_value()
        self.last[v.name].append(read.op)
        self.values.append(hf.matmul(self._any(), read))

    def _update(self):
        if not self.variables:
            return
        v = self.variables[self.rng.integers(0, len(self.variables))]
        with hf.control_dependencies(self.last[v.name]):
            row = hf.reduce_mean(self._any(), axis=0, keepdims=True)
            made = v.assign_add(hf.matmul(np.ones((SIDE, 1), "f4"), row))
        self.last[v.name] = [made]
        self.updates.append(made)
        self._read(v)


def check(made: RandomGraph, cluster: Cluster, seed: int, options: Settings | None = None) -> Plan:
    """Run the plan of a graph and compare its values with those of the graph; return the plan."""
    x = np.random.default_rng(seed).normal(size=(2, SIDE)).astype("f4")
    state: dict = {}
    run_graph([made.init], {}, state)
    expected = run_graph(made.fetches, {made.x: x}, state)
    start = plan_of(made.graph, [made.init], {}, cluster, options)
    plan = plan_of(made.graph, made.fetches, {made.x: x.shape}, cluster, options)
    mine: dict = {}
    order = np.random.default_rng(seed)
    run_plan(start, [], mine, order)
    found = run_plan(plan, [x], mine, order)
    for got, want in zip(found, [e for e in expected if e is not None], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    for name, value in whole_state([start], mine).items():
        np.testing.assert_allclose(value, state[name], rtol=1e-5, atol=1e-6, err_msg=name)
    return plan


@pytest.mark.parametrize("seed", range(60))
def test_four_tasks_of_two_devices(seed):
    check(RandomGraph(seed), CLUSTER, seed)


@pytest.mark.parametrize("seed", range(20))
def test_servers_with_cut_variables(seed):
    check(RandomGraph(seed, scatter=False), Cluster(2, 3), seed, Settings(shard_bytes=12))


@pytest.mark.slow
@settings(max_examples=40)
@given(st.integers(0, 1 << 30), st.integers(1, 80))
def test_any_graph(seed, count):
    check(RandomGraph(seed, count), CLUSTER, seed)


MUTATIONS = {
    "Send": {"drop": {"receive-has-send"}, "channel": {"send-has-receive"}, "dest": {"right-task"}},
    "Recv": {
        "drop": {"input-exists", "send-has-receive", "fetch-exists"},
        "channel": {"send-has-receive"},
        "source": {"right-task"},
        "dtype": {"shape-rule"},
    },
}


@pytest.mark.parametrize("seed", range(30))
def test_random_mutants(seed):
    """One end of one crossing of a random plan is damaged: the rule is known before."""
    rng = np.random.default_rng(seed)
    made = RandomGraph(seed, 60)
    plan = plan_of(made.graph, made.fetches, {made.x: (2, SIDE)}, CLUSTER)
    type = str(rng.choice(["Send", "Recv"]))
    ends = [(t, n) for t, p in plan.parts.items() for n in p.nodes.values() if n.type == type]
    task, node = ends[rng.integers(0, len(ends))]
    kind = str(rng.choice(sorted(MUTATIONS[type])))
    nodes = dict(plan.parts[task].nodes)
    if kind == "drop":
        del nodes[node.name]
    else:
        wrong = {"channel": 10_000, "dtype": np.dtype("f8")}.get(kind, "/job:worker/task:77")
        nodes[node.name] = node.but(attrs=node.attrs | {kind: wrong})
    part = dataclasses.replace(plan.parts[task], nodes=nodes)
    with pytest.raises(VerifyError) as caught:
        verify_plan(dataclasses.replace(plan, parts={**plan.parts, task: part}))
    assert caught.value.rule in MUTATIONS[type][kind]


def test_crosswise_exchange():
    """A waits for x, then sends y; B waits for y', then makes x': no order of one rank hangs."""
    with graph() as g:
        a, b = (hf.placeholder(hf.float32, [1], name=n) for n in "ab")
        for k, (first, second) in enumerate(((1, 2), (2, 1))):
            with hf.device(f"/job:worker/task:{first}"):
                made = hf.negative((a, b)[k], name=f"made_{k}")
            with hf.device(f"/job:worker/task:{second}"):
                back = hf.tanh(made, name=f"back_{k}")
            with hf.device(f"/job:worker/task:{first}"):
                hf.multiply(back, made, name=f"end_{k}")
    ends = [g.get_tensor_by_name(f"end_{k}:0") for k in (0, 1)]
    cluster = Cluster(3, tasks_per_replica=3)
    plan = plan_of(g, ends, {a: (1,), b: (1,)}, cluster)
    fed = [np.array([2.0], "f4"), np.array([3.0], "f4")]
    for seed in range(20):
        found = run_plan(plan, fed, {}, np.random.default_rng(seed))
        np.testing.assert_allclose(np.ravel(found), [np.tanh(-v[0]) * -v[0] for v in fed], 1e-6)
