"""Word vectors by skip-grams and sampled softmax: only the rows that a step uses move."""

from __future__ import annotations

import collections
import re

from lesson import batches, main, text, trained, variables

import hpcflow as hf

import numpy as np  # isort: skip

VOCABULARY, DEPTH, SAMPLED, BATCH, STEPS, RATE, HELD_OUT = 1000, 32, 64, 256, 400, 0.5, 2000


def data() -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a word and one beside it, shuffled; the last `HELD_OUT` are for testing."""
    words = re.findall(r"[A-Za-z]+", text().lower())
    common = collections.Counter(words).most_common(VOCABULARY)
    number = {word: i for i, (word, _) in enumerate(common)}
    found = np.array([number[w] for w in words if w in number], "int64")
    pairs = [(found[:-d], found[d:]) for d in (1, 2)]
    centres = np.concatenate([p for a, b in pairs for p in (a, b)])
    beside = np.concatenate([p for a, b in pairs for p in (b, a)])
    rows = np.random.Generator(np.random.Philox(7)).permutation(len(centres))[:100_000]
    return centres[rows], beside[rows]


def weights(seed: int) -> dict[str, np.ndarray]:
    """The initial values."""
    rng = np.random.Generator(np.random.Philox(seed))
    table = rng.uniform(-1, 1, (VOCABULARY, DEPTH)).astype("float32")
    zeros = {"w": np.zeros((VOCABULARY, DEPTH), "float32"), "b": np.zeros(VOCABULARY, "float32")}
    return {"table": table, **zeros}


def train(seed: int) -> float | None:
    """The cross-entropy of the neighbours held out, over the whole vocabulary."""
    centres, beside = data()
    v = variables(weights(seed))
    x, y = hf.placeholder(hf.int64, [None]), hf.placeholder(hf.int64, [None])
    rows = hf.nn.embedding_lookup(v["table"], x)
    losses = hf.nn.sampled_softmax_loss(
        v["w"], v["b"], hf.expand_dims(y, 1), rows, SAMPLED, VOCABULARY
    )
    step = hf.train.AdagradOptimizer(RATE).minimize(hf.reduce_mean(losses))
    logits = hf.matmul(rows, v["w"], transpose_b=True) + v["b"]
    whole = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    feeds = batches({x: centres[:-HELD_OUT], y: beside[:-HELD_OUT]}, BATCH, STEPS, seed)
    test = {x: centres[-HELD_OUT:], y: beside[-HELD_OUT:]}
    return trained(step, feeds, hf.reduce_mean(whole), test)


if __name__ == "__main__":
    main(train, "cross-entropy of neighbours by word vectors")
