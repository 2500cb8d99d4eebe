"""`hf.layers` that normalize: values, moving averages, training over replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from tests.ops.evaluate import evaluate
from tests.ops.layers import check, draw, filled, graph  # noqa: F401 - a graph for each test
from tests.runtime.ranks import run_ranks


def unit(x: np.ndarray, axis: Any, epsilon: float) -> np.ndarray:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + epsilon)


@pytest.mark.parametrize("how", ["python", "tensor", "synchronized"])
@pytest.mark.parametrize("axis", [-1, 1])
def test_batch_normalization(axis: int, how: str) -> None:
    x = draw(4, 3, 2, 5) * 3 + 1
    others = (0, 1, 2) if axis == -1 else (0, 2, 3)
    turn = (lambda v: v) if axis == -1 else lambda v: v[:, None, None]
    given = hf.constant(x)
    flag = hf.placeholder("bool", [])
    layer = hf.layers.batch_normalization
    sync = how == "synchronized"
    train = layer(
        given,
        axis,
        0.9,
        0.1,
        training=flag if how == "tensor" else True,
        name="n",
        synchronized=sync,
    )
    infer = layer(given, axis, 0.9, 0.1, training=False, name="n", reuse=True)
    assert [v.op.name for v in hf.trainable_variables()] == ["n/gamma", "n/beta"]
    w = {k: abs(v) for k, v in filled().items()}
    y = unit(x, others, 0.1) * turn(w["n/gamma"]) + turn(w["n/beta"])
    at_rest = (x - turn(w["n/moving_mean"])) / np.sqrt(turn(w["n/moving_variance"]) + 0.1)
    at_rest = at_rest * turn(w["n/gamma"]) + turn(w["n/beta"])
    check(train, y, w, {flag: True})
    check(infer, at_rest, w)
    updates = hf.get_collection(hf.GraphKeys.UPDATE_OPS)
    assert len(updates) == 2
    if how == "tensor":
        check(train, at_rest, w, {flag: False})
        before = {k: v.copy() for k, v in w.items()}
        evaluate(updates, {flag: False}, w)
        assert all((w[k] == before[k]).all() for k in w)
    mean = 0.9 * w["n/moving_mean"] + 0.1 * x.mean(others)
    variance = 0.9 * w["n/moving_variance"] + 0.1 * x.var(others, ddof=int(x.ndim == 4))
    evaluate(updates, {flag: True}, w)
    np.testing.assert_allclose(w["n/moving_mean"], mean)
    np.testing.assert_allclose(w["n/moving_variance"], variance)


def test_batch_normalization_without_variables() -> None:
    x = draw(6, 4)
    y = hf.layers.batch_normalization(x, center=False, scale=False, training=True)
    check(y, unit(x, 0, 1e-3), {})
    assert not hf.trainable_variables()


@pytest.mark.parametrize("synchronized", [False, True])
@pytest.mark.parametrize("sizes", [(3, 3, 2), (7, 1, 0)])
def test_batch_normalization_on_replicas(sizes: tuple[int, ...], synchronized: bool) -> None:
    """Synchronized, a step of training is that of one replica on the joined batch."""
    whole = draw(8, 3) + 2
    parts = np.split(whole, np.cumsum(sizes)[:-1])

    def step(x: hf.Tensor, feeds: Any) -> Any:
        h = hf.layers.dense(x, 4, kernel_initializer=hf.constant_initializer(0.5))
        y = hf.layers.batch_normalization(
            h * h, training=True, momentum=0.8, synchronized=synchronized
        )
        loss = hf.reduce_mean(hf.reduce_sum(y * y * y, 1))
        updates = hf.get_collection(hf.GraphKeys.UPDATE_OPS)
        with hf.control_dependencies(updates):
            train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
        session = hf.Session()
        session.run(hf.global_variables_initializer())
        for _ in range(3):
            session.run(train, feeds)
        return session.run([v.value() for v in hf.global_variables()])

    def body(context: Any) -> Any:
        x = hf.placeholder("float64", [None, 3])
        mine = parts[context.replica]
        return step(x, {x: mine, hf.replica_share(): len(mine) / 8})

    results = run_ranks(3, body)
    for found in results[1:]:
        for a, b in zip(found, results[0], strict=True):
            np.testing.assert_array_equal(a, b)
    assert all(np.isfinite(v).all() for v in results[0])
    if synchronized:
        with hf.Graph().as_default():
            x = hf.placeholder("float64", [None, 3])
            alone = step(x, {x: whole})
        for a, b in zip(results[0], alone, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_layer_and_group_norm() -> None:
    x = draw(2, 3, 4, 6)
    y = hf.layers.layer_norm(x)
    z = hf.layers.layer_norm(x, axis=[-2, -1], center=False)
    g = hf.layers.group_norm(x, 3)
    f = hf.layers.group_norm(
        x.transpose(0, 3, 1, 2), 3, "channels_first", name="group_norm", reuse=True
    )
    w = filled()
    check(y, unit(x, -1, 1e-5) * w["layer_norm/gamma"] + w["layer_norm/beta"], w)
    check(z, unit(x, (2, 3), 1e-5) * w["layer_norm_1/gamma"], w)
    parted = unit(x.reshape(2, 3, 4, 3, 2), (1, 2, 4), 1e-5).reshape(x.shape)
    parted = parted * w["group_norm/gamma"] + w["group_norm/beta"]
    check(g, parted, w)
    check(f, parted.transpose(0, 3, 1, 2), w)
