"""Arguments by the names that TensorFlow 1 has for them, older spellings too: NumPy's results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf

X = np.arange(6, dtype=np.float32).reshape(2, 3)
IMAGE = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
ONES = np.ones((2, 2, 1, 1), np.float32)
SUMS = np.array([[10, 14, 18], [26, 30, 34], [42, 46, 50]], np.float32).reshape(1, 3, 3, 1)
SOFTMAX = np.exp(X - 5) / np.exp(X - 5).sum(0)
CONV = {"strides": [1, 1, 1, 1], "padding": "VALID"}
WINDOW = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with hf.Graph().as_default():
        yield


CALLS: dict[str, tuple[Callable[[], Any], Any]] = {
    "reduce_sum": (lambda: hf.reduce_sum(X, reduction_indices=[1], keep_dims=True), [[3], [12]]),
    "reduce_mean": (lambda: hf.reduce_mean(X, reduction_indices=0), [1.5, 2.5, 3.5]),
    "reduce_prod": (lambda: hf.reduce_prod(X, 1, keep_dims=True), [[0], [60]]),
    "reduce_max": (lambda: hf.reduce_max(X, reduction_indices=1), [2, 5]),
    "reduce_min": (lambda: hf.math.reduce_min(X, keep_dims=True), [[0]]),
    "reduce_any": (lambda: hf.reduce_any(X > 3, reduction_indices=1), [False, True]),
    "reduce_all": (lambda: hf.reduce_all(X > 2, reduction_indices=1), [False, True]),
    "reduce_logsumexp": (
        lambda: hf.reduce_logsumexp(X, keep_dims=True),
        [[np.log(np.exp(X).sum())]],
    ),
    "not given": (lambda: hf.reduce_sum(X, 0, keep_dims=None, reduction_indices=None), [3, 5, 7]),
    "count_nonzero": (lambda: hf.count_nonzero(input=X, reduction_indices=1), [2, 3]),
    "norm": (lambda: hf.norm(X, axis=1, keep_dims=True), np.linalg.norm(X, axis=1)[:, None]),
    "reduce_join": (lambda: hf.reduce_join([["a", "b"]], reduction_indices=1), [b"ab"]),
    "sparse_reduce_sum": (
        lambda: hf.sparse_reduce_sum(
            hf.SparseTensor([[0, 1], [1, 0]], [2.0, 3.0], [2, 2]), reduction_axes=1, keep_dims=True
        ),
        [[2], [3]],
    ),
    "argmax": (lambda: hf.argmax(X, dimension=1), [2, 2]),
    "argmin": (lambda: hf.argmin(X, dimension=0), [0, 0, 0]),
    "expand_dims": (lambda: hf.expand_dims(X, dim=0), X[None]),
    "squeeze": (lambda: hf.squeeze(X[None], squeeze_dims=[0]), X),
    "l2_normalize": (lambda: hf.nn.l2_normalize(X, dim=0), X / np.sqrt((X * X).sum(0))),
    "softmax": (lambda: hf.nn.softmax(X, dim=0), SOFTMAX),
    "log_softmax": (lambda: hf.nn.log_softmax(X, dim=0), np.log(SOFTMAX)),
    "cross entropy of columns": (
        lambda: hf.nn.softmax_cross_entropy_with_logits(labels=X, logits=X, dim=0),
        -(X * np.log(SOFTMAX)).sum(0),
    ),
    "cross entropy v2": (
        lambda: hf.nn.softmax_cross_entropy_with_logits_v2(labels=X, logits=X, dim=0),
        -(X * np.log(SOFTMAX)).sum(0),
    ),
    "weighted cross entropy": (
        lambda: hf.nn.weighted_cross_entropy_with_logits(
            targets=np.float32([1, 0]), logits=np.float32([0, 0]), pos_weight=3.0
        ),
        np.log(2) * np.array([3, 1]),
    ),
    "cosine_distance": (lambda: hf.losses.cosine_distance([[1.0, 0.0]], [[0.6, 0.8]], dim=1), 0.4),
    "cond": (lambda: hf.cond(hf.constant(True), fn1=lambda: 1.0, fn2=lambda: 2.0), 1),
    "reverse_sequence": (
        lambda: hf.reverse_sequence(X, [2, 3], seq_dim=1, batch_dim=0),
        [[1, 0, 2], [5, 4, 3]],
    ),
    "atan2": (lambda: hf.atan2(y=1.0, x=0.0), np.pi / 2),
    "igamma": (lambda: hf.igamma(a=1.0, x=2.0), 1 - np.exp(-2)),
    "igammac": (lambda: hf.igammac(a=1.0, x=2.0), np.exp(-2)),
    "zeta": (lambda: hf.zeta(x=2.0, q=1.0), np.pi**2 / 6),
    "polygamma": (lambda: hf.polygamma(a=1.0, x=1.0), np.pi**2 / 6),
    "relu": (lambda: hf.nn.relu(features=X - 3), [[0, 0, 0], [0, 1, 2]]),
    "softplus": (lambda: hf.nn.softplus(features=0.0), np.log(2)),
    "conv2d": (lambda: hf.nn.conv2d(IMAGE, filters=ONES, use_cudnn_on_gpu=False, **CONV), SUMS),
    "conv1d": (
        lambda: hf.nn.conv1d(
            input=X[..., None], filters=np.ones((2, 1, 1), np.float32), stride=1, padding="VALID"
        ),
        [[[1], [3]], [[7], [9]]],
    ),
    "convolution": (
        lambda: hf.nn.convolution(IMAGE, filters=ONES, padding="VALID", dilations=[2, 2]),
        np.array([[20, 24], [36, 40]]).reshape(1, 2, 2, 1),
    ),
    "depthwise_conv2d": (
        lambda: hf.nn.depthwise_conv2d(IMAGE, ONES, **CONV, dilations=[1, 1]),
        SUMS,
    ),
    "max_pool": (lambda: hf.nn.max_pool(input=IMAGE, **WINDOW), [[[[5], [7]], [[13], [15]]]]),
    "avg_pool": (
        lambda: hf.nn.avg_pool(input=IMAGE, **WINDOW),
        [[[[2.5], [4.5]], [[10.5], [12.5]]]],
    ),
    "moments": (lambda: hf.nn.moments(X, [1], shift=None, keepdims=True)[0], [[1], [4]]),
    "batch_norm": (
        lambda: hf.nn.batch_norm_with_global_normalization(
            input=IMAGE,
            mean=[1.0],
            variance=[4.0],
            beta=[1.0],
            gamma=[1.0],
            variance_epsilon=0.0,
            scale_after_normalization=False,
        ),
        (IMAGE - 1) / 2 + 1,
    ),
    "space_to_batch": (
        lambda: hf.space_to_batch(X[None, :, :2, None], [[0, 0], [0, 0]], block_shape=2),
        [[[[0]]], [[[1]]], [[[3]]], [[[4]]]],
    ),
    "extract_image_patches": (
        lambda: hf.extract_image_patches(
            IMAGE, sizes=[1, 2, 2, 1], strides=[1, 2, 2, 1], rates=[1, 1, 1, 1], padding="VALID"
        )[0, 0, 0],
        [0, 1, 4, 5],
    ),
    "string_to_number": (lambda: hf.string_to_number(input=["1.5"]), [1.5]),
    "string_split": (lambda: hf.string_split(["a,b"], sep=",").values, [b"a", b"b"]),
    "decode_raw": (lambda: hf.decode_raw(input_bytes=[b"\1\2"], out_type=hf.uint8), [[1, 2]]),
    "zeros_like": (lambda: hf.zeros_like(X, optimize=False), X * 0),
    "embedding_lookup": (lambda: hf.nn.embedding_lookup(X, [1], validate_indices=True), X[1:]),
    "verify_tensor_all_finite": (lambda: hf.verify_tensor_all_finite(x=X, message="x"), X),
    "sparse_concat": (
        lambda: (
            hf.sparse_concat(
                concat_dim=0, sp_inputs=[hf.SparseTensor([[0]], [2.0], [1])] * 2
            ).values
        ),
        [2, 2],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_by_tensorflow_s_names(name: str) -> None:
    call, expected = CALLS[name]
    found = hf.Session().run(call())
    if found.dtype == object:
        assert found.tolist() == expected
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_scopes_by_their_arguments_names() -> None:
    with hf.device(device_name_or_function="/cpu:0"):
        first = hf.no_op()
    with hf.control_dependencies(control_inputs=[first]):
        second = hf.no_op()
        with hf.control_dependencies(control_inputs=None):
            third = hf.no_op()
    assert (first.device, second.control_inputs, third.control_inputs) == ("/cpu:0", (first,), ())


def test_scatters_and_optimizers_take_use_locking() -> None:
    v = hf.Variable([1.0, 2.0])
    session = hf.Session()
    session.run(v.initializer)
    session.run(hf.scatter_add(v, [1], [5.0], use_locking=True))
    session.run(hf.train.GradientDescentOptimizer(0.5, use_locking=True).minimize(hf.reduce_sum(v)))
    assert session.run(v).tolist() == [0.5, 6.5]


def test_variables_take_what_resource_variables_are() -> None:
    with hf.variable_scope("s", use_resource=True):
        made = hf.get_variable("v", [2], use_resource=True, validate_shape=True)
    with hf.variable_scope("s", reuse=True, use_resource=False):
        assert hf.get_variable("v", [2], caching_device=None) is made


@pytest.mark.parametrize(
    "call",
    [
        lambda: hf.reduce_sum(X, axis=0, reduction_indices=1),
        lambda: hf.reduce_sum(X, 0, reduction_indices=1),
        lambda: hf.expand_dims(X),
        lambda: hf.expand_dims(X, dim=0, axes=1),
    ],
)
def test_an_argument_given_twice_or_unknown_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        call()


@pytest.mark.parametrize("name", ["exp", "subtract", "reduce_sum", "nn.relu", "segment_sum", "fft"])
def test_errors_and_help_name_the_public_function(name: str) -> None:
    function: Any = hf
    for part in name.split("."):
        function = getattr(function, part)
    own = name.rpartition(".")[2]
    assert function.__name__ == function.__qualname__ == own
    with pytest.raises(TypeError, match=rf"\b{own}\(\) missing"):
        function()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: hf.exp("a"), "Exp takes .*, not string\n(.*\n)*.*hf.string_to_number"),
        (lambda: hf.exp({1: 2}), "neither a string nor a number"),
        (lambda: hf.add(hf.constant("a"), hf.constant(1.0)), "is string and .* is float32"),
        (lambda: hf.add("a", 1), "1 is not a string"),
    ],
)
def test_values_of_a_wrong_type(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(hf.errors.DTypeError) as info:
        call()
    assert re.search(says, str(info.value))
