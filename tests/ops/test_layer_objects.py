"""Layers as objects: names, variables, losses and updates are those of TensorFlow 1's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError, ShapeError
from tests.ops.evaluate import evaluate
from tests.ops.layers import draw, filled, graph  # noqa: F401 - a graph for each test


def names(variables: Any) -> list[str]:
    return [v.op.name for v in variables]


def test_a_layer_called_again_shares_its_variables() -> None:
    x, z = draw(2, 3), draw(4, 3)
    layer = hf.layers.Dense(5, hf.nn.relu)
    assert not layer.built and layer.variables == []
    y, again = layer(hf.constant(x)), layer.apply(hf.constant(z))
    assert names(layer.variables) == names(hf.global_variables()) == ["dense/kernel", "dense/bias"]
    assert layer.weights == [layer.kernel, layer.bias] and layer.count_params() == 20
    assert layer.trainable_variables == hf.trainable_variables()
    w = filled()
    for got, of in ((y, x), (again, z)):
        expected = (of @ w["dense/kernel"] + w["dense/bias"]).clip(0)
        np.testing.assert_allclose(evaluate(got, state=w), expected)


def test_names_are_those_of_tensorflow() -> None:
    """As `tf.layers.Dense` has them: layers are numbered over the graph, scopes where they are."""
    x = hf.placeholder("float32", [None, 3])
    one, two = hf.layers.Dense(4), hf.layers.Dense(4)
    with hf.variable_scope("s"):
        inner = two(x)
    outer, again = one(x), one(x)
    assert (one.name, two.name) == ("dense_1", "dense_2")
    assert (inner.name, outer.name) == ("s/dense/BiasAdd:0", "dense/BiasAdd:0")
    assert again.name == "dense/BiasAdd_1:0"
    assert (one.scope_name, two.scope_name) == ("dense", "s/dense")
    third, fourth = hf.layers.Dense(4, name="top"), hf.layers.Dense(4, name="top")
    assert third(x).name == "top/BiasAdd:0" and fourth(x).name == "top_1/BiasAdd:0"
    assert names(fourth.weights) == ["top_1/kernel", "top_1/bias"] and fourth.name == "top"
    shared = hf.layers.Dense(4, name="top", _reuse=True)
    assert shared(x).name == "top_2/BiasAdd:0" and shared.kernel is third.kernel
    assert hf.layers.Dense(2)(x, scope="told").name == "told/BiasAdd:0"
    image = hf.placeholder("float32", [None, 8, 8, 3])
    assert hf.layers.max_pooling2d(image, 2, 2).name == "max_pooling2d/MaxPool:0"
    assert hf.layers.flatten(image, name="flat").name == "flat/Reshape:0"


def test_functions_and_classes_give_the_same() -> None:
    image, line = hf.constant(draw(2, 6, 6, 3)), hf.constant(draw(2, 6, 3))
    cases: list[tuple[str, Any, list[Any]]] = [
        ("Conv2D", image, [4, 3]),
        ("Conv2DTranspose", image, [4, 3, 2]),
        ("SeparableConv2D", image, [4, 3]),
        ("Conv1D", line, [4, 3]),
        ("SeparableConv1D", line, [4, 3]),
        ("MaxPooling2D", image, [2, 2]),
        ("AveragePooling1D", line, [2, 2]),
        ("Flatten", image, []),
        ("Dropout", image, [0.5]),
        ("BatchNormalization", image, []),
    ]
    functions = ["conv2d", "conv2d_transpose", "separable_conv2d", "conv1d", "separable_conv1d"]
    functions += ["max_pooling2d", "average_pooling1d", "flatten", "dropout", "batch_normalization"]
    for (cls, x, args), function in zip(cases, functions, strict=True):
        layer = getattr(hf.layers, cls)(*args)
        before = len(hf.global_variables())
        y = layer(x)
        mine = hf.global_variables()[before:]
        z = getattr(hf.layers, function)(x, *args)
        others = hf.global_variables()[before + len(mine) :]
        assert [v.shape for v in mine] == [v.shape for v in others]
        assert layer.weights == [v for v in mine if v.trainable] + [
            v for v in mine if not v.trainable
        ]
        values = [abs(draw(*v.shape)) for v in mine]
        state = dict(zip(names(mine + others), values * 2, strict=True))
        a, b = evaluate([y, z], state=state)
        np.testing.assert_array_equal(a, b)


def test_batch_normalization_keeps_its_updates() -> None:
    layer = hf.layers.BatchNormalization(momentum=0.9)
    x = draw(8, 3)
    y = layer(hf.constant(x), training=True)
    assert names(layer.variables) == [
        f"batch_normalization/{n}" for n in ("gamma", "beta", "moving_mean", "moving_variance")
    ]
    assert names(layer.non_trainable_variables) == names(layer.variables)[2:]
    assert len(layer.updates) == 2
    assert layer.updates == hf.get_collection(hf.GraphKeys.UPDATE_OPS)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        normal, _ = session.run([y, layer.updates])
        np.testing.assert_allclose(session.run(layer.moving_mean), 0.1 * x.mean(0))
        used = session.run(layer(hf.constant(x)))
    np.testing.assert_allclose(normal, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3))
    mean, variance = 0.1 * x.mean(0), 0.9 + 0.1 * x.var(0)
    np.testing.assert_allclose(used, (x - mean) / np.sqrt(variance + 1e-3))


class Scaled(hf.layers.Layer):
    """A layer as users write them, with one inside."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.inner = hf.layers.Dense(2, use_bias=False)

    def build(self, input_shape: Any) -> None:
        """TensorFlow 1's shapes are lists of dimensions."""
        rows = input_shape[-1].value
        assert input_shape.as_list() == [None, rows]
        self.w = self.add_weight(
            "w",
            [rows, self.units],
            initializer=hf.ones_initializer(),
            regularizer=hf.layers.l2_regularizer(1.0),
        )
        self.v = self.add_variable("v", shape=[self.units], trainable=False)
        super().build(input_shape)

    def call(self, x: Any, factor: float = 1.0) -> Any:
        """One product after the other."""
        self.add_loss(hf.reduce_sum(x))
        return self.inner(hf.matmul(x, self.w) + self.v) * factor


def test_a_layer_of_the_users_own() -> None:
    fed = hf.placeholder("float64", [None, 3])
    layer = Scaled(4)
    y = layer(fed)
    z = layer(fed, factor=2.0)
    assert layer.name == "scaled_1" and layer.dtype == np.float64
    assert (y.name, z.name) == ("scaled/Mul:0", "scaled/Mul_1:0")
    assert names(layer.weights) == ["scaled/w", "scaled/v"]
    assert names(layer.trainable_weights) == ["scaled/w"]
    assert names(layer.inner.weights) == ["scaled/dense/kernel"]
    assert len(layer.losses) == 3
    assert set(layer.losses) == set(hf.get_collection(hf.GraphKeys.REGULARIZATION_LOSSES))
    w, x = filled(), draw(5, 3)
    expected = (x @ w["scaled/w"] + w["scaled/v"]) @ w["scaled/dense/kernel"]
    a, b, loss = evaluate([y, z, layer.losses[0]], {fed: x}, w)
    np.testing.assert_allclose(a, expected)
    np.testing.assert_allclose(b, 2 * expected)
    np.testing.assert_allclose(loss, (w["scaled/w"] ** 2).sum() / 2)


def test_a_layer_that_is_not_trained() -> None:
    layer = Scaled(4, trainable=False, name="fixed")
    layer(hf.placeholder("float32", [None, 3]))
    assert layer.trainable_weights == [] and len(layer.weights) == 2
    assert names(hf.trainable_variables()) == ["fixed/dense/kernel"]


def test_several_inputs() -> None:
    class Sum(hf.layers.Layer):
        def build(self, input_shape: Any) -> None:
            assert [s.as_list() for s in input_shape] == [[2, 3], [2, 3]]
            self.scale = self.add_weight("scale", [])

        def call(self, inputs: Any) -> Any:
            return hf.add_n(inputs) * self.scale

    a, b = draw(2, 3).astype("float32"), draw(2, 3).astype("float32")
    y = Sum()([hf.constant(a), hf.constant(b)])
    np.testing.assert_allclose(evaluate(y, state={"sum/scale": np.float32(3)}), 3 * (a + b))


def test_constraints() -> None:
    """A step of descent of the sum makes the bias negative, which the constraint undoes."""
    layer = hf.layers.Dense(2, bias_constraint=lambda v: hf.maximum(v, 0.0))
    loss = hf.reduce_sum(layer(hf.ones([1, 2])))
    train = hf.train.GradientDescentOptimizer(0.5).minimize(loss)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        before = session.run(layer.kernel)
        session.run(train)
        assert session.run(layer.bias).tolist() == [0, 0]
        np.testing.assert_allclose(session.run(layer.kernel), before - 0.5, rtol=1e-6)


def test_errors() -> None:
    layer = hf.layers.Dense(4)
    for ask in (layer.count_params, lambda: layer.scope_name):
        with pytest.raises(GraphError, match="dense_1"):
            ask()
    layer(hf.zeros([2, 3]))
    with pytest.raises(ShapeError, match=r"dense_1 does not take shape .*size 3 along axis -1"):
        layer(hf.zeros([2, 5]))
    with pytest.raises(TypeError, match="unit"):
        hf.layers.Dense(4, unit=3)

    flat = hf.layers.Layer()
    flat.input_spec = hf.layers.InputSpec(min_ndim=2, max_ndim=3)
    assert flat(hf.zeros([2, 2])).shape == (2, 2)
    for shape in ([2], [2, 2, 2, 2]):
        with pytest.raises(ShapeError, match="takes rank 2 to 3"):
            flat(hf.zeros(shape))
