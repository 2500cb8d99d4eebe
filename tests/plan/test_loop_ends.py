"""Sums and numbers as loops over rows can take them: the values are those of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.algebra.reduction_reshaping import MIN_ELEMENTS, reshape_reductions
from hpcflow.plan.distribution.replica_lowering import lower_replicas
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches

from .model import SINGLE, graph, simplify, spec

RNG = np.random.default_rng(9)
B, T, D = 4, 32, 64
assert B * T * D >= MIN_ELEMENTS


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def rewritten(g, fetches, feeds):
    """The nodes that are left."""
    given = {t: spec(*a.shape) for t, a in feeds.items()}
    program = reshape_reductions(
        simplify(lower_replicas(prune_to_fetches(g, fetches, given), g, SINGLE))
    )
    return program.nodes.values()


def run(g, fetches, feeds):
    with hf.Session(graph=g) as session:
        return session.run(fetches, feeds)


def axes(nodes):
    """Types and axes of all sums."""
    return [(n.type, n.attrs["axis"]) for n in nodes if n.type in ("Sum", "Mean")]


@pytest.mark.parametrize(
    ("shape", "axis", "wanted"),
    [
        ((B * T, D), 0, (0, 1)),
        ((B * T, D), [-2], (0, 1)),
        ((B, T * D), 0, None),  # rows of other columns
        ((B * T, D), 1, None),
        ((2, B // 2, T, D), (0, 1), (0,)),
        ((B * T * D,), 0, None),
    ],
)
@pytest.mark.parametrize("kind", ["Sum", "Mean"])
def test_sums_of_columns_behind_a_reshape(kind, shape, axis, wanted):
    with graph() as g:
        x = hf.placeholder(hf.float32, [B, T, D], name="x")
        reduce = hf.reduce_sum if kind == "Sum" else hf.reduce_mean
        y = reduce(hf.reshape(hf.tanh(x), shape), axis)
    feeds = {x: normal(B, T, D)}
    assert axes(rewritten(g, [y], feeds)) == [(kind, axis if wanted is None else wanted)]
    value = np.tanh(feeds[x].astype("f8")).reshape(shape)
    value = (np.sum if kind == "Sum" else np.mean)(value, tuple(np.atleast_1d(axis)))
    np.testing.assert_allclose(run(g, y, feeds), value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("kind", ["Sum", "Mean"])
def test_sums_of_all_are_of_rows_first(kind, keepdims):
    with graph() as g:
        x = hf.placeholder(hf.float32, [B, T, D], name="x")
        reduce = hf.reduce_sum if kind == "Sum" else hf.reduce_mean
        y = reduce(hf.square(x), keepdims=keepdims)
        fed = reduce(x, keepdims=keepdims)  # no loop makes it
    feeds = {x: normal(B, T, D)}
    assert axes(rewritten(g, [y, fed], feeds)) == [(kind, None), (kind, (2,)), (kind, None)]
    found, other = run(g, [y, fed], feeds)
    value = feeds[x].astype("f8")
    for one, wanted in ((found, value * value), (other, value)):
        wanted = (np.sum if kind == "Sum" else np.mean)(wanted, keepdims=keepdims)
        assert one.shape == wanted.shape
        np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", ["Sum", "Mean"])
def test_a_gradient_of_a_sum_is_no_array(kind, scaled):
    with graph() as g:
        x = hf.placeholder(hf.float32, [B, T, D], name="x")
        s = hf.placeholder(hf.float32, [], name="s")
        loss = (hf.reduce_sum if kind == "Sum" else hf.reduce_mean)(hf.square(x))
        (grad,) = hf.gradients(loss * s if scaled else loss, [x])
    feeds = {x: normal(B, T, D), s: np.float32(3)}
    types = [n.type for n in rewritten(g, [grad], feeds)]
    assert "SumGrad" not in types and "MeanGrad" not in types
    factor = (3 if scaled else 1) * 2 / (1 if kind == "Sum" else B * T * D)
    np.testing.assert_allclose(run(g, grad, feeds), factor * feeds[x], rtol=1e-5)


def test_small_ones_stay():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2, 3, 4], name="x")
        loss = hf.reduce_mean(hf.square(x))
        (grad,) = hf.gradients(loss, [x])
    types = [n.type for n in rewritten(g, [loss, grad], {x: normal(2, 3, 4)})]
    assert types.count("Mean") == types.count("MeanGrad") == 1


def test_a_step_sums_columns_in_the_loop_that_makes_them():
    """The gradient of a bias, of a layer on sequences, comes from the loop of its activation."""
    from hpcflow.lowering.fusion.fused_node_label import fused_types
    from hpcflow.runtime.job.rank_context import RankContext
    from hpcflow.runtime.step.kernel_selection import lower_for_devices
    from hpcflow.settings import Settings

    from .model import plan_of

    with graph() as g:
        x = hf.placeholder(hf.float32, [B, T, D], name="x")
        b = hf.placeholder(hf.float32, [D], name="b")
        flat = hf.nn.bias_add(hf.matmul(hf.reshape(x, [B * T, D]), normal(D, D)), b)
        y = hf.tanh(hf.reshape(flat, [B, T, D]))
        loss = hf.reduce_mean(hf.square(y))
        fetches = [loss, *hf.gradients(loss, [x, b])]
    context = RankContext(Settings())
    (part,) = plan_of(g, fetches, {x: (B, T, D), b: (D,)}).parts.values()
    left = lower_for_devices(part, context.devices)
    if any(n.type == "Fused" for n in left.nodes.values()):
        fused = [fused_types(n) for n in left.nodes.values() if n.type == "Fused"]
        assert any("TanhGrad" in held and "Sum" in held for held in fused)
        assert any("Tanh" in held and "Mean" in held for held in fused)
