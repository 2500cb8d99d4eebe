"""Sizes that no tensor has are refused where they enter, with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError, KernelError, ShapeError
from tests.ops.sessions import graph, run  # noqa: F401 - graph is a fixture

X = np.arange(12.0, dtype="f4").reshape(3, 4)
IMAGE, KERNEL = np.ones((1, 4, 4, 1), "f4"), np.ones((2, 2, 1, 1), "f4")
FREE: dict[str, Callable[[int], Any]] = {  # -1 is a size that may be deduced or is unknown
    "reshape": lambda n: hf.reshape(X, [n, 3]),
    "slice": lambda n: hf.slice(X, [0, 0], [n, 2]),
    "placeholder": lambda n: hf.placeholder("float32", [n]),
    "sparse_placeholder": lambda n: hf.sparse_placeholder("float32", [n, 3]),
    "ensure_shape": lambda n: hf.ensure_shape(hf.placeholder("float32"), [n]),
}
FIXED: dict[str, Callable[[int], Any]] = {
    "zeros": lambda n: hf.zeros([n, 3]),
    "ones": lambda n: hf.ones([n, 3]),
    "fill": lambda n: hf.fill([n], 7),
    "constant": lambda n: hf.constant(1.0, shape=[n]),
    "broadcast_to": lambda n: hf.broadcast_to(X[0], [n, 4]),
    "random_normal": lambda n: hf.random_normal([n, 3]),
    "random_uniform": lambda n: hf.random_uniform([n, 3]),
    "truncated_normal": lambda n: hf.truncated_normal([n, 3]),
    "random_gamma": lambda n: hf.random_gamma([n], 1.0),
    "random_poisson": lambda n: hf.random_poisson(1.0, [n]),
    "multinomial": lambda n: hf.multinomial(X, n),
    "tile": lambda n: hf.tile(X, [n, 1]),
    "one_hot": lambda n: hf.one_hot([0, 1], n),
    "eye": lambda n: hf.eye(n),
    "columns of eye": lambda n: hf.eye(2, n),
    "batches of eye": lambda n: hf.eye(2, batch_shape=[n]),
    "linspace": lambda n: hf.linspace(0.0, 1.0, n),
    "scatter_nd": lambda n: hf.scatter_nd([[0]], [1.0], [n]),
    "sparse_to_dense": lambda n: hf.sparse_to_dense([0], [n], 1.0),
    "unsorted_segment_sum": lambda n: hf.unsorted_segment_sum(X, [0, 1, 0], n),
    "bincount": lambda n: hf.bincount([1, 2], minlength=n),
    "pad": lambda n: hf.pad(X, [[n, 0], [0, 0]]),
    "top_k": lambda n: hf.nn.top_k(X, n),
    "histogram": lambda n: hf.histogram_fixed_width(X, [0.0, 1.0], n),
    "split": lambda n: hf.split(X, n, 1),
    "unstack": lambda n: hf.unstack(X, n),
    "batch_to_space": lambda n: hf.batch_to_space_nd(IMAGE, [n, 2], [[0, 0], [0, 0]]),
    "space_to_batch": lambda n: hf.space_to_batch_nd(IMAGE, [n, 2], [[0, 0], [0, 0]]),
    "depth_to_space": lambda n: hf.depth_to_space(np.ones((1, 2, 2, 4), "f4"), n),
    "patches": lambda n: hf.extract_image_patches(
        IMAGE, [1, n, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID"
    ),
    "window": lambda n: hf.nn.max_pool(IMAGE, [1, n, 2, 1], [1, 1, 1, 1], "SAME"),
    "stride": lambda n: hf.nn.conv2d(IMAGE, KERNEL, [1, n, 1, 1], "SAME"),
    "conv2d_transpose": lambda n: hf.nn.conv2d_transpose(
        np.ones((1, 2, 2, 1), "f4"), KERNEL, [1, n, 4, 1], [1, 2, 2, 1]
    ),
    "dynamic_partition": lambda n: hf.dynamic_partition(X, [0, 1, 0], n),
    "stateless_uniform": lambda n: hf.random.stateless_uniform([n], [1, 2]),
    "random_crop": lambda n: hf.random_crop(X, [n, 2]),
    "dropout": lambda n: hf.nn.dropout(X, 0.5, noise_shape=[n, 4]),
    "dense": lambda n: hf.layers.dense(X, n),
    "get_variable": lambda n: hf.get_variable("v", [n, 2]),
    "rows made dense": lambda n: hf.IndexedSlices([1.0], [0], [n]).dense(),
    "zero_state": lambda n: hf.nn.rnn_cell.BasicLSTMCell(2).zero_state(n, "float32"),
}


@pytest.mark.parametrize("size", [-5, -1])
@pytest.mark.parametrize("name", [*FIXED, *FREE])
def test_negative_sizes(name: str, size: int) -> None:
    if name in FREE and size == -1:
        FREE[name](size)
        return
    with pytest.raises(HpcflowError) as caught:
        {**FIXED, **FREE}[name](size)
    assert "test_sizes.py" in str(caught.value.line)


ABSURD = ["zeros", "fill", "random_normal", "tile", "one_hot", "eye", "linspace", "scatter_nd"]


@pytest.mark.parametrize("name", [*ABSURD, "bincount", "pad", "placeholder", "get_variable"])
def test_sizes_beyond_any_memory(name: str) -> None:
    with pytest.raises(ShapeError, match="more than any memory") as caught:
        {**FIXED, **FREE}[name](1 << 62)
    assert "test_sizes.py" in str(caught.value.line)


@pytest.mark.parametrize("size", [-5, 1 << 62])
@pytest.mark.parametrize(
    "build", [lambda n: hf.random_normal([n, 3]), lambda n: hf.fill([n], 1.0), hf.zeros]
)
def test_sizes_that_a_step_is_fed(build: Any, size: int) -> None:
    n = hf.placeholder("int64", [1] if build is hf.zeros else [])
    with pytest.raises(HpcflowError) as caught:
        run(hf.reduce_sum(build(n)), {n: [size] if build is hf.zeros else size})
    assert "test_sizes.py" in str(caught.value.line)


def test_ranges() -> None:
    assert run(hf.range(0, 5, 2)).tolist() == [0, 2, 4]
    assert run(hf.range(5, 0, -2)).tolist() == [5, 3, 1]
    assert run(hf.range(1 << 17)).shape == (1 << 17,)
    assert hf.range(0.0, 1.0, 0.25).shape == (4,)
    for wrong in ((0, 5, 0), (0.0, np.inf, 1.0), (0.0, np.nan, 1.0), (0, 1 << 62, 1)):
        with pytest.raises(HpcflowError) as caught:
            hf.range(*wrong)
        assert "test_sizes.py" in str(caught.value.line)


def test_a_large_identity_is_no_constant_of_the_graph() -> None:
    made = hf.eye(300)
    assert made.op.type != "Const" and (run(made) == np.eye(300)).all()


TOLD: dict[str, Callable[[Any], Any]] = {
    "eye": lambda n: hf.eye(n),
    "columns of eye": lambda n: hf.eye(2, n),
    "batches of eye": lambda n: hf.eye(2, batch_shape=[n]),
    "repeat": lambda n: hf.repeat(X, n, axis=0),
    "one of several repeats": lambda n: hf.repeat(X, hf.stack([n, 1, 1]), axis=0),
    "linspace": lambda n: hf.linspace(0.0, 1.0, n),
    "sequence_mask": lambda n: hf.sequence_mask([1, 2], n),
    "range": lambda n: hf.range(n),
    "fill": lambda n: hf.fill([n, 2], 3.0),
    "zeros": lambda n: hf.zeros([n, 2]),
    "ones": lambda n: hf.ones([n]),
    "tile": lambda n: hf.tile(X, [n, 1]),
    "random_uniform": lambda n: hf.random_uniform([n, 2]),
    "random_gamma": lambda n: hf.random_gamma([n], 1.0),
    "random_poisson": lambda n: hf.random_poisson(1.0, [n]),
    "multinomial": lambda n: hf.multinomial([[1.0, 2.0]], n),
    "random_crop": lambda n: hf.random_crop(X, hf.stack([n, 2])),
    "broadcast_to": lambda n: hf.broadcast_to(X[0], [n, 4]),
    "broadcast_to of a known size": lambda n: hf.broadcast_to(X, [n, 4]),
    "pad": lambda n: hf.pad(X, hf.stack([[n, 0], [0, 0]])),
    "slice": lambda n: hf.slice(X, hf.stack([n, 0]), [1, 1]),
    "one_hot": lambda n: hf.one_hot([0, 1], n),
    "unsorted_segment_sum": lambda n: hf.unsorted_segment_sum(X, [0, 1, 0], n),
    "unsorted_segment_max": lambda n: hf.unsorted_segment_max(X, [0, 1, 0], n),
    "top_k": lambda n: hf.nn.top_k(X, n)[0],
    "histogram": lambda n: hf.histogram_fixed_width(X, [0.0, 1.0], n),
    "bincount": lambda n: hf.bincount([1, 2], maxlength=n),
    "scatter_nd": lambda n: hf.scatter_nd([[0]], [1.0], hf.stack([n])),
    "confusion_matrix": lambda n: hf.confusion_matrix([0, 1], [0, 1], n),
}
FREE_TOLD = {  # -1 is what the others leave
    "reshape": lambda n: hf.reshape(X, [n, 3]),
    "reshape of a rank": lambda n: hf.reshape(X, hf.stack([n])),
    "split": lambda n: hf.split(X, hf.stack([n, 1]), 0)[0],
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", [*TOLD, *FREE_TOLD])
def test_negative_sizes_that_a_step_tells(name: str, known: bool) -> None:
    n = hf.placeholder("int32", [] if known else None)
    y = {**TOLD, **FREE_TOLD}[name](n * 2)
    with pytest.raises(HpcflowError) as caught:
        run(y, {n: -2})
    assert "test_sizes.py" in str(caught.value.line)
    assert not isinstance(caught.value, KernelError)


def test_wide_sizes_are_not_cut() -> None:
    """int64 sizes beside int32 values: 2 to the 40 is not 0."""
    n = hf.placeholder("int64", [])
    for build in (lambda n: hf.eye(2, n), lambda n: hf.sequence_mask([1, 2], n)):
        with pytest.raises(HpcflowError, match="memory"):
            run(build(n), {n: 1 << 46})
        assert run(build(n), {n: 2}).shape == (2, 2)


def test_shapes_deduced_are_checked_in_the_step() -> None:
    n, x = hf.placeholder("int32", []), hf.placeholder("float32", [None, 4])
    for build in (lambda x: hf.reshape(x, [n + 0, 3]), lambda x: hf.broadcast_to(x, [n + 0, 4])):
        for given in (hf.constant(X), x * 1.0):
            y = build(given)
            with pytest.raises(ShapeError) as caught:
                run(y, {n: 7, x: X})
            assert "test_sizes.py" in str(caught.value.line)
            assert run(y, {n: 4 if y.op.type == "Reshape" else 3, x: X}).size == 12


def test_ranges_towards_the_other_side() -> None:
    for wrong in ((0, -1, 1), (0, 1, -1), (0.0, -0.5, 0.25)):
        with pytest.raises(ShapeError, match="range: delta") as caught:
            hf.range(*wrong)
        assert "test_sizes.py" in str(caught.value.line)
