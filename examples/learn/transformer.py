"""A language model of characters: a small transformer."""

from __future__ import annotations

from lesson import batches, glorot, main, text, trained, variables

import hpcflow as hf

import numpy as np  # isort: skip

CONTEXT, KINDS, DEPTH, HEADS, LAYERS = 32, 96, 32, 4, 2
BATCH, STEPS, RATE, HELD_OUT = 32, 150, 0.005, 200


def data() -> np.ndarray:
    """Pieces of text as numbers of characters [pieces, context + 1], shuffled."""
    codes = np.frombuffer(text().encode("ascii", "ignore"), np.uint8).astype("int32") - 31
    codes = np.clip(codes, 0, KINDS - 1)
    count = len(codes) // (CONTEXT + 1)
    pieces = codes[: count * (CONTEXT + 1)].reshape(count, CONTEXT + 1)
    return pieces[np.random.Generator(np.random.Philox(7)).permutation(count)[:6000]]


def weights(seed: int) -> dict[str, np.ndarray]:
    """The initial values."""
    rng = np.random.Generator(np.random.Philox(seed))
    found = {
        "table": rng.standard_normal((KINDS, DEPTH)).astype("float32") / 4,
        "places": rng.standard_normal((CONTEXT, DEPTH)).astype("float32") / 4,
    }
    for i in range(LAYERS):
        found[f"qkv{i}"] = glorot(rng, DEPTH, 3 * DEPTH)
        found[f"mix{i}"] = glorot(rng, DEPTH, DEPTH)
        found[f"up{i}"] = glorot(rng, DEPTH, 4 * DEPTH)
        found[f"down{i}"] = glorot(rng, 4 * DEPTH, DEPTH)
        for name in ("before", "middle"):
            found[f"{name}_scale{i}"] = np.ones(DEPTH, "float32")
            found[f"{name}_shift{i}"] = np.zeros(DEPTH, "float32")
    return found | {"w": glorot(rng, DEPTH, KINDS), "b": np.zeros(KINDS, "float32")}


def normal(x: hf.Tensor, scale: hf.Variable, shift: hf.Variable) -> hf.Tensor:
    """Layer normalization."""
    mean, variance = hf.nn.moments(x, [-1], keep_dims=True)
    return (x - mean) * hf.rsqrt(variance + 1e-5) * scale + shift


def times(x: hf.Tensor, w: hf.Variable) -> hf.Tensor:
    """The last axis of `x` [batch, time, depth] times a matrix."""
    flat = hf.matmul(hf.reshape(x, [-1, w.shape[0]]), w)
    return hf.reshape(flat, [-1, CONTEXT, w.shape[1]])


def attention(x: hf.Tensor, qkv: hf.Variable, mix: hf.Variable) -> hf.Tensor:
    """Each place looks at itself and those before it, with several heads."""
    parts = hf.reshape(times(x, qkv), [-1, CONTEXT, 3, HEADS, DEPTH // HEADS])
    q, k, v = hf.unstack(hf.transpose(parts, [2, 0, 3, 1, 4]), 3)
    scores = hf.matmul(q, k, transpose_b=True) / np.sqrt(DEPTH / HEADS)
    hidden = np.triu(np.full((CONTEXT, CONTEXT), -1e9, "float32"), 1)
    seen = hf.matmul(hf.nn.softmax(scores + hidden), v)
    return times(hf.reshape(hf.transpose(seen, [0, 2, 1, 3]), [-1, CONTEXT, DEPTH]), mix)


def train(seed: int) -> float | None:
    """The cross-entropy of a character in the pieces held out."""
    pieces = data()
    v = variables(weights(seed))
    x = hf.placeholder(hf.int32, [None, CONTEXT + 1])
    h = hf.nn.embedding_lookup(v["table"], x[:, :-1]) + v["places"]
    for i in range(LAYERS):
        with hf.name_scope(f"attention{i}"):
            normed = normal(h, v[f"before_scale{i}"], v[f"before_shift{i}"])
            h += attention(normed, v[f"qkv{i}"], v[f"mix{i}"])
        with hf.name_scope(f"dense{i}"):
            normed = normal(h, v[f"middle_scale{i}"], v[f"middle_shift{i}"])
            h += times(hf.nn.relu(times(normed, v[f"up{i}"])), v[f"down{i}"])
    with hf.name_scope("characters"):
        logits = times(h, v["w"]) + v["b"]
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=x[:, 1:], logits=logits)
    loss = hf.reduce_mean(losses)
    step = hf.train.AdamOptimizer(RATE).minimize(loss)
    feeds = batches({x: pieces[:-HELD_OUT]}, BATCH, STEPS, seed)
    return trained(step, feeds, loss, {x: pieces[-HELD_OUT:]})


if __name__ == "__main__":
    main(train, "cross-entropy of characters by a transformer")
