"""Weights packed once: products with them, which nodes are given them, and who packs."""

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.graph.dtypes import as_dtype
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels import onednn_library
from hpcflow.kernels.kernel_registry import (
    KernelNode,
    choose_kernel,
    find_plain_kernel,
    kernel_preferences,
)
from hpcflow.lowering.weight_packing import MIN_PRODUCTS, pack_weights
from hpcflow.plan.ir.control_flow_nodes import nested_nodes
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.kernels.against_plain import close
from tests.plan.model import graph, plan_of

RNG = np.random.default_rng(4)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def call(type, attrs, inputs, plain):
    specs = [Spec(x.dtype, x.shape) for x in inputs]
    node = KernelNode(type, attrs, specs, lookup_op(type).infer(specs, attrs))
    choice = choose_kernel(node, "cpu", kernel_preferences())
    row = find_plain_kernel(type, "cpu") if plain else choice.kernel
    out = np.full(node.outputs[0].shape, np.nan, node.outputs[0].dtype)
    row.make(np, node)(*inputs, out)
    return out, row.provider


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 2**-8)])
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "rows, summed, columns",
    [(32, 512, 2048), (7, 64, 64), (1, 128, 256), (32, 48, 80), (5, 33, 17), (3, 1, 64)],
)
def test_products_with_packed_weights(rows, summed, columns, turned, plain, dtype, tolerance):
    a, w = normal(rows, summed), normal(*((columns, summed) if turned else (summed, columns)))
    a, w = a.astype(as_dtype(dtype)), w.astype(as_dtype(dtype))
    attrs = {"transpose_b": turned, "rows": rows}
    packed, packs = call("Packed", attrs, [w], plain)
    out, takes = call("PackedMatMul", attrs, [a, packed], plain)
    assert packs == takes  # what one makes the other can read
    close(out.astype("f8"), a.astype("f8") @ (w.T if turned else w).astype("f8"), tolerance)


@pytest.mark.skipif(bool(onednn_library.absent()), reason="oneDNN is not installed")
def test_weights_of_round_sizes_are_packed_by_onednn():
    for turned in (False, True):
        attrs = {"transpose_b": turned, "rows": 32}
        assert call("Packed", attrs, [normal(512, 2048)], False)[1] == "onednn"


class Chain:
    """h = tanh(h w) so many times, and its gradient by w."""

    def __init__(self, times=MIN_PRODUCTS, rows=4, more=()):
        with graph() as self.graph:
            self.x = hf.placeholder(hf.float32, [rows, 16], name="x")
            self.w = hf.placeholder(hf.float32, [16, 16], name="w")
            h = self.x
            for _ in range(times):
                h = hf.tanh(hf.matmul(h, self.w))
            loss = hf.reduce_sum(h)
            self.fetches = [loss, *hf.gradients(loss, [self.w])]
        self.feeds = {self.x: normal(rows, 16), self.w: normal(16, 16) / 4}

    def packed(self, fast=True):
        """How many products take packed weights, and how often weights are packed."""
        shapes = {t: a.shape for t, a in self.feeds.items()}
        (part,) = plan_of(self.graph, self.fetches, shapes).parts.values()
        types = [n.type for n in pack_weights(part, lambda *_: fast).nodes.values()]
        return types.count("PackedMatMul"), types.count("Packed")

    def run(self, **given):
        with hf.Session(graph=self.graph, context=RankContext(Settings(**given))) as session:
            return session.run(self.fetches, self.feeds)


def test_weights_that_are_used_often_are_packed_once_for_each_direction():
    assert Chain(MIN_PRODUCTS + 1).packed() == (2 * MIN_PRODUCTS + 1, 2)
    assert Chain(MIN_PRODUCTS - 1).packed() == (0, 0)
    assert Chain(MIN_PRODUCTS + 1, rows=200).packed() == (0, 0)
    assert Chain(MIN_PRODUCTS + 1).packed(fast=False) == (0, 0)


def test_a_step_with_packed_weights_computes_what_one_without_does():
    chain = Chain(12)
    plain, fast = chain.run(kernels="plain"), chain.run()
    for one, other in zip(plain, fast, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    plain, fast = chain.run(kernels="plain", exact=True), chain.run(exact=True)
    for one, other in zip(plain, fast, strict=True):
        np.testing.assert_array_equal(other, one)
    h, w = (a.astype("f8") for a in chain.feeds.values())
    for _ in range(12):
        h = np.tanh(h @ w)
    np.testing.assert_allclose(fast[0], h.sum(), rtol=1e-4)


def test_weights_that_change_in_a_step_are_packed_as_each_product_reads_them():
    """A variable is read anew behind its update: the products before and behind differ."""
    with hf.Graph().as_default(), hf.Session() as session:
        v = hf.Variable(np.eye(16, dtype="f4"), name="v")
        x = hf.placeholder(hf.float32, [4, 16])
        h = x
        for _ in range(MIN_PRODUCTS):
            h = hf.matmul(h, v)
        with hf.control_dependencies([h]):
            update = v.assign_add(np.eye(16, dtype="f4"))
        with hf.control_dependencies([update]):
            again, t = v.read_value(), h
        for _ in range(MIN_PRODUCTS):
            t = hf.matmul(t, again)
        session.run(hf.global_variables_initializer())
        value = normal(4, 16)
        for i in range(1, 3):
            first, second = session.run([h, t], {x: value})
            np.testing.assert_allclose(first, value * i**MIN_PRODUCTS, rtol=1e-4)
            np.testing.assert_allclose(
                second, value * i**MIN_PRODUCTS * (i + 1) ** MIN_PRODUCTS, rtol=1e-4
            )


class Loop:
    """h = tanh(h w) in a loop, in which an inner one does the same; w grows if it `changes`."""

    def __init__(self, changes=False, inner=0):
        with graph() as self.graph:
            self.x = hf.placeholder(hf.float32, [4, 64], name="x")
            self.w = hf.placeholder(hf.float32, [64, 64], name="w")
            loop = [0, self.x, self.w] if changes else [0, self.x]

            def step(i, h, w=self.w):
                h = hf.tanh(hf.matmul(h, w))
                if inner:
                    _, h = hf.while_loop(
                        lambda k, h: k < inner,
                        lambda k, h: (k + 1, hf.tanh(hf.matmul(h, self.w))),
                        [0, h],
                    )
                return (i + 1, h, w * 1.01) if changes else (i + 1, h)

            h = hf.while_loop(lambda i, *_: i < 5, step, loop)[1]
            loss = hf.reduce_sum(h * h)
            self.fetches = [h, *hf.gradients(loss, [self.w])]
        self.feeds = {self.x: normal(4, 64), self.w: normal(64, 64) / 8}

    def packed(self, fast=True):
        """Types of nodes in front of the loops, and in them."""
        shapes = {t: a.shape for t, a in self.feeds.items()}
        (part,) = plan_of(self.graph, self.fetches, shapes).parts.values()
        part = pack_weights(part, lambda *_: fast)
        outside, inside = part.nodes.values(), nested_nodes(part.nodes)
        assert not verify_loops(part)
        return [[n.type for n in nodes if "Packed" in n.type] for nodes in (outside, inside)]

    def run(self, **given):
        with hf.Session(graph=self.graph, context=RankContext(Settings(**given))) as session:
            return session.run(self.fetches, self.feeds)

    def values(self, changes, inner):
        """h by NumPy."""
        h, w = (a.astype("f8") for a in self.feeds.values())
        first = w
        for _ in range(5):
            h = np.tanh(h @ w)
            for _ in range(inner):
                h = np.tanh(h @ first)
            w = w * 1.01 if changes else w
        return h


def verify_loops(part):
    """Loops of which a feed has no slot."""
    loops = [n for n in part.nodes.values() if n.type == "Loop"]
    slots = [(n.attrs["body_feeds"], len(n.inputs) + n.attrs["empty"]) for n in loops]
    return [feeds for feeds, end in slots if max(feeds) >= end]


def test_weights_are_packed_in_front_of_a_loop():
    """Forward and back; not those that change from iteration to iteration."""
    assert Loop().packed() == [["Packed"] * 2, ["PackedMatMul"] * 2]
    assert Loop().packed(fast=False) == [[], []]
    assert Loop(changes=True).packed() == [[], []]


@pytest.mark.parametrize("changes, inner", [(False, 0), (True, 0), (False, 2), (True, 2)])
def test_a_loop_with_packed_weights_computes_what_one_without_does(changes, inner):
    loop = Loop(changes, inner)
    plain, fast = loop.run(kernels="plain"), loop.run()
    for one, other in zip(plain, fast, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(fast[0], loop.values(changes, inner), rtol=1e-4, atol=1e-5)
