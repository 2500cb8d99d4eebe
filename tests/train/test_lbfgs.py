"""L-BFGS against SciPy's: minima of known functions, a fit, replicas that share a batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize

import hpcflow as hf
from hpcflow.errors import GradientError, NumericError
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from hpcflow.train.optimizers.lbfgs import direction, line_search
from tests.runtime.ranks import run_ranks


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with use_context(RankContext(Settings())), hf.Graph().as_default() as graph:
        yield graph


def test_rosenbrocks_valley() -> None:
    x = hf.Variable(np.array([-1.2, 1.0, -1.2, 1.0]), name="x")
    loss = hf.reduce_sum(100.0 * (x[1:] - x[:-1] ** 2.0) ** 2.0 + (1.0 - x[:-1]) ** 2.0)
    fit = hf.train.LBFGS(loss, gradient_tolerance=1e-9, loss_tolerance=0)
    losses: list[float] = []
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        result = fit.minimize(session, step_callback=lambda n, f: losses.append(f))
        np.testing.assert_allclose(session.run(x), np.ones(4), atol=1e-8)
    theirs = optimize.minimize(
        optimize.rosen, [-1.2, 1, -1.2, 1], jac=optimize.rosen_der, method="L-BFGS-B"
    )
    assert result.converged and result.loss < 1e-16 and len(losses) == result.iterations
    assert all(a >= b for a, b in pairwise(losses))
    assert result.evaluations < 2 * theirs.nfev


def logistic(share: slice) -> tuple:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 5))
    labels = (features @ rng.standard_normal(5) + rng.standard_normal(60) > 0).astype(float)
    w = hf.Variable(np.zeros((5, 1)), name="w")
    b = hf.Variable(np.zeros(1), name="b")
    x = hf.placeholder(hf.float64, [None, 5])
    y = hf.placeholder(hf.float64, [None])
    logits = hf.reshape(hf.matmul(x, w) + b, [-1])
    losses = hf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits)
    loss = hf.reduce_mean(losses) + 0.05 * hf.nn.l2_loss(w)
    return loss, [w, b], {x: features[share], y: labels[share]}, features, labels


def expected() -> np.ndarray:
    with hf.Graph().as_default():
        *_, features, labels = logistic(slice(None))

    def f(p: np.ndarray) -> float:
        z = features @ p[:5] + p[5]
        return float(np.mean(np.logaddexp(0, z) - labels * z) + 0.025 * p[:5] @ p[:5])

    return optimize.minimize(f, np.zeros(6), method="BFGS", options={"gtol": 1e-8}).x


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_logistic_fit_is_scipys_on_any_number_of_replicas(replicas: int) -> None:
    def body(context: RankContext) -> np.ndarray:
        n = 60 // context.cluster.replicas
        mine = slice(context.replica * n, context.replica * n + n)
        loss, variables, feeds, *_ = logistic(mine)
        fit = hf.train.LBFGS(loss, variables, gradient_tolerance=1e-7)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        assert fit.minimize(session, feeds).converged
        return np.concatenate([np.ravel(v) for v in session.run(variables)])

    for found in run_ranks(replicas, body):
        np.testing.assert_allclose(found, expected(), atol=2e-5)


def test_rows_of_a_table_and_float32() -> None:
    table = hf.Variable(np.zeros((4, 2), np.float32), name="table")
    loss = hf.reduce_sum(hf.square(hf.gather(table, [1, 3]) - np.array([[1, 2], [3, 4]], "f4")))
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        result = hf.train.LBFGS(loss).minimize(session)
        assert result.loss < 1e-10
        np.testing.assert_allclose(session.run(table), [[0, 0], [1, 2], [0, 0], [3, 4]], atol=1e-5)


def test_the_direction_is_newtons_when_the_curvature_is_known() -> None:
    """Of a quadratic, conjugate steps along all axes tell the whole inverse Hessian."""
    rng = np.random.default_rng(1)
    half = rng.standard_normal((4, 4))
    hessian = half @ half.T + np.eye(4)
    _, axes = np.linalg.eigh(hessian)
    pairs = [(s, hessian @ s) for s in axes.T]
    g = rng.standard_normal(4)
    np.testing.assert_allclose(direction(g, pairs), -np.linalg.solve(hessian, g), rtol=1e-10)


@pytest.mark.parametrize("first", [1e-3, 0.3, 1.0, 50.0])
def test_a_line_search_ends_where_wolfe_says(first: float) -> None:
    for f, slope in [
        (lambda t: (t - 2) ** 2, lambda t: 2 * (t - 2)),
        (lambda t: np.cosh(t - 1), lambda t: np.sinh(t - 1)),
        (lambda t: -t / (t * t + 2), lambda t: (t * t - 2) / (t * t + 2) ** 2),
        (lambda t: np.sqrt(1 + (t - 3) ** 2), lambda t: (t - 3) / np.sqrt(1 + (t - 3) ** 2)),
    ]:
        with np.errstate(over="ignore"):
            found = line_search(
                lambda x, f=f, s=slope: (float(f(x[0])), np.array([s(x[0])])),
                np.zeros(1),
                np.ones(1),
                (float(f(0.0)), np.array([slope(0.0)])),
                first,
            )
        assert found is not None
        t = found[0][0]
        assert f(t) <= f(0.0) + 1e-4 * t * slope(0.0) and abs(slope(t)) <= -0.9 * slope(0.0)


def test_what_cannot_be_minimized() -> None:
    w = hf.Variable(np.float64(1), name="w")
    with pytest.raises(GradientError, match="none of"):
        hf.train.LBFGS(hf.constant(1.0), [w])
    with hf.Session() as session:
        session.run(w.initializer)
        with pytest.raises(NumericError, match="nan"):
            hf.train.LBFGS(hf.log(w - 2.0)).minimize(session)
        end = hf.train.LBFGS(w * 0.0 + 1.0).minimize(session)
        assert end.iterations == 0 and end.converged
