"""`hf.layers`: values against formulas, names of variables, scopes and reuse, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ShapeError
from tests.ops.cases_conv import conv, input_grad
from tests.ops.cases_pool import avg_pool, max_pool
from tests.ops.evaluate import evaluate
from tests.ops.layers import check, draw, filled, graph  # noqa: F401 - a graph for each test


def attrs(
    strides: Any, padding: Any, dilations: Any = 1, first: bool = False, rank: int = 2
) -> Any:
    wide = lambda n: tuple(np.broadcast_to(n, rank).tolist())  # noqa: E731
    known = dict(strides=wide(strides), dilations=wide(dilations), padding=padding)
    return {**known, "first": first, "groups": 1, "count_include_pad": False}


def test_dense() -> None:
    x = draw(2, 3, 4)
    y = hf.layers.dense(hf.constant(x), 5, hf.nn.relu)
    fed = hf.placeholder("float64", [None, None, 4])
    z = hf.layers.dense(fed, 5, use_bias=False, name="top")
    w = filled()
    assert {k: v.shape for k, v in w.items()} == {
        "dense/kernel": (4, 5),
        "dense/bias": (5,),
        "top/kernel": (4, 5),
    }
    check(y, (x @ w["dense/kernel"] + w["dense/bias"]).clip(0), w)
    check(z, x @ w["top/kernel"], w, {fed: x})


def test_scopes_and_reuse() -> None:
    x = hf.constant(draw(2, 3))
    with hf.variable_scope("net"):
        a = hf.layers.dense(x, 4, name="one")
        b = hf.layers.dense(x, 4)
        c = hf.layers.dense(x, 4)
        d = hf.layers.dense(x, 4, name="one", reuse=True)
    with hf.variable_scope("net", reuse=True):
        e = hf.layers.dense(x, 4, name="one")
    names = sorted(v.op.name for v in hf.global_variables() if v.op.name.endswith("kernel"))
    assert names == ["net/dense/kernel", "net/dense_1/kernel", "net/one/kernel"]
    w = filled()
    values = evaluate([a, b, c, d, e], state=w)
    assert (values[0] == values[3]).all() and (values[0] == values[4]).all()
    assert not (values[1] == values[2]).any()


def test_initial_values_and_regularizers() -> None:
    x = hf.constant(draw(2, 3))
    hf.layers.dense(
        x,
        4,
        bias_initializer=hf.ones_initializer(),
        kernel_regularizer=lambda w: 0.5 * hf.reduce_sum(hf.square(w)),
        activity_regularizer=hf.reduce_sum,
    )
    state: dict = {}
    evaluate(hf.global_variables_initializer(), state=state)
    assert (state["dense/bias"] == 1).all()
    assert abs(state["dense/kernel"]).max() <= np.sqrt(6 / 7)
    y = evaluate(x) @ state["dense/kernel"] + 1
    total = evaluate(hf.losses.get_regularization_loss(), state=state)
    np.testing.assert_allclose(total, 0.5 * (state["dense/kernel"] ** 2).sum() + y.sum())


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_and_pooling(rank: int, first: bool) -> None:
    form = "channels_first" if first else "channels_last"
    x = draw(2, *[5, 4, 6][:rank], 3)
    x = np.moveaxis(x, -1, 1) if first else x
    given = hf.constant(x)
    y = getattr(hf.layers, f"conv{rank}d")(given, 4, 3, 2, "same", form, activation=hf.tanh)
    z = getattr(hf.layers, f"conv{rank}d")(given, 2, [2] * rank, data_format=form, dilation_rate=2)
    w = filled()
    spread = [1] * rank

    def bias(name: str) -> np.ndarray:
        b = w[f"{name}/bias"]
        return b.reshape([-1, *spread]) if first else b

    name = f"conv{rank}d"
    expected = conv(x, w[f"{name}/kernel"], attrs(2, "SAME", 1, first, rank))
    check(y, np.tanh(expected + bias(name)), w)
    expected = conv(x, w[f"{name}_1/kernel"], attrs(1, "VALID", 2, first, rank))
    check(z, expected + bias(f"{name}_1"), w)
    a = {**attrs(2, "SAME", 1, first, rank), "window": (3,) * rank}
    pools = {"max_pooling": max_pool, "average_pooling": avg_pool}
    for name, oracle in pools.items():
        pooled = getattr(hf.layers, f"{name}{rank}d")(given, 3, 2, "same", form)
        check(pooled, oracle(x, a), {})


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("rank, padding", [(1, "valid"), (2, "same"), (2, "valid"), (3, "same")])
def test_transposed_convolutions(rank: int, padding: str, first: bool) -> None:
    form = "channels_first" if first else "channels_last"
    space = [2, 3, 2][:rank]
    x = draw(2, *space, 3)
    x = np.moveaxis(x, -1, 1) if first else x
    shape = list(x.shape)
    known = (
        [None, *shape[1:]]
        if rank != 1
        else [None, None if not first else 3, 3 if not first else None]
    )
    fed = hf.placeholder("float64", known)
    layer = getattr(hf.layers, f"conv{rank}d_transpose")
    y = layer(fed, 4, 3, 2, padding, form, use_bias=False)
    w = filled()
    grown = [n * 2 + (1 if padding == "valid" else 0) for n in space]
    out = (2, 4, *grown) if first else (2, *grown, 4)
    a = attrs(2, padding.upper(), 1, first, rank)
    (kernel,) = w.values()
    assert kernel.shape == (*[3] * rank, 4, 3)
    check(y, input_grad(x, kernel, out, a), w, {fed: x})


def test_separable() -> None:
    x = draw(2, 5, 4, 3)
    y = hf.layers.separable_conv2d(hf.constant(x), 4, 3, 2, "same", depth_multiplier=2)
    line = draw(2, 5, 3)
    z = hf.layers.separable_conv1d(hf.constant(line), 4, 2, use_bias=False, name="line")
    turned = hf.layers.separable_conv1d(
        line.transpose(0, 2, 1),
        4,
        2,
        data_format="channels_first",
        use_bias=False,
        name="line",
        reuse=True,
    )
    w = filled()

    def oracle(x: np.ndarray, d: np.ndarray, p: np.ndarray, a: Any) -> np.ndarray:
        deep = [
            conv(x[..., c : c + 1], d[..., c : c + 1, m : m + 1], a)
            for c in range(d.shape[-2])
            for m in range(d.shape[-1])
        ]
        return np.concatenate(deep, -1) @ p.reshape(-1, 4)

    name = "separable_conv2d"
    depthwise, pointwise = w[f"{name}/depthwise_kernel"], w[f"{name}/pointwise_kernel"]
    assert depthwise.shape == (3, 3, 3, 2) and pointwise.shape == (1, 1, 6, 4)
    check(y, oracle(x, depthwise, pointwise, attrs(2, "SAME")) + w[f"{name}/bias"], w)
    a = attrs(1, "VALID", rank=1)
    expected = oracle(line, w["line/depthwise_kernel"], w["line/pointwise_kernel"], a)
    check(z, expected, w)
    check(turned, expected.transpose(0, 2, 1), w)


def test_flatten_and_embedding() -> None:
    x = draw(2, 3, 4)
    check(hf.layers.flatten(x), x.reshape(2, 12), {})
    check(
        hf.layers.flatten(x, data_format="channels_first"), x.transpose(0, 2, 1).reshape(2, 12), {}
    )
    fed = hf.placeholder("float64", [None, None, 4])
    check(hf.layers.flatten(fed), x.reshape(2, 12), {}, {fed: x})
    ids = np.array([[1, 0], [4, 1]])
    y = hf.layers.embedding(hf.constant(ids), 5, 3, dtype="float64")
    w = filled()
    check(y, w["embedding/embeddings"][ids], w)
    assert hf.gradients(y, hf.global_variables())[0] is not None


def test_dropout() -> None:
    x = hf.constant(np.ones(2000))
    training = hf.placeholder("bool", [])
    assert (evaluate(hf.layers.dropout(x)) == 1).all()
    for y, feeds in [
        (hf.layers.dropout(x, 0.3, training=True), {}),
        (hf.layers.dropout(x, 0.3, training=training), {training: True}),
    ]:
        values = evaluate(y, feeds)
        assert abs((values == 0).mean() - 0.3) < 0.05 and abs(values.mean() - 1) < 0.05
    assert (evaluate(hf.layers.dropout(x, 0.3, training=training), {training: False}) == 1).all()


def test_errors() -> None:
    x = hf.placeholder("float32", [None, None])
    with pytest.raises(ShapeError, match="dense needs a known size"):
        hf.layers.dense(x, 3)
    with pytest.raises(ShapeError, match="conv2d takes rank 4"):
        hf.layers.conv2d(x, 3, 3)
    image = hf.placeholder("float32", [None, 8, 8, 3])
    with pytest.raises(ShapeError, match="kernel_size"):
        hf.layers.conv2d(image, 3, [3, 3, 3])
    with pytest.raises(ShapeError, match="channels_last"):
        hf.layers.conv2d(image, 3, 3, data_format="NHWC")
    with pytest.raises(ShapeError, match="3 units cannot be divided into 2 heads"):
        hf.layers.multi_head_attention(image[0], num_heads=2)
    with pytest.raises(ShapeError, match="last axes"):
        hf.layers.layer_norm(image, axis=[1])
    with pytest.raises(TypeError):
        hf.layers.conv2d(image, 3, 3, kernel_norm=abs)


def test_a_transpose_with_pads_is_undone_by_the_convolution_with_them() -> None:
    x = hf.zeros([2, 5, 4, 3])
    for pads, stride in (([[1, 1], [0, 2]], 2), ([[0, 0], [1, 0]], 1)):
        y = hf.layers.conv2d_transpose(x, 6, 3, stride, pads)
        kernel = hf.zeros([3, 3, 6, 3])
        assert hf.nn.conv2d(y, kernel, stride, pads).shape == (2, 5, 4, 3)


def test_regularizers() -> None:
    """The values by hand; the gradient of l2 is what decays weights."""
    w = hf.constant([[1.0, -2.0], [3.0, 0.0]])
    l1, l2 = hf.layers.l1_regularizer(0.5)(w), hf.layers.l2_regularizer(0.5)(w)
    both = hf.layers.l1_l2_regularizer(0.5, 0.5)(w)
    (g,) = hf.gradients(l2, w)
    with hf.Session() as session:
        assert session.run([l1, l2, both]) == [3, 3.5, 6.5]
        assert session.run(g).tolist() == [[0.5, -1], [1.5, 0]]
    hf.layers.dense(hf.zeros([2, 3]), 4, kernel_regularizer=hf.layers.l2_regularizer(0.1))
    assert len(hf.get_collection(hf.GraphKeys.REGULARIZATION_LOSSES)) == 1
    with pytest.raises(ShapeError, match="must be at least 0, not -1"):
        hf.layers.l2_regularizer(-1.0)
