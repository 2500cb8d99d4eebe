"""Recurrent cells against their formulas in NumPy; wrappers; unrolling over variable lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import GraphError, ShapeError
from tests.ops.evaluate import evaluate
from tests.ops.recurrent import basic, gru, lstm

RNG = np.random.default_rng(12)
B, D, N, T = 3, 4, 5, 6
rnn_cell = hf.nn.rnn_cell


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def filled() -> dict[str, np.ndarray]:
    """Random values for all variables."""
    return {v.op.name: draw(*v.shape) * 0.5 for v in hf.global_variables()}


CELLS: list[tuple[str, Callable[[], Any], Any, Any, int]] = [
    ("basic_rnn_cell", lambda: rnn_cell.BasicRNNCell(N), basic, N, N),
    ("gru_cell", lambda: rnn_cell.GRUCell(N), gru, N, N),
    ("basic_lstm_cell", lambda: rnn_cell.BasicLSTMCell(N), lstm, (N, N), N),
    ("lstm_cell", lambda: rnn_cell.LSTMCell(N, use_peepholes=True), lstm, (N, N), N),
    (
        "lstm_cell",
        lambda: rnn_cell.LSTMCell(N, True, 0.3, num_proj=2, proj_clip=0.2),
        lambda w, p, x, s: lstm(w, p, x, s, 0.3, 0.2),
        (N, 2),
        2,
    ),
]


@pytest.mark.parametrize("name, make, oracle, state, out", CELLS)
def test_cells(name: str, make: Any, oracle: Any, state: Any, out: int) -> None:
    cell = make()
    assert cell.state_size == state and cell.output_size == out and cell.variables == []
    x = draw(B, D)
    tuple_ = isinstance(state, tuple)
    s = tuple(draw(B, n) * 0.2 for n in state) if tuple_ else draw(B, state)
    given = rnn_cell.LSTMStateTuple(*map(hf.constant, s)) if tuple_ else hf.constant(s)
    y, new = cell(hf.constant(x), given)
    again, _ = cell(hf.constant(x), given)
    w = filled()
    assert all(v.op.name.startswith(f"{name}/") for v in cell.variables)
    assert cell.trainable_variables == cell.variables == hf.global_variables()
    assert y.shape == (B, out)
    got = evaluate([y, again, *(new if tuple_ else [new])], state=w)
    expected_y, expected_s = oracle(w, f"{name}/", x, s)
    expected = [expected_y, expected_y, *(expected_s if tuple_ else [expected_s])]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_initial_values_of_biases() -> None:
    for cell in (rnn_cell.GRUCell(N), rnn_cell.LSTMCell(N)):
        cell(hf.zeros([B, D]), cell.zero_state(B, "float32"))
    state: dict = {}
    evaluate(hf.global_variables_initializer(), state=state)
    assert (state["gru_cell/gates/bias"] == 1).all()
    assert not state["gru_cell/candidate/bias"].any() and not state["lstm_cell/bias"].any()
    assert state["lstm_cell/kernel"].any()


def test_state_not_a_tuple() -> None:
    x, s = draw(B, D), draw(B, 2 * N)
    cell = rnn_cell.BasicLSTMCell(N, state_is_tuple=False)
    assert cell.state_size == 2 * N
    y, new = cell(hf.constant(x), hf.constant(s))
    w = filled()
    h, (c, _) = lstm(w, "basic_lstm_cell/", x, (s[:, :N], s[:, N:]))
    got = evaluate([y, new], state=w)
    np.testing.assert_allclose(got[0], h)
    np.testing.assert_allclose(got[1], np.hstack([c, h]))
    stacked = rnn_cell.MultiRNNCell(
        [rnn_cell.GRUCell(2), rnn_cell.GRUCell(3)], state_is_tuple=False
    )
    assert stacked.state_size == 5
    _, new = stacked(hf.constant(x), stacked.zero_state(B, "float64"))
    assert new.shape == (B, 5)


def test_stacked() -> None:
    x = draw(B, D)
    cell = rnn_cell.MultiRNNCell([rnn_cell.LSTMCell(N), rnn_cell.GRUCell(N)])
    assert cell.state_size == ((N, N), N) and cell.output_size == N
    zero = cell.zero_state(B, "float64")
    assert isinstance(zero[0], rnn_cell.LSTMStateTuple) and zero[1].shape == (B, N)
    y, (first, second) = cell(hf.constant(x), zero)
    w = filled()
    none = np.zeros((B, N))
    low, (c, h) = lstm(w, "multi_rnn_cell/cell_0/lstm_cell/", x, (none, none))
    top, _ = gru(w, "multi_rnn_cell/cell_1/gru_cell/", low, none)
    got = evaluate([y, first.c, first.h, second], state=w)
    for a, b in zip(got, [top, c, h, top], strict=True):
        np.testing.assert_allclose(a, b)
    assert len(cell.variables) == 6
    same = rnn_cell.GRUCell(N)
    with pytest.raises(GraphError, match="same cell twice"):
        rnn_cell.MultiRNNCell([same, same])


def test_residual_and_device() -> None:
    cell = rnn_cell.BasicRNNCell(D)
    x = hf.constant(draw(B, D))
    zero = cell.zero_state(B, "float64")
    plain, _ = cell(x, zero)
    short, _ = rnn_cell.ResidualWrapper(cell)(x, zero)
    twice, _ = rnn_cell.ResidualWrapper(cell, lambda i, o: o - i)(x, zero)
    w = filled()
    a, b, c, value = evaluate([plain, short, twice, x], state=w)
    np.testing.assert_allclose(b, a + value)
    np.testing.assert_allclose(c, a - value)
    placed = rnn_cell.DeviceWrapper(cell, "/cpu:0")
    y, _ = placed(x, zero)
    assert y.device.endswith("cpu:0") and placed.state_size == D
    assert placed.variables == cell.variables


def test_dropout() -> None:
    big = 400
    cell = rnn_cell.BasicRNNCell(big)
    x, zero = hf.constant(np.ones((B, D))), cell.zero_state(B, "float64")
    plain, _ = cell(x, zero)
    out, state = rnn_cell.DropoutWrapper(cell, output_keep_prob=0.5, seed=3)(x, zero)
    _, dropped = rnn_cell.DropoutWrapper(cell, state_keep_prob=0.25, seed=3)(x, zero)
    w = filled()
    y, o, s, d = evaluate([plain, out, state, dropped], state=w)
    np.testing.assert_array_equal(s, y)
    for got, keep in ((o, 0.5), (d, 0.25)):
        kept = got != 0
        np.testing.assert_allclose(got[kept], (y / keep)[kept])
        assert abs(kept.mean() - keep) < 0.06
    same = rnn_cell.DropoutWrapper(cell)(x, zero)[0]
    np.testing.assert_array_equal(evaluate(same, state=w), y)


def test_dropout_differs_from_step_to_step() -> None:
    cell = rnn_cell.DropoutWrapper(rnn_cell.BasicRNNCell(60), output_keep_prob=0.5, seed=2)
    xs = [hf.constant(draw(B, D)) for _ in range(2)]
    outputs, _ = hf.nn.static_rnn(cell, xs, dtype="float64")
    a, b = (y != 0 for y in evaluate(outputs, state=filled()))
    assert 0.3 < (a == b).mean() < 0.7


def test_dropout_spares_what_an_lstm_remembers() -> None:
    cell = rnn_cell.DropoutWrapper(rnn_cell.LSTMCell(50), state_keep_prob=0.5, seed=1)
    _, new = cell(hf.constant(np.ones((B, D))), cell.zero_state(B, "float64"))
    c, h = evaluate(list(new), state=filled())
    assert c.all() and not h.all()


def test_variational_dropout_is_the_same_in_every_step() -> None:
    cell = rnn_cell.DropoutWrapper(
        rnn_cell.BasicRNNCell(60),
        output_keep_prob=0.5,
        variational_recurrent=True,
        dtype="float64",
        seed=2,
    )
    xs = [hf.constant(draw(B, D)) for _ in range(3)]
    outputs, _ = hf.nn.static_rnn(cell, xs, dtype="float64")
    masks = [y != 0 for y in evaluate(outputs, state=filled())]
    assert 0.2 < masks[0][0].mean() < 0.8
    assert all((m == masks[0][0]).all() for m in masks)
    with pytest.raises(GraphError, match="input_size"):
        rnn_cell.DropoutWrapper(cell, 0.5, variational_recurrent=True, dtype="float64")


# -- unrolled


def steps(w: dict, p: str, x: np.ndarray, lengths: Any, oracle: Any = lstm) -> Any:
    """Each sample on its own, for as many steps as it has: [time, batch, units], last states."""
    outputs, last = np.zeros((T, B, N)), []
    for b in range(B):
        state = (np.zeros((1, N)), np.zeros((1, N))) if oracle is lstm else np.zeros((1, N))
        for t in range(lengths[b]):
            y, state = oracle(w, p, x[t, b : b + 1], state)
            outputs[t, b] = y
        last.append(state)
    return outputs, last


@pytest.mark.parametrize("lengths", [None, [6, 0, 3]])
def test_static_rnn(lengths: Any) -> None:
    x = draw(T, B, D)
    told = None if lengths is None else hf.constant(lengths)
    xs = hf.unstack(hf.constant(x))
    outputs, state = hf.nn.static_rnn(
        rnn_cell.LSTMCell(N), xs, dtype="float64", sequence_length=told
    )
    w = filled()
    assert set(w) == {"rnn/lstm_cell/kernel", "rnn/lstm_cell/bias"}
    expected, last = steps(w, "rnn/lstm_cell/", x, lengths or [T] * B)
    np.testing.assert_allclose(evaluate(hf.stack(outputs), state=w), expected, atol=1e-12)
    c, h = evaluate(list(state), state=w)
    np.testing.assert_allclose(c, np.vstack([s[0] for s in last]), atol=1e-12)
    np.testing.assert_allclose(h, np.vstack([s[1] for s in last]), atol=1e-12)


def test_gradient_through_time() -> None:
    x = draw(T, B, D)
    outputs, _ = hf.nn.static_rnn(
        rnn_cell.GRUCell(N), hf.unstack(hf.constant(x)), dtype="float64", sequence_length=[6, 2, 4]
    )
    loss = hf.reduce_sum(hf.square(hf.stack(outputs)))
    (kernel,) = (v for v in hf.global_variables() if v.op.name.endswith("candidate/kernel"))
    w = filled()
    found = evaluate(hf.gradients(loss, kernel)[0], state=w)
    for place in [(0, 0), (5, 2), (8, 4)]:
        values = []
        for h in (1e-6, -1e-6):
            moved = {k: v.copy() for k, v in w.items()}
            moved[kernel.op.name][place] += h
            values.append(evaluate(loss, state=moved))
        np.testing.assert_allclose(found[place], (values[0] - values[1]) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize("lengths", [None, [6, 1, 3]])
def test_bidirectional(lengths: Any) -> None:
    x = draw(T, B, D)
    outputs, fw, bw = hf.nn.static_bidirectional_rnn(
        rnn_cell.GRUCell(N),
        rnn_cell.GRUCell(N),
        hf.unstack(hf.constant(x)),
        dtype="float64",
        sequence_length=lengths,
    )
    w = filled()
    each = lengths or [T] * B

    def turned(a: np.ndarray) -> np.ndarray:
        out = a.copy()
        for b, n in enumerate(each):
            out[:n, b] = a[:n, b][::-1]
        return out

    forward, last = steps(w, "bidirectional_rnn/fw/gru_cell/", x, each, gru)
    backward, first = steps(w, "bidirectional_rnn/bw/gru_cell/", turned(x), each, gru)
    expected = np.concatenate([forward, turned(backward)], 2)
    np.testing.assert_allclose(evaluate(hf.stack(outputs), state=w), expected, atol=1e-12)
    np.testing.assert_allclose(evaluate(fw, state=w), np.vstack(last), atol=1e-12)
    np.testing.assert_allclose(evaluate(bw, state=w), np.vstack(first), atol=1e-12)


class Counter(rnn_cell.RNNCell):
    """A cell as users write them: variables by get_variable in `call`."""

    state_size = 1
    output_size = D

    def call(self, inputs: hf.Tensor, state: Any) -> tuple[Any, Any]:
        scale = hf.get_variable("scale", [], inputs.dtype)
        return inputs * scale * state, state + 1


def test_a_cell_of_the_users_own() -> None:
    x = draw(T, B, D)
    outputs, _ = hf.nn.static_rnn(Counter(), hf.unstack(hf.constant(x)), dtype="float64")
    assert [v.op.name for v in hf.global_variables()] == ["rnn/counter/scale"]
    got = evaluate(hf.stack(outputs), state={"rnn/counter/scale": np.array(2.0)})
    np.testing.assert_allclose(got, 2 * x * np.arange(T)[:, None, None])


def test_errors() -> None:
    cell = rnn_cell.LSTMCell(N)
    with pytest.raises(GraphError, match="list of inputs"):
        hf.nn.static_rnn(cell, hf.zeros([B, D]), dtype="float32")
    with pytest.raises(GraphError, match="initial_state"):
        hf.nn.static_rnn(cell, [hf.zeros([B, D])])
    with pytest.raises(ShapeError, match="known features"):
        cell(hf.placeholder("float32", [None, None]), cell.zero_state(B, "float32"))
    with pytest.raises(GraphError, match=r"\(c, h\)"):
        cell(hf.zeros([B, D]), hf.zeros([B, N]))


class Saved:
    """A state saver, as TensorFlow 1's programs have: parts of a state in variables."""

    def __init__(self, **values: np.ndarray) -> None:
        self.parts = {name: hf.Variable(v, trainable=False) for name, v in values.items()}

    def state(self, name: str) -> hf.Tensor:
        return self.parts[name].read_value()

    def save_state(self, name: str, value: hf.Tensor) -> hf.Operation:
        return hf.group(self.parts[name].assign(value))


def test_a_state_that_is_saved_between_runs() -> None:
    """Two runs of two steps each are one net of four steps."""
    x = np.random.default_rng(0).standard_normal((4, 2, 3)).astype(np.float32)
    cell = hf.nn.rnn_cell.LSTMCell(5)
    zero = np.zeros((2, 5), np.float32)
    saver = Saved(c=zero, h=zero)
    fed = [hf.placeholder(hf.float32, [2, 3]) for _ in range(2)]
    outputs, _ = hf.nn.static_state_saving_rnn(cell, fed, saver, ("c", "h"), scope="net")
    with hf.variable_scope(hf.get_variable_scope(), reuse=True):
        whole, last = hf.nn.static_rnn(
            cell, list(map(hf.constant, x)), dtype=hf.float32, scope="net"
        )
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        feeds = [dict(zip(fed, part, strict=True)) for part in (x[:2], x[2:])]
        runs = [session.run(outputs[-1], feed) for feed in feeds]
        expected = session.run([whole[1], whole[3], last.c, last.h])
        kept = session.run([saver.parts["c"], saver.parts["h"]])
    for mine, theirs in zip([*runs, *kept], expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    with pytest.raises(GraphError, match="1 names for a state of 2 parts"):
        hf.nn.static_state_saving_rnn(cell, fed, saver, "c", scope="again")
