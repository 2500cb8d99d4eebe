"""Rewrites of products and of rows: fewer of them, the same values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.plan.algebra import sum_of_matmuls
from hpcflow.plan.distribution.replica_lowering import lower_replicas
from hpcflow.plan.frontend.graph_pruning import prune_to_fetches
from hpcflow.plan.pass_list import make_plan
from hpcflow.plan.verification.plan_verifier import verify_plan
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

from .interpret import run_graph, run_plan
from .model import SINGLE, graph, phase, plan_of, simplify, spec

RNG = np.random.default_rng(3)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def program_of(g, fetches, feeds, exact=False):
    program = simplify(lower_replicas(prune_to_fetches(g, fetches, feeds), g, SINGLE))
    return phase("algebra", program, settings=Settings(exact=exact))


def count(program, type):
    return [n.type for n in program.nodes.values()].count(type)


def check(g, fetches, feeds, exact=False, rtol=1e-4):
    """The plan of these fetches computes what the graph says; its only part is returned."""
    expected = run_graph(fetches, feeds, {})
    config = Settings(exact=exact)
    plan = plan_of(g, fetches, {t: a.shape for t, a in feeds.items()}, settings=config)
    found = run_plan(plan, list(feeds.values()), {}, np.random.default_rng(1))
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5)
    (part,) = plan.parts.values()
    return part


# -- rows


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_taken_apart_and_joined_again_is_what_it_was(exact):
    with graph() as g:
        x = hf.placeholder(hf.float32, [4, 3, 2], name="x")
        rows = hf.unstack(x)
        whole = hf.stack(rows)
        end = hf.concat([hf.expand_dims(r, 0) for r in rows[2:]], 0)
        turned = hf.stack(rows[::-1])
        halves = hf.concat(hf.split(hf.reshape(x, [12, 2]), 2), 0)
        outs = [hf.negative(v) for v in (whole, end, turned, halves)]
    part = check(g, outs, {x: normal(4, 3, 2)}, exact)
    assert not {"Unpack", "Split", "Concat"} & {n.type for n in part.nodes.values()}
    assert count(part, "Pack") == 1  # the rows of `turned` are in another order


def test_parts_that_begin_within_a_row_are_joined_as_they_were():
    with graph() as g:
        x = hf.placeholder(hf.float32, [4, 6], name="x")
        halves = hf.split(hf.reshape(x, [8, 3]), 8)
        middle = hf.negative(hf.concat(halves[1:4], 0))
    part = check(g, [middle], {x: normal(4, 6)})
    assert count(part, "Concat") == 0  # three rows of [8, 3] are rows of that
    with graph() as g:
        x = hf.placeholder(hf.float32, [4, 6], name="x")
        flat = hf.reshape(x, [24])
        pieces = hf.split(flat, [5, 7, 12])
        first = hf.negative(hf.concat(pieces[:2], 0))
    check(g, [first], {x: normal(4, 6)})


def test_other_axes_and_unknown_sizes_stay():
    with graph() as g:
        x = hf.placeholder(hf.float32, [None, 4], name="x")
        parts = hf.split(x, 2, axis=1)
        whole = hf.negative(hf.concat(parts, 1), name="whole")
    program = program_of(g, [whole], {x: spec(None, 4)})
    assert count(program, "Split") == 1 and count(program, "Rows") == 0
    with graph() as g:
        x = hf.placeholder(hf.float32, [None, 4], name="x")
        rows = hf.split(x, [1, -1], axis=0)
        outs = [hf.negative(r) for r in rows]
    assert count(program_of(g, outs, {x: spec(None, 4)}), "Rows") == 0


def test_a_view_in_the_middle_of_a_buffer_is_not_written_over():
    """y = x[1] + z may take the place of what dies, but not when x is more than that row."""
    with hf.Graph().as_default(), hf.Session() as session:
        x = hf.placeholder(hf.float32, [3, 50])
        rows = hf.unstack(hf.tanh(x))
        sums = rows[1] + 1.0
        for _ in range(3):
            sums = hf.tanh(sums + rows[1])
        last = sums + rows[1]
        value = normal(3, 50)
        t = np.tanh(value)
        want = t[1] + 1
        for _ in range(3):
            want = np.tanh(want + t[1])
        np.testing.assert_allclose(session.run(last, {x: value}), want + t[1], rtol=1e-5)


@pytest.mark.parametrize(
    "key",
    [
        np.s_[1:3],
        np.s_[:-2],
        np.s_[2:],
        np.s_[1:3, :],
        np.s_[-3:, ...],
        np.s_[::2],
        np.s_[::-1],
        np.s_[1:3, 1:],
        np.s_[3:1],
        np.s_[2],
        np.s_[..., 1:2],
        np.s_[None, 1:2],
        np.s_[9:],
    ],
    ids=str,
)
def test_slices_of_whole_rows_are_views(key):
    with graph() as g:
        x = hf.placeholder(hf.float32, [4, 3], name="x")
        out = hf.negative(x[key])
    part = check(g, [out], {x: normal(4, 3)}, exact=True)
    whole = key in (np.s_[1:3], np.s_[:-2], np.s_[2:], np.s_[1:3, :], np.s_[-3:, ...])
    assert count(part, "Rows") == whole


@pytest.mark.parametrize("cuts", [[2], [1, 4], [3, 2], [6]], ids=str)
def test_gradients_of_slices_that_are_all_rows_are_joined(cuts):
    w = normal(6, 3)
    with graph() as g:
        x = hf.placeholder(hf.float32, [6, 3], name="x")
        ends = [0, *cuts, 6]
        parts = [hf.tanh(x[a:b]) * w[a:b] for a, b in itertools.pairwise(ends) if a < b]
        loss = hf.add_n([hf.reduce_sum(p) for p in parts]) + hf.reduce_sum(hf.square(x))
        (grad,) = hf.gradients(loss, [x])
    value = normal(6, 3)
    with hf.Session(graph=g) as session:
        found = session.run(grad, {x: value})
    np.testing.assert_allclose(found, expected_slices(value, w, ends), rtol=1e-4, atol=1e-5)
    in_order = ends == sorted(set(ends))
    program = program_of(g, [grad], {x: spec(6, 3)})
    assert (count(program, "StridedSliceGrad") == 0) == in_order
    assert count(program_of(g, [grad], {x: spec(6, 3)}, exact=True), "StridedSliceGrad") > 0


def expected_slices(x, w, ends):
    total = 2 * x.astype("f8")
    for a, b in itertools.pairwise(ends):
        if a < b:
            total[a:b] += w[a:b] * (1 - np.tanh(x[a:b].astype("f8")) ** 2)
    return total


# -- products


def steps_of(rows, width, n, name="x"):
    x = hf.placeholder(hf.float32, [n, rows, width], name=name)
    return x, hf.unstack(x)


def test_products_of_rows_that_are_there_become_one():
    w = normal(5, 7)
    with graph() as g:
        x, steps = steps_of(2, 5, 6)
        outs = [hf.tanh(hf.matmul(s, w)) for s in steps]
        total = hf.add_n(outs)
    part = check(g, [total], {x: normal(6, 2, 5)})
    assert count(part, "MatMul") == 1 and count(part, "Concat") == 0
    part = check(g, [total], {x: normal(6, 2, 5)}, exact=True)
    assert count(part, "MatMul") == 6


def test_products_that_wait_for_each_other_stay():
    w = normal(5, 5)
    with graph() as g:
        h = x = hf.placeholder(hf.float32, [2, 5], name="x")
        for _ in range(4):
            h = hf.tanh(hf.matmul(h, w))
    assert count(check(g, [h], {x: normal(2, 5)}), "MatMul") == 4


def test_products_of_one_depth_become_one():
    """Two chains: the first products of both at once, then the second ones."""
    w = normal(5, 5)
    with graph() as g:
        x, ends = hf.placeholder(hf.float32, [2, 2, 5], name="x"), []
        for h in hf.unstack(x):
            for _ in range(3):
                h = hf.tanh(hf.matmul(h, w))
            ends.append(h)
    assert count(check(g, ends, {x: normal(2, 2, 5)}), "MatMul") == 3


@pytest.mark.parametrize("how", ["fetch", "control", "target"])
def test_products_that_others_name_stay(how):
    w = normal(5, 5)
    with graph() as g:
        x, steps = steps_of(2, 5, 2)
        a, b = (hf.matmul(s, w) for s in steps)
        if how == "control":
            with hf.control_dependencies([a.op, b.op]):
                fetches = [hf.tanh(x)]
        elif how == "target":
            fetches = [a.op, b.op]
        else:
            fetches = [a, b]
    program = program_of(g, fetches, {x: spec(2, 2, 5)})
    assert count(program, "MatMul") == (1 if how == "fetch" else 2)


def test_large_products_and_those_of_other_places_stay():
    with graph() as g:
        x, steps = steps_of(600, 5, 2)
        w = hf.constant(normal(5, 3))
        outs = [hf.matmul(s, w) for s in steps]
    assert count(program_of(g, outs, {x: spec(2, 600, 5)}), "MatMul") == 2
    with graph() as g:
        x, steps = steps_of(2, 5, 2)
        w = hf.placeholder(hf.float32, [5, 3], name="w")
        with hf.device("cpu:1"):
            other = hf.matmul(steps[1], w)
        outs = [hf.matmul(steps[0], w), other]
    assert count(program_of(g, outs, {x: spec(2, 2, 5), w: spec(5, 3)}), "MatMul") == 2


class Recurrent:
    """A recurrent net with a loss, and all its gradients."""

    def __init__(self, n=4, rows=2, width=3, hidden=5, backwards=False):
        shapes = {"w": (width + hidden, hidden), "b": (hidden,), "x": (n, rows, width)}
        with graph() as self.graph:
            given = {k: hf.placeholder(hf.float32, s, name=k) for k, s in shapes.items()}
            h, outs = hf.zeros([rows, hidden]), []
            steps = hf.unstack(given["x"])
            for s in steps[::-1] if backwards else steps:
                both = hf.concat([s, h], 1)
                h = hf.tanh(hf.matmul(both, given["w"]) + given["b"])
                outs.append(h)
            loss = hf.reduce_sum(hf.square(hf.concat(outs, 0)))
            self.fetches = [loss, *hf.gradients(loss, list(given.values()))]
        self.feeds = {given[k]: normal(*s) for k, s in shapes.items()}


@pytest.mark.parametrize("backwards", [False, True])
def test_a_recurrent_net_has_one_product_for_all_steps_where_it_can(backwards):
    net = Recurrent(n=6, backwards=backwards)
    expected = by_hand(net)
    plan = make_plan(
        net.graph,
        net.fetches,
        {t: spec(*a.shape) for t, a in net.feeds.items()},
        SINGLE,
        Settings(),
    )
    verify_plan(plan)
    (part,) = plan.parts.values()
    # forward: x of all steps, h of each; back: h of all but the first, x of all; weights: both
    assert count(part, "MatMul") == 1 + 6 + 5 + 1 + 2
    assert count(part, "Sum") <= 2
    with hf.Session(graph=net.graph) as session:
        found = session.run(net.fetches, net.feeds)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)


def by_hand(net):
    """The loss and the gradients, by NumPy in float64."""
    w, b, x = (a.astype("f8") for a in net.feeds.values())
    backwards = net_is_backwards(net)
    steps = x[::-1] if backwards else x
    h, seen = np.zeros((x.shape[1], len(b))), []
    for s in steps:
        both = np.concatenate([s, h], 1)
        h = np.tanh(both @ w + b)
        seen.append((both, h))
    loss = sum((h * h).sum() for _, h in seen)
    dw, db, dx, dh = np.zeros_like(w), np.zeros_like(b), [], 0.0
    for both, h in reversed(seen):
        g = (dh + 2 * h) * (1 - h * h)
        dw, db = dw + both.T @ g, db + g.sum(0)
        back = g @ w.T
        dx.append(back[:, : x.shape[2]])
        dh = back[:, x.shape[2] :]
    dx = np.stack(dx if backwards else dx[::-1])
    return [loss, dw, db, dx]


def net_is_backwards(net):
    first = next(op for op in net.graph.get_operations() if op.type == "Concat")
    return first.inputs[0].index != 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_random_graphs_of_products_and_rows(seed):
    """Products, sums, cuts and joins of matrices at random: the plan does what the graph says."""
    rng = np.random.default_rng(seed)
    with graph() as g:
        x = hf.placeholder(hf.float32, [6, 4], name="x")
        weights = [hf.constant(rng.normal(size=(4, 4)).astype("f4") / 2) for _ in range(2)]
        values = [x, *hf.split(x, 3), *hf.unstack(hf.reshape(x, [3, 2, 4]))]

        def one(rows=None):
            fits = [v for v in values if rows is None or v.shape[0] == rows]
            return fits[rng.integers(len(fits))]

        for _ in range(25):
            kind, a = rng.integers(0, 7), one()
            if kind <= 1:
                values.append(hf.matmul(a, weights[rng.integers(2)], False, bool(rng.integers(2))))
            elif kind == 2:
                values.append(hf.concat([a, one(), one()], 0))
            elif kind == 3:
                cut = hf.concat([a, one(a.shape[0])], 1)
                wide = hf.concat(weights, 0)
                values.append(hf.matmul(cut, wide))
                values += hf.split(hf.matmul(a, wide, transpose_b=True), 2, axis=1)
            elif kind == 4:
                b = one(a.shape[0])
                pairs = [hf.matmul(p, q, transpose_a=True) for p, q in ((a, b), (b, a), (a, a))]
                values.append(hf.add_n(pairs) * 0.1)
            elif kind == 5 and a.shape[0] % 2 == 0:
                values += hf.split(a, 2)
            else:
                values.append(hf.tanh(hf.add(a, one(a.shape[0]))))
        fetches = [hf.tanh(values[i]) for i in rng.integers(0, len(values), 4)]
    check(g, fetches, {x: normal(6, 4)}, rtol=1e-3)


# -- sums of products


def test_the_sum_of_products_is_one_product():
    with graph() as g:
        x, xs = steps_of(2, 5, 6)
        y, ys = steps_of(2, 4, 6, "y")
        total = hf.add_n([hf.matmul(a, b, transpose_a=True) for a, b in zip(xs, ys, strict=True)])
        rows = hf.add_n([hf.reduce_sum(b, 0) for b in ys])
        mixed = hf.add_n(
            [total, *(hf.matmul(a, b, True) for a, b in zip(xs[1:3], ys, strict=False))]
        )
        outs = [hf.negative(total), hf.negative(rows)]
    feeds = {x: normal(6, 2, 5), y: normal(6, 2, 4)}
    part = check(g, outs, feeds)
    assert count(part, "MatMul") == 1 and count(part, "AddN") == 0 and count(part, "Sum") == 1
    assert count(part, "Concat") == 0  # the rows lie as they have to
    check(g, [mixed], feeds)


def test_sums_of_products_that_somebody_else_takes_stay():
    with graph() as g:
        x, xs = steps_of(2, 5, 3)
        products = [hf.matmul(a, a, transpose_a=True) for a in xs]
        outs = [hf.tanh(hf.add_n(products)), hf.tanh(products[0])]
    part = check(g, outs, {x: normal(3, 2, 5)})
    assert count(part, "MatMul") == 2


def test_long_rows_that_would_have_to_be_copied_stay():
    with graph() as g:
        x, xs = steps_of(500, 5, 3)
        total = hf.add_n([hf.matmul(hf.tanh(a), a, transpose_a=True) for a in xs])
    assert count(program_of(g, [total], {x: spec(3, 500, 5)}), "MatMul") == 3


# -- windows


def test_states_before_and_after_each_step_are_one_array():
    net = Recurrent(n=6)
    feeds = {t: spec(*a.shape) for t, a in net.feeds.items()}
    joined = [
        n for n in program_of(net.graph, net.fetches, feeds).nodes.values() if n.type == "Concat"
    ]
    states = [n for n in joined if len(n.inputs) == 7]
    assert len(states) == 1  # the first state and all six behind it


def test_arrays_that_wait_for_each_other_are_not_shared():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2, 3], name="x")
        a, b, c = hf.tanh(x), hf.negative(x), hf.square(x)
        first = hf.concat([a, b, c], 0)
        d = hf.tanh(hf.reduce_sum(first) + x)
        second = hf.concat([b, c, d], 0)
        outs = [hf.negative(first), hf.negative(second)]
    part = check(g, outs, {x: normal(2, 3)})
    assert count(part, "Concat") == 2


def test_a_variable_keeps_its_rows_until_the_step_has_used_them():
    """Rows of weights are views: an update that comes before their last use renews the weights."""

    def body(context):
        v = Variable(np.ones((4, 3), np.float32), name="v")
        x = hf.placeholder(hf.float32, [2, 3, 2], name="x")
        h, outs = hf.zeros([3, 2]), []
        for s in hf.unstack(x):
            h = hf.matmul(hf.concat([s, h], 1), v)[:, :2]
            outs.append(h)
        with hf.control_dependencies([outs[0]]):
            update = v.assign_add(np.ones((4, 3), np.float32))
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        value, found = normal(2, 3, 2), []
        for i in range(3):
            last, _ = session.run([outs[-1], update], {x: value})
            w = np.full((4, 3), 1.0 + i, "f4")
            h = np.zeros((3, 2), "f4")
            for s in value:
                h = (np.concatenate([s, h], 1) @ w)[:, :2]
            found.append(bool(np.allclose(last, h, rtol=1e-4)))
        return found

    assert run_ranks(1, body) == [[True] * 3]


def test_a_long_chain_of_sums_takes_no_time_that_grows_with_its_square(monkeypatch):
    """Who takes what is looked up for the sums alone that have products among their addends."""
    asked = []
    original = sum_of_matmuls.consumer_names
    monkeypatch.setattr(
        sum_of_matmuls, "consumer_names", lambda program: asked.append(1) or original(program)
    )
    with graph() as g:
        x = hf.placeholder(hf.float32, [2, 3], name="x")
        y = x
        for _ in range(50):
            y = hf.tanh(y) + x
        total = hf.add_n([hf.matmul(v, v, transpose_a=True) for v in (x, y)])
    assert count(program_of(g, [total], {x: spec(2, 3)}), "MatMul") == 1
    assert len(asked) == 1
