"""Graphs and plans that the tests of the passes share."""

from __future__ import annotations

import contextlib

import numpy as np

import hpcflow as hf
from hpcflow.graph.static_shape import Spec
from hpcflow.lowering.kernel_metadata import LoweredPartition
from hpcflow.ops.variables.variable_ops import Variable, update
from hpcflow.plan.ir.program import Cluster, Partition, Plan
from hpcflow.plan.pass_contexts import Planning
from hpcflow.plan.pass_list import PASSES, make_plan
from hpcflow.plan.pass_row import run_passes
from hpcflow.plan.verification.plan_verifier import verify_plan
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.step.lowered_partition import lower_partition
from hpcflow.settings import Settings

F32 = np.dtype("float32")
SINGLE, REPLICAS, SERVERS = Cluster(), Cluster(4), Cluster(3, 2)
THREE_TASKS = Cluster(3, tasks_per_replica=3)


def spec(*shape, dtype="float32"):
    return Spec(np.dtype(dtype), shape)


@contextlib.contextmanager
def graph():
    with hf.Graph().as_default() as made:
        yield made


def plan_of(made, fetches, feeds=None, cluster=SINGLE, settings=None, **more) -> Plan:
    """A verified plan; feeds are given as {tensor: shape}."""
    specs = {t: Spec(t.dtype, tuple(shape)) for t, shape in (feeds or {}).items()}
    plan = make_plan(made, fetches, specs, cluster, settings or Settings(), **more)
    verify_plan(plan)
    return plan


def phase(name, program, evaluate=None, cluster=SINGLE, settings=None):
    """The program after the passes of one phase of the pass list."""
    rows = [row for row in PASSES if row.phase == name]
    of = Planning(hf.get_default_graph(), cluster, settings or Settings(), evaluate=evaluate)
    return run_passes(rows, program, of)


def simplify(program, evaluate=None, fold_floats=True):
    """The program after simplification; on a GPU, exact results need floats that it computes."""
    if fold_floats:
        return phase("simplification", program, evaluate)
    gpu = Cluster(devices=("gpu:0",))
    return phase("simplification", program, evaluate, gpu, Settings(exact=True))


class Net:
    """Two dense layers, a loss, and one step of momentum for each variable."""

    def __init__(self, rows=6, width=8, classes=4):
        with graph() as self.graph:
            self.x = hf.placeholder(hf.float32, [None, rows], name="x")
            self.y = hf.placeholder(hf.float32, [None, classes], name="y")
            shapes = {"w1": (rows, width), "b1": (width,), "w2": (width, classes)}
            rng = np.random.default_rng(0)
            self.variables = {
                name: Variable(rng.normal(size=shape).astype("float32"), name=name)
                for name, shape in shapes.items()
            }
            w1, b1, w2 = self.variables.values()
            self.hidden = hf.tanh(hf.matmul(self.x, w1) + b1, name="hidden")
            self.loss = hf.reduce_mean(hf.square(hf.matmul(self.hidden, w2) - self.y), name="loss")
            grads = hf.gradients(self.loss, [w1, b1, w2])
            self.updates = []
            share = hf.cast(hf.replica_share(), hf.float32)
            for v, g in zip((w1, b1, w2), grads, strict=True):
                g = hf.replica_sum(g * share, name=f"sum_{v.name}")
                slot = Variable(hf.zeros(v.shape), name=f"{v.name}/m", trainable=False)
                rate, momentum = hf.constant(0.1), hf.constant(0.9)
                inputs = [rate, momentum, g]
                self.updates.append(update("ApplyMomentum", [v, slot], inputs))
            self.train = hf.group(*self.updates, name="train")
            self.init = hf.global_variables_initializer()

    def feeds(self, batch=5):
        return {self.x: (batch, *self.x.shape[1:]), self.y: (batch, *self.y.shape[1:])}

    def step(self, cluster=SINGLE, **more) -> Plan:
        return plan_of(self.graph, [self.loss, self.train], self.feeds(), cluster, **more)

    def start(self, cluster=SINGLE, **more) -> Plan:
        return plan_of(self.graph, [self.init], {}, cluster, **more)


def types(part: Partition) -> list[str]:
    return [node.type for node in part.nodes.values()]


def lowered(plan: Plan) -> LoweredPartition:
    """The code of the driver's partition, on a CPU."""
    return lower_partition(plan.parts[plan.driver], {"cpu:0": Device()}, Settings())


def of_type(plan: Plan, type: str):
    return [n for part in plan.parts.values() for n in part.nodes.values() if n.type == type]


def by_name(plan: Plan):
    return {n.name: n for part in plan.parts.values() for n in part.nodes.values()}
