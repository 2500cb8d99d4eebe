"""The training program whose costs growth.py counts, the same on real and on simulated ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import hpcflow as hf

BATCH, WIDTH, WORDS, CLASSES = 8, 16, 256, 4


def training(rows: bool = False) -> Callable[[], Any]:
    """Build a net and return a function that makes one step; the variables are initialized.

    Its gradients are dense tensors; with `rows` those of a table of words are rows.
    """
    words = hf.placeholder(hf.int32, [BATCH], name="words")
    labels = hf.placeholder(hf.int32, [BATCH], name="labels")
    table = hf.Variable(np.ones((WORDS, WIDTH), np.float32), name="table")
    weights = hf.Variable(np.ones((WIDTH, CLASSES), np.float32), name="weights")
    ids = words if rows else hf.one_hot(words, WORDS)
    found = hf.gather(table, ids) if rows else hf.matmul(ids, table)
    logits = hf.matmul(found, weights)
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = hf.reduce_mean(losses)
    train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
    session = hf.Session()
    session.run(hf.global_variables_initializer())
    feeds = {words: np.arange(BATCH, dtype=np.int32), labels: np.zeros(BATCH, np.int32)}
    return lambda: session.run([train, loss], feeds)
