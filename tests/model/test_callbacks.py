"""Callbacks of `Model.fit`: what they do to weights, rates, files and the number of epochs."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.cli import main as cli
from hpcflow.errors import FeedError, GraphError, HpcflowError
from tests.runtime.ranks import run_ranks

X = np.linspace(-1, 1, 12, dtype=np.float32)[:, None]
Y = 3 * X[:, 0]


def line(rate: float = 0.05) -> hf.Sequential:
    model = hf.Sequential([hf.layers.Dense(1, kernel_initializer=hf.zeros_initializer())])
    model.compile(hf.train.GradientDescentOptimizer(rate), "mse")
    return model


def scalar() -> hf.Sequential:
    model = hf.Sequential([hf.layers.Dense(1)])
    model.compile("sgd", lambda t, y: hf.reduce_mean(hf.square(t - y)))
    return model


def classes() -> hf.Sequential:
    model = hf.Sequential([hf.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


class Scripted(hf.callbacks.Callback):
    """Replaces a value of the logs by scripted ones; it has to be first in the list."""

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.weights: list[np.ndarray] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["val_loss"] = self.values[epoch]
        self.weights.append(self.model.get_weights()[0])


@pytest.mark.parametrize(
    ("values", "options", "epochs", "best"),
    [
        ([3, 2, 1, 1.5, 1.2, 1.1, 0.1], {"patience": 2}, 5, 2),
        ([3, 2, 1, 1.5, 0.9, 1.1, 1.3], {"patience": 2}, 7, 4),
        ([3, 2.95, 2.9, 2.85, 2.8, 2, 1], {"patience": 2, "min_delta": 0.5}, 3, 0),
        ([1, 2, 3, 2, 1, 0, 0], {"patience": 1, "mode": "max"}, 4, 2),
        ([5, 6, 7, 1, 2, 3, 4], {"patience": 1, "start_from_epoch": 3}, 5, 3),
        ([math.nan] * 7, {"patience": 3}, 3, 0),
    ],
    ids=str,
)
def test_early_stopping_as_in_keras(
    values: list[float], options: dict[str, Any], epochs: int, best: int
) -> None:
    model, scripted = line(), Scripted(values)
    stop = hf.callbacks.EarlyStopping(restore_best_weights=True, **options)
    history = model.fit(X, Y, epochs=7, verbose=0, callbacks=[scripted, stop])
    assert len(history.epoch) == epochs
    np.testing.assert_array_equal(model.get_weights()[0], scripted.weights[best])


@pytest.mark.parametrize(("last", "told"), [(3, "after epoch 3 of 7"), (7, "")])
def test_watch_says_that_a_callback_stopped_the_training(
    last: int, told: str, tmp_path: Path, capsys: Any
) -> None:
    """A stop after the last epoch is none."""

    def body(context: Any) -> None:
        model = line()

        def stop(epoch: int, logs: Any) -> None:
            model.stop_training = epoch + 1 == last

        model.fit(X, Y, 4, 7, 0, [hf.callbacks.LambdaCallback(on_epoch_end=stop)])

    run_ranks(1, body, run_dir=str(tmp_path / "run"))
    assert cli.main(["watch", str(tmp_path / "run"), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "run: finished" in shown and told in shown
    assert ("stopped the training" in shown) == bool(told)


@pytest.mark.parametrize("settings", [{}, {"ps": 1, "sync": "all"}], ids=str)
def test_values_that_are_set_are_no_updates(settings: dict[str, Any], tmp_path: Path) -> None:
    """Large variables and small ones: each has one update for each of the 2 epochs of one step."""

    def body(context: Any) -> Any:
        model = hf.Sequential([hf.layers.Dense(70_000), hf.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(X, Y, 12, 1, 0)
        model.set_weights(model.get_weights())
        model.fit(X, Y, 12, 1, 0)
        report = model.session.result()
        model.close()
        return report

    settings = {**settings, "run_dir": str(tmp_path)}
    reports = [one for one in run_ranks(2, body, **settings) if one is not None]
    assert [set(one["updates"].values()) for one in reports] == [{2}]


@pytest.mark.parametrize("settings", [{}, {"ps": 1}, {"ps": 1, "sync": "all"}], ids=str)
def test_one_rank_that_stops_stops_all_after_the_epoch(settings: dict[str, Any]) -> None:
    def body(context: Any) -> int:
        model = line()

        def stop(epoch: int, logs: Any) -> None:
            model.stop_training = context.replica == 1 and epoch == 2

        once = hf.callbacks.LambdaCallback(on_epoch_end=stop)
        return len(model.fit(X, Y, 4, 9, 0, [once]).epoch)

    assert run_ranks(3, body, **settings) == [3] * (3 - settings.get("ps", 0))


@pytest.mark.parametrize("settings", [{}, {"ps": 1}, {"ps": 1, "sync": "all"}], ids=str)
def test_callbacks_change_weights_and_rates_in_every_mode(settings: dict[str, Any]) -> None:
    def body(context: Any) -> Any:
        model, scripted = line(), Scripted([3, 1, 2, 2.5, 0.1])
        reduce = hf.callbacks.ReduceLROnPlateau(factor=0.5, patience=1)
        stop = hf.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
        history = model.fit(X, Y, 4, 5, 0, [scripted, reduce, stop])
        return scripted.weights, model.get_weights()[0], model.learning_rate, history.epoch

    for seen, last, rate, epochs in run_ranks(3, body, seed=1, **settings):
        assert epochs == [0, 1, 2, 3] and rate == pytest.approx(0.05 / 4)
        np.testing.assert_array_equal(last, seen[1])


@pytest.mark.parametrize("settings", [{}, {"ps": 1}, {"ps": 1, "sync": "all"}], ids=str)
def test_a_schedule_changes_the_rate_once_whoever_is_late(settings: dict[str, Any]) -> None:
    def body(context: Any) -> Any:
        model, rates = line(0.4), []

        def wait(epoch: int, logs: Any) -> None:
            time.sleep(0.05 * context.replica)

        late = hf.callbacks.LambdaCallback(on_epoch_begin=wait)
        halve = hf.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        look = hf.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: rates.append(model.learning_rate)
        )
        model.fit(X, Y, 4, 3, 0, [late, halve, look])
        return rates

    for rates in run_ranks(3, body, **settings):
        np.testing.assert_allclose(rates, [0.2, 0.1, 0.05], 1e-6)


def test_epochs_without_validation_do_not_count() -> None:
    model = line()
    stop = hf.callbacks.EarlyStopping(patience=1)
    history = model.fit(
        X, Y, epochs=4, verbose=0, callbacks=stop, validation_data=(X, Y), validation_freq=2
    )
    assert len(history.history["val_loss"]) == 2 and len(history.epoch) == 4


def test_rates_that_callbacks_set_are_those_of_the_updates() -> None:
    model = line(rate=1.0)
    rates = hf.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    seen: list[float] = []
    look = hf.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(float(model.get_weights()[0][0, 0]))
    )
    history = model.fit(X, Y, len(X), 3, 0, [rates, look]).history
    weight, expected, rate = 0.0, [], 1.0
    for _ in range(3):
        rate /= 2
        weight -= rate * float(np.mean(2 * (X[:, 0] * weight - Y) * X[:, 0]))
        expected.append(weight)
    np.testing.assert_allclose(seen, expected, 1e-5)
    assert model.learning_rate == 0.125
    assert history["learning_rate"] == [0.5, 0.25, 0.125]


def test_the_rate_is_reduced_on_a_plateau() -> None:
    model, scripted = line(rate=0.5), Scripted([3, 3, 3, 3, 1, 1, 1, 1])
    rates: list[float] = []
    look = hf.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rates.append(model.learning_rate)
    )
    reduce = hf.callbacks.ReduceLROnPlateau(factor=0.1, patience=2, min_lr=0.01)
    history = model.fit(X, Y, epochs=8, verbose=0, callbacks=[scripted, reduce, look]).history
    np.testing.assert_allclose(rates, [0.5, 0.5, 0.05, 0.05, 0.05, 0.05, 0.01, 0.01], 1e-6)
    np.testing.assert_allclose(history["learning_rate"], [0.5, *rates[:-1]], 1e-6)


def test_the_best_weights_are_saved_and_loaded(tmp_path: Path) -> None:
    model, scripted = line(), Scripted([3, 1, 2, 0.5, 4])
    save = hf.callbacks.ModelCheckpoint(tmp_path, save_best_only=True)
    model.fit(X, Y, epochs=5, verbose=0, callbacks=[scripted, save])
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-4"]
    other = line()
    other.fit(X, Y, epochs=1, verbose=0)
    other.load_weights(tmp_path)
    np.testing.assert_array_equal(other.get_weights()[0], scripted.weights[3])


def test_a_table_of_the_epochs(tmp_path: Path) -> None:
    model, file = line(), tmp_path / "log.csv"
    history = model.fit(X, Y, epochs=3, verbose=0, callbacks=[hf.callbacks.CSVLogger(file)])
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [float(row["loss"]) for row in rows] == history.history["loss"]


def test_a_loss_that_is_no_number_stops_the_training() -> None:
    model = line(rate=1e30)
    history = model.fit(X, Y, 4, 50, 0, [hf.callbacks.TerminateOnNaN()])
    assert len(history.epoch) < 5


def test_the_run_directory_has_the_result_and_the_epochs(tmp_path: Path) -> None:
    def body(context: Any) -> None:
        line().fit(X, Y, 4, 3, validation_data=(X, Y))

    run_ranks(2, body, run_dir=str(tmp_path))
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert sum(bool(row["val_loss"]) for row in rows) == 3
    assert (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (lambda: hf.Model(), GraphError, "inputs and outputs"),
        (lambda: hf.Sequential([hf.layers.Dense(1)]).fit(X, Y), GraphError, "not compiled"),
        (lambda: hf.Sequential([hf.layers.Dense(1)]).predict(X).x, AttributeError, "x"),
        (lambda: line().fit(X), FeedError, "needs labels"),
        (lambda: line().fit(X, Y[:5]), HpcflowError, "samples"),
        (lambda: line().fit(X, np.zeros((12, 2))), HpcflowError, "labels"),
        (lambda: line().evaluate([X, X], Y), FeedError, "input"),
        (lambda: line().evaluate(X, Y, batch_size=-1), FeedError, "batch_size"),
        (lambda: line().fit(X, Y, callbacks=[print]), GraphError, "no callback"),
        (lambda: line().fit(X, Y, validation_data=(X,)), FeedError, "validation_data"),
        (lambda: line().fit(X, Y, validation_freq=0), FeedError, "validation_freq"),
        (lambda: line().fit(X, validation_split=0.5), FeedError, "labels"),
        (lambda: scalar().fit(X, Y, sample_weight=Y), FeedError, "one value for a batch"),
        (lambda: classes().fit(X, np.eye(3)[[0] * 12]), FeedError, "'categorical_cross"),
        (lambda: classes().fit(X, Y[:, None, None], class_weight={0: 1}), FeedError, "one label"),
        (lambda: hf.Model(hf.Input([1]), [1]), GraphError, "one output"),
        (lambda: hf.callbacks.ModelCheckpoint("w-{epoch}"), GraphError, "step-EPOCH"),
        (lambda: line().fit(X, Y, class_weight={1: 2.0}), FeedError, "class_weight"),
        (lambda: line().fit(X, Y, validation_split=1.5), FeedError, "validation_split"),
        (lambda: line().fit(X, Y, callbacks=[hf.callbacks.EarlyStopping()]), GraphError, "val_"),
        (lambda: hf.callbacks.LambdaCallback(on_epoch=print), TypeError, "on_epoch"),
        (lambda: hf.callbacks.EarlyStopping(mode="least"), GraphError, "auto, min, max"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_mistakes_are_named(call: Any, kind: type, match: str) -> None:
    with pytest.raises(kind, match=match):
        call()


def test_new_variables_in_each_call_are_refused() -> None:
    def call(x: hf.Tensor, training: bool) -> hf.Tensor:
        return hf.matmul(x, hf.Variable(hf.zeros([1, 1])))

    model = hf.Model(call=call)
    model.compile("sgd", "mse")
    with pytest.raises(GraphError, match="get_variable"):
        model.fit(X, Y)


def test_the_summary_counts_the_values(capsys: Any) -> None:
    model = line()
    model.fit(X, Y, verbose=0)
    model.summary()
    text = capsys.readouterr().out
    assert "kernel" in text and "values: 2, of which 2 are trained" in text
