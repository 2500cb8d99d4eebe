"""Convolutions by their public names, against SciPy and against loops; their errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.signal

import hpcflow as hf
from hpcflow.errors import DTypeError, ShapeError
from tests.ops.cases_conv import conv, filter_grad, input_grad
from tests.ops.evaluate import evaluate

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def attrs(
    strides: Any, padding: Any, dilations: Any = (1, 1), groups: int = 1, first: bool = False
) -> dict:
    return dict(strides=strides, padding=padding, dilations=dilations, groups=groups, first=first)


def check(t: hf.Tensor, expected: np.ndarray, feeds: dict | None = None) -> None:
    got = evaluate(t, feeds)
    assert got.shape == expected.shape
    if feeds is None:
        assert t.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def correlate(x: np.ndarray, w: np.ndarray, mode: str) -> np.ndarray:
    """SciPy's correlation of any number of axes, sample by sample, channels last."""
    return np.stack(
        [
            np.stack(
                [
                    sum(
                        scipy.signal.correlate(sample[..., c], w[..., c, o], mode)
                        for c in range(w.shape[-2])
                    )
                    for o in range(w.shape[-1])
                ],
                -1,
            )
            for sample in x
        ]
    )


@pytest.mark.parametrize("padding, mode", [("SAME", "same"), ("VALID", "valid")])
def test_against_scipy(padding: str, mode: str) -> None:
    for function, rank in [(hf.nn.conv1d, 1), (hf.nn.conv2d, 2), (hf.nn.conv3d, 3)]:
        x, w = draw(2, *[6, 5, 7][:rank], 2), draw(*[3, 3, 3][:rank], 2, 4)
        expected = correlate(x, w, mode)
        check(function(x, hf.constant(w), 1, padding), expected)
        check(hf.nn.convolution(x, w, padding), expected)
        axes = "DHW"[-rank:] if rank > 1 else "W"
        turned = function(np.moveaxis(x, -1, 1), w, 1, padding, data_format=f"NC{axes}")
        check(turned, np.moveaxis(expected, -1, 1))
        unknown = hf.placeholder("float64", [None] * (rank + 2))
        check(function(unknown, w, 1, padding), expected, {unknown: x})


def test_ways_to_say_strides_and_padding() -> None:
    x, w = draw(2, 7, 6, 3), draw(3, 2, 3, 4)
    expected = conv(x, w, attrs((2, 1), ((1, 1), (0, 2))))
    pads = [[0, 0], [1, 1], [0, 2], [0, 0]]
    check(hf.nn.conv2d(x, w, [1, 2, 1, 1], pads), expected)
    check(hf.nn.conv2d(x, w, [2, 1], [[1, 1], [0, 2]]), expected)
    nchw = hf.nn.conv2d(
        x.transpose(0, 3, 1, 2), w, [1, 1, 2, 1], [[0, 0], [0, 0], [1, 1], [0, 2]], "NCHW"
    )
    check(nchw, expected.transpose(0, 3, 1, 2))
    dilated = conv(x, w, attrs((1, 1), "SAME", (2, 3)))
    check(hf.nn.conv2d(x, w, 1, "same", dilations=[1, 2, 3, 1]), dilated)
    check(hf.nn.convolution(x, w, "SAME", dilation_rate=[2, 3]), dilated)
    check(hf.nn.atrous_conv2d(x, w, 2, "VALID"), conv(x, w, attrs((1, 1), "VALID", (2, 2))))
    thirds = draw(3, 2, 1, 6)
    check(
        hf.nn.conv2d(x, thirds, 1, "SAME", groups=3),
        conv(x, thirds, attrs((1, 1), "SAME", groups=3)),
    )


@pytest.mark.parametrize("times", [1, 2])
def test_depthwise_and_separable(times: int) -> None:
    x, w = draw(2, 5, 6, 3), draw(2, 3, 3, times)
    expected = np.stack(
        [
            conv(x[..., c : c + 1], w[:, :, c : c + 1, m : m + 1], attrs((2, 2), "SAME"))[..., 0]
            for c in range(3)
            for m in range(times)
        ],
        -1,
    )
    strides = [1, 2, 2, 1]
    check(hf.nn.depthwise_conv2d(x, w, strides, "SAME"), expected)
    check(hf.nn.depthwise_conv2d_native(x, w, strides, "SAME"), expected)
    nchw = hf.nn.depthwise_conv2d(
        x.transpose(0, 3, 1, 2), w, [1, 1, 2, 2], "SAME", data_format="NCHW"
    )
    check(nchw, expected.transpose(0, 3, 1, 2))
    point = draw(1, 1, 3 * times, 5)
    mixed = np.einsum("nhwc,cf->nhwf", expected, point[0, 0])
    check(hf.nn.separable_conv2d(x, w, point, strides, "SAME"), mixed)
    a, b, g = hf.constant(x), hf.constant(w), draw(*expected.shape)
    y = hf.nn.depthwise_conv2d(a, b, strides, "SAME")
    da, db = hf.gradients(y, [a, b], g)
    back = hf.nn.depthwise_conv2d_native_backprop_input(x.shape, w, g, strides, "SAME")
    check(back, evaluate(da))
    back = hf.nn.depthwise_conv2d_native_backprop_filter(x, w.shape, g, strides, "SAME")
    check(back, evaluate(db))


def test_transposed() -> None:
    g, w = draw(2, 3, 2, 4), draw(3, 2, 5, 4)
    shape, a = (2, 6, 4, 5), attrs((2, 2), "SAME")
    expected = input_grad(g, w, shape, a)
    check(hf.nn.conv2d_transpose(g, w, shape, [1, 2, 2, 1]), expected)
    check(hf.nn.conv2d_backprop_input(shape, w, g, 2, "SAME"), expected)
    sizes = hf.placeholder("int32", [4])
    check(hf.nn.conv2d_transpose(g, w, sizes, 2), expected, {sizes: shape})
    batch = hf.placeholder("int32", [])
    t = hf.nn.conv2d_transpose(g, w, hf.stack([batch, 6, 4, 5]), 2)
    assert t.shape == (2, 6, 4, 5)
    x = draw(*shape)
    check(hf.nn.conv2d_backprop_filter(x, w.shape, g, 2, "SAME"), filter_grad(x, g, w.shape, a))
    line, bar = draw(2, 3, 4), draw(2, 5, 4)
    for length in (8, 10):  # the last two are in no window
        expected = input_grad(line, bar, (2, length, 5), attrs((3,), "VALID", (1,)))
        check(hf.nn.conv1d_transpose(line, bar, [2, length, 5], 3, "VALID"), expected)
    cube, rod = draw(1, 2, 2, 2, 3), draw(2, 2, 2, 1, 3)
    a3 = attrs((2, 2, 2), "SAME", (1, 1, 1))
    check(
        hf.nn.conv3d_transpose(cube, rod, [1, 4, 4, 4, 1], 2),
        input_grad(cube, rod, (1, 4, 4, 4, 1), a3),
    )
    whole = draw(1, 4, 4, 4, 1)
    check(
        hf.nn.conv3d_backprop_filter_v2(whole, rod.shape, cube, 2, "SAME"),
        filter_grad(whole, cube, rod.shape, a3),
    )
    small, k = draw(1, 3, 3, 2), draw(2, 2, 1, 2)
    check(
        hf.nn.atrous_conv2d_transpose(small, k, [1, 5, 5, 1], 2, "VALID"),
        input_grad(small, k, (1, 5, 5, 1), attrs((1, 1), "VALID", (2, 2))),
    )


def test_second_order() -> None:
    """The gradient of |dy/dx|^2 by the filters, against finite differences."""
    x, w, g = draw(2, 5, 4, 2), draw(3, 2, 2, 3), draw(2, 3, 2, 3)

    def penalty(w: Any) -> tuple[hf.Tensor, hf.Tensor]:
        a, b = hf.constant(x), hf.constant(w)
        y = hf.nn.conv2d(a, b, 2, "SAME")
        da, db = hf.gradients(hf.square(y), [a, b], g)
        return hf.reduce_sum(hf.square(da)) + hf.reduce_sum(hf.square(db)), b

    total, b = penalty(w)
    found = evaluate(hf.gradients(total, b)[0])
    for place in [(0, 0, 0, 0), (2, 1, 1, 2), (1, 0, 1, 1)]:
        step = np.zeros(w.shape)
        step[place] = 1e-5
        up, down = (evaluate(penalty(w + s)[0]) for s in (step, -step))
        np.testing.assert_allclose(found[place], (up - down) / 2e-5, rtol=1e-5)


def test_pieces_of_a_large_convolution() -> None:
    """Columns are made for a few samples, or a few rows of one, at a time."""
    for shape in [(40, 30, 30, 8), (1, 500, 40, 8)]:
        x, w = draw(*shape).astype("f4"), draw(3, 3, 8, 8).astype("f4")
        y = hf.nn.conv2d(x, hf.constant(w), 1, "SAME")
        expected = sum(
            np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))[:, i : i + shape[1], k : k + shape[2]]
            @ w[i, k]
            for i in range(3)
            for k in range(3)
        )
        np.testing.assert_allclose(evaluate(y), expected, rtol=1e-3, atol=1e-4)
        a = hf.constant(x)
        (back,) = hf.gradients(hf.nn.conv2d(a, w, 1, "SAME"), a, expected)
        turned = w[::-1, ::-1].transpose(0, 1, 3, 2)
        np.testing.assert_allclose(
            evaluate(back),
            evaluate(hf.nn.conv2d(expected, turned, 1, "SAME")),
            rtol=1e-3,
            atol=1e-2,
        )


def test_sixteen_bits_are_summed_in_thirty_two() -> None:
    x, w = np.ones((1, 64, 64, 1), "f2"), np.full((64, 64, 1, 1), 0.75, "f2")
    y = evaluate(hf.nn.conv2d(x, hf.constant(w), 1, "VALID"))
    assert y.dtype == np.float16 and y.item() == 3072


def test_errors() -> None:
    x, w = hf.placeholder("float32", [None, 8, 8, 3]), hf.placeholder("float32", [3, 3, 3, 4])
    conv2d = hf.nn.conv2d
    with pytest.raises(ShapeError, match=r"3 channels do not fit filters \[3, 3, 4, 4\]"):
        conv2d(x, hf.zeros([3, 3, 4, 4]), 1, "SAME")
    with pytest.raises(ShapeError, match="window of 9 does not fit in 8") as info:
        conv2d(x, hf.zeros([9, 1, 3, 4]), 1, "VALID", name="deep")
    assert info.value.op == "deep" and "test_conv.py" in str(info.value.line)
    for strides in ([2, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1], 1.5):
        with pytest.raises(ShapeError, match=r"strides[^$]*test_conv.py"):
            conv2d(x, w, strides, "SAME")
    for padding in ("FULL", 1, [[1, 1]], [[1, 1], [0, 0], [0, 0], [0, 0]], [[-1, 0], [0, 0]]):
        with pytest.raises(ShapeError, match="padding"):
            conv2d(x, w, 1, padding)
    with pytest.raises(ShapeError, match="'NHWC' or 'NCHW'"):
        conv2d(x, w, 1, "SAME", data_format="NWC")
    with pytest.raises(ShapeError, match="rank 4"):
        conv2d(x[0], w, 1, "SAME")
    with pytest.raises(DTypeError, match="float64"):
        conv2d(x, hf.zeros([3, 3, 3, 4], "float64"), 1, "SAME")
    with pytest.raises(DTypeError, match="takes floating point"):
        conv2d(hf.zeros([1, 8, 8, 3], "int32"), hf.zeros([3, 3, 3, 4], "int32"), 1, "SAME")
    with pytest.raises(ShapeError, match="do not agree"):
        hf.nn.conv2d_transpose(hf.zeros([2, 4, 4, 4]), w, [2, 9, 8, 3], 2)
    with pytest.raises(ShapeError, match="cannot be reshaped"):
        hf.nn.depthwise_conv2d(x, hf.zeros([3, 3, 2, 1]), 1, "SAME")
    with pytest.raises(ShapeError, match="groups"):
        conv2d(x, w, 1, "SAME", groups=2)


def test_bias_of_channels() -> None:
    x, b = draw(2, 3, 4, 5), draw(3)
    check(hf.nn.bias_add(x, hf.constant(b), "NCHW"), x + b[:, None, None])
    check(
        hf.nn.bias_add(x.transpose(0, 2, 3, 1), hf.constant(b), "NHWC"), x.transpose(0, 2, 3, 1) + b
    )
