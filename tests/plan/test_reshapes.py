"""Reshapes in front of what is computed element by element: the same bits, in one shape."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.codegen import elementwise_formulas
from hpcflow.graph.op_registry import all_ops
from hpcflow.plan.algebra.reshape_hoisting import by_element, hoist_reshapes
from hpcflow.plan.distribution.replica_lowering import lower_replicas
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches

from .interpret import run_graph, run_plan
from .model import SINGLE, graph, plan_of, simplify, spec

RNG = np.random.default_rng(2)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def moved(g, fetches, feeds):
    """The shapes of what is computed element by element."""
    program = simplify(lower_replicas(prune_to_fetches(g, fetches, feeds), g, SINGLE))
    nodes = hoist_reshapes(program).nodes.values()
    return [n.specs[0].shape for n in nodes if by_element(n)]


def check(g, fetches, feeds):
    """The plan computes the very bits that the graph does."""
    expected = run_graph(fetches, feeds, {})
    plan = plan_of(g, fetches, {t: a.shape for t, a in feeds.items()})
    found = run_plan(plan, list(feeds.values()), {}, np.random.default_rng(1))
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_each_formula_is_of_an_elementwise_operation():
    for name in {*elementwise_formulas.EXACT, *elementwise_formulas.CLOSE}:
        assert all_ops()[name].elementwise or all_ops()[name].identity == "always"


def test_a_dense_layer_on_sequences_has_one_shape_behind_its_product():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2, 3, 4], name="x")
        y = hf.matmul(hf.reshape(x, [6, 4]), normal(4, 5))
        y = hf.reshape(hf.maximum(hf.nn.bias_add(y, normal(5)) * 2.0, normal(6, 5)), [2, 3, 5])
        out = hf.tanh(y)
    assert set(moved(g, [out], {x: spec(2, 3, 4)})) == {(2, 3, 5)}
    check(g, [out], {x: normal(2, 3, 4)})


@pytest.mark.parametrize("shape", [(6, 1), (1, 5), (1, 1), (1,), (5,), ()])
@pytest.mark.parametrize("new", [(2, 3, 5), (30,), (3, 10), (1, 6, 5), (6, 5, 1), (5, 6)])
def test_operands_that_are_broadcast_stay_right(shape, new):
    with graph() as g:
        x = hf.placeholder(hf.float32, [6, 5], name="x")
        b = hf.placeholder(hf.float32, shape, name="b")
        out = hf.tanh(hf.reshape(hf.negative(x - b), new))
    feeds = {x: normal(6, 5), b: normal(*shape)}
    check(g, [out], feeds)
    keeps_rows = shape in ((1, 5), (5,)) and new in ((2, 3, 5), (1, 6, 5))
    scalar = np.prod(shape, dtype=int) == 1 and len(shape) <= len(new)
    want = {new} if keeps_rows or scalar else {(6, 5), new}
    assert set(moved(g, [out], {x: spec(6, 5), b: spec(*shape)})) == want


def test_a_bias_keeps_the_last_axis():
    for columns, new in ((1, (2, 3)), (4, (6, 2, 2)), (1, (6,))):
        with graph() as g:
            x = hf.placeholder(hf.float32, [6, columns], name="x")
            y = hf.nn.bias_add(x, normal(columns))
            out = hf.tanh(hf.reshape(y, new))
        with hf.Session(graph=g) as session:
            value = normal(6, columns)
            found = session.run(out, {x: value})
        bias = next(op for op in g.get_operations() if op.type == "BiasAdd").inputs[1].constant
        np.testing.assert_allclose(found, np.tanh(value + bias).reshape(new), rtol=1e-5)


def test_what_others_take_or_wait_for_stays():
    with graph() as g:
        x = hf.placeholder(hf.float32, [6, 4], name="x")
        y = hf.negative(x)
        outs = [hf.tanh(hf.reshape(y, [24])), hf.square(y)]
    assert moved(g, outs, {x: spec(6, 4)}).count((6, 4)) == 2
    with graph() as g:
        x = hf.placeholder(hf.float32, [6, 4], name="x")
        y = hf.negative(x)
        flat = hf.reshape(y, [24])
        with hf.control_dependencies([y.op]):
            out = hf.tanh(flat)
    assert (6, 4) in moved(g, [out], {x: spec(6, 4)})


def test_a_reshape_that_ends_the_elements_stays_behind_them():
    with graph() as g:
        x = hf.placeholder(hf.float32, [6, 4], name="x")
        out = hf.matmul(hf.reshape(hf.nn.relu(x), [3, 8]), normal(8, 2))
    assert moved(g, [out], {x: spec(6, 4)}) == [(6, 4)]
