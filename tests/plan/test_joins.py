"""Values that are joined by rows are produced where they are joined, if nothing speaks against."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.lowering.python_codegen import generate_code
from hpcflow.plan.cost.cost_model import input_specs
from hpcflow.runtime.device.device import Device

from .model import graph, plan_of

CPU = Device()
RNG = np.random.default_rng(5)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def code_of(g, fetches, feeds):
    plan = plan_of(g, fetches, feeds)
    (part,) = plan.parts.values()
    return generate_code(part, lambda node: CPU.info(node, input_specs(node, part))).source


def copies(source):
    """How many values are copied to where they are joined."""
    return sum("[...] = " in line for line in source.splitlines())


def joined_of(kind, values):
    return hf.stack(values) if kind == "stack" else hf.concat(values, 0)


@pytest.mark.parametrize("kind", ["stack", "concat"])
def test_what_kernels_make_is_not_copied_what_is_fed_is(kind):
    with graph() as g:
        x = hf.placeholder(hf.float32, [3, 4], name="x")
        whole = joined_of(kind, [hf.tanh(x), x, hf.matmul(x, normal(4, 4)), hf.negative(x)])
        y = hf.tanh(whole)
    source = code_of(g, [y], {x: (3, 4)})
    assert copies(source) == 1 and "concatenate" not in source


def test_each_value_has_one_place():
    """What is joined twice lies in the first array; a kernel joins what is joined itself."""
    with graph() as g:
        x = hf.placeholder(hf.float32, [2, 4], name="x")
        a, b, c = hf.tanh(x), hf.negative(x), hf.square(x)
        first, second = hf.concat([a, b, a], 0), hf.concat([c, a], 0)
        both = hf.concat([first, second], 0)
        outs = [hf.tanh(v) for v in (first, second, both)]
    assert copies(code_of(g, outs, {x: (2, 4)})) == 1 + 1  # of a, twice


def test_what_is_fetched_has_memory_of_its_own():
    with graph() as g:
        x = hf.placeholder(hf.float32, [2, 4], name="x")
        a, b = hf.tanh(x), hf.negative(x)
        whole = hf.concat([a, b], 0)
        y = hf.tanh(whole)
    assert copies(code_of(g, [y, a], {x: (2, 4)})) == 1
    assert copies(code_of(g, [whole], {x: (2, 4)})) == 0  # made by the kernel, as before
    with hf.Session(graph=g) as session:
        value = normal(2, 4)
        before, found = session.run([whole, a], {x: value})
        session.run([whole, a], {x: value + 1})
    np.testing.assert_allclose(found, np.tanh(value), rtol=1e-6)
    np.testing.assert_allclose(before, np.concatenate([np.tanh(value), -value]), rtol=1e-6)


def test_parts_stay_as_long_as_the_whole_is_used():
    """Later values may lie where the whole was only when its last use is over, and the parts'."""
    with graph() as g:
        x = hf.placeholder(hf.float32, [50, 4], name="x")
        a, b = hf.tanh(x), hf.exp(x)
        whole = hf.concat([a, b], 0)
        total = hf.reduce_sum(whole)
        t = x
        for _ in range(6):
            t = hf.sin(t) + total
        y = [t, hf.reduce_sum(a * t), hf.reduce_sum(hf.concat([t, a], 0))]
    value = normal(50, 4)
    p, q = np.tanh(value), np.exp(value)
    t = value.astype("f8")
    for _ in range(6):
        t = np.sin(t) + (p.sum() + q.sum())
    with hf.Session(graph=g) as session:
        found = session.run(y, {x: value})
    np.testing.assert_allclose(found[0], t, rtol=1e-4)
    np.testing.assert_allclose(found[1], (p * t).sum(), rtol=1e-4)
    np.testing.assert_allclose(found[2], t.sum() + p.sum(), rtol=1e-4)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_random_graphs_of_joined_values(seed):
    rng = np.random.default_rng(seed)
    value = rng.normal(size=(4, 3)).astype("f4")
    with graph() as g:
        x = hf.placeholder(hf.float32, [4, 3], name="x")
        made = [(x, value.astype("f8"))]
        for _ in range(20):
            (a, p), (b, q) = (made[i] for i in rng.integers(0, len(made), 2))
            kind = rng.integers(0, 5)
            if kind == 0 and p.shape[0] + 2 * q.shape[0] < 100:
                made.append((hf.concat([a, b, b], 0), np.concatenate([p, q, q])))
            elif kind == 1 and p.shape[0] % 4 == 0:
                parts = list(zip(hf.split(a, 2), np.split(p, 2), strict=True))
                made += parts
                made.append((hf.concat([v for v, _ in parts[::-1]], 0), np.roll(p, len(p) // 2, 0)))
            elif p.shape == q.shape:
                made.append((a + b, p + q))
                made.append((hf.sin(a), np.sin(p)))
            else:
                made.append((hf.tanh(a), np.tanh(p)))
        picks = [made[i] for i in rng.integers(0, len(made), 4)]
        sums = [hf.reduce_sum(v, 0) for v, _ in picks]
    with hf.Session(graph=g) as session:
        for _ in range(2):
            found = session.run(sums, {x: value})
            for got, (_, want) in zip(found, picks, strict=True):
                np.testing.assert_allclose(got, want.sum(0), rtol=1e-3, atol=1e-3)
