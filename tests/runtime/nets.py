"""A small net for tests of training, built the same on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np

import hpcflow as hf


def data(samples: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels, the same everywhere."""
    rng = np.random.default_rng(5)
    return rng.standard_normal((samples, 6)).astype(np.float32), rng.integers(0, 4, samples)


def net(optimizer: Any = None, cut: bool = False) -> tuple[Any, ...]:
    """(x, y, loss, train, variables) of a 6-8-8-4 net; `cut` spreads it over three tasks."""
    rng = np.random.default_rng(1)
    x = hf.placeholder(hf.float32, [None, 6], name="x")
    y = hf.placeholder(hf.int64, [None], name="y")
    h = x
    for k, (i, o) in enumerate([(6, 8), (8, 8), (8, 4)]):
        with hf.device(f"/job:worker/task:{k}" if cut else None):
            start = rng.standard_normal((i, o)).astype(np.float32)
            w = hf.Variable(start, name=f"layer{k}/w")
            b = hf.Variable(np.zeros(o, np.float32), name=f"layer{k}/b")
            h = hf.nn.bias_add(hf.matmul(h, w), b)
            h = hf.nn.relu(h) if k < 2 else h
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h)
    loss = hf.reduce_mean(losses)
    train = (optimizer or hf.train.AdamOptimizer(0.01)).minimize(loss)
    return x, y, loss, train, hf.trainable_variables()


def trained(steps: int = 12, optimizer: Any = None, cut: bool = False) -> list[np.ndarray]:
    """The weights after `steps` steps of batches of 8, in the context in force."""
    features, labels = data()
    x, y, loss, train, variables = net(optimizer, cut)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    for step in range(steps):
        rows = slice(8 * (step % 3), 8 * (step % 3) + 8)
        session.run([loss, train], {x: features[rows], y: labels[rows]})
    return session.run(variables)


def plain(steps: int = 12, optimizer: Any = None) -> list[np.ndarray]:
    """The same on one rank, without ranks."""
    from hpcflow.runtime.job.job_membership import use_context
    from hpcflow.runtime.job.rank_context import RankContext
    from hpcflow.settings import Settings

    with use_context(RankContext(Settings())), hf.Graph().as_default():
        return trained(steps, optimizer)
