"""What notebooks show of tensors, graphs, plans, sessions, datasets and checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import hpcflow as hf
from tests.plan.model import Net
from tests.test_page import HOSTILE, Checker


def shown(thing: object) -> str:
    """The texts of what a notebook shows, after checks that hold for everything."""
    text = thing._repr_html_()  # type: ignore[attr-defined]
    checker = Checker()
    checker.feed(text)
    assert not checker.open and "<script" not in text and "<img" not in text
    return " | ".join(checker.texts)


def test_tensors_and_graphs_and_plans() -> None:
    net = Net()
    assert re.search(r"x:0 .*float32.*\[\?, 6\].*Placeholder.*model.py:\d+", shown(net.x))
    with net.graph.as_default():
        assert re.search(r"constant \| \[ *0\. +1\. +2\. \.\.\. 97\. 98\. 99\.\]", shown(
            hf.constant(np.arange(100.0))))  # fmt: skip
    text = shown(net.graph)
    operations = net.graph.get_operations()
    assert f"operations | {len(operations)}" in text
    assert "variables | 6 with 176 elements" in text  # w1, b1, w2 and as many slots
    assert "not placed yet" in text and "<svg" in net.graph._repr_html_()
    plan = net.step()
    assert "mode | single" in shown(plan) and "w1" in shown(plan)


def test_a_constant_that_is_shown_can_still_be_fed() -> None:
    with hf.Graph().as_default():
        c = hf.placeholder_with_default(hf.constant([1.0, 2.0]), [2])
        shown(c), shown(c.op.inputs[0])
        with hf.Session() as session:
            assert session.run(c, {c: [3.0, 4.0]}).tolist() == [3.0, 4.0]
            assert session.run(c.op.inputs[0] * 1.0, {c.op.inputs[0]: [5.0, 6.0]})[0] == 5.0


def test_sessions_datasets_and_checkpoints(tmp_path: Path) -> None:
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [None, 3], name="x")
        weights = hf.Variable(hf.zeros([3, 2]), name="weights")
        data = hf.data.Dataset({x: np.zeros((100, 3), "f4")}, batch=30)
        text = shown(data)
        assert "samples | 100" in text and "steps an epoch | 4" in text and "x:0 | float32" in text
        with hf.Session() as session:
            assert "rank | 0 of 1" in shown(session) and "/cpu:0" in shown(session)
            session.run(hf.global_variables_initializer())
            path = hf.train.Saver({HOSTILE: weights}).save(session, tmp_path / "model")
    text = shown(hf.train.load_checkpoint(path))
    assert "alert(1)" in text and "float32 | [3, 2] | 24 B" in text and "arrays | 1" in text


def test_classes_without_an_object_have_the_function() -> None:
    assert callable(hf.Tensor._repr_html_) and callable(hf.Graph._repr_html_)


def test_variables() -> None:
    with hf.Graph().as_default():
        weights = hf.Variable([1.5, 2.5], name="weights")
        large = hf.Variable(hf.zeros([100]), trainable=False, name="large")
        assert re.search(r"weights.*float32.*\[2\].*trained \| yes", shown(weights))
        with hf.Session() as session:
            assert "value" not in shown(weights), "it is not initialized"
            session.run(hf.global_variables_initializer())
            session.graph.finalize()
            assert "value | [1.5 2.5]" in shown(weights)
            assert "value" not in shown(large) and "trained | no" in shown(large)
        assert "value" not in shown(weights), "the session is closed"


def test_models_and_histories() -> None:
    layers = [hf.layers.Dense(3, name="first"), hf.nn.relu, hf.layers.Dense(1)]
    model = hf.Sequential(layers)
    text = shown(model)
    assert "compiled | no" in text and "built | no" in text and "first | Dense" in text
    assert model.outputs is None, "showing it builds nothing"
    model.compile("adam", "mse", metrics=["mae"])
    history = model.fit(np.ones((8, 2)), np.ones(8), epochs=12, verbose=0)
    text = shown(model)
    assert (
        "optimizer | AdamOptimizer" in text
        and "loss | mean_squared_error" in text
        and "metrics | mae" in text
    )
    assert "parameters | 13, of which 13 are trained" in text and "[2, 3] | 6 | yes" in text
    assert f"12 | {history.history['loss'][-1]:.4g} | {history.history['mae'][-1]:.4g}" in text
    assert "epoch | loss | mae | 3 |" in shown(history), "the last ten epochs"
    history.history[HOSTILE] = [0.5]
    assert "alert(1)" in shown(history)
