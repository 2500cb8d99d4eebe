"""A loop that computes several operations names them: in the plan, in a profile, in an error."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen import llvm_cpu_compiler
from hpcflow.errors import KernelError
from hpcflow.kernels.roofline_peaks import RooflinePeaks
from hpcflow.lowering.fusion import fused_node_label
from hpcflow.plan.cost.op_flops_and_bytes import NodeCost, cost_input_specs, node_cost
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.profile import profiler
from hpcflow.runtime.step.kernel_selection import (
    fused_loops_data,
    fused_loops_text,
    kernels_data,
    lower_for_devices,
)
from hpcflow.settings import Settings

pytestmark = pytest.mark.skipif(bool(llvm_cpu_compiler.absent()), reason="needs llvmlite")
SHAPE = (40, 50)


def layer(x):
    """tanh(x * x + 3) and its maximum with x: four operations of one size, in one scope."""
    with hf.name_scope("layer"):
        y = hf.tanh(hf.add(hf.multiply(x, x, name="square"), 3.0, name="sum"), name="bound")
        return hf.maximum(y, x, name="top")


def planned(context):
    x = hf.placeholder(hf.float32, SHAPE, name="x")
    plan = hf.Session().plan(layer(x), {x: np.ones(SHAPE, np.float32)})
    return plan, context.devices


def test_the_plan_lists_it_with_what_it_holds():
    with use_context(RankContext(Settings())) as context, hf.Graph().as_default():
        plan, devices = planned(context)
    (one,) = fused_loops_data(plan, devices)
    assert one["holds"] == ["layer/square", "layer/sum", "layer/bound", "layer/top"]
    assert one["types"] == ["Mul", "Add", "Tanh", "Maximum"] and one["elements"] == 2000
    head, row = fused_loops_text(plan, devices).splitlines()
    assert row.split("  ")[0] == "Fused: Mul, Add, Tanh, Maximum"
    assert "layer/..." in row and row.endswith("2,000") and head.startswith("one loop")
    assert [(k["type"], k["provider"]) for k in kernels_data(plan, devices)] == [("Fused", "llvm")]


@pytest.mark.parametrize(("kernels", "provider"), [("auto", "llvm"), ("plain", "numpy")])
def test_the_plan_says_which_updates_are_generated(kernels, provider):
    with use_context(RankContext(Settings(kernels=kernels))) as context, hf.Graph().as_default():
        v = hf.Variable(np.zeros(SHAPE, np.float32))
        step = hf.train.AdamOptimizer().apply_gradients([(hf.ones(SHAPE), v)])
        plan, devices = hf.Session().plan(step), context.devices
    by = {one["type"]: one["provider"] for one in kernels_data(plan, devices)}
    assert by["ApplyAdam"] == provider


def test_without_loops_there_is_no_table():
    with use_context(RankContext(Settings(kernels="plain"))) as context, hf.Graph().as_default():
        plan, devices = planned(context)
    assert fused_loops_data(plan, devices) == [] and fused_loops_text(plan, devices) == ""


def test_its_work_is_that_of_its_operations_and_its_bytes_are_those_that_leave_it():
    with use_context(RankContext(Settings())) as context, hf.Graph().as_default():
        plan, devices = planned(context)
    part = lower_for_devices(plan.parts[plan.driver], devices)
    (node,) = [n for n in part.nodes.values() if n.type == "Fused"]
    arrays = len([spec for spec in cost_input_specs(node, part) if spec.shape == SHAPE])
    assert arrays == 1  # x once, though three operations take it
    assert node_cost(node, cost_input_specs(node, part)) == NodeCost(
        4 * 2000, 4 * (2000 + 1 + 2000)
    )


def test_an_error_in_it_names_what_it_holds(monkeypatch):
    def broken(self, node, inputs):
        def run(*arrays):
            raise FloatingPointError("no such luck")

        return run

    with use_context(RankContext(Settings())) as context, hf.Graph().as_default():
        monkeypatch.setattr(type(context.devices["cpu:0"]), "kernel", broken)
        x = hf.placeholder(hf.float32, SHAPE, name="x")
        with pytest.raises(KernelError, match="no such luck") as caught:
            hf.Session().run(layer(x), {x: np.ones(SHAPE, np.float32)})
    told = str(caught.value)
    assert "Fused: Mul, Add, Tanh, Maximum(" in told and __file__ in caught.value.line
    assert "layer/square, layer/sum, layer/bound, layer/top" in told


def test_a_profile_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(
        profiler, "measure", lambda *_, **__: RooflinePeaks({"float32": 1e15}, 1e15, 1)
    )
    context = RankContext(Settings(profile=True, run_dir=str(tmp_path)))
    with use_context(context), hf.Graph().as_default():
        x = hf.placeholder(hf.float32, SHAPE, name="x")
        y, session = layer(x), hf.Session()
        for _ in range(profiler.MAX_STEPS_OF_OTHER_PLANS + 5):
            session.run(y, {x: np.ones(SHAPE, np.float32)})
        context.leave()
    (one,) = json.loads((tmp_path / "profile.json").read_text())["ranks"]
    (row,) = [row for row in one["ops"] if row["kind"] == "kernels"]
    assert row["title"] == "Fused: Mul, Add, Tanh, Maximum" and row["provider"] == "llvm"
    assert row["type"] == "Fused" and row["fused"] == ["Mul", "Add", "Tanh", "Maximum"]
    assert row["holds"] == ["layer/square", "layer/sum", "layer/bound", "layer/top"]
    assert row["flops"] == 4 * 2000 * row["calls"] and one["types"][0]["type"] == row["title"]


def test_names_are_short():
    assert fused_node_label.common_scope(["a/b/c", "a/b/d", "a/b/e/f"]) == "a/b/..."
    assert (
        fused_node_label.common_scope(["a/b"]) == "a/b"
        and fused_node_label.common_scope(["x", "y"]) == "x, y"
    )
    assert (
        fused_node_label.common_scope([f"n{i}" for i in range(9)])
        == "n0, n1, n2, n3, n4, n5 and 3 more"
    )
    plain = Node("n", "Add")
    assert fused_node_label.node_label(plain) == "Add" and fused_node_label.fused_names(plain) == (
        "n",
    )
    assert fused_node_label.fused_types(plain) == ("Add",)
