"""A product is not computed in columns that only a Split drops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.plan.ir.program import Partition


def product_widths(fetches: Any, feeds: Any) -> list[int]:
    """The sorted numbers of columns of the products of a step."""
    with hf.Session() as session:
        part: Partition
        (part,) = session.plan(fetches, feeds).parts.values()
    return sorted(_widths(part.nodes))


def _widths(nodes: dict[str, Any]) -> Iterator[int]:
    for node in nodes.values():
        if node.type == "MatMul":
            yield node.specs[0].shape[-1]
        for program in node.attrs.values():
            yield from _widths(getattr(program, "nodes", {}))


@pytest.mark.parametrize("lead", [(16,), (4, 4)], ids=str)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("wanted", [[0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]], ids=str)
def test_the_gradients_of_some_parts_of_a_concat_equal_numpys(
    lead: tuple[int, ...], turned: bool, wanted: list[int]
) -> None:
    rng = np.random.default_rng(5)
    widths = (20, 6, 9)
    values = [rng.standard_normal((*lead, width)) for width in widths]
    w = rng.standard_normal((11, 35) if turned else (35, 11))
    with hf.Graph().as_default():
        parts = [hf.placeholder("float64", v.shape) for v in values]
        weights = hf.constant(w)
        rows = hf.reshape(hf.concat(parts, -1), [16, 35])
        out = hf.tanh(hf.matmul(rows, weights, transpose_b=turned))
        slopes = hf.gradients(hf.reduce_sum(out), [parts[k] for k in wanted])
        feeds = dict(zip(parts, values, strict=True))
        hull = sum(widths[wanted[0] : wanted[-1] + 1])
        assert product_widths(slopes, feeds) == sorted([11, hull])
        with hf.Session() as session:
            found = session.run(slopes, feeds)
    matrix = w.T if turned else w
    y = np.tanh(np.concatenate(values, -1).reshape(16, 35) @ matrix)
    whole = ((1 - y * y) @ matrix.T).reshape(*lead, 35)
    expected = np.split(whole, np.cumsum(widths)[:-1], -1)
    for k, value in zip(wanted, found, strict=True):
        np.testing.assert_allclose(value, expected[k], 1e-12, 1e-12)


def test_a_product_that_others_read_too_keeps_all_columns() -> None:
    rng = np.random.default_rng(6)
    x, w = rng.standard_normal((8, 5)), rng.standard_normal((5, 12))
    with hf.Graph().as_default():
        a, b = hf.placeholder("float64", x.shape), hf.placeholder("float64", w.shape)
        product = hf.matmul(a, b)
        first, _ = hf.split(product, [4, 8], 1)
        fetches, feeds = [first, product], {a: x, b: w}
        assert product_widths(fetches, feeds) == [12]
        with hf.Session() as session:
            found = session.run(fetches, feeds)
    np.testing.assert_array_equal(found[0], found[1][:, :4])
    np.testing.assert_allclose(found[1], x @ w, 1e-12)


def test_unread_columns_are_not_computed_in_loops_either() -> None:
    """A recurrent cell of [x, h] needs no gradient of a fed x."""
    rng = np.random.default_rng(7)
    xs, w = rng.standard_normal((6, 4, 10)), rng.standard_normal((13, 3))
    with hf.Graph().as_default():
        fed, weights = hf.placeholder("float64", xs.shape), hf.placeholder("float64", w.shape)

        def step(i: Any, h: Any) -> list[Any]:
            return [i + 1, hf.tanh(hf.matmul(hf.concat([fed[i], h], 1), weights))]

        zero = hf.zeros([4, 3], "float64")
        _, last = hf.while_loop(lambda i, h: i < 6, step, [hf.constant(0), zero])
        (slope,) = hf.gradients(hf.reduce_sum(last), [weights])
        feeds = {fed: xs, weights: w}
        assert product_widths(slope, feeds) == [3, 3, 3]  # forward, of h, of the weights
        with hf.Session() as session:
            found = session.run(slope, feeds)

    def loss(matrix: Any) -> float:
        h = np.zeros((4, 3))
        for x in xs:
            h = np.tanh(np.concatenate([x, h], 1) @ matrix)
        return float(h.sum())

    for at in [(0, 0), (9, 2), (12, 1)]:
        eps = np.zeros_like(w)
        eps[at] = 1e-6
        near = (loss(w + eps) - loss(w - eps)) / 2e-6
        np.testing.assert_allclose(found[at], near, 1e-6, 1e-8)
