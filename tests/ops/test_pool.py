"""Pooling by its public names, its second order, its errors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DTypeError, ShapeError
from tests.ops.cases_pool import avg_pool, max_pool, places
from tests.ops.evaluate import evaluate

RNG = np.random.default_rng(6)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def attrs(window: tuple, strides: tuple, padding: object, **more: object) -> dict:
    ones = (1,) * len(window)
    known = dict(window=window, strides=strides, padding=padding, dilations=ones, first=False)
    return {**known, "count_include_pad": False, "include_batch": False, **more}


def check(t: hf.Tensor, expected: np.ndarray) -> None:
    got = evaluate(t)
    assert got.shape == t.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("rank, axes", [(1, "W"), (2, "HW"), (3, "DHW")])
def test_ranks_and_formats(rank: int, axes: str) -> None:
    x = draw(2, *[5, 6, 4][:rank], 3)
    turned = np.moveaxis(x, -1, 1)
    a = attrs((2,) * rank, (2,) * rank, "SAME")
    for name, oracle, kind in [("max_pool", max_pool, "MAX"), ("avg_pool", avg_pool, "AVG")]:
        function, expected = getattr(hf.nn, f"{name}{rank}d"), oracle(x, a)
        check(function(x, 2, 2, "SAME"), expected)
        check(function(x, [1, *[2] * rank, 1], [1, *[2] * rank, 1], "SAME"), expected)
        check(hf.nn.pool(x, [2] * rank, kind, "SAME", strides=[2] * rank), expected)
        channels = np.moveaxis(expected, -1, 1)
        check(function(turned, 2, 2, "SAME", data_format=f"NC{axes}"), channels)
    assert hf.nn.max_pool is hf.nn.max_pool2d and hf.nn.avg_pool is hf.nn.avg_pool2d


def test_padding_and_dilations() -> None:
    x = draw(2, 6, 5, 2)
    pads = ((1, 1), (0, 1))
    a = attrs((3, 2), (2, 1), pads)
    check(hf.nn.max_pool(x, [3, 2], [2, 1], [[0, 0], [1, 1], [0, 1], [0, 0]]), max_pool(x, a))
    for included in (False, True):
        expected = avg_pool(x, {**a, "count_include_pad": included})
        check(hf.nn.avg_pool(x, [3, 2], [2, 1], pads, count_include_pad=included), expected)
    a = attrs((2, 2), (1, 1), "VALID", dilations=(2, 3))
    check(hf.nn.max_pool(x, 2, 1, "VALID", dilations=[2, 3]), max_pool(x, a))
    check(hf.nn.pool(x, [2, 2], "AVG", "VALID", dilation_rate=[2, 3]), avg_pool(x, a))


def test_argmax() -> None:
    x = draw(2, 4, 6, 3)
    for first in (False, True):
        data, name = (x.transpose(0, 3, 1, 2), "NCHW") if first else (x, "NHWC")
        for batched in (False, True):
            a = attrs((2, 2), (2, 2), "SAME", first=first, include_batch=batched)
            y, at = hf.nn.max_pool_with_argmax(
                data, 2, 2, "SAME", name, include_batch_in_index=batched
            )
            assert at.dtype == hf.int64
            check(y, max_pool(data, a))
            check(at, places(data, a))
    assert hf.nn.max_pool_with_argmax(x, 2, 2, "SAME", output_dtype="int32")[1].dtype == hf.int32


def test_nan_is_the_largest() -> None:
    x = np.array([[1, np.nan, 3, 2.0]]).reshape(1, 4, 1)
    y, at = hf.nn.max_pool_with_argmax(x[:, :, None], [2, 1], [2, 1], "VALID")
    assert np.isnan(evaluate(y).ravel()[0]) and evaluate(at).ravel().tolist() == [1, 2]
    assert np.isnan(evaluate(hf.nn.max_pool1d(x, 2, 2, "VALID")).ravel()[0])


def test_infinities_beside_padding() -> None:
    """Padding is never chosen, also where all data is the lowest value there is."""
    x = hf.constant(np.full((1, 3, 1), -np.inf))
    y = hf.nn.max_pool1d(x, 2, 1, [[1, 0]])
    (back,) = hf.gradients(y, x)
    assert evaluate(back).ravel().tolist() == [2, 1, 0]


def test_second_order_of_max() -> None:
    x = hf.constant(draw(1, 4, 4, 2))
    y = hf.nn.max_pool(x, 2, 1, "SAME")
    (g,) = hf.gradients(hf.square(y), x)
    (gg,) = hf.gradients(hf.square(g), x)
    values = evaluate(x)
    a = attrs((2, 2), (1, 1), "SAME", include_batch=True)
    at = places(values, a).ravel()
    jacobian = np.zeros((at.size, values.size))
    jacobian[np.arange(at.size), at] = 1
    hessian = 2 * jacobian.T @ jacobian  # of the sum of y**2
    expected = 2 * hessian @ (hessian @ values.ravel())
    np.testing.assert_allclose(evaluate(gg).ravel(), expected, rtol=1e-12)


def test_sixteen_bits() -> None:
    x = np.full((1, 64, 64, 1), 1000, "f2")  # the sum is beyond float16
    y = evaluate(hf.nn.avg_pool(hf.constant(x), 64, 1, "VALID"))
    assert y.dtype == np.float16 and y.item() == 1000


def test_large_arrays_in_pieces() -> None:
    x = draw(3, 200, 300, 8).astype("f4")
    y = evaluate(hf.nn.max_pool(hf.constant(x), 2, 2, "VALID"))
    np.testing.assert_array_equal(y, x.reshape(3, 100, 2, 150, 2, 8).max((2, 4)))
    y = evaluate(hf.nn.avg_pool(hf.constant(x), 2, 2, "VALID"))
    np.testing.assert_allclose(y, x.reshape(3, 100, 2, 150, 2, 8).mean((2, 4)), atol=1e-6)


def test_errors() -> None:
    x = hf.placeholder("float32", [None, 8, 8, 3])
    with pytest.raises(ShapeError, match="window of 9 does not fit in 8"):
        hf.nn.max_pool(x, 9, 1, "VALID")
    with pytest.raises(ShapeError, match=r"ksize[^$]*test_pool.py"):
        hf.nn.avg_pool(x, [1, 2, 2, 3], 1, "VALID")
    with pytest.raises(ShapeError, match="rank 5"):
        hf.nn.max_pool3d(x, 2, 1, "VALID")
    with pytest.raises(ShapeError, match="'MAX' or 'AVG'"):
        hf.nn.pool(x, [2, 2], "MIN", "VALID")
    with pytest.raises(DTypeError, match="int32"):
        hf.nn.avg_pool(hf.zeros([1, 8, 8, 3], "int32"), 2, 1, "VALID")
