"""`hf.layers`: values against formulas, names of variables, scopes and reuse, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.special as sp

import hpcflow as hf
from hpcflow.errors import ShapeError
from tests.ops.cases_conv import conv, input_grad
from tests.ops.cases_pool import avg_pool, max_pool
from tests.ops.evaluate import evaluate
from tests.ops.recurrent import basic, gru, lstm
from tests.runtime.ranks import run_ranks

RNG = np.random.default_rng(14)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def filled() -> dict[str, np.ndarray]:
    """Random values for all variables."""
    return {v.op.name: draw(*v.shape) for v in hf.global_variables()}


def check(t: hf.Tensor, expected: np.ndarray, w: dict, feeds: Any = None) -> None:
    got = evaluate(t, feeds, w)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)


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


# -- normalization


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
    assert [v.op.name for v in hf.trainable_variables()] == ["n/beta", "n/gamma"]
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
    variance = 0.9 * w["n/moving_variance"] + 0.1 * x.var(others, ddof=1)
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


# -- attention


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention(causal: bool) -> None:
    q, k = draw(2, 3, 6), draw(2, 5, 4)
    mask = RNG.random((2, 3, 5)) < 0.7
    fed = hf.placeholder("float64", [None, None, 6])
    own = hf.layers.multi_head_attention(fed, num_heads=2, causal=causal)
    other = hf.layers.multi_head_attention(
        q, k, num_heads=2, units=8, output_units=3, mask=mask, causal=causal, name="cross"
    )
    w = filled()

    def oracle(q: Any, k: Any, name: str, seen: Any, units: int) -> np.ndarray:
        def project(x: Any, into: str) -> Any:
            return x @ w[f"{name}/{into}/kernel"] + w[f"{name}/{into}/bias"]

        a, b, c = project(q, "query"), project(k, "key"), project(k, "value")
        heads = []
        for h in range(2):
            cut = slice(h * units // 2, (h + 1) * units // 2)
            scores = np.einsum("bmd,bnd->bmn", a[..., cut], b[..., cut]) / np.sqrt(units / 2)
            weights = sp.softmax(np.where(seen, scores, -1e30), -1) * seen
            heads.append(np.einsum("bmn,bnd->bmd", weights, c[..., cut]))
        return project(np.concatenate(heads, -1), "output")

    def past(m: int, n: int) -> np.ndarray:
        return np.tril(np.ones((m, n), bool), n - m) if causal else np.ones((m, n), bool)

    assert {n for n in w if n.startswith("cross")} == {
        f"cross/{into}/{v}"
        for into in ("query", "key", "value", "output")
        for v in ("kernel", "bias")
    }
    check(own, oracle(q, q, "multi_head_attention", past(3, 3), 6), w, {fed: q})
    check(other, oracle(q, k, "cross", mask & past(3, 5), 8), w)


# -- recurrent: a loop in the graph, so a session runs it


def _in_session(fetches: Any, w: dict, feeds: Any = None) -> Any:
    """`fetches` with the variables set to `w`."""
    assign = [v.assign(w[v.op.name]) for v in hf.global_variables()]
    with hf.Session() as session:
        session.run(assign)
        return session.run(fetches, feeds)


@pytest.mark.parametrize("kind, oracle", [("rnn", basic), ("gru", gru), ("lstm", lstm)])
def test_recurrent(kind: str, oracle: Any) -> None:
    x, lengths = draw(3, 6, 4), [6, 0, 2]
    layer = getattr(hf.layers, kind)
    fed = hf.placeholder("float64", [None, None, 4])
    plain, state = layer(fed, 5, sequence_length=lengths)
    both, _ = layer(fed, 5, 2, lengths, bidirectional=True, name="deep")
    again, _ = layer(
        hf.transpose(fed, [1, 0, 2]),
        5,
        sequence_length=lengths,
        time_major=True,
        name=kind,
        reuse=True,
    )
    assert plain.shape == (3, None, 5) and both.shape == (3, None, 10)
    w = {k: v * 0.5 for k, v in filled().items()}
    cell = {"rnn": "basic_rnn_cell", "gru": "gru_cell", "lstm": "lstm_cell"}[kind]
    turned = [x[b, :n][::-1] for b, n in enumerate(lengths)]

    def unrolled(rows: Any, name: str) -> list[np.ndarray]:
        outputs = []
        for row in rows:
            zero = np.zeros((1, 5))
            s = (zero, zero) if kind == "lstm" else zero
            made = np.zeros((len(row), 5))
            for t in range(len(row)):
                made[t], s = oracle(w, name, row[t : t + 1], s)
            outputs.append(made)
        return outputs

    def padded(rows: Any) -> np.ndarray:
        out = np.zeros((3, 6, rows[0].shape[-1]))
        for b, row in enumerate(rows):
            out[b, : len(row)] = row
        return out

    rows = [x[b, :n] for b, n in enumerate(lengths)]
    one = unrolled(rows, f"{kind}/rnn/{cell}/")
    stack = "deep/bidirectional_rnn/{}/multi_rnn_cell/cell_{}/" + cell + "/"
    ahead = unrolled(unrolled(rows, stack.format("fw", 0)), stack.format("fw", 1))
    back = unrolled(unrolled(turned, stack.format("bw", 0)), stack.format("bw", 1))
    joined = [np.hstack([a, b[::-1]]) for a, b in zip(ahead, back, strict=True)]
    last = state[1] if kind == "lstm" else state
    (g,) = hf.gradients(plain, fed)
    a, b, c, s, slope = _in_session([plain, both, again, last, g], w, {fed: x})
    np.testing.assert_allclose(a, padded(one), atol=1e-12)
    np.testing.assert_allclose(b, padded(joined), atol=1e-12)
    np.testing.assert_allclose(c, a.transpose(1, 0, 2), atol=1e-12)
    np.testing.assert_allclose(s[[0, 2]], [one[0][-1], one[2][-1]], atol=1e-12)
    assert slope[2, :2].all() and not slope[2, 2:].any() and not slope[1].any()


def test_recurrent_dropout() -> None:
    x = draw(2, 3, 4)
    y, _ = hf.layers.gru(hf.constant(x), 50, dropout_rate=0.5, training=True)
    z, _ = hf.layers.gru(hf.constant(x), 50, dropout_rate=0.5, name="gru", reuse=True)
    dropped, whole = _in_session([y, z], filled())
    assert 0.3 < (dropped == 0).mean() < 0.7 and not (whole == 0).any()


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
    with pytest.raises(ShapeError, match="3 units cannot be parted into 2 heads"):
        hf.layers.multi_head_attention(image[0], num_heads=2)
    with pytest.raises(ShapeError, match="last axes"):
        hf.layers.layer_norm(image, axis=[1])
    with pytest.raises(TypeError):
        hf.layers.conv2d(image, 3, 3, kernel_constraint=abs)
