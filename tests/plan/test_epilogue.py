"""Products and convolutions take in their bias and relu; the values stay as they were."""

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.kernels import onednn_library
from hpcflow.lowering.fusion.bias_relu_epilogue import fuse_epilogues
from hpcflow.lowering.segments_between_waits import split_segments
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

from .model import graph, plan_of, types

X, W, B = (2, 6, 6, 3), (3, 3, 3, 4), (4,)


def placeholders(*shapes):
    return [hf.placeholder(hf.float32, shape, name=f"p{i}") for i, shape in enumerate(shapes)]


def rewritten(g, fetches, tensors, serves=lambda node, specs: True):
    """The types of the nodes that are left, without feeds."""
    plan = plan_of(g, fetches, {t: t.shape for t in tensors})
    (part,) = plan.parts.values()
    made = fuse_epilogues(part, split_segments(part), serves)
    seen: set[str] = set()
    for node in made.nodes.values():  # each behind what it needs, and all there
        assert seen.issuperset(node.before())
        seen.add(node.name)
    assert seen.issuperset(ref.node for ref in made.fetches)
    return [type for type in types(made) if type not in ("Feed", "Const")]


@pytest.mark.parametrize(
    "add",
    [hf.nn.bias_add, lambda y, b: y + b, lambda y, b: b + y],
    ids=["bias_add", "sum", "sum turned"],
)
def test_a_chain_becomes_one_node(add):
    with graph() as g:
        x, w, b = placeholders(X, W, B)
        y = hf.nn.relu(add(hf.nn.conv2d(x, w, 1, "SAME"), b))
        assert rewritten(g, [y], [x, w, b]) == ["ConvBias"]
    with graph() as g:
        x, w, b = placeholders((5, 3), (3, 4), B)
        assert rewritten(g, [hf.nn.relu(add(hf.matmul(x, w), b))], [x, w, b]) == ["MatMulBias"]
    with graph() as g:
        x, w, b = placeholders((5, 3), (3, 4), B)
        y = hf.tanh(add(hf.matmul(x, w), b))
        assert rewritten(g, [y], [x, w, b]) == ["MatMulBias", "Tanh"]


def test_what_others_use_stays():
    with graph() as g:
        x, w, b = placeholders((5, 3), (3, 4), B)
        product = hf.matmul(x, w)
        biased = product + b
        y = hf.nn.relu(biased)
        inputs = [x, w, b]
        assert rewritten(g, [y, product], inputs) == ["MatMul", "Add", "Relu"]
        assert rewritten(g, [y, biased], inputs) == ["MatMulBias", "Relu"]
        assert rewritten(g, [y, hf.square(product)], inputs).count("MatMul") == 1
        assert "MatMulBias" in rewritten(g, [y, hf.square(biased)], inputs)


def test_what_others_wait_for_stays():
    with graph() as g:
        x, w, b = placeholders((5, 3), (3, 4), B)
        product = hf.matmul(x, w)
        with hf.control_dependencies([product]):
            other = hf.identity(x)
        found = rewritten(g, [hf.nn.relu(product + b), other], [x, w, b])
        assert "MatMul" in found and "MatMulBias" not in found


@pytest.mark.parametrize("shape", [(5, 4), (1, 4), (1,), ()])
def test_only_vectors_are_biases(shape):
    with graph() as g:
        x, w, b = placeholders((5, 3), (3, 4), shape)
        assert rewritten(g, [hf.matmul(x, w) + b], [x, w, b]) == ["MatMul", "Add"]


def test_nothing_is_joined_that_no_better_kernel_serves():
    with graph() as g:
        x, w, b = placeholders((5, 3), (3, 4), B)
        y = hf.nn.relu(hf.matmul(x, w) + b)
        asked = []

        def without_relu(node, specs):
            asked.append((node.type, node.attrs["relu"], [s.shape for s in specs]))
            return not node.attrs["relu"]

        assert rewritten(g, [y], [x, w, b], lambda *a: False) == ["MatMul", "Add", "Relu"]
        assert rewritten(g, [y], [x, w, b], without_relu) == ["MatMulBias", "Relu"]
        shapes = [(5, 3), (3, 4), (4,)]
        assert asked == [("MatMulBias", True, shapes), ("MatMulBias", False, shapes)]


def network(x, w, b, v, c):
    y = hf.nn.relu(hf.nn.bias_add(hf.nn.conv2d(x, w, 1, "SAME"), b))
    y = hf.nn.max_pool2d(y, 2, 2, "VALID")
    return hf.nn.relu(hf.matmul(hf.reshape(y, [y.shape[0], -1]), v) + c)


def trained(**settings):
    """Some steps of a small network: its losses and its variables."""
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    with use_context(RankContext(Settings(**settings))), hf.Graph().as_default():
        shapes = [(3, 3, 4, 16), (16,), (256, 300), (300,)]
        variables = [hf.Variable(drawn(*s) * 0.1) for s in shapes]
        x = hf.placeholder(hf.float32, [32, 8, 8, 4])
        loss = hf.reduce_mean(hf.square(network(x, *variables) - 1))
        train = hf.train.GradientDescentOptimizer(0.01).minimize(loss)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        images = drawn(32, 8, 8, 4)
        losses = [session.run([loss, train], {x: images})[0] for _ in range(4)]
        return [np.array(losses), *session.run(variables)]


@pytest.mark.skipif(bool(onednn_library.absent()), reason=f"oneDNN: {onednn_library.absent()}")
def test_training_is_as_without(monkeypatch):
    made = []
    original = fuse_epilogues
    module = "hpcflow.plan.pass_list.fuse_epilogues"
    monkeypatch.setattr(module, lambda *a: made.append(original(*a)) or made[-1])
    fast = trained()
    joined = [node.type for part in made for node in part.nodes.values()]
    assert joined.count("ConvBias") == joined.count("MatMulBias") == 1
    made.clear()
    plain, exact = trained(kernels="plain", exact=True), trained(exact=True)
    assert not any("Bias" in n.type and "Add" not in n.type for p in made for n in p.nodes.values())
    for a, b, c in zip(fast, plain, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        assert np.array_equal(b, c)
