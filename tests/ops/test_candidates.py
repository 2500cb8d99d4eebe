"""Candidate samplers and the losses over what they draw: distributions, counts, formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import hpcflow as hf
from hpcflow.errors import RangeError, ShapeError
from tests.runtime.ranks import run_ranks

CLASSES, DIM = 12, 3
RNG = np.random.default_rng(0)
W, B = RNG.standard_normal((CLASSES, DIM)), RNG.standard_normal(CLASSES)
X = RNG.standard_normal((4, DIM))
LABELS = np.array([[0, 3], [5, 5], [11, 1], [2, 9]])
SAMPLED = np.array([1, 5, 0, 8, 4])
OF_TRUE = RNG.random((4, 2)).astype(np.float32) + 0.1
OF_SAMPLED = RNG.random(5).astype(np.float32) + 0.1
UNIGRAMS = [4.0, 1.0, 0.0, 2.0, 3.0, 5.0]


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph(seed=3).as_default() as g:
        yield g


def sampler(kind: str, true: Any, num: int, unique: bool, range_max: int = 6) -> tuple:
    if kind == "unigram":
        return hf.nn.fixed_unigram_candidate_sampler(
            true, 1, num, unique, range_max, 0.75, 6 - len(UNIGRAMS), UNIGRAMS
        )
    make = {"uniform": hf.nn.uniform_candidate_sampler, "log": hf.nn.log_uniform_candidate_sampler}
    return make[kind](true, 1, num, unique, range_max)


def chances(kind: str, range_max: int = 6) -> np.ndarray:
    c = np.arange(range_max)
    if kind == "log":
        return np.log((c + 2) / (c + 1)) / np.log(range_max + 1)
    weights = np.ones(range_max) if kind == "uniform" else np.array(UNIGRAMS) ** 0.75
    return weights / weights.sum()


@pytest.mark.parametrize("kind", ["uniform", "log", "unigram"])
def test_draws_follow_their_distribution(kind: str) -> None:
    p = chances(kind)
    classes, of_true, of_drawn = sampler(kind, np.arange(6)[:, None], 5000, False)
    with hf.Session() as session:
        drawn, true, sampled = session.run([classes, of_true, of_drawn])
        again, *_ = session.run([classes, of_true, of_drawn])
    assert drawn.dtype == np.int64 and (drawn != again).any()
    counts = np.bincount(drawn, minlength=6)
    assert (counts[p == 0] == 0).all()
    assert stats.chisquare(counts[p > 0], 5000 * p[p > 0]).pvalue > 1e-4
    np.testing.assert_allclose(true[:, 0], 5000 * p, rtol=1e-6)
    np.testing.assert_allclose(sampled, 5000 * p[drawn], rtol=1e-6)


@pytest.mark.parametrize("kind", ["uniform", "log", "unigram"])
def test_different_classes_and_how_often_each_is_expected(kind: str) -> None:
    """The chance to be drawn at all in as many tries; over many steps that is how often it was."""
    p = chances(kind)
    classes, of_true, _ = sampler(kind, np.arange(6)[:, None], 4, True)
    times, expected = np.zeros(6), np.zeros(6)
    with hf.Session() as session:
        for _ in range(600):
            drawn, true = session.run([classes, of_true])
            assert len(set(drawn.tolist())) == 4 and p[drawn].min() > 0
            times[drawn] += 1
            expected += true[:, 0]
    np.testing.assert_allclose(times, expected, atol=75)
    assert abs(times.sum() - 2400) < 1e-9


def test_expected_counts_are_the_documented_formula() -> None:
    labels = hf.placeholder(hf.int64, [None, 1])
    classes, of_true, of_drawn = hf.nn.log_uniform_candidate_sampler(
        labels, 1, 30, True, 1000, seed=7
    )
    op = classes.op
    with hf.Session() as session:
        drawn, tries, true, mine = session.run(
            [classes, op.outputs[1], of_true, of_drawn], {labels: [[0], [999], [17]]}
        )
    p = lambda c: np.log((c + 2) / (c + 1)) / np.log(1001)  # noqa: E731
    assert tries > 30
    np.testing.assert_allclose(true[:, 0], 1 - (1 - p(np.array([0, 999, 17]))) ** tries, rtol=1e-5)
    np.testing.assert_allclose(mine, 1 - (1 - p(drawn)) ** tries, rtol=1e-5)


def test_all_candidates_and_accidental_hits() -> None:
    drawn, of_true, mine = hf.nn.all_candidate_sampler(LABELS, 2, CLASSES, True)
    rows, places, weights = hf.nn.compute_accidental_hits(LABELS, SAMPLED, 2)
    with hf.Session() as session:
        found = session.run([drawn, of_true, mine, rows, places, weights])
    np.testing.assert_array_equal(found[0], np.arange(CLASSES))
    assert (found[1] == 1).all() and (found[2] == 1).all() and found[1].shape == (4, 2)
    hits = {(r, k) for r in range(4) for k in range(5) if SAMPLED[k] in LABELS[r]}
    assert set(zip(found[3].tolist(), found[4].tolist(), strict=True)) == hits
    assert (found[5] == np.finfo(np.float32).min).all()


def losses(kind: str, w: np.ndarray, b: np.ndarray, x: np.ndarray, remove: bool) -> np.ndarray:
    """By the definitions, row by row."""
    out = []
    for row in range(len(x)):
        true = [
            x[row] @ w[c] + b[c] - np.log(q) for c, q in zip(LABELS[row], OF_TRUE[row], strict=True)
        ]
        noise = [
            x[row] @ w[c] + b[c] - np.log(q)
            for c, q in zip(SAMPLED, OF_SAMPLED, strict=True)
            if not (remove and c in LABELS[row])
        ]
        if kind == "nce":  # targets 1 / num_true, as in TensorFlow
            z = np.array(true)
            out.append((np.logaddexp(0, z) - z / 2).sum() + np.logaddexp(0, noise).sum())
        else:
            out.append(special.logsumexp(true + noise) - np.mean(true))
    return np.array(out)


@pytest.mark.parametrize("kind", ["nce", "softmax"])
@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_losses_and_gradients(kind: str, remove: bool, count: int) -> None:
    ws = [hf.Variable(W[i::count], name=f"w{i}") for i in range(count)]
    bs = [hf.Variable(B[i::count], name=f"b{i}") for i in range(count)]
    x = hf.constant(X)
    loss = {"nce": hf.nn.nce_loss, "softmax": hf.nn.sampled_softmax_loss}[kind](
        ws, bs, LABELS, x, 5, CLASSES, 2, (SAMPLED, OF_TRUE, OF_SAMPLED), remove
    )
    grads = hf.gradients(loss, [*ws, *bs, x])
    assert all(isinstance(g, hf.IndexedSlices) for g in grads[:-1])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        found = session.run(loss)
        *tables, of_x = session.run([*(g.dense() for g in grads[:-1]), grads[-1]])
    np.testing.assert_allclose(found, losses(kind, W, B, X, remove), rtol=1e-6)
    of_w, of_b = np.zeros_like(W), np.zeros_like(B)
    for i in range(count):
        of_w[i::count], of_b[i::count] = tables[i], tables[count + i]
    for value, slope in ((W, of_w), (B, of_b), (X, of_x)):
        for place in np.ndindex(value.shape):
            step = np.zeros(value.shape)
            step[place] = 1e-5
            moved = [
                losses(kind, *(v + s * step if v is value else v for v in (W, B, X)), remove).sum()
                for s in (1, -1)
            ]
            np.testing.assert_allclose(slope[place], (moved[0] - moved[1]) / 2e-5, atol=1e-5)
    never = set(range(CLASSES)) - set(LABELS.ravel().tolist()) - set(SAMPLED.tolist())
    assert never and not of_w[list(never)].any()


def test_with_all_classes_it_is_the_softmax() -> None:
    labels = LABELS[:, :1]
    values = hf.nn.all_candidate_sampler(labels, 1, CLASSES, True)
    loss = hf.nn.sampled_softmax_loss(
        hf.constant(W), hf.constant(B), labels, hf.constant(X), CLASSES, CLASSES, 1, values
    )
    logits = X @ W.T + B
    expected = special.logsumexp(logits, 1) - logits[np.arange(4), labels[:, 0]]
    with hf.Session() as session:
        np.testing.assert_allclose(session.run(loss), expected, rtol=1e-10)


def net(count: int) -> tuple:
    """Labels that follow from features, learned from few classes a step."""
    rng = np.random.default_rng(2)
    features = rng.standard_normal((200, 8)).astype(np.float32)
    labels = (features @ rng.standard_normal((8, 30))).argmax(1)[:, None]
    w = [hf.Variable(np.zeros((30 // count, 8), np.float32), name=f"w{i}") for i in range(count)]
    b = [hf.Variable(np.zeros(30 // count, np.float32), name=f"b{i}") for i in range(count)]
    x, y = hf.placeholder(hf.float32, [None, 8]), hf.placeholder(hf.int64, [None, 1])
    loss = hf.reduce_mean(hf.nn.sampled_softmax_loss(w, b, y, x, 8, 30))
    train = hf.train.AdagradOptimizer(0.5).minimize(loss)
    return x, y, train, w, b, features, labels


def learned(context: Any, count: int) -> tuple[float, list]:
    x, y, train, w, b, features, labels = net(count)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    replicas = context.cluster.replicas
    mine = slice(context.replica * 200 // replicas, (context.replica + 1) * 200 // replicas)
    for _ in range(150):
        session.run(train, {x: features[mine], y: labels[mine]})
    weights, biases = session.run([w, b])
    whole = np.zeros((30, 8)), np.zeros(30)
    for i in range(count):
        whole[0][i::count], whole[1][i::count] = weights[i], biases[i]
    found = (features @ whole[0].T + whole[1]).argmax(1)
    return float((found == labels[:, 0]).mean()), [*whole]


def test_training_by_few_classes_learns_all_on_any_ranks() -> None:
    ((accuracy, plain),) = run_ranks(1, lambda context: learned(context, 1))
    assert accuracy > 0.8
    for n, settings, count in [
        (3, {"ps": 2}, 2),
        (2, {}, 1),
        (3, {"ps": 2, "shard_bytes": 256}, 1),
    ]:
        for _, found in run_ranks(n, lambda context, c=count: learned(context, c), **settings):
            for mine, theirs in zip(found, plain, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(ShapeError, match="7 different classes cannot be drawn from 6"):
        hf.nn.uniform_candidate_sampler([[0]], 1, 7, True, 6)
    with pytest.raises(ShapeError, match="num_true = 2"):
        hf.nn.uniform_candidate_sampler([[0]], 2, 7, False, 6)
    with pytest.raises(ShapeError, match="unigrams"):
        hf.nn.fixed_unigram_candidate_sampler([[0]], 1, 2, True, 6, unigrams=[1.0])
    with pytest.raises(ShapeError, match="have a count"):
        hf.nn.fixed_unigram_candidate_sampler([[0]], 1, 2, True, 3, unigrams=[1.0, 0, 0])
    labels = hf.placeholder(hf.int64, [None, 1])
    loss = hf.nn.nce_loss(hf.constant(W), hf.constant(B), labels, hf.constant(X[:1]), 3, CLASSES)
    with hf.Session() as session, pytest.raises(RangeError, match="12 is outside"):
        session.run(loss, {labels: [[12]]})
