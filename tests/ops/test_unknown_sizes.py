"""Functions of tensors whose sizes, or even whose rank, only the step tells; and of no elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ShapeError
from tests.ops.sessions import graph, run  # noqa: F401 - graph is a fixture

RNG = np.random.default_rng(3)
IMAGES, FILTERS = RNG.standard_normal((2, 6, 5, 3)), RNG.standard_normal((2, 3, 3, 2))
KNOWN: list[Any] = [None, (None,) * 4]
OF_IMAGES: dict[str, Callable[[Any], Any]] = {
    "depthwise_conv2d": lambda x: hf.nn.depthwise_conv2d(x, FILTERS, [1, 2, 2, 1], "SAME"),
    "dilation2d": lambda x: hf.nn.dilation2d(x, FILTERS[..., 0], 2, 1, "SAME"),
    "dilation2d_valid": lambda x: hf.nn.dilation2d(x, FILTERS[..., 0], 1, 2, "VALID"),
    "erosion2d": lambda x: hf.nn.erosion2d(x, FILTERS[..., 0], 1, 1, "VALID"),
    "patches": lambda x: hf.extract_image_patches(
        x, [1, 2, 3, 1], [1, 2, 1, 1], [1, 1, 2, 1], "SAME"
    ),
    "valid_patches": lambda x: hf.extract_image_patches(
        x, [1, 3, 2, 1], [1, 1, 3, 1], [1, 1, 1, 1], "VALID"
    ),
    "space_to_batch_nd": lambda x: hf.space_to_batch_nd(x, [3, 5], [[0, 0], [2, 3]]),
    "batch_to_space_nd": lambda x: hf.batch_to_space_nd(x, [2], [[1, 0]]),
}


@pytest.mark.parametrize("told", KNOWN)
@pytest.mark.parametrize("name", OF_IMAGES)
def test_images_of_unknown_sizes(name: str, told: Any) -> None:
    whole, part = hf.constant(IMAGES), hf.placeholder("float64", told)
    y, z = (OF_IMAGES[name](x) for x in (whole, part))
    (of_y,), (of_z,) = hf.gradients(y * y, [whole]), hf.gradients(z * z, [part])
    expected = run([y, of_y])
    for got, value in zip(run([z, of_z], {part: IMAGES}), expected, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("told", [None, (None,) * 4, (2, None, None, 2), (2, 3, None, None)])
@pytest.mark.parametrize("images", [(2, 6, 5, 3), None])
def test_depthwise_filters_of_unknown_sizes(images: Any, told: Any) -> None:
    x, w = hf.placeholder("float64", images), hf.placeholder("float64", told)
    strides = [1, 1, 1, 1]
    y = hf.nn.depthwise_conv2d(x, w, strides, "VALID")
    known = hf.constant(IMAGES), hf.constant(FILTERS)
    z = hf.nn.depthwise_conv2d(*known, strides, "VALID")
    dy = RNG.standard_normal((2, 5, 3, 6))
    back = hf.nn.depthwise_conv2d_native_backprop_input([2, 6, 5, 3], w, dy, strides, "VALID")
    got = run([y, *hf.gradients(y, [x, w], dy), back], {x: IMAGES, w: FILTERS})
    by_x, by_w = hf.gradients(z, known, dy)
    for one, value in zip(got, run([z, by_x, by_w, by_x]), strict=True):
        np.testing.assert_allclose(one, value, rtol=1e-12, atol=1e-12)
    with hf.Session() as session, pytest.raises(ShapeError, match="cannot be reshaped"):
        session.run(y, {x: IMAGES, w: np.zeros((2, 3, 2 if told != (2, None, None, 2) else 1, 2))})


def test_pointwise_filters_of_unknown_sizes() -> None:
    point = RNG.standard_normal((1, 1, 6, 4))
    fed = hf.placeholder("float64", [None, 1, None, 4])
    y, z = (hf.nn.separable_conv2d(IMAGES, FILTERS, p, [1, 1, 1, 1], "SAME") for p in (fed, point))
    np.testing.assert_allclose(*run([y, z], {fed: point}))
    with pytest.raises(ShapeError, match=r"\[1, 1, ...\], not \[\?, 2, 6, 4\]"):
        wide = hf.placeholder("float64", [None, 2, 6, 4])
        hf.nn.separable_conv2d(IMAGES, FILTERS, wide, [1, 1, 1, 1], "SAME")


def test_what_is_known_of_shapes_is_told() -> None:
    x = hf.placeholder("float32", [1, None, 5, None])
    assert hf.nn.dilation2d(x, np.ones((2, 2, 3)), 2, 1, "SAME").shape == (1, None, 3, 3)
    labels = hf.placeholder("int64", [None, None])
    for sampler in (hf.nn.uniform_candidate_sampler, hf.nn.log_uniform_candidate_sampler):
        assert sampler(labels, 1, 3, True, 5)[1].shape == (None, 1)
    assert hf.nn.all_candidate_sampler(labels, 1, 3, True)[1].shape == (None, 1)
    known, rows = hf.zeros([4, 1], "int64"), hf.placeholder("float32", [None, 2])
    for loss in (hf.nn.nce_loss, hf.nn.sampled_softmax_loss):
        assert loss(hf.zeros([5, 2]), hf.zeros([5]), known, rows, 2, 5).shape == (4,)
    scale = hf.ones([3])
    y, mean, variance = hf.nn.fused_batch_norm(hf.placeholder("float32"), scale, scale)
    assert (y.shape, mean.shape, variance.shape) == ((None, None, None, 3), (3,), (3,))
    (paths,), score = hf.nn.ctc_greedy_decoder(hf.placeholder("float32"), hf.constant([2, 3]))
    assert (paths.values.shape, score.shape) == ((None,), (2, 1))
    step = hf.placeholder("int64")
    assert hf.train.piecewise_constant(step, [3], [0.1, 0.2]).shape == ()


def test_the_diagonal_of_a_tensor_of_unknown_rank() -> None:
    x = np.arange(36.0).reshape(2, 3, 2, 3)
    fed = hf.placeholder("float64")
    got = run(hf.diag_part(fed), {fed: x})
    np.testing.assert_array_equal(got, [[x[i, j, i, j] for j in range(3)] for i in range(2)])


EMPTY = [((0, 3, 4), [0, -1], (0, 12)), ((0, 3, 4), [2, 0, -1], (2, 0, 6))]
EMPTY += [((2, 0), [-1, 0], (2, 0)), ((0, 5), [-1, 0, 2], (2, 0, 2)), ((0,), [-1, 2], (0, 2))]


@pytest.mark.parametrize("given, wanted, expected", EMPTY)
def test_the_deduced_size_of_no_elements(given: Any, wanted: Any, expected: Any) -> None:
    """Sizes of 0 count as 1 on both sides, as in TensorFlow, which gave these shapes."""
    x, told = np.zeros(given, "f4"), hf.placeholder("int32", [len(wanted)])
    for static in (given, [None] * len(given), None):
        fed = hf.placeholder("float32", static)
        by_list, by_tensor = hf.reshape(fed, wanted), hf.reshape(fed, told)
        for value in run([by_list, by_tensor], {fed: x, told: wanted}):
            assert value.shape == expected


def test_a_batch_of_no_images_is_flattened() -> None:
    fed = hf.placeholder("float32", [None, None, None, 1])
    assert run(hf.layers.flatten(fed), {fed: np.zeros((0, 3, 3, 1))}).shape == (0, 9)


def test_a_shape_that_the_step_tells_and_that_does_not_fit() -> None:
    x, told = hf.placeholder("float32"), hf.placeholder("int32", [2])
    with pytest.raises(ShapeError, match=r"\[5\] \(5 elements\) cannot be reshaped to \[2, -1\]"):
        run(hf.reshape(x, told), {x: np.zeros(5), told: [2, -1]})


def test_tiles_of_which_there_are_none() -> None:
    x = hf.placeholder("float32", [2, None])
    assert hf.tile(x, [3, 0]).shape == (6, 0)
    assert hf.tile(hf.placeholder("float32"), [1, 0]).shape == (None, 0)
    times = hf.placeholder("int32", [2])
    assert hf.tile(hf.placeholder("float32", [0, 3]), times).shape == (0, None)


def test_lists_without_elements_have_the_kind_that_is_asked_for() -> None:
    assert run([hf.reduce_all([]), hf.reduce_any([])]) == [True, False]
    assert run(hf.invert_permutation([])).dtype == np.int32
    assert run(hf.logical_not([])).dtype == bool
    assert run(hf.reduce_sum([])).dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_segments_of_nothing_or_infinities_have_the_limits_of_their_dtype(dtype: str) -> None:
    x = hf.cast(hf.constant([np.inf, 1.0, -np.inf]), dtype)
    low, high = (
        hf.cast(f(x, [0, 1, 3], 4), "float64")
        for f in (hf.unsorted_segment_max, hf.unsorted_segment_min)
    )
    most = {"float16": 65504.0, "bfloat16": (2 - 2**-7) * 2.0**127}
    limit = most.get(dtype) or float(np.finfo(dtype).max)
    np.testing.assert_array_equal(run(low), [np.inf, 1, -limit, -limit])
    np.testing.assert_array_equal(run(high), [limit, 1, limit, -np.inf])


def test_constants_of_no_values_or_no_elements() -> None:
    cases: list[tuple[Any, list[int]]] = [([], [0]), ([], [2, 0]), ([[]], [0, 3]), ([], [2])]
    for value, shape in [*cases, ([1, 2], [0]), (5, [3, 0])]:
        made = hf.constant(value, shape=shape)
        np.testing.assert_array_equal(run(made), np.zeros(shape))
    with pytest.raises(ShapeError, match=r"3 values do not make a constant of shape \[2\]"):
        hf.constant([1, 2, 3], shape=[2])


def test_moments_by_weights_of_nothing_are_0() -> None:
    x = np.zeros((3, 0, 2), "f4")
    for value in run(hf.nn.weighted_moments(x, [1], np.ones((3, 0, 1), "f4"))):
        np.testing.assert_array_equal(value, np.zeros((3, 2)))


def test_the_slope_of_rsqrt_at_both_zeros() -> None:
    x = hf.constant([0.0, -0.0, 4.0, np.inf])
    np.testing.assert_array_equal(
        run(hf.gradients(hf.rsqrt(x), x)[0]), [-np.inf, np.inf, -1 / 16, 0]
    )
