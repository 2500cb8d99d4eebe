"""A language model of characters: an LSTM over lines of different lengths, by a loop."""

from __future__ import annotations

from typing import Any

from lesson import batches, glorot, main, text, trained, variables

import hpcflow as hf

import numpy as np  # isort: skip

LONGEST, KINDS, DEPTH, UNITS = 48, 96, 16, 64  # characters: printable ASCII, 0 is the end
BATCH, STEPS, RATE, HELD_OUT = 32, 100, 0.01, 300


def data() -> tuple[np.ndarray, np.ndarray]:
    """Lines as numbers of characters [lines, longest + 1], 0 before and after, and lengths."""
    lines = [line.strip() for line in text().splitlines() if line.isascii()]
    lines = [line for line in dict.fromkeys(lines) if 8 <= len(line) < LONGEST]
    rows = np.random.Generator(np.random.Philox(7)).permutation(len(lines))[:4000]
    found = np.zeros((len(rows), LONGEST + 1), "int32")
    for i, row in enumerate(rows):
        codes = np.frombuffer(lines[row].encode(), np.uint8).astype("int32") - 31
        found[i, 1 : 1 + len(codes)] = np.clip(codes, 1, KINDS - 1)
    return found, np.array([len(lines[row]) + 1 for row in rows], "int32")


def weights(seed: int) -> dict[str, np.ndarray]:
    """The initial values; gates in the order input, candidate, forget, output."""
    rng = np.random.Generator(np.random.Philox(seed))
    drawn = {
        "table": rng.standard_normal((KINDS, DEPTH)).astype("float32") / 4,
        "kernel": glorot(rng, DEPTH + UNITS, 4 * UNITS),
        "w": glorot(rng, UNITS, KINDS),
    }
    return drawn | {"bias": np.zeros(4 * UNITS, "float32"), "b": np.zeros(KINDS, "float32")}


def outputs(v: dict[str, hf.Variable], x: hf.Tensor, lengths: hf.Tensor) -> hf.Tensor:
    """What the LSTM says after each character: [time, lines, units], time as long as needed."""
    count = hf.reduce_max(lengths)
    inputs = hf.nn.embedding_lookup(v["table"], hf.transpose(x)[:count])
    steps = hf.TensorArray(hf.float32, count, element_shape=[None, DEPTH]).unstack(inputs)
    zeros = hf.zeros(hf.stack([hf.shape(x)[0], UNITS]))

    def step(t: Any, c: Any, h: Any, said: Any) -> Any:
        gates = hf.matmul(hf.concat([steps.read(t), h], 1), v["kernel"]) + v["bias"]
        i, new, f, o = hf.split(gates, 4, axis=1)
        c = c * hf.sigmoid(f + 1.0) + hf.sigmoid(i) * hf.tanh(new)
        h = hf.tanh(c) * hf.sigmoid(o)
        return t + 1, c, h, said.write(t, h)

    said = hf.TensorArray(hf.float32, count, element_shape=[None, UNITS])
    start = [hf.constant(0), zeros, zeros, said]
    return hf.while_loop(lambda t, *_: t < count, step, start)[3].stack()


def train(seed: int) -> float | None:
    """The cross-entropy of a character in the lines held out."""
    lines, sizes = data()
    v = variables(weights(seed))
    x = hf.placeholder(hf.int32, [None, LONGEST + 1])
    lengths = hf.placeholder(hf.int32, [None])
    said = outputs(v, x[:, :-1], lengths)
    logits = hf.reshape(
        hf.matmul(hf.reshape(said, [-1, UNITS]), v["w"]) + v["b"],
        hf.stack([hf.shape(said)[0], -1, KINDS]),
    )
    following = hf.transpose(x)[1 : 1 + hf.shape(said)[0]]
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=following, logits=logits)
    within = hf.cast(hf.transpose(hf.sequence_mask(lengths, hf.shape(said)[0])), hf.float32)
    sums = hf.reduce_sum(losses * within, 0)  # of each line: the mean over lines is trained
    step = hf.train.AdamOptimizer(RATE).minimize(hf.reduce_mean(sums) / 30.0)
    metric = hf.reduce_sum(sums) / hf.reduce_sum(within)
    feeds = batches({x: lines[:-HELD_OUT], lengths: sizes[:-HELD_OUT]}, BATCH, STEPS, seed)
    test = {x: lines[-HELD_OUT:], lengths: sizes[-HELD_OUT:]}
    return trained(step, feeds, metric, test)


if __name__ == "__main__":
    main(train, "cross-entropy of characters by an LSTM")
