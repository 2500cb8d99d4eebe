"""A dense network on scanned digits."""

from __future__ import annotations

from lesson import batches, glorot, main, trained, variables

import hpcflow as hf

import numpy as np  # isort: skip

BATCH, STEPS, RATE, HELD_OUT = 64, 450, 0.003, 360


def data() -> tuple[np.ndarray, np.ndarray]:
    """Images as rows of 64 numbers, and their digits; the last `HELD_OUT` are for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise hf.errors.MissingPackageError(
            "this lesson needs scikit-learn, for its images", hint="pip install scikit-learn"
        ) from error

    digits = load_digits()
    rows = np.random.Generator(np.random.Philox(7)).permutation(len(digits.target))
    return (digits.data / 16).astype("float32")[rows], digits.target.astype("int32")[rows]


def weights(seed: int) -> dict[str, np.ndarray]:
    """The initial values."""
    rng = np.random.Generator(np.random.Philox(seed))
    zeros = {"b1": np.zeros(64, "float32"), "b2": np.zeros(10, "float32")}
    return {"w1": glorot(rng, 64, 64), "w2": glorot(rng, 64, 10), **zeros}


def train(seed: int) -> float | None:
    """The accuracy on the digits held out."""
    pixels, digits = data()
    v = variables(weights(seed))
    x, y = hf.placeholder(hf.float32, [None, 64]), hf.placeholder(hf.int32, [None])
    hidden = hf.nn.relu(hf.matmul(x, v["w1"]) + v["b1"])
    logits = hf.matmul(hidden, v["w2"]) + v["b2"]
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    step = hf.train.AdamOptimizer(RATE).minimize(hf.reduce_mean(losses))
    hits = hf.equal(hf.argmax(logits, 1, output_type=hf.int32), y)
    feeds = batches({x: pixels[:-HELD_OUT], y: digits[:-HELD_OUT]}, BATCH, STEPS, seed)
    test = {x: pixels[-HELD_OUT:], y: digits[-HELD_OUT:]}
    return trained(step, feeds, hf.reduce_mean(hf.cast(hits, hf.float32)), test)


if __name__ == "__main__":
    main(train, "accuracy of a dense network on digits")
