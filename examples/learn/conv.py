"""A convolutional network on scanned digits."""

from __future__ import annotations

from dense import BATCH, HELD_OUT, data
from lesson import batches, glorot, main, trained, variables

import hpcflow as hf

import numpy as np  # isort: skip

STEPS, RATE = 200, 0.003


def weights(seed: int) -> dict[str, np.ndarray]:
    """The initial values: filters are [height, width, channels in, channels out]."""
    rng = np.random.Generator(np.random.Philox(seed))
    drawn = {
        "f1": glorot(rng, 3, 3, 1, 12),
        "f2": glorot(rng, 3, 3, 12, 24),
        "w": glorot(rng, 96, 10),
    }
    sizes = {"b1": 12, "b2": 24, "b": 10}
    return drawn | {name: np.zeros(n, "float32") for name, n in sizes.items()}


def train(seed: int) -> float | None:
    """The accuracy on the digits held out."""
    pixels, digits = data()
    v = variables(weights(seed))
    x, y = hf.placeholder(hf.float32, [None, 64]), hf.placeholder(hf.int32, [None])
    h = hf.reshape(x, [-1, 8, 8, 1])
    for f, b in (("f1", "b1"), ("f2", "b2")):
        h = hf.nn.relu(hf.nn.bias_add(hf.nn.conv2d(h, v[f], [1, 1, 1, 1], "SAME"), v[b]))
        h = hf.nn.max_pool(h, [1, 2, 2, 1], [1, 2, 2, 1], "VALID")
    logits = hf.matmul(hf.reshape(h, [-1, 96]), v["w"]) + v["b"]
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    step = hf.train.AdamOptimizer(RATE).minimize(hf.reduce_mean(losses))
    hits = hf.equal(hf.argmax(logits, 1, output_type=hf.int32), y)
    feeds = batches({x: pixels[:-HELD_OUT], y: digits[:-HELD_OUT]}, BATCH, STEPS, seed)
    test = {x: pixels[-HELD_OUT:], y: digits[-HELD_OUT:]}
    return trained(step, feeds, hf.reduce_mean(hf.cast(hits, hf.float32)), test)


if __name__ == "__main__":
    main(train, "accuracy of a convolutional network on digits")
