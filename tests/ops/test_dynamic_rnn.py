"""Recurrent nets as loops: equal to the unrolled ones, for all lengths, with their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, ShapeError

RNG = np.random.default_rng(3)
BATCH, TIME, DEPTH, UNITS = 3, 5, 2, 4
X = RNG.standard_normal((BATCH, TIME, DEPTH))
LENGTHS = np.array([2, 5, 3])


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with hf.Graph().as_default():
        hf.set_random_seed(1)
        yield


def cells() -> list[Any]:
    return [hf.nn.rnn_cell.LSTMCell(UNITS), hf.nn.rnn_cell.GRUCell(UNITS)]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("history", ["keep", "recompute"])
def test_equal_to_the_unrolled_net(which: int, lengths: Any, known: bool, history: str) -> None:
    shape = [BATCH, TIME, DEPTH] if known else [None, None, DEPTH]
    x = hf.placeholder(hf.float64, shape)
    cell = cells()[which]
    y, last = hf.nn.dynamic_rnn(cell, x, lengths, dtype=hf.float64, history=history)
    xs = [x[:, t] for t in range(TIME)]
    ys, end = hf.nn.static_rnn(cell, xs, dtype=hf.float64, sequence_length=lengths)
    flat = lambda state: list(state) if isinstance(state, tuple) else [state]  # noqa: E731
    weights = [x, *cell.variables]
    grads = hf.gradients([y * y, *flat(last)], weights)
    expected = hf.gradients([hf.stack(ys, 1) ** 2, *flat(end)], weights)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        got = session.run([y, *flat(last), *grads], {x: X})
        want = session.run([hf.stack(ys, 1), *flat(end), *expected], {x: X})
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    if lengths is not None:
        assert not got[0][0, 2:].any() and got[0][1].all()


def test_time_major_and_structures_of_outputs() -> None:
    x = hf.placeholder(hf.float64, [None, None, DEPTH])
    cell = hf.nn.rnn_cell.MultiRNNCell([hf.nn.rnn_cell.GRUCell(UNITS), *cells()[:1]])
    y, last = hf.nn.dynamic_rnn(cell, x, LENGTHS, dtype=hf.float64)
    turned = hf.transpose(x, [1, 0, 2])
    z, _ = hf.nn.dynamic_rnn(cell, turned, LENGTHS, dtype=hf.float64, time_major=True)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        a, b, state = session.run([y, z, last], {x: X})
        np.testing.assert_allclose(a, b.transpose(1, 0, 2))
        assert state[1].h.shape == (BATCH, UNITS)
        longer = np.concatenate([X, X], 1)
        np.testing.assert_allclose(session.run(y, {x: longer})[:, :TIME], a)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_both_directions(lengths: Any) -> None:
    x = hf.placeholder(hf.float64, [BATCH, TIME, DEPTH])
    forward, backward = cells()
    (a, b), _ = hf.nn.bidirectional_dynamic_rnn(forward, backward, x, lengths, dtype=hf.float64)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        fw, bw = session.run([a, b], {x: X})
        for i, n in enumerate(LENGTHS if lengths is not None else [TIME] * BATCH):
            turned = X.copy()
            turned[i, :n] = X[i, :n][::-1]
            again = session.run(b, {x: turned})
            assert fw[i, :n].all() and not fw[i, n:].any()
            # the backward net of the turned sample is the forward pass of its cell
            plain, _ = hf.nn.dynamic_rnn(backward, x, dtype=hf.float64)
            np.testing.assert_allclose(again[i, :n][::-1], session.run(plain, {x: X})[i, :n])
            np.testing.assert_allclose(bw[i, n:], 0)


def test_raw_rnn_is_dynamic_rnn_written_out() -> None:
    x = hf.placeholder(hf.float64, [BATCH, TIME, DEPTH])
    cell = hf.nn.rnn_cell.LSTMCell(UNITS)
    steps = hf.TensorArray(hf.float64, TIME).unstack(hf.transpose(x, [1, 0, 2]))
    lengths = hf.constant(LENGTHS, hf.int32)

    def loop(t: Any, output: Any, state: Any, count: Any) -> Any:
        state = cell.zero_state(BATCH, hf.float64) if output is None else state
        done = t >= lengths
        following = hf.cond(
            hf.reduce_all(done), lambda: hf.zeros([BATCH, DEPTH], hf.float64), lambda: steps.read(t)
        )
        return done, following, state, output, hf.constant(0) if count is None else count + 1

    arrays, last, count = hf.nn.raw_rnn(cell, loop)
    y, end = hf.nn.dynamic_rnn(cell, x, LENGTHS, dtype=hf.float64)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        got = session.run([hf.transpose(arrays.stack(), [1, 0, 2]), last.h, count], {x: X})
        want = session.run([y, end.h], {x: X})
    np.testing.assert_allclose(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1])
    assert got[2] == TIME


class Sums:
    """A cell whose state is the sum of its inputs, of any rank, and its output twice that."""

    def __init__(self, like: Any) -> None:
        self.output_size = self.state_size = like

    def __call__(self, x: Any, state: Any) -> Any:
        return 2 * (state + x), state + x


@pytest.mark.parametrize("row", [(), (2,), (2, 3), (2, 3, 2)])
@pytest.mark.parametrize("known", [True, False])
def test_raw_rnn_of_outputs_of_any_rank(row: tuple[int, ...], known: bool) -> None:
    values = RNG.standard_normal((TIME, BATCH, *row))
    lengths = hf.constant(LENGTHS, hf.int32)
    x = hf.placeholder(hf.float64, values.shape)
    steps = hf.TensorArray(hf.float64, TIME).unstack(x)
    zeros = hf.zeros([BATCH, *row], hf.float64)

    def loop(t: Any, output: Any, state: Any, told: Any) -> Any:
        done = t >= lengths
        following = hf.cond(hf.reduce_all(done), lambda: zeros, lambda: steps.read(t))
        if known:
            following.set_shape(zeros.shape)
        first = output is None
        emit = hf.zeros(row, hf.float64) if first else output
        return done, following, zeros if first else state, emit, told

    arrays, last, _ = hf.nn.raw_rnn(Sums(hf.zeros(row)), loop)
    with hf.Session() as session:
        emitted, state = session.run([arrays.stack(), last], {x: values})
    for i, n in enumerate(LENGTHS):
        sums = values[:n, i].cumsum(0)
        np.testing.assert_allclose(emitted[:n, i], 2 * sums)
        np.testing.assert_array_equal(emitted[n:, i], 0)
        np.testing.assert_allclose(state[i], sums[-1])


@pytest.mark.parametrize("longest", [TIME + 4, -3])
def test_lengths_outside_of_the_steps_are_cut(longest: int) -> None:
    """As in TensorFlow: a sequence ends with the inputs, and has no negative length."""
    lengths = np.array([2, longest, longest])
    x = hf.placeholder(hf.float64, [BATCH, None, DEPTH])
    cell = cells()[1]
    y, last = hf.nn.dynamic_rnn(cell, x, lengths, dtype=hf.float64)
    cut, end = hf.nn.dynamic_rnn(cell, x, np.clip(lengths, 0, TIME), dtype=hf.float64)
    (slope,) = hf.gradients([y * y, last], [x])
    (expected,) = hf.gradients([cut * cut, end], [x])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        found = session.run([y, last, slope, cut, end, expected], {x: X})
    assert found[0].shape == (BATCH, TIME, UNITS)
    for a, b in zip(found[:3], found[3:], strict=True):
        np.testing.assert_array_equal(a, b)


class Blur(hf.nn.rnn_cell.RNNCell):
    """A cell of images, whose state is an image and a number: h = conv(x) + h / 2."""

    state_size = (hf.TensorShape([6, 4, 2]), 1)
    output_size = hf.TensorShape([6, 4, 2])

    def build(self, input_shape: Any) -> None:
        self.filters = self.add_variable("filters", [3, 3, 3, 2], hf.float64)

    def call(self, inputs: Any, state: Any) -> Any:
        image, count = state
        image = hf.nn.conv2d(inputs, self.filters, 1, "SAME") + image / 2.0
        return image, (image, count + 1.0)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("time_major", [True, False])
def test_images(known: bool, time_major: bool) -> None:
    """Inputs of rank 5 [batch, time, height, width, channels], against the recurrence by NumPy."""
    rng = np.random.default_rng(4)
    images = rng.standard_normal((BATCH, TIME, 6, 4, 3))
    given = images.swapaxes(0, 1) if time_major else images
    x = hf.placeholder(hf.float64, given.shape if known else [None, None, 6, 4, 3])
    cell = Blur()
    y, (last, count) = hf.nn.dynamic_rnn(cell, x, LENGTHS, dtype=hf.float64, time_major=time_major)
    assert list(y.shape)[2:] == [6, 4, 2]
    (slope,) = hf.gradients(hf.reduce_sum(y), [cell.filters])
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        found, end, counted, by_filters, filters = session.run(
            [y, last, count, slope, cell.filters], {x: given}
        )
    found = found.swapaxes(0, 1) if time_major else found
    padded = np.pad(images, [(0, 0), (0, 0), (1, 1), (1, 1), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    pictures = np.einsum("bthwcij,ijco->bthwo", windows, filters)
    wanted, factor = np.zeros_like(found), np.zeros((BATCH, TIME))
    for i, n in enumerate(LENGTHS):
        h = np.zeros((6, 4, 2))
        for t in range(n):
            h = pictures[i, t] + h / 2
            wanted[i, t] = h
            factor[i, t] = 2 - 0.5 ** (n - t - 1)  # how often it is in the sum of all outputs
        np.testing.assert_allclose(end[i], h, 1e-12, 1e-12)
    np.testing.assert_allclose(found, wanted, 1e-12, 1e-12)
    np.testing.assert_array_equal(counted[:, 0], LENGTHS)
    expected = np.einsum("bthwcij,bt->ijc", windows, factor)
    np.testing.assert_allclose(by_filters, np.repeat(expected[..., None], 2, 3), 1e-10, 1e-10)


def test_wrong_inputs() -> None:
    cell = cells()[0]
    with pytest.raises(ShapeError, match="rank 3"):
        hf.nn.dynamic_rnn(cell, hf.zeros([2, 3]), dtype=hf.float32)
    with pytest.raises(DTypeError, match="numbers"):
        hf.nn.dynamic_rnn(cell, hf.zeros([2, 3, 1]), hf.constant(["2", "3"]), dtype=hf.float32)


@pytest.mark.parametrize("lengths", [None, [0, 0, 0]])
def test_a_net_of_no_steps_has_zeros_or_nothing(lengths: Any) -> None:
    x = hf.placeholder(hf.float64, [None, None, DEPTH])
    given = X if lengths else X[:, :0]
    cell = cells()[1]
    y, last = hf.nn.dynamic_rnn(cell, x, lengths, initial_state=X[:, 0, :1] * np.ones(UNITS))
    both, _ = hf.nn.bidirectional_dynamic_rnn(*cells()[1:] * 2, x, lengths, dtype=hf.float64)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        outputs, state, pair = session.run([y, last, both], {x: given})
    for found in (outputs, *pair):
        np.testing.assert_array_equal(found, np.zeros((*given.shape[:2], UNITS)))
    np.testing.assert_array_equal(state, X[:, 0, :1] * np.ones(UNITS))
