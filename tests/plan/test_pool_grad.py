"""The way back through pooling, relu and bias is one node; the values stay as they were."""

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.lowering.fusion.max_pool_relu_gradient import fuse_pool_gradients
from hpcflow.lowering.segments_between_waits import split_segments
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.step.kernel_selection import selected_kernels
from hpcflow.settings import Settings

from .model import graph, plan_of, types


def network(bias=True, between=lambda y: y):
    """Feeds, and the gradients by an image and what is added to it."""
    x = hf.placeholder(hf.float32, [2, 6, 6, 3], name="x")
    b = hf.placeholder(hf.float32, [3], name="b")
    y = between(hf.nn.relu(hf.nn.bias_add(x, b)))
    loss = hf.reduce_sum(hf.square(hf.nn.max_pool2d(y, 2, 2, "VALID")))
    return [x, b], hf.gradients(loss, [x, b] if bias else [x])


def left(g, fetches, feeds, serves=lambda node, specs: True):
    """The types of the nodes that are left."""
    (part,) = plan_of(g, fetches, {t: t.shape for t in feeds}).parts.values()
    made = fuse_pool_gradients(part, split_segments(part), serves)
    seen: set[str] = set()
    for node in made.nodes.values():
        assert seen.issuperset(node.before())
        assert all(ref.index < len(made.nodes[ref.node].specs) for ref in node.inputs)
        seen.add(node.name)
    assert seen.issuperset(ref.node for ref in made.fetches)
    return types(made)


def test_a_chain_becomes_one_node():
    with graph() as g:
        feeds, grads = network()
        found = left(g, [hf.square(grads[0]), hf.square(grads[1])], feeds)
        assert found.count("MaxPoolReluGrad") == 1
        assert not {"MaxPoolGrad", "ReluGrad", "Sum"}.intersection(found) - {"Sum"}
        assert found.count("Sum") == 0


def test_what_is_fetched_stays():
    with graph() as g:
        feeds, (of_x, of_b) = network()
        found = left(g, [of_x, of_b], feeds)  # the sum itself is wanted
        assert {"MaxPoolReluGrad", "Sum"} <= set(found)


def test_a_part_that_others_use_or_of_something_else_stays():
    with graph() as g:
        feeds, grads = network(between=lambda y: hf.identity(y) * 2.0)
        found = left(g, [hf.square(grads[0])], feeds)
        assert "MaxPoolGrad" in found and "MaxPoolReluGrad" not in found
    with graph() as g:
        feeds, grads = network()
        assert "MaxPoolReluGrad" not in left(g, grads, feeds, lambda *given: False)


def trained(**settings):
    """Some steps of a small network, its variables, and who computes what."""
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    with use_context(RankContext(Settings(**settings))) as context, hf.Graph().as_default():
        w, b = hf.Variable(drawn(3, 3, 2, 8)), hf.Variable(drawn(8))
        x = hf.placeholder(hf.float32, [4, 8, 8, 2])
        y = hf.nn.relu(hf.nn.bias_add(hf.nn.conv2d(x, w, 1, "SAME"), b))
        loss = hf.reduce_mean(hf.square(hf.nn.max_pool2d(y, 2, 2, "VALID") - 1))
        train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        images = drawn(4, 8, 8, 2)
        losses = [session.run([loss, train], {x: images})[0] for _ in range(4)]
        plan = session.plan([loss, train], {x: images})
        rows = {
            row.type: row.provider
            for row in selected_kernels(plan.parts[plan.driver], context.devices)
        }
        return [np.array(losses), *session.run([w, b])], rows


def test_training_is_as_without():
    pytest.importorskip("llvmlite")
    fast, rows = trained()
    assert rows["MaxPoolReluGrad"] == "llvm" and rows["MaxPool"] == "llvm"
    plain, rows = trained(kernels="plain")
    assert "MaxPoolReluGrad" not in rows and rows["MaxPool"] == "numpy"
    exact, rows = trained(exact=True)
    assert "MaxPoolReluGrad" not in rows
    for a, b, c in zip(fast, plain, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        assert np.array_equal(b, c)
