"""Synchronous replicas train as one rank would on the joined batch, however samples are dealt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from tests.runtime.ranks import run_here, run_ranks

from .reference import OPTIMIZERS, data, net, trained

EPOCHS, SEED = 3, 11
# (samples, batch): even, uneven, fewer than four ranks, last batches with another cut than others
DEALS = [(24, 8), (7, 7), (10, 6), (10, 4), (7, 3), (3, 3), (9, 5)]


def expected(samples: int, batch: int, name: str) -> list[np.ndarray]:
    """The parameters by NumPy on joined batches, drawn as the documentation says."""
    features, labels = data(samples)
    batches = []
    for epoch in range(EPOCHS):
        order = np.random.Generator(np.random.Philox(key=[SEED, epoch])).permutation(samples)
        for start in range(0, samples, batch):
            rows = order[start : start + batch]
            batches.append((features[rows], labels[rows]))
    return trained(batches, OPTIMIZERS[name][1])


def train(samples: int, batch: int, name: str) -> tuple[list[np.ndarray], list[int], Any]:
    """What one rank has at the end: parameters, samples it drew, and the result."""
    features, labels = data(samples)
    x, y, _, step, parameters = net(OPTIMIZERS[name][0]())
    dataset = hf.data.Dataset({x: features, y: labels}, batch=batch, seed=SEED)
    drawn: list[int] = []
    with hf.train.TrainingSession() as session:
        for dealt in dataset.epochs(EPOCHS):
            session.step(step, dealt)
            drawn.extend(dealt.indices.tolist())
        session.wait()
        return session.run(parameters), drawn, session.context.reports({"steps": session.steps})


def check(samples: int, batch: int, name: str, found: list[np.ndarray]) -> None:
    for mine, theirs in zip(found, expected(samples, batch, name), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.mpi
@pytest.mark.parametrize(("samples", "batch"), DEALS)
def test_ranks_of_mpi_train_as_one(samples: int, batch: int) -> None:
    found, _, _ = run_here(lambda context: train(samples, batch, "adam"))
    check(samples, batch, "adam", found)


@pytest.mark.mpi
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_on_ranks_of_mpi(name: str) -> None:
    found, _, _ = run_here(lambda context: train(10, 6, name))
    check(10, 6, name, found)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(("samples", "batch"), DEALS)
def test_ranks_train_as_one(ranks: int, samples: int, batch: int) -> None:
    results = run_ranks(ranks, lambda context: train(samples, batch, "adam"), seed=ranks)
    for found, _, _ in results:
        check(samples, batch, "adam", found)
    together = sorted(i for _, drawn, _ in results for i in drawn)
    assert together == sorted(list(range(samples)) * EPOCHS)


def test_replicas_are_equal_bit_for_bit_and_count_the_same_updates() -> None:
    results = run_ranks(3, lambda context: train(10, 4, "momentum"))
    for found, _, _ in results[1:]:
        for mine, first in zip(found, results[0][0], strict=True):
            np.testing.assert_array_equal(mine, first)
    reports = results[0][2]
    assert [r["steps"] for r in reports] == [9, 9, 9]
    assert [r["updates"]["p0"] for r in reports] == [9, 9, 9]


def clipped_step(context: Any) -> float:
    """One step of descent by a clipped gradient; those of the replicas differ by far."""
    x = hf.placeholder(hf.float32, [None], name="x")
    w = hf.Variable(np.zeros((), np.float32), name="w")
    optimizer = hf.train.GradientDescentOptimizer(1.0)
    pairs = optimizer.compute_gradients(hf.reduce_mean(x * w))
    step = optimizer.apply_gradients([(hf.clip_by_value(g, -2.0, 2.0), v) for g, v in pairs])
    values = np.array([9, -9, 3, 1], np.float32)
    with hf.train.TrainingSession() as session:
        for batch in hf.data.Dataset({x: values}, batch=4, shuffle=False).epochs(1):
            session.step(step, batch)
        return float(session.run(w))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_clipping_sees_the_joined_gradient(ranks: int) -> None:
    """The mean is 1; if each replica clipped its own, the sum would be another."""
    assert run_ranks(ranks, clipped_step) == [-1.0] * ranks
