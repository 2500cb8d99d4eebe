"""Axes and counts that only the step tells, beside NumPy: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import HpcflowError, RangeError, ShapeError
from tests.ops.sessions import graph, run  # noqa: F401 - graph is a fixture

X = (np.arange(24, dtype="f8") * 7 % 11 / 4 + 0.5).reshape(2, 3, 4)
W = np.arange(12, dtype="f8").reshape(4, 3) / 8


def logsumexp(x: Any, a: Any) -> Any:
    return np.log(np.exp(x).sum(a))


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (hf.reduce_sum, lambda x, a: x.sum(a)),
    "mean kept": (lambda x, a: hf.reduce_mean(x, a, True), lambda x, a: x.mean(a, keepdims=True)),
    "prod": (hf.reduce_prod, lambda x, a: x.prod(a)),
    "max": (hf.reduce_max, lambda x, a: x.max(a)),
    "logsumexp": (hf.reduce_logsumexp, logsumexp),
    "variance": (lambda x, a: hf.nn.moments(x, a)[1], lambda x, a: x.var(a)),
    "norm": (
        lambda x, a: hf.nn.l2_normalize(x, a),
        lambda x, a: x / np.sqrt((x * x).sum(a, keepdims=True)),
    ),
    "argmax": (hf.argmax, lambda x, a: x.argmax(a)),
    "argmin": (hf.argmin, lambda x, a: x.argmin(a)),
    "concat": (lambda x, a: hf.concat([x, 2 * x], a), lambda x, a: np.concatenate([x, 2 * x], a)),
    "cumsum": (hf.cumsum, lambda x, a: x.cumsum(a)),
    "cumprod": (hf.cumprod, lambda x, a: x.cumprod(a)),
    "expand_dims": (hf.expand_dims, lambda x, a: np.expand_dims(x, a)),
    "gather": (
        lambda x, a: hf.gather(x, [[1, 0], [1, 1]], axis=a),
        lambda x, a: x.take([[1, 0], [1, 1]], a),
    ),
    "split": (lambda x, a: hf.split(x, [1, -1], a)[1], lambda x, a: np.split(x, [1], a)[1]),
    "roll": (lambda x, a: hf.roll(x, 1, a), lambda x, a: np.roll(x, 1, a)),
    "mask": (
        lambda x, a: hf.boolean_mask(x, [True, False, True], axis=a),
        lambda x, a: x.compress([True, False, True], a),
    ),
    "reverse": (hf.reverse, lambda x, a: np.flip(x, a)),
    "transpose": (hf.transpose, np.transpose),
    "tensordot": (lambda x, a: hf.tensordot(x, W, a), lambda x, a: np.tensordot(x, W, a)),
    "top_k": (lambda x, k: hf.nn.top_k(x, k)[0], lambda x, k: -np.sort(-x, -1)[..., :k]),
    "tile": (hf.tile, np.tile),
    "pad": (lambda x, p: hf.pad(x, p, "REFLECT"), lambda x, p: np.pad(x, p, "reflect")),
    "symmetric": (lambda x, p: hf.pad(x, p, "SYMMETRIC"), lambda x, p: np.pad(x, p, "symmetric")),
    "band": (lambda x, n: hf.matrix_band_part(x, n, -1), lambda x, n: np.triu(x, -n)),
    "repeat": (lambda x, n: hf.repeat(x, n, axis=1), lambda x, n: x.repeat(n, 1)),
}
TOLD = [
    *(
        (name, axis)
        for name in ("sum", "mean kept", "prod", "max", "logsumexp")
        for axis in (1, -1)
    ),
    *((name, (0, -1)) for name in ("sum", "mean kept", "prod", "max", "logsumexp", "variance")),
    *(
        (name, axis)
        for name in ("argmax", "argmin", "concat", "cumsum", "cumprod")
        for axis in (1, -1)
    ),
    *((name, axis) for name in ("gather", "split", "roll", "norm") for axis in (0, -1)),
    *(("expand_dims", axis) for axis in (0, 3, -1)),
    ("sum", ()),
    ("mask", 1),
    ("reverse", (0, -1)),
    ("transpose", (2, 0, 1)),
    ("tensordot", ((2,), (0,))),
    ("tensordot", ((1, 2), (1, 0))),
    ("top_k", 0),
    ("top_k", 3),
    ("tile", (1, 2, 3)),
    ("pad", ((1, 0), (0, 2), (3, 1))),
    ("symmetric", ((2, 0), (0, 3), (1, 1))),
    ("band", 0),
    ("repeat", 2),
    ("repeat", (2, 0, 1)),
]


@pytest.mark.parametrize("rank", ["known", "of x", "of nothing"])
@pytest.mark.parametrize("name, axis", TOLD, ids=str)
def test_values_and_gradients(name: str, axis: Any, rank: str) -> None:
    ours, theirs = FUNCTIONS[name]
    told = np.array(axis, "i4")
    x = hf.placeholder("float64", X.shape if rank == "known" else [None] * 3)
    if rank == "of nothing" and name not in ("pad", "symmetric"):  # need one of the ranks
        x = hf.placeholder("float64")
    a = hf.placeholder("int32", None if rank == "of nothing" else told.shape)
    y = ours(x, a)
    expected = theirs(X, axis)
    np.testing.assert_allclose(run(y, {x: X, a: told}), expected, 1e-12)
    if y.dtype != np.dtype("f8"):
        return
    weights = np.cos(np.arange(expected.size)).reshape(expected.shape)
    (g,) = hf.gradients(y, x, grad_ys=hf.constant(weights))
    step = 1e-6 * np.sin(np.arange(24.0) + 1).reshape(X.shape)
    slope = ((theirs(X + step, axis) - theirs(X - step, axis)) * weights).sum() / 2
    assert (run(g, {x: X, a: told}) * step).sum() == pytest.approx(slope, rel=1e-5, abs=1e-13)


@pytest.mark.parametrize(
    "name, axis",
    [("sum", 3), ("sum", (1, 1)), ("argmax", -4), ("concat", 3), ("cumsum", 5), ("expand_dims", 4),
     ("gather", 3), ("split", -4), ("reverse", (1, -2)), ("transpose", (0, 0, 1)), ("roll", 3),
     ("tensordot", ((1,), (0,))), ("tensordot", ((2,), (2,))), ("top_k", 5), ("top_k", -1),
     ("pad", ((2, 0), (0, 0), (0, 0))), ("pad", ((-1, 0), (0, 0), (0, 0))), ("repeat", -1)],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_names_the_line(name: str, axis: Any) -> None:
    told = np.array(axis, "i4")
    x, a = hf.placeholder("float64", [None] * 3), hf.placeholder("int32", told.shape)
    y = FUNCTIONS[name][0](x, a)
    with pytest.raises((ShapeError, RangeError)) as caught:
        run(y, {x: X, a: told})
    assert "test_axes_told.py" in str(caught.value.line)


def test_values_joined_must_agree_beside_the_axis() -> None:
    a = hf.placeholder("int32", [])
    y = hf.concat([hf.constant(X), hf.constant(X.transpose(0, 2, 1))], a)  # as many elements
    with pytest.raises(ShapeError, match="differ along an axis other than 0"):
        run(y, {a: 0})


def test_an_axis_of_floats() -> None:
    for build in (hf.reduce_sum, hf.argmax, hf.cumsum, hf.reverse, hf.expand_dims):
        with pytest.raises(HpcflowError, match="axis must be an integer") as caught:
            build(X, hf.placeholder("float32", []))  # type: ignore[operator]
        assert "test_axes_told.py" in str(caught.value.line)


def test_a_variable_tells_an_axis() -> None:
    axis = hf.Variable(1)
    with hf.Session() as session:
        session.run(axis.initializer)
        np.testing.assert_allclose(session.run(hf.reduce_sum(X, axis)), X.sum(1))
        session.run(axis.assign(2))
        np.testing.assert_allclose(session.run(hf.reduce_sum(X, axis)), X.sum(2))


def test_ranks_that_stay() -> None:
    x, a = hf.placeholder("float32", [2, None, 4]), hf.placeholder("int32", [])
    assert hf.reduce_sum(x, a).shape == (None, None)
    assert hf.reduce_sum(x, a, True).shape == (None,) * 3
    assert hf.argmax(x, a).shape == (None, None)
    assert hf.cumsum(x, a).shape == (2, None, 4)
    assert hf.expand_dims(x, a).shape == (None,) * 4


def test_lengths_of_bincount_and_histograms() -> None:
    n = hf.placeholder("int32", [])
    least, most = (hf.bincount([1, 2, 2], **{f"{w}length": n}) for w in ("min", "max"))
    assert run([least, most], {n: 2})[0].tolist() == [0, 1, 2]
    assert run(most, {n: 2}).tolist() == [0, 1]
    assert run(least, {n: 5}).tolist() == [0, 1, 2, 0, 0]
    values = hf.histogram_fixed_width([0.1, 0.6, 0.7], [0.0, 1.0], n)
    assert run(values, {n: 4}).tolist() == np.histogram([0.1, 0.6, 0.7], 4, (0, 1))[0].tolist()


def test_padding_with_a_value_that_the_step_tells() -> None:
    value = hf.placeholder("float64", [])
    y = hf.pad(X, [[1, 0], [0, 0], [0, 2]], constant_values=value)
    expected = np.pad(X, [[1, 0], [0, 0], [0, 2]], constant_values=np.inf)
    assert (run(y, {value: np.inf}) == expected).all()


def test_paddings_tell_the_rank_of_what_they_mirror() -> None:
    x, pairs = hf.placeholder("float64"), hf.placeholder("int32", [3, 2])
    y = hf.pad(x, pairs, "REFLECT")
    assert y.shape == [None] * 3
    with pytest.raises(ShapeError, match="EnsureShape"):
        run(y, {x: np.zeros([2, 2, 2, 2]), pairs: np.zeros([3, 2], "i4")})
    with pytest.raises(ShapeError, match="mode 'WRAP' is not known"):
        hf.pad(x, pairs, "wrap")
