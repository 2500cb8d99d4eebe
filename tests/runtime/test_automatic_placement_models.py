"""placement=auto trains many kinds of graph as the default placement does."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.placement import placement_search
from hpcflow.plan.distribution import step_problem_builder
from tests.runtime.ranks import run_ranks

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(16, 12, 8)).astype("f4")
LABELS = RNG.integers(0, 4, 16).astype("i4")


def cost(h, y):
    logits = hf.layers.dense(h, 4)
    return hf.reduce_mean(hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def flat(x):
    return hf.layers.dense(hf.reshape(x, [-1, 96]), 16)


def recurrent(x, y):
    out, _ = hf.nn.dynamic_rnn(hf.nn.rnn_cell.LSTMCell(8), x, dtype=hf.float32)
    return cost(out[:, -1], y)


def branch(x, y):
    h = flat(x)
    h = hf.cond(hf.reduce_sum(h) > 0, lambda: hf.layers.dense(h, 16, name="inner"), lambda: h * 2.0)
    return cost(h, y)


def loop(x, y):
    w = hf.get_variable("w", [8, 8])
    body = lambda i, a: (i + 1, hf.tanh(hf.matmul(a, w)))  # noqa: E731
    return cost(hf.while_loop(lambda i, a: i < 3, body, [0, x[:, 0]])[1], y)


def embedding(x, y):
    ids = hf.cast(hf.abs(x[:, :, 0]) * 10, hf.int32)
    rows = hf.nn.embedding_lookup(hf.get_variable("table", [50, 16]), ids)
    return cost(hf.reduce_mean(rows, 1), y)


def script(x, y):
    h = flat(x)
    doubled = hf.py_func(lambda a: a * 2, [h], hf.float32)
    doubled.set_shape([None, 16])
    return cost(h + hf.stop_gradient(doubled), y)


def averages(x, y):
    loss = cost(flat(x), y)
    update = hf.train.ExponentialMovingAverage(0.9).apply(hf.trainable_variables())
    with hf.control_dependencies([update]):
        return hf.identity(loss)


def metric(x, y):
    h = flat(x)
    _, update = hf.metrics.accuracy(y, hf.argmax(h, 1, output_type=hf.int32))
    with hf.control_dependencies([update]):
        return hf.identity(cost(h, y))


def queue(x, y):
    line, loss = hf.FIFOQueue(10, [hf.float32], [[]]), cost(flat(x), y)
    with hf.control_dependencies([line.enqueue([loss])]):
        return line.dequeue() * 0 + loss


def training(model):
    def body(context):
        hf.set_random_seed(1)
        x = hf.placeholder(hf.float32, [None, 12, 8], name="x")
        y = hf.placeholder(hf.int32, [None], name="y")
        loss, step = model(x, y), hf.train.get_or_create_global_step()
        train = hf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        session = hf.Session()
        session.run([hf.global_variables_initializer(), hf.local_variables_initializer()])
        feeds = [{x: FEATURES[:n], y: LABELS[:n]} for n in (16, 16, 7)]
        losses = [session.run([loss, train], each)[0] for each in feeds]
        return [losses, *session.run([*hf.trainable_variables(), step])]

    return body


@pytest.mark.parametrize("ranks, servers", [(2, 0), (3, 1), (4, 0)])
@pytest.mark.parametrize(
    "model", [recurrent, branch, loop, embedding, script, averages, metric, queue]
)
def test_values_are_those_of_the_default_placement(model, ranks, servers, monkeypatch):
    monkeypatch.setattr(step_problem_builder, "MESSAGE_S", 1e-9)  # small operations are moved
    monkeypatch.setattr(placement_search, "MOST_MOVES", 300)  # values are right in any placement
    options = {"tasks_per_replica": 2, "ps": servers}
    expected = run_ranks(ranks, training(model), **options)
    found = run_ranks(ranks, training(model), placement="auto", **options)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        for value, want in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(value, want, rtol=1e-4, atol=1e-6)
