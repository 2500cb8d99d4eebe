"""`fit(steps_per_epoch=)`: epochs of a number of batches, of data that are repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import FeedError
from tests.model.test_fit import BATCH, RATE, SAMPLES, VX, VY, W, X, Y, linear, softmax
from tests.runtime.ranks import run_ranks

STEPS, EPOCHS = 2, 5  # of 3 batches in a pass: 10 steps are 3 passes and one batch
MODES: list[tuple[int, dict[str, Any]]] = [(1, {}), (3, {}), (3, {"ps": 1, "sync": "all"})]


def by_numpy(epochs: int = EPOCHS) -> tuple[np.ndarray, list[float]]:
    """The weights after training, and the loss of each epoch, by hand."""
    w, b = W.astype(np.float64), np.zeros(3)
    batches: list[np.ndarray] = []
    for number in range(4):
        order = np.random.Generator(np.random.Philox(key=[0, number])).permutation(SAMPLES)
        batches += [order[start : start + BATCH] for start in range(0, SAMPLES, BATCH)]
    losses = []
    for epoch in range(epochs):
        total, count = 0.0, 0
        for rows in batches[epoch * STEPS : (epoch + 1) * STEPS]:
            p = softmax(X[rows] @ w + b)
            total -= np.log(p[np.arange(len(rows)), Y[rows]]).sum()
            count += len(rows)
            p[np.arange(len(rows)), Y[rows]] -= 1
            w, b = w - RATE * X[rows].T @ p / len(rows), b - RATE * p.sum(0) / len(rows)
        losses.append(total / count)
    return np.concatenate([w.ravel(), b]), losses


def train(context: Any, **options: Any) -> dict[str, Any]:
    """What one rank sees of a training."""
    seen: list[int] = []
    look = hf.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: seen.append(step))
    model = linear()
    model.compile(hf.train.GradientDescentOptimizer(RATE), "sparse_categorical_crossentropy")
    found = model.fit(X, Y, BATCH, EPOCHS, 0, [look], steps_per_epoch=STEPS, **options)
    weights = np.concatenate([v.ravel() for v in model.get_weights()])
    return {"weights": weights, "loss": found.history.get("loss"), "seen": seen, "fit": found.epoch}


@pytest.mark.parametrize(("ranks", "settings"), MODES, ids=str)
def test_epochs_go_on_in_the_data(ranks: int, settings: dict[str, Any]) -> None:
    weights, losses = by_numpy()
    for found in run_ranks(ranks, train, **settings):
        np.testing.assert_allclose(found["weights"], weights, 2e-5, 2e-6)
        np.testing.assert_allclose(found["loss"], losses, 1e-5)
        assert found["seen"] == [0, 1] * EPOCHS


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_each_epoch_has_as_many_steps(steps: int) -> None:
    """Fewer than a pass has, as many, and more."""
    model = linear()
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(X, Y, BATCH, 3, 0, steps_per_epoch=steps)
    assert model.session.steps == 3 * steps


def test_asynchronous_workers_take_each_batch_once() -> None:
    def body(context: Any) -> int:
        model = linear()
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(X, Y, BATCH, 3, 0, steps_per_epoch=2)
        return model.session.samples

    assert sum(run_ranks(4, body, ps=1)) == 2 * SAMPLES  # 6 steps are two passes of 3


@pytest.mark.parametrize("stop", [3, 4])
def test_a_stopped_job_goes_on_within_its_epoch(stop: int, tmp_path: Any) -> None:
    """Step 3 is within the second epoch, and the last of the first pass; step 4 ends the epoch."""

    def body(context: Any, resume: bool = False) -> dict[str, Any]:
        options = {"checkpoints": tmp_path, "resume": resume, "save_every": 1000}
        return train(context, **options)

    with pytest.raises(SystemExit):
        run_ranks(2, body, stop_at=stop)
    for found in run_ranks(2, lambda context: body(context, True)):
        np.testing.assert_allclose(found["weights"], by_numpy()[0], 2e-5, 2e-6)
        assert found["fit"] == list(range(stop // STEPS, EPOCHS))
        assert len(found["seen"]) == EPOCHS * STEPS - stop


def test_an_initial_epoch_leaves_out_the_batches_before_it() -> None:
    found = train(None, initial_epoch=3)
    assert found["fit"] == [3, 4] and found["seen"] == [0, 1, 0, 1]


def test_validation_evaluation_and_prediction_of_the_first_batches() -> None:
    for ranks in (1, 2):

        def body(context: Any) -> tuple[Any, ...]:
            model = linear()
            model.compile("sgd", "sparse_categorical_crossentropy")
            given = {"validation_data": (VX, VY), "validation_steps": 2}
            history = model.fit(X, Y, 4, 1, 0, validation_batch_size=3, **given)
            some = model.evaluate(VX, VY, 3, 0, steps=2)
            part = model.evaluate(VX[:6], VY[:6], 4, 0)
            return history.history["val_loss"][0], some, part, model.predict(VX, 3, steps=2)

        for held, some, part, rows in run_ranks(ranks, body):
            assert held == pytest.approx(part) and some == pytest.approx(part)
            assert rows.shape == (6, 3)


@pytest.mark.parametrize("name", ["steps_per_epoch", "validation_steps"])
def test_no_steps_are_refused(name: str) -> None:
    model = linear()
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(FeedError, match=f"{name}=0 is not a number of batches"):
        model.fit(X, Y, verbose=0, validation_data=(VX, VY), **{name: 0})
