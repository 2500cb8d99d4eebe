"""Passes ask facts of rows: only a rule that is about an op names it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.graph.op_registry import OPS, NoGrad, OpDef, all_ops
from hpcflow.graph.static_shape import Spec
from hpcflow.plan.cost.op_flops_and_bytes import node_cost
from hpcflow.plan.ir.program import Node

ROOT = Path(__file__).parents[2] / "hpcflow"
MAKES = {  # calls that make operations: an op is made by its name
    *("Node", "add", "_add", "_add_node", "_add_noop", "but", "infer_specs", "_node"),
    *("constant", "as_constant", "_live_tensor"),
    *("async_op", "state_type"),  # decorators of what runs an op
}
ABOUT = {  # file: ops that it names, and why it is about them
    "plan/cost/estimated_rows.py": (
        "PieceRows ReadRows SumEqualRows",
        "the rows of tables that are read, divided among servers and summed",
    ),
    "plan/algebra/loop_accumulation_hoisting.py": (
        "Add ListPop MatMul Sum SumToShape",
        "sums of products of values that a loop saves in a list",
    ),
    "plan/ir/trip_counts.py": (
        "Add Greater GreaterEqual Less LessEqual LogicalAnd Minimum Mul Sub",
        "counters of loops: sums and comparisons of integers",
    ),
    "plan/algebra/matmul_batching.py": ("MatMul", "products that share an operand"),
    "plan/algebra/outer_products.py": ("MatMul", "products over an axis of one element"),
    "plan/algebra/reduction_reshaping.py": (
        "Add Maximum Mean MeanGrad Minimum Mul RealDiv Reshape Sub Sum SumGrad",
        "sums and means behind a Reshape, and their gradients before arithmetic",
    ),
    "plan/algebra/reshape_hoisting.py": ("BiasAdd Reshape", "Reshapes before elementwise ops"),
    "plan/algebra/slice_gradient_concat.py": (
        "Add AddN StridedSliceGrad",
        "sums of gradients of slices",
    ),
    "plan/algebra/split_concat_to_views.py": ("Rows StridedSlice", "slices of rows as views"),
    "plan/algebra/sum_of_matmuls.py": ("Add AddN MatMul Sum", "sums of products and of sums"),
    "plan/algebra/unused_product_columns.py": (
        "MatMul Reshape Rows StridedSlice",
        "products of which a Split drops columns",
    ),
    "plan/cost/op_flops_and_bytes.py": ("Fused", "its body is counted step by step"),
    "plan/cost/replay_of_plan.py": (
        "ClockTick RoundAdd RoundBegin RoundEnd RoundOver RoundPick RoundReady RoundSum RoundTotal",
        "what a synchronous update waits for, and which of its operations only pass values on",
    ),
    "plan/cost/server_traffic.py": ("RoundAdd", "its attribute names the variable"),
    "plan/distribution/device_placement.py": ("SumEqualRows", "it runs beside its input"),
    "plan/distribution/initial_value_sharding.py": ("ReadCheckpoint", "any rows can be read"),
    "plan/distribution/partial_sum_hoisting.py": ("AddN Identity", "sums of values of many tasks"),
    "plan/distribution/replica_lowering.py": (
        "Cast ReplicaGather ReplicaOffset ReplicaShare SumEqualRows TopK",
        "the ops of replicas",
    ),
    "plan/distribution/variable_sharding.py": (
        "AddEntries Concat GatherGrad Identity JoinRows ReplicaGather SumEqualRows",
        "rows of gradients of sharded variables, and how their shards are joined",
    ),
    "plan/frontend/identity_elimination.py": ("CustomGradient", "it becomes an identity"),
    "plan/frontend/py_func_threads.py": ("PyFunc", "calls of Python functions"),
    "plan/ir/control_flow_nodes.py": ("Branch Loop", "it makes them"),
    "plan/verification/suspicious_graph_warnings.py": (
        "Add AddN Cast DivNoNan Identity L2Loss Mul Neg Placeholder PlaceholderWithDefault "
        "QueueDequeueMany QueueDequeueUpTo RealDiv Reshape Shape Size Softmax SoftmaxCrossEntropy "
        "SparseSoftmaxCrossEntropy Squeeze Sub Sum Transpose",
        "the arithmetic by which a loss is a sum over a batch; a softmax of a softmax",
    ),
    "lowering/fusion/batch_norm_expansion.py": (
        "Normalize NormalizeGrad",
        "their expansion to sums and arithmetic",
    ),
    "lowering/fusion/bias_relu_epilogue.py": (
        "Add BiasAdd Conv ConvBias MatMul MatMulBias Relu",
        "bias and relu behind products and convolutions",
    ),
    "lowering/fusion/elementwise_fusion.py": (
        "Identity Pow Rows SparseSoftmaxCrossEntropy",
        "exceptions of single ops, each with its reason",
    ),
    "lowering/fusion/fused_node_label.py": ("Fused", "names the operations in it"),
    "lowering/fusion/iteration_space.py": (
        "BroadcastTo ExtremeGrad Mean Normalize NormalizeGrad SoftmaxCrossEntropy "
        "SparseSoftmaxCrossEntropy SumToShape",
        "how each op with a decomposition reads its rows",
    ),
    "lowering/fusion/max_pool_relu_gradient.py": ("MaxPoolGrad ReluGrad Sum", "their fusion"),
    "lowering/fusion/sparse_update_operands.py": ("Concat Mul", "operands of sparse updates"),
    "lowering/fusion/strided_matmul_fusion.py": (
        "Einsum MatMul Transpose",
        "products of transposed operands",
    ),
    "lowering/python_codegen.py": ("Maximum Minimum", "NumPy wants their `out` by keyword"),
    "lowering/strided_layout.py": (
        "Pad RollBy Rows StridedSlice StridedSliceGrad Transpose",
        "the layout of each view, and values at shifted indices",
    ),
    "lowering/weight_packing.py": ("MatMul", "products with packed weights"),
    "runtime/device/cuda_graph_regions.py": (
        "AllReduce Concat Pack Parcel",
        "their generated code copies into parts of arrays",
    ),
    "runtime/executor/wait_timestamps.py": ("Send", "the name of an event, no op"),
    "runtime/job/service_registry.py": (
        "Iterator Rounds",
        "the modules that run them",
    ),
    "runtime/profile/profile_summary.py": ("Fused", "lists the operations in it"),
    "runtime/state/queue_backpressure.py": (
        "FIFOQueue PaddingFIFOQueue PriorityQueue RandomShuffleQueue",
        "their orders",
    ),
    "runtime/state/reader_state.py": (
        "Identity ReaderRead",
        "a kind of reader; reading one record",
    ),
    "runtime/step/feed_and_fetch.py": ("Placeholder", "checks a feed in each step: no look-up"),
    "runtime/step/kernel_selection.py": ("Fused", "lists the operations in it"),
    "runtime/step/step_instance.py": ("Fused", "lists the operations in it"),
}


def called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def named(tree: ast.AST, ops: set[str]) -> Iterator[str]:
    """The ops that string constants name, alone or several in one string."""
    made = {
        id(argument)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and called(call) in MAKES
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in made:
            words = node.value.split()
            if words and ops.issuperset(words):
                yield from words


@pytest.mark.slow
@pytest.mark.parametrize("package", ["plan", "lowering", "runtime"])
def test_a_file_names_only_ops_that_it_is_about(package: str) -> None:
    wrong = {}
    for file in sorted((ROOT / package).rglob("*.py")):
        about, _ = ABOUT.get(str(file.relative_to(ROOT)), ("", ""))
        more = set(named(ast.parse(file.read_text()), set(all_ops()))) - set(about.split())
        if more:
            wrong[file.name] = sorted(more)
    assert wrong == {}, "ask a fact of the row (hpcflow/graph/op_registry.py: OpDef) instead"


def test_names_are_found_in_sets_comparisons_and_lists_of_words() -> None:
    text = 'if n.type in {"Add"} or n.type == "Sub" or n.type in "Mul Neg".split(): f.add(x, "Exp")'
    assert sorted(named(ast.parse(text + "\n"), set(all_ops()))) == ["Add", "Mul", "Neg", "Sub"]


def test_facts_are_safe_by_default_and_do_not_change() -> None:
    row = OpDef("New", lambda inputs, attrs: [], lambda op: [], stateful=True)
    facts = OpDef.__annotations__.keys() - {"name", "infer", "grad"}
    assert [fact for fact in facts if getattr(row, fact)] == ["stateful"]
    with pytest.raises(AttributeError):
        row.view = "strided"
    other = row.with_gradient(NoGrad("none"))
    assert other.stateful and isinstance(other.grad, NoGrad) and not isinstance(row.grad, NoGrad)


def test_a_node_of_another_type_has_another_row() -> None:
    node = Node("a", "Add")
    assert node.row.name == "Add"
    assert node.but(name="b").row is node.row
    assert node.but(type="Mul").row.name == "Mul"
    assert node == Node("a", "Add")


def test_an_op_of_the_user_has_the_facts_that_it_states() -> None:
    hf.op("TestOpNamesTwice", elementwise=True, flops=lambda node, inputs: 7.0)
    try:
        row = all_ops()["TestOpNamesTwice"]
        assert row.elementwise and not row.view and row.script
        known = Spec(np.dtype("float32"), (2, 3))
        assert node_cost(Node("a", row.name, specs=(known,)), [known]) == (7, 48)
    finally:
        OPS.pop("TestOpNamesTwice")
    with pytest.raises(TypeError):
        hf.op("TestOpNamesWrong", elementwize=True)
