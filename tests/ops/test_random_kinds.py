"""Whole numbers, gamma, Poisson, classes, crops, seeds as tensors: what they are, and errors."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import hpcflow as hf
from hpcflow.errors import (
    AssertError,
    DTypeError,
    GradientError,
    NumericError,
    RangeError,
    ShapeError,
)
from hpcflow.graph.graph import Graph
from hpcflow.kernels.kernel_registry import KernelNode, find_plain_kernel
from tests.ops.evaluate import evaluate
from tests.ops.test_random import draws
from tests.ops.test_table import OtherModule

N = 20000
LEAST = 0.001  # seeds are fixed: these p-values are what they are


def counts_fit(found: np.ndarray, probability: np.ndarray) -> bool:
    """Chi-square of whole numbers from 0 against probabilities; rare ones are joined."""
    seen = np.bincount(found.astype(int), minlength=len(probability))[: len(probability)]
    expected = probability * found.size
    common = expected > 5
    got, want = seen[common], expected[common]
    got[-1] += found.size - got.sum()
    want[-1] += found.size - want.sum()
    never = seen[probability == 0].any()
    return not never and (len(got) == 1 or bool(stats.chisquare(got, want).pvalue > LEAST))


@pytest.fixture(autouse=True)
def graph():
    with Graph(seed=11).as_default() as g:
        yield g


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_whole_numbers_are_uniform(dtype: str) -> None:
    low = 0 if dtype[0] == "u" else -3
    found = evaluate(hf.random_uniform([N], low, low + 7, dtype))
    assert found.dtype == dtype
    assert counts_fit(found.astype(int) - low, np.full(7, 1 / 7))


def test_whole_numbers_of_wide_ranges() -> None:
    """Three quarters of 2**64 is where a remainder would be most unfair."""
    span = 3 << 61
    found = evaluate(hf.random_uniform([N], -span // 2, span // 2 - 1, "int64"))
    part = found / float(span) + 0.5
    assert stats.kstest(part, "uniform").pvalue > LEAST
    whole = evaluate(hf.random_uniform([N], 0, 2**64 - 1, "uint64"))
    assert stats.kstest(whole / 2.0**64, "uniform").pvalue > LEAST
    ends = evaluate(hf.random_uniform([N], -(2**31), 2**31, "int32"))
    assert stats.kstest(ends / 2.0**32 + 0.5, "uniform").pvalue > LEAST
    assert set(evaluate(hf.random_uniform([N], 0, 256, "uint8")).tolist()) == set(range(256))


def test_limits_may_be_tensors() -> None:
    high = hf.placeholder("int32", [3])
    x = hf.random_uniform([1000, 3], -1, high, "int32")
    assert x.shape == (1000, 3)
    found = evaluate(x, {high: [0, 1, 5]})
    assert [sorted(set(c.tolist())) for c in found.T] == [[-1], [-1, 0], [-1, 0, 1, 2, 3, 4]]
    mean = hf.placeholder("float64", [])
    y = hf.random_normal([N], mean, [2.0], "float64")
    assert stats.kstest(evaluate(y, {mean: 5.0}), stats.norm(5, 2).cdf).pvalue > LEAST
    (slope,) = hf.gradients(y, [mean])
    assert evaluate(slope, {mean: 5.0}) == N
    z = hf.random_uniform([N], mean, mean + 2, "float64")
    assert stats.kstest(evaluate(z, {mean: 5.0}), stats.uniform(5, 2).cdf).pvalue > LEAST
    with pytest.raises(RangeError, match="is empty"):
        evaluate(x, {high: [0, -1, 5]})
    with pytest.raises(RangeError, match="is empty"):
        hf.random_uniform([3], 5, 5, "int32")
    with pytest.raises(DTypeError, match="not an integer in the range of int8"):
        hf.random_uniform([3], 0, 129, "int8")
    with pytest.raises(DTypeError, match="not an integer in the range of"):
        hf.random_uniform([3], 0, 1.5, "int32")
    for shape in ([4], [1], []):
        with pytest.raises(ShapeError):
            hf.random_uniform(shape, 0, high, "int32")


def test_a_float_never_rounds_to_its_upper_limit() -> None:
    for dtype in ("float16", "float32"):
        x = evaluate(hf.random_uniform([200000], 1, 2, dtype))
        assert x.dtype == dtype and x.min() >= 1 and x.max() < 2


@pytest.mark.parametrize("alpha", [0.2, 0.7, 1.0, 2.5, 900.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gamma(alpha: float, dtype: str) -> None:
    found = evaluate(hf.random_gamma([N], alpha, 4.0, dtype)).astype("f8")
    assert stats.kstest(found, stats.gamma(alpha, scale=0.25).cdf).pvalue > LEAST
    if alpha > 0.5:
        np.testing.assert_allclose(found.mean(), alpha / 4, rtol=5 / np.sqrt(N * alpha))
        np.testing.assert_allclose(found.var(), alpha / 16, rtol=0.1 + 0.1 / alpha)


@pytest.mark.parametrize("rate", [0.0, 0.01, 1.0, 9.99, 10.0, 35.5, 1e4])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_poisson(rate: float, dtype: str) -> None:
    found = evaluate(hf.random_poisson(rate, [N], dtype))
    assert found.dtype == dtype
    top = int(stats.poisson(rate).ppf(1 - 1e-12)) + 2
    assert found.max() < top
    assert counts_fit(found, stats.poisson(rate).pmf(np.arange(top)))
    assert abs(found.mean() - rate) <= 5 * np.sqrt(rate / N)


def test_shapes_stand_before_those_of_the_parameters() -> None:
    alpha = hf.constant([[0.5, 3.0, 20.0]])
    beta = hf.constant([[1.0], [4.0]])
    x = hf.random_gamma([4000], alpha, beta)
    assert x.shape == (4000, 2, 3)
    expected = np.array([[0.5, 3, 20]]) / np.array([[1], [4]])
    np.testing.assert_allclose(evaluate(x).mean(axis=0), expected, rtol=0.1)
    rates = hf.placeholder("float32", [None])
    y = hf.random_poisson(rates, [3000], "float64")
    assert y.shape == (3000, None)
    found = evaluate(y, {rates: [0.0, 2.0, 50.0]})
    np.testing.assert_allclose(found.mean(axis=0), [0, 2, 50], rtol=0.05)
    assert hf.random_gamma([], alpha).shape == (1, 3)
    told = hf.placeholder("int32", [2])
    assert evaluate(hf.random_poisson(1.0, told), {told: [2, 5]}).shape == (2, 5)
    assert hf.random_poisson([1, 2], [3]).shape == (3, 2)


@pytest.mark.parametrize("dtype", [hf.float16, hf.bfloat16])
def test_draws_of_sixteen_bits(dtype: np.dtype) -> None:
    """They are those of float32, rounded."""
    p = hf.constant([[0.5, 0.5]], dtype)
    for t, mean in (
        (hf.random_normal([N], 3.0, 0.5, dtype), 3.0),
        (hf.truncated_normal([N], 3.0, 0.5, dtype), 3.0),
        (hf.random_uniform([N], 1, 2, dtype), 1.5),
        (hf.random_gamma([N], 3.0, 2.0, dtype), 1.5),
        (hf.random_poisson(hf.constant(2.0, dtype), [N], dtype), 2.0),
        (hf.nn.dropout(hf.ones([N], dtype), 0.75), 1.0),
        (hf.multinomial(p, N), 0.5),
        (hf.random.stateless_normal([N], [1, 2], 3.0, 0.5, dtype), 3.0),
    ):
        found = evaluate(t)
        assert found.dtype == (np.int64 if mean == 0.5 else dtype)
        np.testing.assert_allclose(found.astype("f8").mean(), mean, rtol=0.03)


def test_parameters_that_make_no_sense() -> None:
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(NumericError, match="RandomGamma: parameter"):
            evaluate(hf.random_gamma([3], hf.constant([1.0, bad])))
    for bad in (-0.5, np.nan, np.inf):
        with pytest.raises(NumericError, match="RandomPoisson: parameter"):
            evaluate(hf.random_poisson(hf.constant(bad), [3]))
    alpha = hf.constant(2.0)
    with pytest.raises(GradientError, match="RandomGamma"):
        hf.gradients(hf.random_gamma([3], alpha), [alpha])
    (slope,) = hf.gradients(hf.random_gamma([3], 2.0, alpha), [alpha])
    assert evaluate(slope) < 0


def test_classes() -> None:
    p = np.array([[0.1, 0.0, 0.6, 0.3], [0.25, 0.25, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        logits = (np.log(p) + np.array([[50.0], [-900.0]])).astype("f4")
    for draw in (hf.multinomial, hf.random.categorical):
        found = evaluate(draw(logits, N))
        assert found.shape == (2, N) and found.dtype == np.int64
        for row, probability in zip(found, p, strict=True):
            assert counts_fit(row, probability)
    assert hf.multinomial(logits, 3, output_dtype="int32").dtype == np.int32
    x = hf.placeholder("float32", [None, 4])
    count = hf.placeholder("int32", [])
    y = hf.multinomial(x, count)
    assert y.shape == (None, None)
    assert evaluate(y, {x: logits, count: 5}).shape == (2, 5)
    for bad in ([1, np.nan], [-np.inf, -np.inf], [0, np.inf]):
        with pytest.raises(NumericError, match="row 1"), np.errstate(all="ignore"):
            evaluate(hf.multinomial(np.array([[0, 0], bad], "f4"), 2))
    with pytest.raises(ShapeError, match="no classes"):
        hf.multinomial(np.zeros((2, 0), "f4"), 2)
    with pytest.raises(ShapeError):
        hf.multinomial(np.zeros(2, "f4"), 2)


def test_crops() -> None:
    image = np.arange(6 * 5 * 2.0).reshape(6, 5, 2)
    places = set()
    for seed in range(150):
        part = evaluate(hf.random_crop(image, [4, 5, 2], seed=seed))
        top = int(part[0, 0, 0]) // 10
        assert (part == image[top : top + 4]).all()
        places.add(top)
    assert places == {0, 1, 2}
    x = hf.placeholder("float64", [None, 5, 2])
    size = hf.placeholder("int32", [3])
    assert evaluate(hf.random_crop(x, size), {x: image, size: [2, 2, 1]}).shape == (2, 2, 1)
    assert hf.random_crop(x, [3, 3, 2]).shape == (3, 3, 2)
    with pytest.raises(ShapeError, match="random_crop"):
        hf.random_crop(image, [7, 5, 2])
    with pytest.raises(ShapeError, match="random_crop"):
        hf.random_crop(image, [5, 2])
    with pytest.raises(AssertError, match="random_crop"):
        evaluate(hf.random_crop(x, size), {x: image, size: [7, 2, 1]})


def test_a_seed_alone_decides() -> None:
    seed = hf.placeholder("int64", [2])
    r = hf.random
    kinds = [
        r.stateless_uniform([40], seed),
        r.stateless_uniform([40], seed, 0, 10**6, "int32"),
        r.stateless_normal([40], seed, 1.0, 2.0, "float64"),
        r.stateless_truncated_normal([40], seed),
        r.stateless_gamma([40], seed, 0.5),
        r.stateless_poisson([40], seed, 20.0),
        r.stateless_categorical(np.zeros((1, 99), "f4"), 40, seed),
        r.stateless_shuffle(np.arange(40), seed),
    ]
    first, again = (evaluate(kinds, {seed: [3, -4]}) for _ in range(2))
    others = [evaluate(kinds, {seed: s}) for s in ([-4, 3], [3, 4], [2, -4])]
    for i, value in enumerate(first):
        assert (value == again[i]).all()
        assert all((value != other[i]).any() for other in others)
    with Graph(seed=99).as_default():
        same = evaluate(hf.random.stateless_uniform([40], [3, -4], name="another"))
    assert (same == first[0]).all()
    with pytest.raises(ShapeError, match="two integers"):
        r.stateless_uniform([2], [1, 2, 3])
    with pytest.raises(DTypeError, match="seed"):
        r.stateless_uniform([2], [1.0, 2.0])


def test_large_draws_are_made_in_pieces_that_join() -> None:
    """The same numbers whether an element is drawn among many or by its place alone."""
    for make in (
        lambda n, **k: hf.random.stateless_uniform(n, [1, 2], **k),
        lambda n, **k: hf.random.stateless_normal(n, [1, 2], dtype="float64", **k),
        lambda n, **k: hf.random.stateless_truncated_normal(n, [1, 2], **k),
        lambda n, **k: hf.random.stateless_uniform(n, [1, 2], 0, 3 << 61, "int64", **k),
        lambda n, **k: hf.random.stateless_gamma(n, [1, 2], 0.3, **k),
        lambda n, **k: hf.random.stateless_poisson(n, [1, 2], 12.0, **k),
    ):
        whole = evaluate(make([50001]))
        at = 49990
        part = evaluate(make([11], batch=True), {hf.replica_offset(): at})
        assert (part == whole[at:]).all()


@settings(max_examples=25)
@given(
    cuts=st.lists(st.integers(0, 40), max_size=4).map(sorted),
    row=st.lists(st.integers(0, 5), max_size=2),
    seed=st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2),
)
def test_shares_of_any_sizes_join(cuts: list[int], row: list[int], seed: tuple[int, int]) -> None:
    r, at = hf.random, np.array(seed)
    with Graph().as_default():
        n = hf.placeholder("int32", [])
        shape = hf.stack([n, *row]) if row else hf.expand_dims(n, 0)
        made = [
            r.stateless_uniform(shape, at),
            r.stateless_uniform(shape, at, 0, 3 << 61, "int64"),
            r.stateless_normal(shape, at),
            r.stateless_truncated_normal(shape, at, dtype="float64"),
            r.stateless_gamma(shape, at, 0.5),
            r.stateless_poisson(shape, at, 15.0),
        ]
        whole = evaluate(made, {n: 40})
        ends = [0, *cuts, 40]
        parts = [
            evaluate(made, {n: stop - start, hf.replica_offset(): start})
            for start, stop in itertools.pairwise(ends)
        ]
    for value, *shares in zip(whole, *parts, strict=True):
        assert np.concatenate(shares).tobytes() == value.tobytes()


def test_what_is_computed_on_the_way_is_small() -> None:
    n = 1 << 19
    for t in (
        hf.random_normal([n]),
        hf.truncated_normal([n], dtype="float64"),
        hf.random_uniform([n], 0, 10, "int32"),
        hf.random_gamma([n], 2.0),
        hf.random_poisson(hf.constant(np.full(2, 20.0)), [n // 2]),
    ):
        kernel = find_plain_kernel(t.op.type, "cpu").make(
            np, KernelNode(t.op.type, t.op.attrs, [x.spec for x in t.op.inputs], [t.spec])
        )
        out = np.empty(t.shape, t.dtype)
        tracemalloc.start()
        kernel(*(x.constant for x in t.op.inputs), out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 << 20, t.op.type


def test_what_another_array_module_draws() -> None:
    for t in (
        hf.random_uniform([3, 5], -1, 1),
        hf.random_uniform([7], dtype="float64"),
        hf.random_uniform([7], dtype="float16"),
        hf.random_uniform([3, 5], 0, 3 << 61, "int64"),
        hf.random_normal([3, 5], 1.0, 2.0),
        hf.truncated_normal([9], dtype="float64"),
        hf.random_gamma([9], np.array([0.2, 5.0])).op.inputs[0],
        hf.random_gamma([50], np.array([0.2, 5.0])),
        hf.random_poisson(np.array([3.0, 30.0]), [50]),
    ):
        if t.op.type == "Const":
            continue
        mine, theirs = draws(t, 2), draws(t, 2, OtherModule())
        assert all(a.tobytes() == b.tobytes() for a, b in zip(mine, theirs, strict=True))


def test_empty_draws() -> None:
    for t in (
        hf.random_uniform([0, 3]),
        hf.random_uniform([3, 0], 0, 4, "int32"),
        hf.truncated_normal([0]),
        hf.random_gamma([0], 1.0),
        hf.random_gamma([4], np.zeros(0, "f4")),
        hf.random_poisson(3.0, [0, 2]),
        hf.multinomial(np.zeros((0, 3), "f4"), 5),
        hf.multinomial(np.zeros((2, 3), "f4"), 0),
    ):
        value = evaluate(t)
        assert value.shape == t.shape and not value.size


def test_the_batch_of_a_scalar() -> None:
    with pytest.raises(ShapeError, match="batch=True"):
        hf.random_uniform([], batch=True)
