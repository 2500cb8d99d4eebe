"""Labels of custom losses, weights of steps, objects of two models, the best of an earlier run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import FeedError, GraphError, ShapeError

DRAWN = np.random.default_rng(3)
X = DRAWN.standard_normal((8, 3)).astype(np.float32)
STEPS = DRAWN.standard_normal((8, 5, 3)).astype(np.float32)
CLASSES = DRAWN.integers(0, 4, 8)


def kept(model: hf.Model, y: np.ndarray, **options: Any) -> list[float]:
    """Loss and metrics of an untrained model."""
    return np.atleast_1d(model.evaluate(X, y, verbose=0, **options)).tolist()


def test_class_numbers_reach_a_custom_loss() -> None:
    seen = []

    def loss(labels: hf.Tensor, logits: hf.Tensor) -> hf.Tensor:
        seen.append((labels.dtype, tuple(labels.shape)))
        return hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    model = hf.Sequential([hf.layers.Dense(4)])
    model.compile("sgd", loss, metrics=["accuracy"])
    found, accuracy = kept(model, CLASSES)
    assert set(seen) == {(np.dtype(np.int64), (None,))}
    logits = model.predict(X).astype(np.float64)
    own = np.log(np.exp(logits).sum(-1)) - logits[np.arange(8), CLASSES]
    np.testing.assert_allclose(found, own.mean(), 1e-5)
    np.testing.assert_allclose(accuracy, (logits.argmax(-1) == CLASSES).mean(), 1e-6)


@pytest.mark.parametrize("shape", [(8,), (8, 1)])
@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_labels_of_the_outputs_shape_are_converted_as_for_named_losses(
    shape: tuple[int, ...], dtype: str
) -> None:
    model = hf.Sequential([hf.layers.Dense(1)])
    model.compile("sgd", lambda t, y: hf.reduce_mean(hf.square(t - y), -1))
    y = np.arange(8).astype(dtype)
    (found,) = kept(model, y.reshape(shape))
    np.testing.assert_allclose(found, ((model.predict(X)[:, 0] - y) ** 2).mean(), 1e-5)


def test_labels_with_more_columns_than_the_output_reach_a_custom_loss() -> None:
    model = hf.Sequential([hf.layers.Dense(1)])
    model.compile("sgd", lambda t, y: t[:, 1] * hf.square(t[:, 0] - y[:, 0]))
    y = DRAWN.uniform(size=(8, 2))
    (found,) = kept(model, y)
    own = y[:, 1] * (y[:, 0] - model.predict(X)[:, 0]) ** 2
    np.testing.assert_allclose(found, own.mean(), 1e-5)


@pytest.mark.parametrize("weights", [None, "samples", "steps"])
def test_weights_of_steps(weights: str | None) -> None:
    """As Keras: the mean over samples and steps of the loss times the weight."""
    model = hf.Sequential([hf.layers.Dense(4, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    y = DRAWN.integers(0, 4, (8, 5))
    given = {None: np.ones((8, 1)), "samples": np.arange(8.0)[:, None], "steps": np.eye(8)[:, :5]}
    w = given[weights]
    data = {} if weights is None else {"sample_weight": w[:, 0] if weights == "samples" else w}
    found = model.evaluate(STEPS, y, verbose=0, **data)
    p = model.predict(STEPS)
    own = -np.log(np.take_along_axis(p, y[..., None], -1)[..., 0]) * w
    np.testing.assert_allclose(np.atleast_1d(found)[0], own.mean(), 1e-5)
    model.fit(STEPS, y, epochs=1, verbose=0, **data)
    if weights == "steps":  # a later call without weights
        model.evaluate(STEPS, y, verbose=0)


def test_weights_of_steps_need_a_loss_of_steps() -> None:
    model = hf.Sequential([hf.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ShapeError, match="one weight for each sample"):
        model.fit(X, X[:, :1], verbose=0, sample_weight=np.ones((8, 5)))
    other = hf.Sequential([hf.layers.Dense(1)])
    other.compile("sgd", "mse")
    other.fit(X, X[:, :1], verbose=0)
    with pytest.raises((FeedError, ShapeError)):
        other.fit(X, X[:, :1], verbose=0, sample_weight=np.ones((8, 5)))


def test_an_optimizer_belongs_to_one_model() -> None:
    optimizer = hf.train.AdamOptimizer(0.1)
    first, second = (hf.Sequential([hf.layers.Dense(1)]) for _ in range(2))
    first.compile(optimizer, "mse")
    first.compile(optimizer, "mae")
    with pytest.raises(GraphError, match="an optimizer for each model"):
        second.compile(optimizer, "mse")


def test_a_layer_belongs_to_one_model() -> None:
    layer = hf.layers.Dense(1)
    models = [hf.Sequential([layer, hf.nn.relu]) for _ in range(2)]
    for model in models:
        model.compile("sgd", "mse")
    models[0].fit(X, X[:, :1], verbose=0)
    with pytest.raises(GraphError, match="a layer for each model"):
        models[1].fit(X, X[:, :1], verbose=0)


class Scripted(hf.callbacks.Callback):
    """Replaces the validation loss by scripted values."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["val_loss"] = self.values[epoch]


def saved(folder: Path, *values: float, **options: Any) -> list[str]:
    """The checkpoints of the folder after one more run with these validation losses."""
    model = hf.Sequential([hf.layers.Dense(1)])
    model.compile("sgd", "mse")
    save = hf.callbacks.ModelCheckpoint(folder, save_best_only=True, **options)
    model.fit(X, X[:, :1], epochs=len(values), verbose=0, callbacks=[Scripted(*values), save])
    model.close()
    return sorted(name for name in os.listdir(folder) if name.startswith("step-"))


def test_the_best_of_an_earlier_run_stays_until_a_better_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert saved(tmp_path, 3, 2, 1) == ["step-3"]
    assert "earlier run" not in capsys.readouterr().out
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "step-3").iterdir()}
    assert saved(tmp_path, 5, 4, 1.5) == ["step-3"]
    assert "with val_loss 1 stays until an epoch is better" in capsys.readouterr().out
    assert before == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "step-3").iterdir()}
    assert saved(tmp_path, 5, 0.5) == ["step-2"], "a better one replaces it"
    assert saved(tmp_path, 9, initial_value_threshold=10) == ["step-1"], "as asked for"
