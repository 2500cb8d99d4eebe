"""Products of rearranged batches of matrices, read and written where they lie."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.kernels import onednn_matmul
from hpcflow.lowering.fusion.strided_matmul_fusion import fuse_strided_products
from hpcflow.lowering.strided_layout import c_order_layout
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

from .model import graph, plan_of, types

RNG = np.random.default_rng(6)
COPIES = {"Transpose", "Split", "Unpack", "StridedSlice", "Concat", "Pack"}


@pytest.fixture
def small_ones(monkeypatch):
    """Products of any size are the library's, if it is there."""
    monkeypatch.setattr(onednn_matmul, "WORK", 1)
    monkeypatch.setattr(onednn_matmul, "COLUMNS", 1)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def rewritten(g, fetches, feeds, serves=lambda node, specs: True):
    """The types of the nodes that are left, each behind what it needs."""
    (part,) = plan_of(g, fetches, {t: a.shape for t, a in feeds.items()}).parts.values()
    made, seen = fuse_strided_products(part, serves), set()
    for node in made.nodes.values():
        assert seen.issuperset(node.before())
        seen.add(node.name)
    assert seen.issuperset(ref.node for ref in made.fetches)
    return types(made)


def run(g, fetches, feeds, **wishes):
    with hf.Session(graph=g, context=RankContext(Settings(**wishes))) as session:
        return session.run(fetches, feeds)


# -- where elements lie


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_lay_is_where_numpy_sees_the_elements(data):
    """Numbers of elements, rearranged by NumPy, are the places that the lay tells."""
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    whole = seen = np.arange(math.prod(shape)).reshape(shape)
    lay = c_order_layout(shape)
    for _ in range(data.draw(st.integers(0, 4))):
        kind = data.draw(st.sampled_from(["turned", "part", "at", "reshaped", "picked"]))
        axis = data.draw(st.integers(0, seen.ndim - 1)) if seen.ndim else 0
        if kind == "turned":
            perm = data.draw(st.permutations(range(seen.ndim)))
            lay, seen = lay.transposed(perm), seen.transpose(perm)
        elif kind == "reshaped":
            target = data.draw(st.sampled_from(shapes(seen.size)))
            made = lay.reshaped(target)
            if made is None:
                assert not np.shares_memory(seen.reshape(target), whole)
            else:
                lay, seen = made, seen.reshape(target)
        elif seen.ndim:
            first = data.draw(st.integers(0, seen.shape[axis] - 1))
            count = data.draw(st.integers(1, seen.shape[axis] - first))
            front = (slice(None),) * axis
            if kind == "part":
                lay = lay.part(axis, first, count)
                seen = seen[(*front, slice(first, first + count))]
            elif kind == "at":
                lay, seen = lay.at(axis, first), seen[(*front, first)]
            elif axis:
                key = (("slice", first, first + 1, None), ("rest",), ("at", -1))
                made = lay.strided_slice(key) if first < seen.shape[0] else None
                if made is not None:
                    lay, seen = made, seen[first : first + 1, ..., -1]
        assert lay.sizes == seen.shape
        steps = [8 * step for step in lay.strides]
        there = np.lib.stride_tricks.as_strided(whole.reshape(-1)[lay.start :], lay.sizes, steps)
        assert np.array_equal(there, seen)
        assert not lay.is_packed() or seen.flags.c_contiguous


def shapes(size):
    """Shapes of so many elements."""
    pairs = [(n, size // n) for n in range(1, size + 1) if size % n == 0]
    return [(size,), *pairs, *((a, 1, b) for a, b in pairs)]


# -- random programs


class Program:
    """Products of random parts of arrays in random order, joined in random order, and NumPy's."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.feeds, self.fetches, self.expected = {}, [], []
        with graph() as self.graph:
            made = [self.product(*self.rng.choice([2, 3, 4], 4))]
            made += [self.product(*made[0][2]) for _ in range(self.rng.integers(0, 3))]
            self.end([(tensor, value) for tensor, value, _ in made])

    def product(self, b, n, k, m):
        """A product of [b, 2, n, k] and [b, 2, k, m], its value, and the sizes."""
        turn_a, turn_b = self.rng.integers(0, 2, 2)
        x, a = self.rearranged((b, 2, k, n) if turn_a else (b, 2, n, k))
        y, c = self.rearranged((b, 2, m, k) if turn_b else (b, 2, k, m))
        value = (a.swapaxes(-1, -2) if turn_a else a) @ (c.swapaxes(-1, -2) if turn_b else c)
        return hf.matmul(x, y, bool(turn_a), bool(turn_b)), value, (b, n, k, m)

    def rearranged(self, shape):
        """A tensor of this shape that lies anyhow in a larger one, and its value."""
        rng, rank = self.rng, len(shape)
        order, axis, places = rng.permutation(rank), int(rng.integers(0, rank + 1)), 3
        lying = [int(shape[i]) for i in order]
        value = normal(*lying[:axis], places, *lying[axis:])
        fed = hf.placeholder(hf.float32, value.shape)
        x = hf.tanh(fed) if rng.integers(0, 2) else fed
        self.feeds[fed] = value
        value = value.astype("f8") if x is fed else np.tanh(value.astype("f8"))
        at, how = int(rng.integers(0, places)), rng.integers(0, 4)
        if how == 0:
            x = hf.unstack(x, axis=axis)[at]
        elif how == 1:
            x = hf.squeeze(hf.split(x, places, axis=axis)[at], [axis])
        elif how == 2:
            x = x[(*[slice(None)] * axis, at)]
        else:  # of an array without an axis for the places
            before, after = lying[:axis], lying[axis:]
            x = hf.reshape(x, [*before[:-1], -1, *after] if axis else [-1, *after[1:]])
            x = hf.reshape(x, [*before, places, *after])
            begin, size = [0] * axis + [at] + [0] * (rank - axis), [*before, 1, *after]
            x = hf.squeeze(hf.slice(x, begin, size), [axis])
        back = np.argsort(order)
        return hf.transpose(x, [int(i) for i in back]), np.take(value, at, axis).transpose(back)

    def end(self, made):
        """Rearrange what was made, join it, fetch it or what follows."""
        rng = self.rng
        perm, axis = [int(i) for i in rng.permutation(4)], int(rng.integers(0, 4))
        if rng.integers(0, 4):
            made = [(hf.transpose(x, perm), v.transpose(perm)) for x, v in made]
        shape = made[0][1].shape
        if rng.integers(0, 2):
            shape = (shape[0], shape[1], shape[2] * shape[3])
            made = [(hf.reshape(x, shape), v.reshape(shape)) for x, v in made]
        axis %= len(shape)
        how = rng.integers(0, 3)
        if how:
            join, other = (hf.concat, np.concatenate) if how == 1 else (hf.stack, np.stack)
            tensors, values = zip(*made, strict=True)
            made = [(join(tensors, axis=axis), other(values, axis=axis))]
        for x, v in made:
            self.fetches += [hf.tanh(x), x][: rng.integers(1, 3)]
            self.expected += [np.tanh(v), v][: len(self.fetches) - len(self.expected)]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_compute_what_numpy_does(seed, small_ones):
    made = Program(seed)
    rewritten(made.graph, made.fetches, made.feeds)
    found = run(made.graph, made.fetches, made.feeds)
    for one, other in zip(found, made.expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


# -- attention as it is written

B, T, H, D = 2, 5, 3, 4


def joint(x, w):
    return [hf.reshape(p, [B, T, H, D]) for p in hf.split(dense(x, w), 3, axis=-1)]


def by_heads(x, w):
    return hf.unstack(hf.reshape(dense(x, w), [B, T, 3, H, D]), axis=2)


def separate(x, w):
    return [hf.reshape(dense(x, w[:, i * H * D : (i + 1) * H * D]), [B, T, H, D]) for i in range(3)]


def dense(x, w):
    return hf.reshape(hf.matmul(hf.reshape(x, [B * T, H * D]), w), [B, T, -1])


def turned(q, k, v):
    q, k, v = (hf.transpose(p, [0, 2, 1, 3]) for p in (q, k, v))
    mixed = hf.matmul(hf.nn.softmax(hf.matmul(q, k, transpose_b=True)), v)
    return hf.transpose(mixed, [0, 2, 1, 3])


def keys_turned(q, k, v):
    q, v = (hf.transpose(p, [0, 2, 1, 3]) for p in (q, v))
    mixed = hf.matmul(hf.nn.softmax(hf.matmul(q, hf.transpose(k, [0, 2, 3, 1]))), v)
    return hf.transpose(mixed, [0, 2, 1, 3])


def all_turned(q, k, v):
    """By way of all axes in the opposite order."""
    q, k, v = (hf.transpose(p, [0, 2, 1, 3]) for p in (q, k, v))
    mixed = hf.matmul(hf.nn.softmax(hf.matmul(q, k, transpose_b=True)), v)
    return hf.transpose(hf.transpose(hf.transpose(mixed, [2, 1, 0, 3])), [1, 3, 2, 0])


def by_einsum(q, k, v):
    scores = hf.nn.softmax(hf.einsum("bthd,bshd->bhts", q, k))
    return hf.einsum("bhts,bshd->bthd", scores, v)


def attention(parts, mix):
    """The sum of squares of what attention gives, and its gradients."""
    with graph() as g:
        x = hf.placeholder(hf.float32, [B, T, H * D], name="x")
        w = hf.placeholder(hf.float32, [H * D, 3 * H * D], name="w")
        mixed = hf.reshape(mix(*parts(x, w)), [B, T, H * D])
        loss = hf.reduce_sum(hf.square(mixed))
        fetches = [loss, *hf.gradients(loss, [x, w])]
    return g, fetches, {x: normal(B, T, H * D), w: normal(H * D, 3 * H * D)}


def by_numpy(x, w):
    x, w = x.astype("f8"), w.astype("f8")
    q, k, v = np.moveaxis((x @ w).reshape(B, T, 3, H, D), 2, 0)
    scores = np.exp(np.einsum("bthd,bshd->bhts", q, k))
    mixed = np.einsum("bhts,bshd->bthd", scores / scores.sum(-1, keepdims=True), v)
    return np.square(mixed).sum()


@pytest.mark.parametrize("mix", [turned, keys_turned, all_turned, by_einsum])
@pytest.mark.parametrize("parts", [joint, by_heads, separate])
def test_attention_copies_no_heads(parts, mix, small_ones):
    g, fetches, feeds = attention(parts, mix)
    left = rewritten(g, fetches, feeds)
    assert left.count("StridedMatMul") == 6 and "Transpose" not in left
    if parts is not separate:  # which cuts and joins the weights
        assert COPIES.isdisjoint(left)
    loss, *gradients = run(g, fetches, feeds)
    np.testing.assert_allclose(loss, by_numpy(*feeds.values()), rtol=1e-4)
    for one, other in zip(gradients, run(g, fetches, feeds, kernels="plain")[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * np.abs(other).max())


@pytest.mark.parametrize(
    ("equation", "strided"),
    [
        ("bij,bjk->bik", 1),
        ("ibj,kbj->kbi", 1),
        ("ibj,kjb->kib", 0),  # of matrices without rows or columns that lie together
        ("abij,bajk->biak", 1),
        ("bijc,bck->bijk", 1),  # of two axes of rows
        ("bicj,bck->bjik", 0),  # which lie in no such way in the result
        ("bicd,bcdk->bik", 1),
        ("bidc,bcdk->bik", 0),
        ("ij,jk->ik", 0),
        ("bij,bij->b", 0),
        ("bii,bij->bij", 0),
        ("bijl,bjk->bik", 0),
        ("...ij,...jk->...ik", 0),
    ],
)
def test_einsums_that_are_products_of_matrices(equation, strided, small_ones):
    size = dict(zip("abcdijkl.", (2, 3, 4, 5, 6, 7, 8, 9, 2), strict=True))
    shapes = [[size[c] for c in t] for t in equation.replace("...", ".").split("->")[0].split(",")]
    values = [normal(*shape) for shape in shapes]
    with graph() as g:
        x, y = (hf.placeholder(hf.float32, shape) for shape in shapes)
        z = hf.einsum(equation, x, y)
    feeds = dict(zip((x, y), values, strict=True))
    assert rewritten(g, [z], feeds).count("StridedMatMul") == strided
    wanted = np.einsum(equation, *(value.astype("f8") for value in values))
    np.testing.assert_allclose(run(g, z, feeds), wanted, rtol=1e-4, atol=1e-4)


def test_with_exact_nothing_changes(small_ones):
    g, fetches, feeds = attention(joint, turned)
    exact, plain = (run(g, fetches, feeds, kernels=k, exact=True) for k in ("auto", "plain"))
    for one, other in zip(exact, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_nobody_serves_stays():
    g, fetches, feeds = attention(joint, turned)
    left = rewritten(g, fetches, feeds, lambda node, specs: False)
    assert "StridedMatMul" not in left and left.count("Transpose") == 8


def test_what_others_need_stays():
    """A rearranged value that is fetched or used elsewhere is still made."""
    with graph() as g:
        x = hf.placeholder(hf.float32, [2, 5, 3, 4], name="x")
        heads = hf.transpose(hf.tanh(x), [0, 2, 1, 3])
        scores = hf.matmul(heads, heads, transpose_b=True)
        back = hf.transpose(scores, [0, 2, 1, 3])
        used = hf.square(back)
        feeds = {x: normal(2, 5, 3, 4)}
    left = rewritten(g, [used, scores, heads], feeds)
    assert left.count("Transpose") == 2 and left.count("StridedMatMul") == 1
    assert rewritten(g, [back], feeds).count("Transpose") == 0
    with g.as_default(), hf.control_dependencies([heads]):
        late = hf.square(x)
    assert rewritten(g, [back, late], feeds).count("Transpose") == 1
