"""A steady step allocates its results and nothing else: the rest lies in its arena."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.kernels import onednn_library
from hpcflow.runtime.job.job_membership import use_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

from .numpy_memory import allocations

SCALARS = 64  # bytes: numbers that NumPy makes on its way are arrays, too
BATCH = 96
with_onednn = pytest.mark.skipif(bool(onednn_library.absent()), reason="needs oneDNN")


def weights(*shape):
    return hf.Variable(hf.random_normal(shape, seed=1) * 0.05)


def cross_entropy(x, classes=50):
    labels = hf.placeholder(hf.int32, [BATCH])
    logits = hf.matmul(x, weights(x.shape[1], classes)) + weights(classes)
    loss = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return hf.reduce_mean(loss), {labels: np.arange(BATCH, dtype="i4") % classes}


def mlp():
    x = hf.placeholder(hf.float32, [BATCH, 60])
    h = x
    for _ in range(2):
        h = hf.nn.relu(hf.nn.bias_add(hf.matmul(h, weights(h.shape[1], 300)), weights(300)))
    loss, fed = cross_entropy(h)
    return loss, fed | {x: np.ones((BATCH, 60), "f4")}


def attention():
    x = hf.placeholder(hf.float32, [BATCH, 40, 64])
    mean = hf.reduce_mean(x, -1, keepdims=True)
    scale = hf.rsqrt(hf.reduce_mean(hf.square(x - mean), -1, keepdims=True) + 1e-5)
    q, k, v = (
        hf.reshape(hf.matmul(hf.reshape((x - mean) * scale, [-1, 64]), weights(64, 64)), x.shape)
        for _ in range(3)
    )
    mixed = hf.matmul(hf.nn.softmax(hf.matmul(q, k, transpose_b=True)), v)
    return hf.reduce_mean(hf.square(x + mixed)), {x: np.ones((BATCH, 40, 64), "f4")}


def recurrent():
    x = hf.placeholder(hf.float32, [BATCH, 64])
    h = c = hf.zeros([BATCH, 64])
    kernel, bias = weights(128, 256), weights(256)
    for _ in range(4):
        i, j, f, o = hf.split(hf.matmul(hf.concat([x, h], 1), kernel) + bias, 4, axis=1)
        c = hf.sigmoid(f) * c + hf.sigmoid(i) * hf.tanh(j)
        h = hf.sigmoid(o) * hf.tanh(c)
    loss, fed = cross_entropy(h)
    return loss, fed | {x: np.ones((BATCH, 64), "f4")}


def soft_targets():
    x = hf.placeholder(hf.float32, [BATCH, 64])
    logits = hf.matmul(x, weights(64, 70))
    loss = hf.nn.softmax_cross_entropy_with_logits(
        labels=hf.nn.softmax(x @ weights(64, 70)), logits=logits
    )
    rest = hf.reduce_logsumexp(logits, 1) + hf.reduce_sum(hf.nn.softplus(logits), 1)
    chosen = hf.where(logits > 0, hf.nn.relu6(logits), hf.nn.log_softmax(logits))
    return hf.reduce_mean(loss + rest + hf.reduce_sum(chosen, 1)), {x: np.ones((BATCH, 64), "f4")}


def convolutions():
    x = hf.placeholder(hf.float32, [BATCH, 16, 16, 3])
    h = hf.nn.conv2d(x, weights(3, 3, 3, 16), 1, "SAME")
    h = hf.nn.relu(hf.nn.bias_add(h, weights(16)))
    h = hf.nn.max_pool2d(h, 2, 2, "VALID")
    loss, fed = cross_entropy(hf.reshape(h, [BATCH, -1]))
    return loss, fed | {x: np.ones((BATCH, 16, 16, 3), "f4")}


OPTIMIZERS = {
    "sgd": lambda: hf.train.GradientDescentOptimizer(0.01),
    "momentum": lambda: hf.train.MomentumOptimizer(0.01, 0.9),
    "adam": lambda: hf.train.AdamOptimizer(1e-3),
}
CASES = [
    *((net, "plain") for net in (mlp, attention, recurrent, soft_targets)),
    *((net, "auto") for net in (mlp, attention, recurrent, soft_targets)),
    pytest.param(convolutions, "auto", marks=with_onednn),
]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net, kernels", CASES)
def test_nothing_is_allocated_but_results(net, kernels, optimizer):
    with use_context(RankContext(Settings(kernels=kernels))), hf.Graph().as_default():
        loss, fed = net()
        train = OPTIMIZERS[optimizer]().minimize(loss)
        with hf.Session() as session:
            session.run(hf.global_variables_initializer())
            for _ in range(3):
                session.run([loss, train], fed)
            with allocations(session.context.executor.context) as made:
                session.run([loss, train], fed)
    assert made  # the loss
    assert [nbytes for nbytes in made if nbytes > SCALARS] == []


def test_results_are_seen():
    with use_context(RankContext(Settings())), hf.Graph().as_default(), hf.Session() as session:
        x = hf.placeholder(hf.float32, [1000])
        y = hf.tanh(x * 2) + x
        for _ in range(2):
            session.run(y, {x: np.ones(1000, "f4")})
        with allocations(session.context.executor.context) as made:
            session.run(y, {x: np.ones(1000, "f4")})
    assert made.count(4000) == 1
