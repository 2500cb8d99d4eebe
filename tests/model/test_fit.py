"""`Model.fit`, `evaluate` and `predict` equal NumPy's training on one rank, in every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from tests.runtime.ranks import run_here, run_ranks

SAMPLES, HELD, BATCH, EPOCHS, RATE = 23, 11, 8, 3, 0.3
MODES: list[tuple[int, dict[str, Any]]] = [
    *[(1, {}), (2, {}), (3, {}), (4, {})],
    *[(2, {"ps": 1}), (3, {"ps": 1, "sync": "all"}), (4, {"ps": 2, "sync": "all"})],
]


def problem(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, 4)).astype(np.float32)
    return x, (x @ rng.standard_normal((4, 3))).argmax(1)


X, Y = problem(SAMPLES, 1)
VX, VY = problem(HELD, 2)
W = np.random.default_rng(3).standard_normal((4, 3)).astype(np.float32)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def by_numpy(weights: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, list[float]]]:
    """The weights after training, and the history: Keras's definitions, by hand."""
    w, b = W.astype(np.float64), np.zeros(3)
    samples = np.ones(SAMPLES) if weights is None else weights
    history: dict[str, list[float]] = {k: [] for k in ("loss", "accuracy", "val_loss")}
    for epoch in range(EPOCHS):
        order = np.random.Generator(np.random.Philox(key=[0, epoch])).permutation(SAMPLES)
        losses, hits = 0.0, 0
        for start in range(0, SAMPLES, BATCH):
            rows = order[start : start + BATCH]
            p = softmax(X[rows] @ w + b)
            losses += (-np.log(p[np.arange(len(rows)), Y[rows]]) * samples[rows]).sum()
            hits += (p.argmax(1) == Y[rows]).sum()
            p[np.arange(len(rows)), Y[rows]] -= 1
            g = p * samples[rows, None] / len(rows)
            w, b = w - RATE * X[rows].T @ g, b - RATE * g.sum(0)
        history["loss"].append(losses / SAMPLES)
        history["accuracy"].append(hits / SAMPLES)
        history["val_loss"].append(float(-np.log(softmax(VX @ w + b)[np.arange(HELD), VY]).mean()))
    return np.concatenate([w.ravel(), b]), history


def linear(activation: Any = hf.nn.softmax) -> hf.Sequential:
    dense = hf.layers.Dense(3, activation, kernel_initializer=hf.constant_initializer(W))
    return hf.Sequential([dense])


def train(context: Any) -> dict[str, Any]:
    """What one rank sees of a training."""
    model = linear()
    model.compile(
        hf.train.GradientDescentOptimizer(RATE),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0, validation_data=(VX, VY))
    return {
        "weights": np.concatenate([v.ravel() for v in model.get_weights()]),
        "history": history.history,
        "epochs": history.epoch,
        "evaluated": model.evaluate(VX, VY, batch_size=4, verbose=0, return_dict=True),
        "predicted": model.predict(VX, batch_size=4),
    }


def check(found: dict[str, Any]) -> None:
    weights, history = by_numpy()
    np.testing.assert_allclose(found["weights"], weights, 2e-5, 2e-6)
    assert found["epochs"] == [0, 1, 2]
    for name, values in history.items():
        np.testing.assert_allclose(found["history"][name], values, 1e-5, err_msg=name)
    w, b = weights[:12].reshape(4, 3), weights[12:]
    p = softmax(VX @ w + b)
    np.testing.assert_allclose(found["predicted"], p, 1e-4, 1e-6)
    assert found["evaluated"]["accuracy"] == pytest.approx((p.argmax(1) == VY).mean())
    assert found["evaluated"]["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-5)


@pytest.mark.parametrize(("ranks", "settings"), MODES, ids=str)
def test_every_mode_trains_as_numpy_does(ranks: int, settings: dict[str, Any]) -> None:
    results = run_ranks(ranks, train, seed=ranks, **settings)
    assert len(results) == ranks - settings.get("ps", 0)
    for found in results:
        check(found)


@pytest.mark.mpi
def test_ranks_of_mpi_train_as_numpy_does() -> None:
    check(run_here(train))


def test_asynchronous_workers_use_every_sample_once_an_epoch_and_see_the_same_values() -> None:
    class Seen(hf.callbacks.Callback):
        """Counts what this worker's steps drew."""

        def __init__(self) -> None:
            self.steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1

    def body(context: Any) -> Any:
        model, seen = linear(), Seen()
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = model.fit(X, Y, BATCH, 4, 0, [seen], validation_data=(VX, VY))
        return history.history, model.predict(VX), model.session.samples, seen.steps

    first, *others = run_ranks(4, body, seed=5, ps=1)
    for one in others:
        assert one[0] == first[0]
        np.testing.assert_array_equal(one[1], first[1])
    assert sum(one[2] for one in (first, *others)) == 4 * SAMPLES
    assert all(one[3] > 0 for one in (first, *others))
    assert len(first[0]["val_accuracy"]) == 4


def test_weights_of_samples_and_classes_weigh_the_loss() -> None:
    def body(given: dict[str, Any]) -> np.ndarray:
        model = linear()
        model.compile(hf.train.GradientDescentOptimizer(RATE), "sparse_categorical_crossentropy")
        model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0, **given)
        return np.concatenate([v.ravel() for v in model.get_weights()])

    each = np.random.default_rng(4).uniform(0, 2, SAMPLES)
    np.testing.assert_allclose(body({"sample_weight": each}), by_numpy(each)[0], 2e-5, 2e-6)
    classes = {0: 0.5, 1: 2.0, 2: 1.0}
    table = np.array([classes[int(c)] for c in Y])
    np.testing.assert_allclose(body({"class_weight": classes}), by_numpy(table)[0], 2e-5, 2e-6)


def test_the_last_samples_are_held_out_by_a_validation_split() -> None:
    model = linear()
    model.compile("sgd", "sparse_categorical_crossentropy")
    history = model.fit(X, Y, batch_size=SAMPLES, epochs=1, verbose=0, validation_split=0.3)
    assert model.session.samples == int(SAMPLES * 0.7)
    held = slice(int(SAMPLES * 0.7), None)
    expected = model.evaluate(X[held], Y[held], verbose=0)
    assert history.history["val_loss"] == [pytest.approx(expected)]


class Noisy(hf.Model):
    """A network that is another while it trains."""

    def call(self, x: hf.Tensor, training: bool) -> hf.Tensor:
        x = hf.layers.batch_normalization(x, training=training, momentum=0.5)
        x = hf.layers.dense(hf.layers.dropout(x, 0.5, training=training), 8, hf.nn.relu)
        return hf.layers.dense(x, 1)


def test_a_subclass_normalizes_and_drops_only_while_it_trains() -> None:
    model = Noisy()
    model.compile("adam", "mse")
    target = X.sum(1)  # [samples], where the output is [samples, 1]
    model.fit(X + 3, target, batch_size=SAMPLES, epochs=1, verbose=0)
    names = {v.name.rpartition("/")[2]: v for v in model.weights}
    mean = model.session.run(names["moving_mean"])
    np.testing.assert_allclose(mean, 0.5 * (X + 3).mean(0), 1e-5)  # one update from 0
    first, second = model.predict(X), model.predict(X)
    np.testing.assert_array_equal(first, second)
    assert first.shape == (SAMPLES, 1)
    np.testing.assert_allclose(first[3:5], model.predict(X[3:5]), 1e-5)


def test_several_inputs_by_order_and_by_name() -> None:
    with hf.Graph().as_default():
        a, b = hf.Input([2], name="a"), hf.Input([3], name="b")
        model = hf.Model([a, b], hf.layers.dense(hf.concat([a, b], 1), 1))
    model.compile("sgd", "mae", metrics=["mse"])
    x, y, z = X[:, :2], np.concatenate([X[:, :2], X[:, :1]], 1), X.sum(1)
    model.fit([x, y], z, verbose=0)
    by_name = model.evaluate({"b": y, "a": x}, z, verbose=0)
    assert by_name == model.evaluate([x, y], z, verbose=0)
    output = model.predict([x, y])[:, 0]
    assert by_name[0] == pytest.approx(np.abs(output - z).mean(), rel=1e-5)
    assert by_name[1] == pytest.approx(((output - z) ** 2).mean(), rel=1e-5)


@pytest.mark.parametrize("ranks", [1, 3])
def test_data_on_disk(ranks: int, tmp_path: Any) -> None:
    """HDF5 datasets train, evaluate and predict as the arrays that they hold."""
    import h5py

    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["y"] = X, Y

    def body(context: Any) -> Any:
        file = str(tmp_path / "data.h5")
        x, y = hf.data.hdf5(file, "x"), hf.data.hdf5(file, "y")
        model = linear()
        model.compile("sgd", "sparse_categorical_crossentropy")
        history = model.fit(x, y, BATCH, 2, 0, validation_data=(x, y))
        assert model.evaluate(X, Y, verbose=0) == pytest.approx(history.history["val_loss"][-1])
        np.testing.assert_array_equal(model.predict(x), model.predict(X))
        return np.concatenate([v.ravel() for v in model.get_weights()])

    def arrays(context: Any) -> Any:
        model = linear()
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(X, Y, BATCH, 2, 0)
        return np.concatenate([v.ravel() for v in model.get_weights()])

    for found, expected in zip(run_ranks(ranks, body), run_ranks(ranks, arrays), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_predictions_keep_their_bits_and_dtypes() -> None:
    """Those of one rank are put together from all ranks' shares: -0.0, NaN and any dtype stay."""
    values = np.array([[-0.0], [np.nan], [np.inf], [-1.5], [3.0]], np.float32)

    def body(context: Any) -> Any:
        results = []
        for make in (lambda x: x, lambda x: x > 0, lambda x: hf.cast(x, hf.float16)):
            with hf.Graph().as_default():
                x = hf.Input([1])
                results.append(hf.Model(x, make(hf.identity(x))))
        return [model.predict(values, batch_size=2) for model in results]

    for plain, positive, half in run_ranks(3, body):
        assert plain.tobytes() == values.tobytes()
        assert positive.dtype == bool and positive[:, 0].tolist() == [
            False,
            False,
            True,
            False,
            True,
        ]
        assert half.dtype == np.float16 and half.tobytes() == values.astype("f2").tobytes()


@pytest.mark.parametrize("settings", [{}, {"ps": 1}, {"ps": 1, "sync": "all"}], ids=str)
def test_models_of_one_job_have_weights_of_their_own(settings: dict[str, Any]) -> None:
    """Servers keep variables by their names, which two models of the same layers share."""

    def body(context: Any) -> Any:
        predicted = []
        models = []
        for width in (3, 3, 1):
            model = hf.Sequential([hf.layers.Dense(width)])
            model.compile("sgd", "mse")
            model.fit(X, 10.0 * len(models) * X[:, :width], BATCH, 2, 0)
            models.append(model)
            predicted.append(model.predict(X))
        return predicted, [model.predict(X) for model in models]

    for before, after in run_ranks(3, body, seed=2, **settings):
        for mine, later in zip(before, after, strict=True):
            np.testing.assert_allclose(mine, later, 1e-5, 1e-6)
        assert not np.allclose(before[0], before[1])


def test_models_of_one_graph_have_penalties_and_weights_of_their_own() -> None:
    with hf.Graph().as_default():
        models = []
        for scale in (100.0, 0.0):
            x = hf.Input([4])
            penalty = hf.layers.l2_regularizer(scale) if scale else None
            model = hf.Model(x, hf.layers.dense(x, 3, kernel_regularizer=penalty))
            models.append(model)
        for model in models:
            model.compile("adam", "mse")
        with_penalty, without = models
        assert [v.name for v in without.weights] == ["dense_1/kernel", "dense_1/bias"]
        target = np.zeros((SAMPLES, 3))
        graphs = [model.sample_weight for model in models]  # both are built before the first run
        assert len(set(graphs)) == 2
        values = [model.evaluate(X, target, verbose=0) for model in models]
        plain = [float((model.predict(X) ** 2).mean()) for model in models]
    assert values[1] == pytest.approx(plain[1], rel=1e-5)
    assert values[0] > plain[0] + 1.0
    assert len(with_penalty.weights) == 2


def test_ranks_without_samples_have_no_loss_and_stop_nobody() -> None:
    """17 samples in batches of 8: the last batch has one, and two of three ranks have none."""

    def body(context: Any) -> Any:
        seen: list[dict[str, float]] = []
        look = hf.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: seen.append(logs))
        model = linear()
        model.compile("sgd", "sparse_categorical_crossentropy")
        stop = hf.callbacks.TerminateOnNaN()
        history = model.fit(X[:17], Y[:17], 8, 3, 0, [stop, look])
        return len(history.epoch), seen

    for epochs, seen in run_ranks(3, body):
        assert epochs == 3 and len(seen) == 9
        assert all(np.isfinite(logs.get("loss", 0.0)) for logs in seen)


def test_each_fit_draws_another_order() -> None:
    def orders(times: int) -> list[Any]:
        model = hf.Sequential([hf.layers.Dense(1, kernel_initializer=hf.zeros_initializer())])
        model.compile(hf.train.GradientDescentOptimizer(0.1), "mse")
        found = []
        for _ in range(times):
            model.fit(X, X[:, 0], 4, 1, 0)
            found.append(model.get_weights()[0])
            model.set_weights([np.zeros((4, 1)), np.zeros(1)])
        return found

    first, second = orders(2)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(orders(1)[0], first)


def test_a_dataset_of_the_models_placeholders() -> None:
    with hf.Graph().as_default():
        model = hf.Sequential([hf.Input([4]), hf.layers.Dense(3, hf.nn.softmax)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    feeds = {model.inputs[0]: X, model.labels: Y, model.sample_weight: np.ones(SAMPLES, "f4")}
    model.fit(hf.data.Dataset(feeds, batch=5), epochs=2, verbose=0)
    assert model.session.steps == 10


def test_two_models_in_one_script_do_not_meet() -> None:
    for _ in range(2):
        model = linear()
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(X, Y, verbose=0)
        model.fit(X, Y, verbose=0)
        assert model.session.steps == 2


@pytest.mark.parametrize("settings", [{}, {"ps": 1}, {"ps": 1, "sync": "all"}], ids=str)
def test_a_stopped_job_goes_on_where_it_was(settings: dict[str, Any], tmp_path: Any) -> None:
    """The weights and the epochs are those of a job that was not stopped."""

    def body(context: Any, folder: str, resume: bool = False) -> Any:
        model = linear()
        model.compile(hf.train.GradientDescentOptimizer(RATE), "sparse_categorical_crossentropy")
        options = {"checkpoints": tmp_path / folder, "resume": resume, "save_every": 1000}
        history = model.fit(X, Y, BATCH, EPOCHS, 0, **options)
        return np.concatenate([v.ravel() for v in model.get_weights()]), history.epoch

    ranks = 2 + settings.get("ps", 0)
    whole = run_ranks(ranks, lambda c: body(c, "whole"), **settings)
    with pytest.raises(SystemExit):
        run_ranks(ranks, lambda c: body(c, "cut"), stop_at=4, **settings)
    rest = run_ranks(ranks, lambda c: body(c, "cut", True), **settings)
    if settings == {"ps": 1}:  # asynchronous workers stop within the first epoch, or after it
        assert rest[0][1] == rest[1][1] and rest[0][1] in ([0, 1, 2], [1, 2])
    else:
        assert [epochs for _, epochs in rest] == [[1, 2]] * len(rest)
        for (found, _), (expected, _) in zip(rest, whole, strict=True):
            np.testing.assert_allclose(found, expected, 1e-6)
