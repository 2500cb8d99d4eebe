"""CTC by public names: sparse and dense labels, decoders, errors; larger cases against torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import NumericError, RangeError, ShapeError
from tests.ops.cases_ctc import loss, read, readings
from tests.ops.evaluate import evaluate

RNG = np.random.default_rng(15)
TORCH_LOSS = [67.3723733492471, 39.62601438379312, 3.7309094351707395]
TORCH_SQUARES = [20.399122372923433, 15.60882544890744, 1.4618728375502938]


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def sparse(rows: list[list[int]]) -> hf.SparseTensor:
    places = [(b, i) for b, row in enumerate(rows) for i in range(len(row))]
    values = [c for row in rows for c in row]
    indices = np.array(places, "i8").reshape(-1, 2)
    return hf.SparseTensor(
        hf.constant(indices), np.array(values, "i4"), [len(rows), max(map(len, rows))]
    )


def dense(decoded: Any) -> list[list[int]]:
    """The rows of a decoded SparseTensor."""
    indices, values, shape = evaluate([decoded.indices, decoded.values, decoded.dense_shape])
    rows: list[list[int]] = [[] for _ in range(shape[0])]
    for (b, i), value in zip(indices.tolist(), values.tolist(), strict=True):
        assert i == len(rows[b]) < shape[1]
        rows[b].append(value)
    assert shape[1] == max(map(len, rows), default=0)
    return rows


def test_sparse_and_dense_labels() -> None:
    x = RNG.standard_normal((5, 3, 4))
    rows, steps = [[0, 1, 1], [], [2]], [5, 3, 2]
    padded = np.array([[0, 1, 1], [9, 9, 9], [2, -5, 0]])
    attrs = {"blank": 3, "collapse": False, "merge": True}
    expected = loss(x, padded, [3, 0, 1], steps, attrs)
    a = hf.constant(x)
    for y in (
        hf.nn.ctc_loss(sparse(rows), a, steps),
        hf.nn.ctc_loss(sparse(rows), x.transpose(1, 0, 2), steps, time_major=False),
        hf.nn.ctc_loss_v2(padded, a, [3, 0, 1], steps, blank_index=-1),
        hf.nn.ctc_loss_v2(padded, x.transpose(1, 0, 2), [3, 0, 1], steps, False, 3),
    ):
        np.testing.assert_allclose(evaluate(y), expected)
    collapsed = loss(x, padded, [3, 0, 1], steps, {**attrs, "collapse": True})
    y = hf.nn.ctc_loss(sparse(rows), a, steps, preprocess_collapse_repeated=True)
    np.testing.assert_allclose(evaluate(y), collapsed)
    apart = loss(x, padded, [3, 0, 1], steps, {**attrs, "merge": False})
    y = hf.nn.ctc_loss(sparse(rows), a, steps, ctc_merge_repeated=False)
    np.testing.assert_allclose(evaluate(y), apart)


def test_gradients_of_long_sequences_add_up() -> None:
    """Softmax minus shares of the classes: each step's sum is 0; and training finds the labels."""
    time, batch, classes = 120, 4, 9
    x = RNG.standard_normal((time, batch, classes)).astype("f4") * 3
    steps = np.array([120, 90, 7, 100])
    labels = RNG.integers(1, classes, (batch, 20))
    sizes = np.array([20, 13, 2, 0])
    a = hf.placeholder("float32", [time, batch, classes])
    y = hf.nn.ctc_loss_v2(labels, a, sizes, steps)
    (g,) = hf.gradients(y, a)
    first, slope = evaluate([y, g], {a: x})
    np.testing.assert_allclose(slope.sum(-1), 0, atol=1e-5)
    assert not slope[90:, 1].any() and slope[89, 1].any()
    for _ in range(60):
        value, slope = evaluate([y, g], {a: x})
        x = x - 5 * slope
    assert (value < 0.05 * first).all()
    best = np.argmax(x, -1)
    for b in range(batch):
        assert read(tuple(best[: steps[b], b]), 0, True) == tuple(labels[b, : sizes[b]])


def test_against_torch() -> None:
    """torch's ctc_loss of log_softmax(x) for each sample, and the squares of its gradients."""
    t, b, c = np.meshgrid(np.arange(50), np.arange(3), np.arange(6), indexing="ij")
    x = np.sin(0.37 * t * (c + 1) + b) * 2
    labels = np.array(
        [[1, 2, 2, 5, 3, 1, 4, 4], [3, 3, 3, 1, 2, 0, 0, 0], [5, 0, 0, 0, 0, 0, 0, 0]]
    )
    sizes, steps = [8, 5, 1], [50, 30, 4]
    a = hf.constant(x)
    y = hf.nn.ctc_loss_v2(labels, a, sizes, steps)
    np.testing.assert_allclose(evaluate(y), TORCH_LOSS, rtol=1e-9)
    (g,) = hf.gradients(y, a)
    np.testing.assert_allclose((evaluate(g) ** 2).sum((0, 2)), TORCH_SQUARES, rtol=1e-7)


def test_greedy_decoder() -> None:
    path = np.array([[1, 1, 3, 1, 0, 0], [3, 3, 3, 3, 3, 3], [2, 3, 2, 2, 2, 0]]).T
    x = RNG.random((6, 3, 4)) + 5 * np.eye(4)[path]
    steps = [6, 6, 5]
    (found,), taken = hf.nn.ctc_greedy_decoder(hf.constant(x), steps)
    assert dense(found) == [[1, 1, 0], [], [2, 2]]
    top = x.max(-1)
    expected = [-top[:n, b].sum() for b, n in enumerate(steps)]
    np.testing.assert_allclose(evaluate(taken), np.array(expected)[:, None])
    (found,), _ = hf.nn.ctc_greedy_decoder(x, steps, merge_repeated=False)
    assert dense(found) == [[1, 1, 1, 0, 0], [], [2, 2, 2, 2]]
    fed = hf.placeholder("float64", [None, None, None])
    (found,), _ = hf.nn.ctc_greedy_decoder(fed, hf.placeholder_with_default(steps, [None]))
    assert evaluate(found.values, {fed: x}).tolist() == [1, 1, 0, 2, 2]
    (found,), _ = hf.nn.ctc_greedy_decoder(np.zeros((0, 2, 4)), [0, 0])
    assert dense(found) == [[], []]


def test_beam_search_finds_what_greed_misses() -> None:
    p = np.array([[0.4, 0.0, 0.6], [0.4, 0.0, 0.6]])  # blank, blank: 0.36; all ways to 0: 0.64
    x = np.log(p + 1e-12)[:, None]
    (greedy,), _ = hf.nn.ctc_greedy_decoder(hf.constant(x), [2])
    found, scores = hf.nn.ctc_beam_search_decoder(hf.constant(x), [2], top_paths=2)
    assert dense(greedy) == [[]] and [dense(f) for f in found] == [[[0]], [[]]]
    np.testing.assert_allclose(np.exp(evaluate(scores)), [[0.64, 0.36]])


def test_beams() -> None:
    x = RNG.standard_normal((5, 2, 4))
    for width in (3, 20, 500):
        found, scores = hf.nn.ctc_beam_search_decoder(x, [5, 3], width, 2, merge_repeated=False)
        rows, logs = [dense(f) for f in found], evaluate(scores)
        for b, n in enumerate((5, 3)):
            exact = readings(x[:n, b], 3)
            best = sorted(exact.values())[::-1]
            for k in range(2):
                true = exact[tuple(rows[k][b])]
                if width == 500:
                    np.testing.assert_allclose([np.exp(logs[b, k]), true], best[k])
                else:
                    assert np.exp(logs[b, k]) <= true * (1 + 1e-9) and true > 0.3 * best[k]


def test_errors() -> None:
    x = hf.zeros([3, 2, 4])
    feeds = hf.placeholder("int64", [2, 2])
    y = hf.nn.ctc_loss_v2(feeds, x, [2, 2], [3, 2])
    with pytest.raises(NumericError, match="no path of 2 steps has the 2 labels of sample 1"):
        evaluate(y, {feeds: [[1, 2], [1, 1]]})
    for wrong in (-1, 4):
        with pytest.raises(RangeError, match=rf"label {wrong} is outside \[0, 4\)"):
            evaluate(y, {feeds: [[1, 2], [wrong, 1]]})
    with pytest.raises(RangeError, match="0 is the blank"):
        evaluate(y, {feeds: [[1, 0], [1, 2]]})
    with pytest.raises(RangeError, match="sequence length 4"):
        evaluate(hf.nn.ctc_loss_v2([[1], [1]], x, [1, 1], [3, 4]))
    with pytest.raises(ShapeError, match="SparseTensor"):
        hf.nn.ctc_loss([[1]], x, [3, 3])
    with pytest.raises(ShapeError, match="top_paths"):
        hf.nn.ctc_beam_search_decoder(x, [3, 3], 2, 3)
    with pytest.raises(ShapeError, match="do not agree"):
        hf.nn.ctc_loss_v2([[1]], x, [1], [3])
