"""Better kernels beside the plain ones where numbers are not finite, and where there are none.

NaN and infinities stand where the plain kernel puts them, in values and in gradients, and the rest
is nearly equal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]
Build = Callable[..., Sequence[Any]]


def computed(kernels: str, build: Build, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    with hf.Graph().as_default() as graph:
        given = [hf.placeholder(a.dtype, a.shape) for a in feeds]
        made = build(*given)
        with hf.Session(graph=graph, context=RankContext(Settings(kernels=kernels))) as session:
            if graph.get_collection("variables"):
                session.run(hf.global_variables_initializer())
            found = session.run(list(made), dict(zip(given, feeds, strict=True)))
    return [np.asarray(x) for x in found if x is not None]


def kinds(x: np.ndarray) -> np.ndarray:
    """0 of each finite number, 1, 2 and 3 of NaN and of infinities."""
    return np.isnan(x) + 2 * np.isposinf(x) + 3 * np.isneginf(x)


def check(build: Build, feeds: Sequence[np.ndarray]) -> None:
    pairs = zip(computed("auto", build, feeds), computed("plain", build, feeds), strict=True)
    for mine, plain in pairs:
        assert mine.shape == plain.shape and mine.dtype == plain.dtype
        if mine.dtype.kind == "f":
            np.testing.assert_array_equal(kinds(mine), kinds(plain))
            fit = np.isfinite(plain)
            scale = max(1.0, float(np.abs(plain[fit]).max(initial=0)))
            np.testing.assert_allclose(mine[fit], plain[fit], rtol=2e-5, atol=2e-5 * scale)
        else:
            np.testing.assert_array_equal(mine, plain)


def with_slopes(f: Callable[..., Any]) -> Build:
    """`f`, and its gradients where the last feed comes back."""

    def build(*given: Any) -> list[Any]:
        *xs, g = given
        y = f(*xs)
        return [
            y,
            *(
                s
                for s in hf.gradients(y, [x for x in xs if x.dtype.kind == "f"], g)
                if s is not None
            ),
        ]

    return build


class Draw:
    """Random sizes, and arrays in which some numbers are not finite."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.spoils = self.rng.random(4) < 0.5  # the first, the second ... array
        self.special = SPECIAL

    def sizes(self, count: int, least: int = 0) -> tuple[int, ...]:
        sizes = [n for n in (0, 1, 2, 3, 5, 8, 17) if n >= least]
        return tuple(int(n) for n in self.rng.choice(sizes, count))

    def array(self, shape: Sequence[int], which: int = 0) -> np.ndarray:
        x = self.rng.normal(size=shape).astype("f4")
        if self.spoils[which] and x.size:
            places = self.rng.integers(0, x.size, 1 + x.size // 20)
            x.reshape(-1)[places] = self.rng.choice(self.special, places.size)
        return x

    def indices(self, shape: Sequence[int], end: int, lowest: int = 0) -> np.ndarray:
        return self.rng.integers(lowest, end, shape).astype(self.pick(["i4", "i8"]))

    def relu(self) -> Callable[[Any], Any]:
        """What ends a product: none, or a relu, which oneDNN makes NaN of -inf in."""
        f = self.pick([hf.identity, hf.nn.relu])
        self.special = [np.nan] if f is hf.nn.relu else SPECIAL
        return f

    def pick(self, of: Sequence[Any]) -> Any:
        return of[self.rng.integers(0, len(of))]


# -- families: each draws a function and what it is given, the gradient that comes back the last

UNARY = [hf.negative, hf.abs, hf.sign, hf.square, hf.sqrt, hf.reciprocal, hf.rsqrt, hf.exp, hf.log,
         hf.tanh, hf.sigmoid, hf.erf, hf.nn.relu, hf.nn.relu6, hf.nn.elu, hf.nn.softplus, hf.log1p,
         hf.sin, hf.cos, lambda x: hf.clip_by_value(x, -0.5, 0.5), lambda x: hf.pow(x, 3.0),
         lambda x: hf.cast(hf.is_nan(x), hf.float32), lambda x: hf.where(x > 0, x, -x),
         lambda x: hf.where(hf.is_finite(x), x, hf.zeros_like(x))]  # fmt: skip
BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, hf.maximum, hf.minimum,
          hf.squared_difference, hf.div_no_nan]  # fmt: skip


def elementwise(draw: Draw) -> tuple[Build, list[np.ndarray]]:
    shape = draw.sizes(2)
    other = tuple(n if draw.rng.random() < 0.7 else 1 for n in shape)
    f, g, two = draw.pick(UNARY), draw.pick(UNARY), draw.pick(BINARY)
    made = with_slopes(lambda x, y: two(f(x), g(y)) * 0.5)
    return made, [draw.array(shape), draw.array(other, 1), draw.array(shape, 2)]


def reductions(draw: Draw) -> tuple[Build, list[np.ndarray]]:
    shape = draw.sizes(3)
    axis = draw.pick([None, 0, -1, (0, 1), (1, 2), 1])
    f = draw.pick([hf.reduce_sum, hf.reduce_mean, hf.reduce_max, hf.reduce_min, hf.reduce_prod])
    if f in (hf.reduce_max, hf.reduce_min):  # of no elements there is none
        shape = tuple(max(n, 1) for n in shape)
    keep, inner = bool(draw.rng.integers(0, 2)), draw.pick(UNARY)
    out = np.zeros(shape).sum(axis, keepdims=keep).shape
    return with_slopes(lambda x: f(inner(x), axis, keepdims=keep)), [
        draw.array(shape), draw.array(out, 1)]  # fmt: skip


def rows(draw: Draw) -> tuple[Build, list[np.ndarray]]:
    shape = draw.sizes(1) + draw.sizes(1, 1)
    f = draw.pick([hf.nn.softmax, hf.nn.log_softmax, normalized])
    return with_slopes(lambda x: f(x * 2.0)), [draw.array(shape), draw.array(shape, 1)]


def normalized(x: Any) -> Any:
    mean, variance = hf.nn.moments(x, [-1], keep_dims=True)
    return (x - mean) * hf.rsqrt(variance + 1e-3)


def losses(draw: Draw) -> tuple[Build, list[np.ndarray]]:
    n, m = draw.sizes(1)[0], draw.sizes(1, 1)[0]
    if draw.rng.random() < 0.5:
        labels = draw.indices((n,), m)
        f = hf.nn.sparse_softmax_cross_entropy_with_logits
    else:
        labels = np.abs(draw.array((n, m), 1))
        f = hf.nn.softmax_cross_entropy_with_logits
    made = with_slopes(lambda x, y: f(labels=y, logits=x))
    return made, [draw.array((n, m)), labels, draw.array((n,), 2)]


def gathered(draw: Draw) -> tuple[Build, list[np.ndarray]]:
    table = draw.sizes(1, 1) + draw.sizes(int(draw.rng.integers(0, 3)))
    at = draw.indices(draw.sizes(int(draw.rng.integers(0, 3))), table[0])
    return with_slopes(hf.gather), [
        draw.array(table), at, draw.array((*at.shape, *table[1:]), 1)]  # fmt: skip


def segments(draw: Draw) -> tuple[Build, list[np.ndarray]]:
    f = draw.pick([hf.unsorted_segment_sum, hf.unsorted_segment_prod, hf.unsorted_segment_max])
    ids = draw.indices(draw.sizes(int(draw.rng.integers(0, 3))), 4, -1)
    row = draw.sizes(int(draw.rng.integers(0, 3)))
    if f is not hf.unsorted_segment_sum:  # of which a gradient divides by, or compares, the result
        return lambda x, i: [f(x, i, 4)], [draw.array((*ids.shape, *row)), ids]
    return with_slopes(lambda x, i: f(x, i, 4)), [
        draw.array((*ids.shape, *row)), ids, draw.array((4, *row), 1)]  # fmt: skip


def changed(draw: Draw) -> tuple[Build, list[np.ndarray]]:
    table = (5, *draw.sizes(int(draw.rng.integers(0, 2))))
    at = draw.indices(draw.sizes(1), 5)
    how = draw.pick([hf.scatter_add, hf.scatter_sub, hf.scatter_mul, hf.scatter_max])
    start = draw.array(table)

    def build(i: Any, updates: Any) -> list[Any]:
        v = hf.Variable(start, name="v")
        with hf.control_dependencies([how(v, i, updates)]):
            return [v.read_value()]

    return build, [at, draw.array((*at.shape, *table[1:]), 1)]


def pooled(draw: Draw) -> tuple[Build, list[np.ndarray]]:
    shape = (*draw.sizes(1), 8, 9, *draw.sizes(1, 1))
    size, step = draw.pick([(2, 2), (3, 2), (3, 3), (2, 1)])
    padding, f = draw.pick(["SAME", "VALID"]), draw.pick([hf.nn.max_pool, hf.nn.avg_pool])
    ends = [(n - size) // step + 1 if padding == "VALID" else -(-n // step) for n in (8, 9)]
    before = draw.pick([hf.identity, hf.nn.relu])
    made = with_slopes(lambda x: f(before(x), [1, size, size, 1], [1, step, step, 1], padding))
    return made, [draw.array(shape), draw.array((shape[0], *ends, shape[3]), 1)]


def convolved(draw: Draw) -> tuple[Build, list[np.ndarray]]:
    channels, filters = draw.pick([1, 3, 16]), draw.pick([1, 8, 16])
    size, padding = draw.pick([1, 2, 3]), draw.pick(["SAME", "VALID"])
    relu, x = draw.relu(), (draw.pick([0, 1, 2]), 7, 6, channels)
    bias = draw.array((filters,), 3)
    ends = [n - size + 1 if padding == "VALID" else n for n in (7, 6)]

    def f(x: Any, w: Any) -> Any:
        return relu(hf.nn.bias_add(hf.nn.conv2d(x, w, 1, padding), hf.constant(bias)))

    return with_slopes(f), [draw.array(x), draw.array((size, size, channels, filters), 1),
                            draw.array((x[0], *ends, filters), 2)]  # fmt: skip


def multiplied(draw: Draw) -> tuple[Build, list[np.ndarray]]:
    n, k, m = draw.pick([0, 1, 5, 64]), draw.pick([0, 1, 7, 64]), draw.pick([1, 9, 64])
    relu = draw.relu()
    bias = draw.array((m,), 3)
    f = lambda x, w: relu(hf.nn.bias_add(hf.matmul(x, w), hf.constant(bias)))  # noqa: E731
    return with_slopes(f), [draw.array((n, k)), draw.array((k, m), 1), draw.array((n, m), 2)]


def contracted(draw: Draw) -> tuple[Build, list[np.ndarray]]:
    told = draw.pick(["bi,bi->b", "bij,bj->bi", "bij,bi->bj", "bij,bjk->bik", "bi,bj->bij"])
    size = dict(zip("bijk", draw.sizes(4), strict=True))
    *terms, out = told.replace("->", ",").split(",")
    shapes = [tuple(size[c] for c in term) for term in (*terms, out)]
    arrays = [draw.array(shape, which) for which, shape in enumerate(shapes)]
    return with_slopes(lambda x, y: hf.einsum(told, x, y)), arrays


FAMILIES = [elementwise, reductions, rows, losses, gathered, segments, changed, pooled, convolved,
            multiplied, contracted]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(8))
def test_numbers_that_are_not_finite_stand_where_plain_kernels_put_them(
    family: Callable[[Draw], tuple[Build, list[np.ndarray]]], seed: int
) -> None:
    with np.errstate(all="ignore"):
        check(*family(Draw(seed)))


def test_segments_of_a_number() -> None:
    with np.errstate(all="ignore"):
        for f, empty in ((hf.unsorted_segment_sum, 0), (hf.unsorted_segment_prod, 1)):
            for number in (2.5, np.nan, np.inf):
                given = [np.array(number, "f4"), np.array(1, "i4")]
                (found,) = computed("auto", lambda x, i, f=f: [f(x, i, 3)], given)
                np.testing.assert_array_equal(found, [empty, number, empty])


def test_the_gradient_of_max_pooling_is_at_the_largest_elements_alone() -> None:
    """As of TensorFlow: what is not finite comes back to one element and spoils no other."""
    x = np.arange(16, dtype="f4").reshape(1, 4, 4, 1)
    g = np.array([np.nan, 1, np.inf, 1], "f4").reshape(1, 2, 2, 1)
    build = with_slopes(lambda x: hf.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"))
    expected = np.zeros((4, 4))
    expected[1::2, 1::2] = g[0, ..., 0]
    for kernels in ("auto", "plain"):
        found = computed(kernels, build, [x, g])[1]
        np.testing.assert_array_equal(found[0, ..., 0], expected)


@pytest.mark.parametrize("step", [2, 3])
def test_the_gradient_of_max_pooling_of_nan(step: int) -> None:
    """No element is equal to a NaN: nothing comes back from its windows, which may overlap."""
    rng, out = np.random.default_rng(0), (9 - 3) // step + 1
    x, g = rng.normal(size=(2, 9, 9, 8)), rng.normal(size=(2, out, out, 8))
    x[0, 4, 4], x[1, 0, 0, 3] = np.nan, np.nan
    made = with_slopes(lambda x: hf.nn.max_pool(x, [1, 3, 3, 1], [1, step, step, 1], "VALID"))
    check(made, [x.astype("f4"), g.astype("f4")])


@pytest.mark.parametrize("spoiled", range(3))
@pytest.mark.parametrize("special", SPECIAL[:2])
def test_padding_of_convolutions_is_zeros_also_for_what_is_not_finite(
    spoiled: int, special: float
) -> None:
    rng = np.random.default_rng(1)
    shapes = [(2, 8, 8, 16), (3, 3, 16, 16), (2, 8, 8, 16)]
    feeds = [rng.normal(size=shape).astype("f4") for shape in shapes]
    feeds[spoiled][0, 0, 0, 0] = special
    made = with_slopes(lambda x, w: hf.nn.conv2d(x, w, 1, "SAME"))
    with np.errstate(all="ignore"):
        check(made, feeds)
