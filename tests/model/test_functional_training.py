"""Functional models drop and normalize in `fit` alone, as `Sequential`, Keras and NumPy do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError
from hpcflow.graph.function_body import needed_operations
from tests.runtime.ranks import run_here, run_ranks

RNG = np.random.default_rng(5)
X = RNG.standard_normal((48, 6)).astype(np.float32)
Y = RNG.standard_normal((48, 3)).astype(np.float32)
L = hf.layers


def dense(units: int, seed: int, **facts: Any) -> Any:
    return L.Dense(units, kernel_initializer=hf.glorot_uniform_initializer(seed=seed), **facts)


def stack(rate: float, norm: bool) -> list[Any]:
    """Layers whose draws have seeds, so that names of operations do not matter."""
    middle = [L.BatchNormalization(momentum=0.8)] if norm else []
    return [dense(16, 1), *middle, L.Dropout(rate, seed=3), dense(3, 2)]


def functional(build: Callable[[Any], Any], shape: Any = (6,), seed: int = 0) -> hf.Model:
    with hf.Graph(seed).as_default():
        x = hf.Input(shape)
        return hf.Model(x, build(x))


def through(layers: list[Any]) -> Callable[[Any], Any]:
    def build(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    return build


def sequential(layers: list[Any]) -> hf.Sequential:
    with hf.Graph(0).as_default():
        return hf.Sequential(layers)


def trained(model: Any, x: Any = X, y: Any = Y, epochs: int = 2) -> dict[str, Any]:
    """What a training gives: losses with training's graph, and values of the inference's."""
    model.compile("sgd", "mse")
    history = model.fit(x, y, batch_size=16, epochs=epochs, verbose=0, validation_data=(x, y))
    return {
        "losses": history.history["loss"],
        "validation": history.history["val_loss"],
        "evaluated": model.evaluate(x, y, verbose=0),
        "predicted": model.predict(x),
        "weights": np.concatenate([w.ravel() for w in model.get_weights()]),
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, 1e-5, 1e-6, err_msg=key)


def compare(context: Any) -> None:
    """A functional model equals a `Sequential` of the same layers, in each value."""
    several = {}
    norm = context.cluster.mode != "ps"
    for rate in (0.0, 0.9):
        found = trained(functional(through(stack(rate, norm))))
        assert_same(found, trained(sequential(stack(rate, norm))))
        several[rate] = found["losses"]
    assert abs(several[0.9][0] / several[0.0][0] - 1) > 0.1


@pytest.mark.parametrize(
    ("ranks", "settings"), [(1, {}), (2, {}), (3, {"ps": 1, "sync": "all"})], ids=str
)
def test_a_functional_model_equals_a_sequential_one(ranks: int, settings: dict[str, Any]) -> None:
    run_ranks(ranks, compare, seed=ranks, **settings)


@pytest.mark.mpi
def test_ranks_of_mpi_agree_with_a_sequential_model() -> None:
    run_here(compare)


def test_dropout_changes_the_training_loss_and_not_the_inference() -> None:
    """With a learning rate of 0 the weights stay: only dropout differs."""
    losses = []
    for rate in (0.0, 0.9):
        model = functional(through([dense(32, 1), L.Dropout(rate, seed=4), dense(3, 2)]))
        model.compile(hf.train.GradientDescentOptimizer(0.0), "mse")
        history = model.fit(X, Y, batch_size=48, epochs=1, verbose=0)
        kernel, _, last, _ = model.get_weights()
        expected = ((X @ kernel @ last - Y) ** 2).mean()
        assert model.evaluate(X, Y, verbose=0) == pytest.approx(expected, rel=1e-4)
        np.testing.assert_allclose(model.predict(X), X @ kernel @ last, 1e-4, 1e-5)
        evaluated = [t for metric in model._built().evaluated for t in metric.added]
        assert evaluated
        assert not any("Random" in op.type for op in needed_operations(evaluated))
        losses.append(history.history["loss"][0] / expected)
    assert losses[0] == pytest.approx(1.0, rel=1e-4)
    assert losses[1] > 1.2


def test_batch_norm_trains_by_the_batch_and_infers_by_moving_averages_as_numpy() -> None:
    model = functional(L.BatchNormalization(momentum=0.75))
    model.compile(hf.train.GradientDescentOptimizer(0.0), "mse")
    target = X * 0 + 1
    history = model.fit(X + 3, target, batch_size=48, epochs=2, verbose=0)
    mean, variance = (X + 3).mean(0), (X + 3).var(0)
    normal = (X + 3 - mean) / np.sqrt(variance + 1e-3)
    assert history.history["loss"][1] == pytest.approx(((normal - 1) ** 2).mean(), rel=1e-4)
    kept = 0.75**2
    names = [v.name.rpartition("/")[2] for v in model.weights]
    weights = dict(zip(names, model.get_weights(), strict=True))
    averages = mean * (1 - kept), kept + variance * (1 - kept)
    np.testing.assert_allclose(weights["moving_mean"], averages[0], 1e-5)
    np.testing.assert_allclose(weights["moving_variance"], averages[1], 1e-5)
    inferred = (X + 3 - averages[0]) / np.sqrt(averages[1] + 1e-3)
    np.testing.assert_allclose(model.predict(X + 3), inferred, 1e-4, 1e-5)
    loss = model.evaluate(X + 3, target, verbose=0)
    assert loss == pytest.approx(((inferred - 1) ** 2).mean(), rel=1e-4)


def branches(training: Any, given: bool) -> Callable[..., Any]:
    """Two branches, a layer and a dropout that are called twice, operations between, a `cond`."""
    shared, drop = dense(6, 1, activation=hf.nn.tanh), L.Dropout(0.5, seed=7)
    norm, last = L.BatchNormalization(), dense(3, 2)

    def call(a: Any, b: Any, training: Any = training) -> Any:
        how = {"training": training} if given else {}
        left = drop(shared(a), **how)
        right = hf.sqrt(hf.abs(drop(shared(b * 2.0), **how)) + 1.0)
        joined = norm(hf.concat([left, right], 1), **how)
        size = hf.reduce_mean(joined)
        turned = hf.cond(size > 0, lambda: joined * joined, lambda: joined * size)
        return last(hf.concat([turned, L.flatten(joined)], 1))

    return call


def test_branches_shared_layers_operations_between_and_several_inputs() -> None:
    """Equal to a model of `call` with explicit `training`, which is called twice."""
    with hf.Graph(0).as_default():
        a, b = hf.Input((6,)), hf.Input((6,))
        model = hf.Model([a, b], branches(False, given=False)(a, b))
    with hf.Graph(0).as_default():
        other = hf.Model(call=branches(False, given=True))
    inputs = (X, X[::-1].copy())
    found = trained(model, list(inputs))
    assert_same(found, trained(other, inputs))
    assert len(model.weights) == 8


def looped(x: Any, training: Any = None) -> Any:
    """A loop with a branch inside, which uses what a dropout gives as a capture."""
    x = L.Dropout(0.5, seed=3)(dense(6, 1)(x), training=training)

    def step(i: Any, t: Any) -> Any:
        positive = hf.reduce_sum(t) > 0
        return i + 1, hf.cond(positive, lambda: t * 1.1 + x, lambda: hf.tanh(t) - x)

    return dense(3, 2)(hf.while_loop(lambda i, t: i < 4, step, [0, x])[1])


def test_loops_and_branches_behind_a_dropout_have_its_gradients() -> None:
    with hf.Graph(0).as_default():
        other = hf.Model(call=looped)
    assert_same(trained(functional(looped)), trained(other))


def test_what_is_given_stays() -> None:
    """`training=False` is no dropout in `fit`, True is one in `predict`; None is not given."""

    def build(how: Any) -> Callable[[Any], Any]:
        return lambda x: dense(3, 2)(L.Dropout(0.9, seed=3)(x, training=how))

    off, free, on = (trained(functional(build(how))) for how in (False, None, True))
    plain = trained(functional(through([dense(3, 2)])))
    assert_same(off, plain)
    assert abs(free["losses"][0] / plain["losses"][0] - 1) > 0.1
    np.testing.assert_allclose(on["losses"], free["losses"], 1e-5)
    model = functional(build(True))
    assert (model.predict(X) != model.predict(X)).any()


@pytest.mark.slow
def test_functions_of_layers_and_recurrent_layers_behind_a_dropout() -> None:
    """`lstm` and `multi_head_attention` with a rate, behind `dropout`: their loops are copied."""
    x = RNG.standard_normal((48, 5, 4)).astype(np.float32)

    def build(rate: float) -> Callable[[Any], Any]:
        def call(t: Any, training: Any = None) -> Any:
            t = L.dropout(t, rate, seed=1, training=training)
            with hf.variable_scope("net", initializer=hf.random_uniform_initializer(-1, 1, 3)):
                t, _ = L.lstm(t, 4, name="lstm")
                return L.dense(t[:, -1], 3, name="out")

        return call

    def called(t: Any, training: Any) -> Any:
        return build(0.5)(t, training)

    with hf.Graph(0).as_default():
        oracle = hf.Model(call=called)
    found = trained(functional(build(0.5), (5, 4)), x)
    assert_same(found, trained(oracle, x))
    dropped = [0.0, 0.0]
    for i, rate in enumerate((0.0, 0.5)):

        def inside(t: Any, rate: float = rate) -> Any:
            start = hf.random_uniform_initializer(-1, 1, 3)
            with hf.variable_scope("net", initializer=start):
                t, _ = L.lstm(t, 4, 2, dropout_rate=rate)
                t = L.multi_head_attention(t, num_heads=2, dropout_rate=rate)
                return L.dense(t[:, -1], 3)

        model = functional(inside, (5, 4))
        count = len(model.weights)
        result = trained(model, x)
        assert len(model.weights) == count
        dropped[i] = result["losses"][0]
        np.testing.assert_array_equal(model.predict(x), model.predict(x))
    assert abs(dropped[1] / dropped[0] - 1) > 0.02


class Noisy(L.Layer):
    """A layer of a user, which returns its input but in training."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        return inputs + 100.0 if training else inputs


class Block(L.Layer):
    """A layer of layers that does not hand `training` on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.noisy = dense(3, 2), Noisy()

    def call(self, inputs: Any, training: Any = False) -> Any:
        return self.noisy(self.inner(inputs))


class Plain(hf.Model):
    """A model whose `call` has no argument `training`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.noisy = dense(3, 2), Noisy()

    def call(self, x: Any) -> Any:
        return self.noisy(self.inner(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: functional(through([dense(3, 2), Noisy()])),
        lambda: functional(Block()),
        lambda: functional(hf.Sequential([dense(3, 2), Noisy()])),
        lambda: sequential([Block()]),
        lambda: functional(
            hf.Sequential([dense(3, 2), lambda x, training: x + 100.0 if training else x])
        ),
        Plain,
    ],
    ids=["own layer", "nested", "a sequential", "in a sequential", "function", "subclass"],
)
def test_layers_of_users_get_training(make: Callable[[], Any]) -> None:
    model = make()
    model.compile(hf.train.GradientDescentOptimizer(0.0), "mae")
    loss = model.fit(X, Y, verbose=0).history["loss"][0]
    kernel = model.get_weights()[0]
    assert loss == pytest.approx(np.abs(X @ kernel + 100 - Y).mean(), rel=1e-4)
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(np.abs(X @ kernel - Y).mean(), rel=1e-4)


def doubled(t: Any) -> Any:
    return hf.reduce_mean(t * t) * 0.01


@pytest.mark.parametrize("kind", [sequential, lambda layers: functional(through(layers))])
def test_penalties_of_activities_count_once_as_numpy(kind: Any) -> None:
    """In training those of the training, otherwise those of the inference."""
    model = kind([dense(6, 1), Noisy(), dense(3, 2, activity_regularizer=doubled)])
    model.compile(hf.train.GradientDescentOptimizer(0.0), "mse")
    loss = model.fit(X, Y, batch_size=48, verbose=0).history["loss"][0]
    kernel, _, last, _ = model.get_weights()
    for shift, value in ((100.0, loss), (0.0, model.evaluate(X, Y, batch_size=48, verbose=0))):
        output = (X @ kernel + shift) @ last
        expected = ((output - Y) ** 2).mean() + 0.01 * (output**2).mean()
        assert value == pytest.approx(expected, rel=1e-4)


def test_batch_norm_with_explicit_training_behind_a_layer_sees_what_the_training_sees() -> None:
    norm = L.BatchNormalization(momentum=0.0)
    model = functional(lambda x: norm(Noisy()(dense(6, 1)(x)), training=True))
    model.compile(hf.train.GradientDescentOptimizer(0.0), "mse")
    model.fit(X, X, batch_size=48, verbose=0)
    mean = (X @ model.get_weights()[0]).mean(0) + 100
    np.testing.assert_allclose(model.session.run(norm.moving_mean), mean, 1e-5)


def test_two_models_of_one_graph_update_their_own_averages() -> None:
    with hf.Graph(0).as_default():
        x, z = hf.Input((6,)), hf.Input((6,))
        shared = dense(6, 1)
        models = [hf.Model(t, L.BatchNormalization(momentum=0.0)(shared(t))) for t in (x, z)]
        for model in models:
            model.compile(hf.train.GradientDescentOptimizer(0.0), "mse")
            assert model.labels is not None  # both are built before the first run
        assert hf.get_collection(hf.GraphKeys.UPDATE_OPS) == []
        models[1].fit(X + 5, X, batch_size=48, verbose=0)
        first, second = (model.get_weights() for model in models)
    np.testing.assert_array_equal(first[4], np.zeros(6))
    np.testing.assert_allclose(second[4], (X + 5).mean(0) @ second[0], 1e-4)


class Reading(L.Layer):
    """A layer that reads a tensor which is none of its inputs."""

    other: Any

    def call(self, inputs: Any, training: Any = False) -> Any:
        return inputs + self.other


class Growing(L.Layer):
    """A layer that makes a variable at each call."""

    def call(self, inputs: Any, training: Any = False) -> Any:
        return inputs * hf.Variable(1.0)


def of_a_tensor(x: Any) -> Any:
    layer = Reading()
    layer.other = L.Dropout(0.5)(x)
    return layer(x)


def in_a_loop(x: Any) -> Any:
    drop = L.Dropout(0.5)
    return hf.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, drop(t)), [0, x])[1]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (of_a_tensor, "none of its inputs"),
        (Growing(), "makes new variables each time"),
        (in_a_loop, "inside a loop or a branch"),
    ],
)
def test_what_cannot_be_repeated_is_an_error(build: Any, text: str) -> None:
    model = functional(lambda x: dense(6, 1)(build(x)))
    model.compile("sgd", "mse")
    with pytest.raises(GraphError, match=text):
        model.fit(X, X, verbose=0)


class Loop(L.Layer):
    """A layer of a user with a loop, in which another layer is called without `training`."""

    def call(self, inputs: Any, training: Any = False) -> Any:
        noisy = Noisy()
        return hf.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, noisy(t)), [0, inputs])[1]


def test_a_loop_in_a_layer_is_repeated_with_the_layer() -> None:
    model = functional(lambda x: dense(6, 1)(Loop()(x)))
    model.compile(hf.train.GradientDescentOptimizer(0.0), "mse")
    loss = model.fit(X, X, batch_size=48, verbose=0).history["loss"][0]
    output = (X + 300) @ model.get_weights()[0]
    assert loss == pytest.approx(((output - X) ** 2).mean(), rel=1e-4)
    output = X @ model.get_weights()[0]
    np.testing.assert_allclose(model.predict(X), output, 1e-4, 1e-5)
