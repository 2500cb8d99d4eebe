"""Gradients of gradients: Hessians of several functions against differences of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GradientError
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec
from tests.ops.cases import C128, F64, Case
from tests.ops.evaluate import call, evaluate
from tests.ops.test_table import GRADUAL, OPS, build, made, weights

N = 6
RNG = np.random.default_rng(0)
M, LABELS = RNG.standard_normal((N, N)), np.array([2, 0])
PLACES = np.array([[0, 1], [1, 0], [1, 2], [2, 2], [0, 0], [2, 1]])

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "a polynomial": lambda x: x**3 * 2.0 - x * x,
    "quotients and roots": lambda x: hf.sqrt(x * x + 1.0) / (2.0 + hf.cos(x)),
    "a matrix product": lambda x: hf.tanh(hf.matmul(hf.constant(M), hf.reshape(x, [N, 1]))) ** 2.0,
    "both sides of a product": lambda x: (
        hf.matmul(hf.reshape(x, [2, 3]), hf.reshape(x, [2, 3]), transpose_b=True) ** 2.0
    ),
    "rows taken twice": lambda x: hf.gather(hf.reshape(x, [3, 2]), [2, 0, 2]) ** 3.0,
    "softmax cross entropy": lambda x: hf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=LABELS, logits=hf.reshape(x, [2, 3])
    ),
    "logistic losses": lambda x: hf.nn.sigmoid_cross_entropy_with_logits(
        labels=hf.constant(np.linspace(0, 1, N)), logits=x * x
    ),
    "the larger of two": lambda x: hf.where(x > 0.1, hf.exp(x), x * x * x),
    "a norm": lambda x: hf.sqrt(hf.reduce_sum(x * x) + 1.0),
    "means and sums": lambda x: hf.reduce_mean(x * x) * hf.reduce_logsumexp(x),
    "parts and joints": lambda x: hf.concat([x[::2], x[:2] * x[1:3]], 0) ** 2.0,
    "a sparse matrix": lambda x: hf.sparse_tensor_dense_matmul(
        hf.SparseTensor(PLACES, x * x, [3, 3]), hf.reshape(x[:3], [3, 1])
    ),
    "moments": lambda x: hf.nn.moments(hf.reshape(x, [3, 2]), [0])[1] ** 2.0,
    "batch normalization": lambda x: (
        hf.nn.batch_normalization(
            hf.reshape(x, [3, 2]), *hf.nn.moments(hf.reshape(x, [3, 2]), [0]), None, None, 0.1
        )
        ** 3.0
    ),
    "fused batch normalization": lambda x: (
        hf.nn.fused_batch_norm(hf.reshape(x, [3, 1, 1, 2]), np.ones(2), np.zeros(2))[0] ** 3.0
    ),
    "layer normalization": lambda x: hf.nn.layer_normalization(hf.reshape(x, [2, 3])) ** 3.0,
    "rows added up": lambda x: (
        hf.IndexedSlices(hf.reshape(x, [3, 2]) ** 2.0, [1, 0, 1], [2, 2]).dense() ** 2.0
    ),
}


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


@pytest.mark.parametrize("name", FUNCTIONS)
def test_hessians(name: str) -> None:
    x = hf.placeholder(hf.float64, [N], name="x")
    y = FUNCTIONS[name](x)
    (slope,), (hessian,) = hf.gradients(y, x), hf.hessians(y, x)
    at = np.linspace(-1.1, 1.3, N)
    with hf.Session() as session:
        found = session.run(hessian, {x: at})
        for i, step in enumerate(np.eye(N) * 1e-5):
            ends = [session.run(slope, {x: at + s * step}) for s in (1, -1)]
            np.testing.assert_allclose(found[i], (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-6)


# -- every row of the op table


def few_of_each(cases: list[Case]) -> list[Case]:
    """Of each op that has a gradient the first three cases that have elements."""
    kept: dict[str, list[Case]] = {}
    for case in cases:
        sizes = [x.size for x in made(case, case.dtypes[-1]) if x.dtype.kind in "fc"]
        if sizes and all(sizes) and not isinstance(OPS[case.type].grad, NoGrad):
            kept.setdefault(case.type, []).append(case)
    return [case for each in kept.values() for case in each[:3]]


ONCE = {"Prod", "CTCLoss", "Igamma", "Igammac"}  # their gradients have none, and say so


@pytest.mark.parametrize("case", few_of_each(GRADUAL), ids=str)
def test_gradients_of_gradients_along_some_direction(case: Case) -> None:
    """By the inputs and by the incoming gradients, against differences of first gradients."""
    inputs = made(case, F64 if F64 in case.dtypes else C128)
    feeds, outputs = build(case, inputs, "known")
    smooth = [y for y in outputs if y.dtype.kind in "fc"]
    held = {*case.refused, *case.still}
    xs = [t for i, t in enumerate(feeds) if t.dtype.kind in "fc" and i not in held]
    given = {t: x for t, x in zip(feeds, inputs, strict=True) if t.op.type == "Placeholder"}
    values = weights(call(case.type, case.attrs, inputs))
    seeds = [hf.placeholder(y.dtype, y.shape) for y in smooth]
    given.update(
        zip(seeds, [w for w, y in zip(values, outputs, strict=True) if y in smooth], strict=True)
    )
    firsts = [hf.convert_to_tensor(g) for g in hf.gradients(smooth, xs, seeds) if g is not None]
    if not (smooth and firsts):
        return
    rng = np.random.default_rng(5)
    along = [drawn(rng, g) for g in evaluate(firsts, given)]
    if case.type in ONCE:
        with pytest.raises(GradientError, match=NOT_TWICE):
            hf.gradients(firsts, xs, along)
        return
    seconds = hf.gradients(firsts, [*xs, *seeds], along)
    found = iter(evaluate([hf.convert_to_tensor(g) for g in seconds if g is not None], given))
    for t, g in zip([*xs, *seeds], seconds, strict=True):
        step = drawn(rng, given[t])
        if case.hermitian and t in xs:
            step = (step + step.swapaxes(-1, -2).conj()) / 2
        ends = [
            sum(
                product(v, g)
                for v, g in zip(along, evaluate(firsts, {**given, t: at}), strict=True)
            )
            for at in (given[t] + 1e-6 * step, given[t] - 1e-6 * step)
        ]
        slope = 0.0 if g is None else product(next(found), step)
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=2e-5, atol=2e-5)


NOT_TWICE = r"second derivatives are not implemented|not differentiated again"


def drawn(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    """Numbers of the shape and dtype of an array."""
    numbers = rng.standard_normal(like.shape)
    return numbers + 1j * rng.standard_normal(like.shape) if like.dtype.kind == "c" else numbers


def product(a: np.ndarray, b: np.ndarray) -> float:
    """The real part of the inner product."""
    return float(np.real(np.conj(a) * b).sum())


def test_third_order() -> None:
    x = hf.placeholder(hf.float64, [], name="x")
    y = hf.exp(x * 2.0) + x**4.0
    for _ in range(3):
        (y,) = hf.gradients(y, x)
    with hf.Session() as session:
        np.testing.assert_allclose(session.run(y, {x: 0.3}), 8 * np.exp(0.6) + 24 * 0.3)


def test_constants_seeds_and_what_does_not_depend() -> None:
    x, z = (hf.placeholder(hf.float64, [2], name=n) for n in "xz")
    inner = x * x
    y = inner * x
    assert hf.gradients(y, [z]) == [None]
    (whole,), (held,) = hf.gradients(y, x), hf.gradients(y, x, stop_gradients=[inner])
    (seeded,) = hf.gradients(y, x, grad_ys=np.array([1.0, -2.0]), name="seeded")
    with hf.Session() as session:
        at = np.array([2.0, 3.0])
        found = session.run([whole, held, seeded], {x: at})
    np.testing.assert_allclose(found, [3 * at**2, at**2, 3 * at**2 * [1, -2]])


def test_a_missing_rule_is_an_error_when_the_graph_is_built() -> None:
    op("NoWayBack", infer=lambda i, a: [Spec(*i[0][:2])], grad=NoGrad("nobody wrote one"))
    try:
        x = hf.placeholder(hf.float64, [2])
        y = x.graph.create_op("NoWayBack", [x * 2.0], {}, "stuck").outputs[0]
        with pytest.raises(GradientError, match=r"NoWayBack.*nobody wrote one") as caught:
            hf.gradients(y, x)
        assert caught.value.op == "stuck" and "test_second_order.py" in str(caught.value.line)
    finally:
        from hpcflow.graph.op_registry import OPS

        del OPS["NoWayBack"]


def test_pieces_of_a_partitioned_variable_are_trained() -> None:
    with hf.variable_scope("t", partitioner=hf.fixed_size_partitioner(2)):
        table = hf.get_variable("table", initializer=np.zeros((4, 2)))
    loss = hf.reduce_sum(hf.nn.embedding_lookup(table, [0, 3, 3], "div"))
    train = hf.train.GradientDescentOptimizer(1.0).minimize(loss, var_list=[table])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        session.run(train)
        np.testing.assert_array_equal(session.run(table)[:, 0], [-1, 0, 0, -2])
