"""Elements in another order, padded, repeated, moved in blocks: against formulas of their own."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import RangeError, ShapeError
from tests.ops.sessions import both_ways, check_slope, fed, graph, run, slope  # noqa: F401 - graph is a fixture

X = np.arange(24.0).reshape(2, 3, 4)


# -- another order


def test_reverse_roll_repeat() -> None:
    assert run(hf.reverse(hf.constant(X), [0, -1])).tolist() == X[::-1, :, ::-1].tolist()
    assert both_ways(lambda t: hf.roll(t, 1, 1), X).tolist() == np.roll(X, 1, 1).tolist()
    rolled = both_ways(lambda t: hf.roll(t, [-5, 2], [2, 0]), X)
    assert rolled.tolist() == np.roll(X, (-5, 2), (2, 0)).tolist()
    check_slope(lambda t: hf.roll(t, [1, -1], [1, 2]), X)
    assert both_ways(lambda t: hf.repeat(t, 2), X).tolist() == np.repeat(X, 2).tolist()
    each = both_ways(lambda t: hf.repeat(t, [2, 0, 1], axis=1), X)
    assert each.tolist() == np.repeat(X, [2, 0, 1], axis=1).tolist()
    check_slope(lambda t: hf.repeat(t, [2, 0, 3], axis=1), X)
    with pytest.raises(ShapeError):
        hf.roll(hf.constant(X), [1], 0)
    with pytest.raises(ShapeError):
        hf.repeat(hf.constant(X), [1, 2], axis=1)


def test_reverse_sequence() -> None:
    x = np.arange(12).reshape(3, 4)
    n = hf.placeholder(hf.int64, [None])
    y = hf.reverse_sequence(hf.constant(x), n, seq_axis=1)
    assert run(y, {n: [0, 3, 4]}).tolist() == [[0, 1, 2, 3], [6, 5, 4, 7], [11, 10, 9, 8]]
    for wrong in ([0, 0, 5], [0, -1, 1]):
        with pytest.raises(RangeError, match="length"):
            run(y, {n: wrong})


def test_sequence_mask() -> None:
    assert run(hf.sequence_mask([1, 3, 2])).tolist() == np.tri(3, dtype=bool)[[0, 2, 1]].tolist()
    mask = hf.sequence_mask([[1, 0]], 2, hf.float32)
    assert run(mask).tolist() == [[[1, 0], [0, 0]]]


def test_linspace_meshgrid_range() -> None:
    for lo, hi, n in [(0.0, 1.0, 5), (10.0, -3.0, 4), (2.0, 7.0, 1), (0.1, 0.7, 7)]:
        found = run(hf.linspace(lo, hi, n))
        np.testing.assert_allclose(found, np.linspace(lo, hi, n), rtol=1e-6)
        assert found[-1] == np.float32(hi if n > 1 else lo)
    n = hf.placeholder(hf.int32, [])
    assert run(hf.lin_space(0.0, 2.0, n), {n: 3}).tolist() == [0, 1, 2]
    with pytest.raises(ShapeError):
        hf.linspace(0.0, 1.0, 0)
    for indexing in ("xy", "ij"):
        for vectors in ([[1, 2, 3], [4, 5]], [[1], [2, 3], [4, 5, 6]], [[1, 2]]):
            found = run(hf.meshgrid(*vectors, indexing=indexing))
            for a, e in zip(found, np.meshgrid(*vectors, indexing=indexing), strict=True):
                assert a.tolist() == e.tolist()


def test_shapes_that_fit() -> None:
    x, y = hf.placeholder(hf.int32, [None]), hf.placeholder(hf.int32, [None])
    both = hf.broadcast_dynamic_shape(x, y)
    assert run(both, {x: [3, 1], y: [2, 1, 4]}).tolist() == [2, 3, 4]
    with pytest.raises(ShapeError, match="cannot be broadcast"):
        run(both, {x: [3], y: [2]})
    assert hf.broadcast_static_shape([None, 1], [2, 5]) == (2, 5)
    a, b = hf.shape_n([hf.constant(X), hf.constant(1)])
    assert (run(a).tolist(), run(b).tolist()) == ([2, 3, 4], [])
    assert run(hf.parallel_stack([1, 2])).tolist() == [1, 2]
    assert run(hf.unravel_index([22, 1], [7, 6])).tolist() == [[3, 0], [4, 1]]
    with pytest.raises(RangeError):
        run(hf.unravel_index([42], [7, 6]))


# -- padding, tiling, splitting

MODES = {"REFLECT": "reflect", "SYMMETRIC": "symmetric", "EDGE": "edge"}


@pytest.mark.parametrize("mode", MODES)
def test_pad_modes(mode: str) -> None:
    for pads in ([[1, 1], [2, 0], [0, 3]], [[0, 0], [0, 1], [2, 2]]):
        f = lambda t, p=pads: hf.pad(t, p, mode)  # noqa: E731
        assert both_ways(f, X).tolist() == np.pad(X, pads, MODES[mode]).tolist()
        check_slope(f, X)


def test_pad_by_a_tensor() -> None:
    p = hf.placeholder(hf.int32, [3, 2])
    pads = [[1, 0], [0, 2], [1, 1]]
    t = hf.placeholder(hf.float64, [None, 3, None])
    y = hf.pad(t, p, constant_values=7)
    (g,) = hf.gradients(y, t)
    value, grad = run([y, g], {t: X, p: pads})
    assert value.tolist() == np.pad(X, pads, constant_values=7).tolist()
    assert grad.tolist() == np.ones(X.shape).tolist()
    with pytest.raises(ShapeError, match="negative"):
        run(y, {t: X, p: [[-1, 0], [0, 0], [0, 0]]})


def test_paddings_that_do_not_fit() -> None:
    t = hf.constant(X)
    with pytest.raises(ShapeError, match="needs a size of 3"):
        hf.pad(t, [[2, 0], [0, 0], [0, 0]], "REFLECT")
    with pytest.raises(ShapeError, match="mode"):
        hf.pad(t, [[2, 0], [0, 0], [0, 0]], "WRAP")
    with pytest.raises(ShapeError, match="2 pairs"):
        hf.pad(t, [[2, 0], [0, 0]], "EDGE")
    unknown = hf.placeholder(hf.float32, [None])
    with pytest.raises((RangeError, ShapeError), match="outside"):
        run(hf.pad(unknown, [[3, 0]], "REFLECT"), {unknown: [1, 2]})


def test_tile_and_split_by_tensors() -> None:
    times = hf.placeholder(hf.int32, [2])
    x = np.array([[1.0, 2], [3, 4]])
    t = fed(x)
    y = hf.tile(t, times)
    (g,) = hf.gradients(y, t)
    value, grad = run([y, g], {t: x, times: [2, 3]})
    assert value.tolist() == np.tile(x, (2, 3)).tolist()
    assert grad.tolist() == [[6, 6], [6, 6]]
    n = hf.placeholder(hf.int32, [2])
    a, b = hf.split(hf.constant(X), n, axis=2)
    values = run([a, b], {n: [1, 3]})
    assert [v.tolist() for v in values] == [X[..., :1].tolist(), X[..., 1:].tolist()]


def test_dynamic_partition_and_stitch() -> None:
    x, p = hf.constant(X.reshape(8, 3)), hf.placeholder(hf.int32, [8])
    parts = hf.dynamic_partition(x, p, 3)
    where = hf.dynamic_partition(hf.range(8), p, 3)
    again = hf.dynamic_stitch(where, [part * (k + 1) for k, part in enumerate(parts)])
    (g,) = hf.gradients([again, hf.square(parts[1])], x)
    at = np.array([2, 0, 1, 1, 2, 0, 0, 2], np.int32)
    rows = X.reshape(8, 3)
    values, whole, grad = run([parts, again, g], {p: at})
    for k in range(3):
        assert values[k].tolist() == rows[at == k].tolist()
    assert whole.tolist() == (rows * (at + 1)[:, None]).tolist()
    expected = np.ones((8, 3)) * (at + 1)[:, None] + np.where(at == 1, 2, 0)[:, None] * rows
    assert grad.tolist() == expected.tolist()
    for wrong in (3, -1):
        with pytest.raises(RangeError, match="partition"):
            run(parts[0], {p: [0] * 7 + [wrong]})
    assert run(hf.dynamic_stitch([[0], [2, 0]], [[1.0], [2.0, 3.0]])).tolist() == [3, 0, 2]
    i = hf.placeholder(hf.int32, [1])
    with pytest.raises(RangeError, match="negative"):
        run(hf.dynamic_stitch([i], [[1.0]]), {i: [-1]})


# -- blocks, by their definitions


def _space_to_batch(x: np.ndarray, block: list[int], pads: list[list[int]]) -> np.ndarray:
    k = len(block)
    x = np.pad(x, [(0, 0), *pads, *[(0, 0)] * (x.ndim - 1 - k)])
    parts = []
    for place in product(*map(range, block)):
        parts.append(
            x[(slice(None), *(slice(p, None, b) for p, b in zip(place, block, strict=True)))]
        )
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("shape", "block", "pads"),
    [
        ((1, 4, 4, 2), [2, 2], [[0, 0], [0, 0]]),
        ((2, 3, 5, 1), [2, 3], [[1, 0], [0, 1]]),
        ((2, 6), [3], [[0, 0]]),
        ((2, 4, 3), [2], [[2, 0]]),
    ],
)
def test_space_to_batch_and_back(shape: Any, block: Any, pads: Any) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    f = lambda t: hf.space_to_batch_nd(t, block, pads)  # noqa: E731
    there = both_ways(f, x)
    assert there.tolist() == _space_to_batch(x, block, pads).tolist()
    back = both_ways(lambda t: hf.batch_to_space_nd(t, block, pads), there)
    assert back.tolist() == x.tolist()
    check_slope(f, x)


def test_space_to_batch_of_images_and_its_paddings() -> None:
    x = np.arange(16.0).reshape(1, 4, 4, 1)
    there = run(hf.space_to_batch(x, [[0, 0], [0, 0]], 2))
    assert there.shape == (4, 2, 2, 1)
    assert run(hf.batch_to_space(there, [[0, 0], [0, 0]], 2)).tolist() == x.tolist()
    pads, crops = hf.required_space_to_batch_paddings([5, 8], [2, 4], [[1, 1], [0, 0]])
    assert run([pads, crops])[0].tolist() == [[1, 2], [0, 0]]
    assert run(crops).tolist() == [[0, 1], [0, 0]]
    with pytest.raises(ShapeError, match="multiple"):
        hf.space_to_batch(hf.zeros([1, 3, 4, 1]), [[0, 0], [0, 0]], 2)


def test_depth_and_space() -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 6, 3))
    expected = np.zeros((2, 2, 3, 12))
    for i, j in product(range(2), range(3)):
        expected[:, i, j] = x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].reshape(2, -1)
    there = both_ways(lambda t: hf.space_to_depth(t, 2), x)
    assert there.tolist() == expected.tolist()
    assert both_ways(lambda t: hf.depth_to_space(t, 2), there).tolist() == x.tolist()
    check_slope(lambda t: hf.depth_to_space(t, 2), there[:1])
    first = x.transpose(0, 3, 1, 2)
    found = run(hf.space_to_depth(first, 2, data_format="NCHW"))
    assert found.tolist() == expected.transpose(0, 3, 1, 2).tolist()


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_extract_image_patches(padding: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 6, 2))
    k, s, r = (2, 3), (2, 1), (1, 2)
    spans = [(a - 1) * c + 1 for a, c in zip(k, r, strict=True)]
    if padding == "SAME":
        counts = [-(-d // b) for d, b in zip(x.shape[1:3], s, strict=True)]
        more = [
            max(0, (n - 1) * b + span - d)
            for n, b, span, d in zip(counts, s, spans, x.shape[1:3], strict=True)
        ]
        padded = np.pad(x, [(0, 0), *((m // 2, m - m // 2) for m in more), (0, 0)])
    else:
        counts = [(d - a) // b + 1 for d, a, b in zip(x.shape[1:3], spans, s, strict=True)]
        padded = x
    expected = np.zeros((2, *counts, k[0] * k[1] * 2))
    for i, j in product(*map(range, counts)):
        window = padded[:, i * s[0] : i * s[0] + spans[0] : r[0]]
        window = window[:, :, j * s[1] : j * s[1] + spans[1] : r[1]]
        expected[:, i, j] = window.reshape(2, -1)
    f = lambda t: hf.extract_image_patches(t, [1, *k, 1], [1, *s, 1], [1, *r, 1], padding)  # noqa: E731
    found = run(f(hf.constant(x)))
    assert found.tolist() == expected.tolist()
    found, slopes = slope(f, x[:1], known=True)
    np.testing.assert_allclose(found, slopes, atol=1e-7)
