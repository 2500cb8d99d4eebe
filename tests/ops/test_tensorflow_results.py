"""Results that TensorFlow's tf.compat.v1 gave for the same calls, written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ShapeError

ROWS = np.array([[-5, 2, 1], [1, 3, 4]])


def mean(dtype: str, axis: int | None = None) -> hf.Tensor:
    return hf.reduce_mean(ROWS.astype(dtype), axis)


VALUES: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "mean of int32": (lambda: mean("int32"), 1, "int32"),
    "mean of int64 rows": (lambda: mean("int64", 1), [0, 2], "int64"),
    "mean of int8 columns": (lambda: mean("int8", 0), [-2, 2, 2], "int8"),
    "mean of uint8 rows": (lambda: mean("uint8", 1), [84, 2], "uint8"),
    "mean of no int32": (lambda: hf.reduce_mean(hf.zeros([0, 3], hf.int32), 0), [0] * 3, "int32"),
    "mean of large int32": (lambda: hf.reduce_mean([2**31 - 1, 2**31 - 3, 5]), 1431655765, "int32"),
    "mean of large int8 rows": (
        lambda: hf.reduce_mean(np.int8([[127, 127], [-100, -100]]), 1),
        [127, -100],
        "int8",
    ),
    "mean of large uint16": (lambda: hf.reduce_mean(np.uint16([60000] * 2)), 60000, "uint16"),
    "mean of segments of int32": (
        lambda: hf.segment_mean([-1, -2, 3], [0, 0, 3]),
        [-1, 0, 0, 3],
        "int32",
    ),
    "mean of unsorted segments of int32": (
        lambda: hf.unsorted_segment_mean([-1, -2, 3], [0, 0, 2], 4),
        [-1.5, 0, 3, 0],
        "float64",
    ),
    "transpose by axes from the back": (
        lambda: hf.transpose([[1, 2, 3], [4, 5, 6]], [-1, -2]),
        [[1, 4], [2, 5], [3, 6]],
        "int32",
    ),
    "zero_fraction of bools": (lambda: hf.nn.zero_fraction([True, False, False]), 2 / 3, "float32"),
    "loss of integers": (
        lambda: hf.losses.absolute_difference([1, 0, 1], [3, 0, -1]),
        4 / 3,
        "float32",
    ),
    "squared loss of integers": (
        lambda: hf.losses.mean_squared_error([1, 0, 1], [3, 0, -1]),
        8 / 3,
        "float32",
    ),
    "huber loss of integers": (lambda: hf.losses.huber_loss([1, 0, 1], [3, 0, -1]), 1, "float32"),
    "hinge loss of integers": (lambda: hf.losses.hinge_loss([1, 0, 1], [3, 0, -1]), 1, "float32"),
    "log loss of integers": (
        lambda: hf.losses.log_loss([1, 0, 1], [1, 0, 0]),
        5.3726983,
        "float32",
    ),
    "weighted loss of integers": (lambda: hf.losses.compute_weighted_loss([1, 2, 4]), 2, "int32"),
    "halved sum of integers": (
        lambda: hf.losses.compute_weighted_loss([1, 2, 4], 0.5, reduction="weighted_sum"),
        3,
        "int32",
    ),
    "constant filled by its last value": (
        lambda: hf.constant([1, 2], shape=[2, 2]),
        [[1, 2], [2, 2]],
        "int32",
    ),
    "a row with NaN or infinity has no top": (
        lambda: hf.nn.in_top_k(
            [[1.0, np.nan, 3.0], [1.0, 2.0, 3.0], [np.inf, 1.0, 2.0]], [2, 2, 2], 1
        ),
        [False, True, False],
        "bool",
    ),
    "the sigmoid of infinities": (
        lambda: hf.sigmoid(np.float32([-np.inf, np.inf, -200, 200])),
        [0, 1, 0, 1],
        "float32",
    ),
    "the sigmoid of infinities in 64 bits": (
        lambda: hf.sigmoid(np.float64([-np.inf, np.inf, -900, 900])),
        [0, 1, 0, 1],
        "float64",
    ),
    "swish of infinities": (
        lambda: hf.nn.swish(np.float64([-np.inf, np.inf])),
        [np.nan, np.inf],
        "float64",
    ),
    "truncated quotients": (
        lambda: hf.truncatediv([7.0, -7.0, 1.0, -1.0], [2.0, 2.0, 0.0, 4.0]),
        [3, -3, np.inf, 0],
        "float32",
    ),
    "roll of nothing": (lambda: hf.roll(hf.zeros([2, 0]), -1, 1), np.zeros([2, 0]), "float32"),
    "count of no samples": (
        lambda: hf.nn.sufficient_statistics(hf.zeros([0, 2, 1]), [1, 2])[0],
        2,
        "float32",
    ),
    "loss of float16": (
        lambda: hf.losses.absolute_difference(np.float16([1.5, 2]), np.float16([1, 2])),
        0.25,
        "float32",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_value(name: str) -> None:
    make, told, dtype = VALUES[name]
    with hf.Graph().as_default(), hf.Session() as session:
        value = session.run(make())
    assert value.dtype == dtype
    np.testing.assert_allclose(value, told, rtol=1e-6)


@pytest.mark.parametrize(
    ("places", "shape", "told"),
    [([1, 3], [5], [0, 2, 0, 3, 0]), ([[0, 1], [1, 2]], [2, 3], [[0, 2, 0], [0, 0, 3]])],
)
def test_dense_from_places_of_unknown_rank(places: Any, shape: list[int], told: Any) -> None:
    with hf.Graph().as_default(), hf.Session() as session:
        indices = hf.placeholder(hf.int64)
        dense = hf.sparse_to_dense(indices, shape, [2.0, 3.0])
        assert session.run(dense, {indices: np.array(places)}).tolist() == told


def test_multiples_of_64_bits() -> None:
    with hf.Graph().as_default(), hf.Session() as session:
        times = hf.placeholder(hf.int64, [2])
        tiled = hf.tile([[1, 2]], times)
        assert session.run(tiled, {times: np.array([2, 1])}).tolist() == [[1, 2], [1, 2]]


def test_sampled_loss_of_weights_of_unknown_width() -> None:
    with hf.Graph().as_default(), hf.Session() as session:
        weights = hf.placeholder(hf.float32, [None, None])
        drawn = [np.array([1, 4]), np.ones([1, 1], np.float32), np.ones([2], np.float32)]
        loss = hf.nn.sampled_softmax_loss(
            weights, np.zeros(5, np.float32), [[0]], np.float32([[1, 2]]), 2, 5, 1, drawn
        )
        table = np.arange(10, dtype=np.float32).reshape(5, 2) / 10
        np.testing.assert_allclose(session.run(loss, {weights: table}), [2.6279454], rtol=1e-5)


GRADIENTS: dict[str, tuple[Callable[[hf.Tensor], Any], Any]] = {
    "sign": (hf.sign, [0, 0, 0]),
    "x sign(x)": (lambda x: x * hf.sign(x), [-1, 0, 1]),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name: str) -> None:
    make, told = GRADIENTS[name]
    with hf.Graph().as_default(), hf.Session() as session:
        x = hf.placeholder(hf.float32, [3])
        (gradient,) = hf.gradients(make(x), x)
        np.testing.assert_allclose(session.run(gradient, {x: [-2, 0, 3]}), told)


@pytest.mark.parametrize(
    ("shape", "told"), [((2, 0), []), ((2, 3, 4), [6, 6, 6, 6]), ((0, 2), [0, 0])]
)
def test_gradient_of_a_bias_of_what_is_of_unknown_rank(shape: Any, told: list[int]) -> None:
    with hf.Graph().as_default(), hf.Session() as session:
        value, bias = unknown(), placeholder(None)
        (gradient,) = hf.gradients(hf.nn.bias_add(value, bias), bias)
        fed = {value: np.zeros(shape, np.float32), bias: np.zeros(shape[-1:], np.float32)}
        assert session.run(gradient, fed).tolist() == told


def test_truncated_quotients_have_no_gradient() -> None:
    with hf.Graph().as_default():
        x = hf.placeholder(hf.float32, [3])
        assert hf.gradients(hf.truncatediv(x, 1.5), x) == [None]


def placeholder(*shape: int | None) -> hf.Tensor:
    return hf.placeholder(hf.float32, shape)


def unknown() -> hf.Tensor:
    return hf.placeholder(hf.float32)


def sparse() -> hf.SparseTensor:
    return hf.SparseTensor(np.array([[1, 0], [0, 1]]), [1.0, 2.0], [2, 2])


NO_PADS = [[0, 0], [0, 0]]
IMAGES = (None,) * 4
SHAPES: dict[str, tuple[Callable[[], Any], tuple[int | None, ...]]] = {
    "part of an unknown": (lambda: hf.slice(unknown(), [1, 2], [1, -1]), (1, None)),
    "flat": (lambda: hf.reshape(placeholder(2, 3), hf.placeholder(hf.int32, [1])), (6,)),
    "one size fed": (
        lambda: hf.reshape(placeholder(2, 3), [hf.placeholder(hf.int32, []), 2]),
        (3, 2),
    ),
    "diagonals say the batch": (
        lambda: hf.matrix_set_diag(placeholder(None, 2, 2), placeholder(4, None)),
        (4, 2, 2),
    ),
    "diagonal": (lambda: hf.diag(placeholder(2, None)), (2, None, 2, None)),
    "part of a diagonal": (lambda: hf.diag_part(placeholder(2, None, None, 3)), (2, 3)),
    "mask of known lengths": (lambda: hf.sequence_mask([[4, 3], [1, 2]]), (2, 2, 4)),
    "reordered": (lambda: hf.sparse_reorder(sparse()).values, (2,)),
    "cropped": (lambda: hf.random_crop(unknown(), [0, 2]), (0, 2)),
    "depth to space": (lambda: hf.depth_to_space(unknown(), 2), IMAGES),
    "space to depth": (lambda: hf.space_to_depth(unknown(), 2), IMAGES),
    "space to batch": (lambda: hf.space_to_batch(unknown(), NO_PADS, 2), IMAGES),
    "batch to space": (lambda: hf.batch_to_space(unknown(), NO_PADS, 2), IMAGES),
    "normalized": (
        lambda: hf.nn.fused_batch_norm(
            placeholder(2, 3, 3, 1), [1.0], [1.0], unknown(), unknown(), is_training=False
        )[0],
        (2, 3, 3, 1),
    ),
    "sum of two": (lambda: hf.accumulate_n([unknown(), placeholder(None, 3)]), (None, 3)),
    "broadcast to what is fed": (
        lambda: hf.broadcast_to(placeholder(3, 1), hf.placeholder(hf.int32, [2])),
        (3, None),
    ),
    "repeated": (lambda: hf.repeat(placeholder(4, 1), 3, axis=1), (4, 3)),
    "each repeated": (lambda: hf.repeat(placeholder(4, 2), [1, 4], axis=-1), (4, 5)),
    "repeated flat": (lambda: hf.repeat(placeholder(2, 2), 3), (12,)),
    "unrolled": (
        lambda: hf.nn.static_rnn(
            hf.nn.rnn_cell.GRUCell(2),
            [placeholder(3, 4)],
            dtype=hf.float32,
            sequence_length=hf.placeholder(hf.int32),
        )[0][0],
        (3, 2),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_static_shape(name: str) -> None:
    make, told = SHAPES[name]
    with hf.Graph().as_default():
        assert make().shape == told


def test_in_top_k_is_a_vector_also_of_tensors_of_unknown_rank() -> None:
    with hf.Graph().as_default():
        predictions, targets = hf.placeholder(hf.float32), hf.placeholder(hf.int32)
        assert hf.nn.in_top_k(predictions, targets, 1).shape == [None]
        with pytest.raises(ShapeError, match="targets needs rank 1"):
            hf.nn.in_top_k(predictions, hf.constant(1), 1)


NOTHING: dict[str, tuple[Callable[[], Any], list[int]]] = {  # a list without elements is integers
    "one_hot": (lambda: hf.one_hot([], 3), [0, 3]),
    "sequence_mask": (lambda: hf.sequence_mask([]), [0, 0]),
    "bincount": (lambda: hf.bincount([]), [0]),
    "sparse_segment_sum": (lambda: hf.sparse_segment_sum(hf.zeros([3, 2]), [], []), [0, 2]),
    "dynamic_partition": (lambda: hf.dynamic_partition(hf.zeros([0, 2]), [], 2)[1], [0, 2]),
    "dynamic_stitch": (lambda: hf.dynamic_stitch([[]], [hf.zeros([0])]), [0]),
    "reverse_sequence": (lambda: hf.reverse_sequence(hf.zeros([0, 2]), [], 1, 0), [0, 2]),
    "confusion_matrix": (lambda: hf.confusion_matrix([], [], 3), [3, 3]),
    "repeat": (lambda: hf.repeat(hf.zeros([0]), []), [0]),
    "in_top_k": (lambda: hf.nn.in_top_k(hf.zeros([0, 3]), [], 1), [0]),
    "logical_and": (lambda: hf.logical_and([], []), [0]),
    "logical_xor": (lambda: hf.logical_xor([], []), [0]),
}


@pytest.mark.parametrize("name", NOTHING)
def test_lists_without_elements(name: str) -> None:
    make, shape = NOTHING[name]
    with hf.Graph().as_default(), hf.Session() as session:
        value = session.run(make())
    assert value.shape == tuple(shape) and not value.any()


def test_the_slope_of_betainc_at_its_ends() -> None:
    """The density of beta numbers: 1 of (1, 1), 2 (1 - x) of (1, 2), 2 x of (2, 1)."""
    with hf.Graph().as_default(), hf.Session() as session:
        x = hf.placeholder(hf.float64, [4])
        a, b = np.array([1.0, 1, 2, 2]), np.array([1.0, 2, 1, 2])
        (slope,) = hf.gradients(hf.betainc(a, b, x), x)
        np.testing.assert_allclose(session.run(slope, {x: [0, 1, 1, 0.5]}), [1, 0, 2, 1.5])


def test_a_depthwise_filter_tells_the_channels() -> None:
    with hf.Graph().as_default(), hf.Session() as session:
        x = hf.placeholder(hf.float32, [None, 3, 4, None])
        y = hf.nn.depthwise_conv2d_native(x, hf.ones([2, 3, 1, 2]), [1, 2, 2, 1], "SAME")
        assert y.shape == [None, 2, 2, 2]
        assert session.run(y, {x: np.ones([1, 3, 4, 1])}).shape == (1, 2, 2, 2)
        with pytest.raises(ShapeError, match="2 channels"):
            session.run(y, {x: np.ones([1, 3, 4, 2])})


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_power_of_a_half_is_that_of_c(dtype: str) -> None:
    """IEEE 754's pow, where a root is NaN or -0; also where the exponent is broadcast."""
    given = np.array([[-np.inf, -0.0, -1.0, 4.0, np.nan]] * 2, dtype)
    root = [np.inf, 0.0, np.nan, 2.0, np.nan]
    with hf.Graph().as_default(), hf.Session() as session:
        x = hf.placeholder(dtype, None)
        powers = [hf.pow(x, 0.5), hf.pow(x, hf.constant([[0.5], [2.0]], dtype))]
        both, columns = session.run(powers, {x: given})
        np.testing.assert_array_equal(both, [root, root])
        np.testing.assert_array_equal(columns, [root, [np.inf, 0, 1, 16, np.nan]])
        assert not np.signbit(both[:, :2]).any()
        assert session.run(powers[0], {x: given[0, 0]}) == np.inf


@pytest.mark.parametrize(
    ("low", "high", "values", "slopes"),
    [
        (0, 1, [0, np.nan, 1, 1], [[0, 0, 0, 1], 2, 1]),
        (10, 1, [10, np.nan, 10, 10], [[0, 0, 0, 0], 4, 0]),
        (np.nan, 1, [np.nan] * 4, [[0, 0, 0, 0], 4, 0]),
        (0, np.nan, [np.nan] * 4, [[0, 0, 0, 0], 4, 0]),
    ],
)
def test_the_lower_bound_of_a_clip_wins(low, high, values, slopes) -> None:  # type: ignore[no-untyped-def]
    """TensorFlow 2.21's values and gradients, also where the bounds cross."""
    with hf.Graph().as_default(), hf.Session() as session:
        x, bounds = hf.placeholder(hf.float32, [4]), [hf.placeholder(hf.float32, []) for _ in "lh"]
        y = hf.clip_by_value(x, *bounds)
        feeds = {x: [-5, np.nan, 20, 1], bounds[0]: low, bounds[1]: high}
        found = session.run([y, *hf.gradients(y, [x, *bounds])], feeds)
    np.testing.assert_array_equal(found[0], np.float32(values))
    for slope, expected in zip(found[1:], slopes, strict=True):
        np.testing.assert_array_equal(slope, np.float32(expected))
