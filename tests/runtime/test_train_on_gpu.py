"""Whole programs on a real GPU, with CUDA graphs and without, beside the same on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.runtime.device import device
from tests.runtime.test_cuda_graphs import graph_of, trained

STEPS = 8
pytestmark = pytest.mark.gpu
Program = Callable[[], tuple[Any, Callable[[int], dict[Any, Any]]]]


def variable(rng: np.random.Generator, *shape: int, dtype: Any = "f4") -> hf.Variable:
    fan_in = int(np.prod(shape[:-1])) or 1
    return hf.Variable((rng.standard_normal(shape) / fan_in**0.5).astype(dtype))


def convolutions() -> Any:
    """Convolutions of two strides, batch norm, both poolings, a product."""
    rng = np.random.default_rng(0)
    x, y = hf.placeholder(hf.float32, [8, 12, 12, 3]), hf.placeholder(hf.int32, [8])
    h = hf.nn.relu(hf.nn.conv2d(x, variable(rng, 3, 3, 3, 16), 1, "SAME"))
    h = hf.nn.max_pool2d(h, 2, 2, "VALID")
    scale, shift = hf.Variable(np.ones(16, "f4")), hf.Variable(np.zeros(16, "f4"))
    h = hf.nn.fused_batch_norm(h, scale, shift)[0]
    h = hf.nn.relu(hf.nn.conv2d(h, variable(rng, 3, 3, 16, 8), 2, "SAME"))
    h = hf.reshape(hf.nn.avg_pool2d(h, 3, 3, "SAME"), [8, 8])
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=y, logits=hf.matmul(h, variable(rng, 8, 5))
    )
    data = np.random.default_rng(1)
    return hf.reduce_mean(losses), lambda step: {
        x: data.standard_normal((8, 12, 12, 3)).astype("f4"),
        y: data.integers(0, 5, 8).astype("i4"),
    }


def rows_of_tables() -> Any:
    """Embeddings, whose gradients are IndexedSlices, and attention."""
    rng = np.random.default_rng(2)
    words = hf.placeholder(hf.int32, [4, 6])
    table = variable(rng, 50, 16)
    x = hf.nn.embedding_lookup(table, words)
    scores = hf.nn.softmax(hf.matmul(x, x, transpose_b=True) / 4.0)
    mixed = hf.matmul(scores, x)
    loss = hf.reduce_mean(hf.square(hf.reduce_sum(mixed, 1) - 1.0))
    data = np.random.default_rng(3)
    return loss, lambda step: {words: data.integers(0, 50, (4, 6)).astype("i4")}


def recurrent() -> Any:
    """An LSTM by dynamic_rnn: a loop whose end depends on values."""
    rng = np.random.default_rng(4)
    x = hf.placeholder(hf.float32, [3, 7, 5])
    sizes = hf.placeholder(hf.int32, [3])
    cell = hf.nn.rnn_cell.LSTMCell(6, initializer=hf.constant_initializer(0.1))
    outputs, _ = hf.nn.dynamic_rnn(cell, x, sequence_length=sizes, dtype=hf.float32)
    loss = hf.reduce_mean(hf.square(hf.tensordot(outputs, variable(rng, 6, 2), 1)))
    data = np.random.default_rng(5)
    return loss, lambda step: {
        x: data.standard_normal((3, 7, 5)).astype("f4"),
        sizes: data.integers(1, 8, 3).astype("i4"),
    }


def branches() -> Any:
    """A branch by a fed value, a step-dependent scale and draws of dropout."""
    rng = np.random.default_rng(6)
    x, odd = hf.placeholder(hf.float32, [16, 8]), hf.placeholder(hf.bool, [])
    w = variable(rng, 8, 8)
    h = hf.nn.dropout(hf.matmul(x, w), 0.7, seed=9)
    h = hf.cond(odd, lambda: hf.tanh(h), lambda: h * 0.5)
    data = np.random.default_rng(7)
    return hf.reduce_mean(hf.square(h)), lambda step: {
        x: data.standard_normal((16, 8)).astype("f4"),
        odd: bool(step % 2),
    }


def sums_of_every_kind() -> Any:
    """Reductions, sorting, gathering, cumulative sums, an einsum, segments."""
    rng = np.random.default_rng(8)
    x, ids = hf.placeholder(hf.float32, [12, 10]), hf.placeholder(hf.int32, [12])
    w = variable(rng, 10, 10)
    h = hf.einsum("ij,jk->ik", x, w)
    best, _ = hf.nn.top_k(h, 3)
    parts = hf.unsorted_segment_sum(h, ids, 4)
    loss = hf.reduce_mean(hf.cumsum(best, axis=1)) + hf.reduce_logsumexp(parts)
    loss += hf.reduce_max(hf.nn.l2_normalize(h, 1)) + hf.norm(hf.gather(h, [1, 3]))
    data = np.random.default_rng(9)
    return loss, lambda step: {
        x: data.standard_normal((12, 10)).astype("f4"),
        ids: data.integers(0, 4, 12).astype("i4"),
    }


PROGRAMS = [convolutions, rows_of_tables, recurrent, branches, sums_of_every_kind]
OPTIMIZERS = {
    "momentum": lambda: hf.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: hf.train.AdamOptimizer(0.01),
}


def run(program: Program, optimizer: str, place: str, **settings: Any) -> list[Any]:
    """The losses of some steps, and the variables after them."""
    with graph_of(**settings), hf.device(place):
        loss, feeds = program()
        train = OPTIMIZERS[optimizer]().minimize(loss)
        variables = hf.global_variables()
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            losses = [session.run([loss, train], feeds(step))[0] for step in range(STEPS)]
            return [np.array(losses), *session.run(variables)]


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "launches"])
@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_that_of_the_cpu(
    program: Program, optimizer: str, kernels: str, graphs: bool
) -> None:
    theirs = run(program, optimizer, "/cpu:0", kernels="plain")
    mine = run(program, optimizer, "/gpu:0", kernels=kernels, cuda_graphs=graphs)
    for found, wanted in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("kernels", ["auto", "plain"])
def test_dropout_rates_evaluation_and_a_restore(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, kernels: str
) -> None:
    """The program of the double's tests; graphs are made, and CUDA refuses none."""
    with graph_of(kernels=kernels) as context:
        mine = trained(tmp_path)
    told = context.report()["cuda_graphs"]["Mean:0,Momentum,ExponentialDecay/Cast_1:0"]
    assert told["graphs"] >= told["regions"] and not told["refused"], told
    if kernels == "auto":
        assert told["regions"] == 1 and told["kernels"] == told["kernels_on_gpu"], told
    monkeypatch.setattr(device, "device_names", lambda server, index: ["cpu:0"])
    with graph_of(kernels="plain"):
        theirs = trained(tmp_path)
    for found, wanted in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
