"""A recurrent tagger of sentences of many lengths: an LSTM, and a loss of the words alone."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("sgd", 0.5)
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 0, 0)
BATCH, STEPS, WORDS, SIZE, UNITS, TAGS = 32, 24, 1000, 64, 128, 16


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def normal(scale: float, *shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype("f4")

    return {
        "embedding": normal(0.5, WORDS, SIZE),
        "kernel": normal(0.07, SIZE + UNITS, 4 * UNITS),  # gates: in, candidate, forget, out
        "bias": np.zeros(4 * UNITS, "f4"),
        "w": normal(0.1, UNITS, TAGS),
        "b": np.zeros(TAGS, "f4"),
    }


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    words = rng.integers(0, WORDS, (BATCH, STEPS)).astype("i4")
    lengths = rng.integers(STEPS // 3, STEPS + 1, BATCH).astype("i4")
    return words, lengths, rng.integers(0, TAGS, (BATCH, STEPS)).astype("i4")


def hpcflow_loss(hf: Any, v: Any, words: Any, lengths: Any, tags: Any) -> Any:
    class Cell(hf.nn.rnn_cell.RNNCell):
        state_size, output_size = (UNITS, UNITS), UNITS

        def call(self, x: Any, state: Any) -> Any:
            c, h = state
            gates = hf.nn.bias_add(hf.matmul(hf.concat([x, h], 1), v["kernel"]), v["bias"])
            i, j, f, o = hf.split(gates, 4, axis=1)
            c = hf.sigmoid(f + 1.0) * c + hf.sigmoid(i) * hf.tanh(j)
            h = hf.sigmoid(o) * hf.tanh(c)
            return h, (c, h)

    x = hf.nn.embedding_lookup(v["embedding"], words)
    outputs, _ = hf.nn.dynamic_rnn(Cell(), x, lengths, dtype=hf.float32)
    logits = hf.nn.bias_add(hf.matmul(hf.reshape(outputs, [-1, UNITS]), v["w"]), v["b"])
    labels = hf.reshape(tags, [-1])
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    mask = hf.reshape(hf.sequence_mask(lengths, STEPS, hf.float32), [-1])
    return hf.reduce_sum(losses * mask) / hf.reduce_sum(mask)


def tensorflow_loss(tf: Any, v: Any, words: Any, lengths: Any, tags: Any) -> Any:
    """Unrolled, which is faster than a loop; outputs behind a sentence's end are masked."""
    inputs = tf.unstack(tf.nn.embedding_lookup(v["embedding"], tf.transpose(words)), STEPS)
    h = c = tf.zeros([tf.shape(words)[0], UNITS])
    kernel, bias = tf.convert_to_tensor(v["kernel"]), tf.convert_to_tensor(v["bias"])
    outputs = []
    for x in inputs:
        i, j, f, o = tf.split(tf.matmul(tf.concat([x, h], 1), kernel) + bias, 4, axis=1)
        c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
        h = tf.sigmoid(o) * tf.tanh(c)
        outputs.append(h)
    logits = tf.matmul(tf.concat(outputs, 0), v["w"]) + v["b"]
    labels = tf.reshape(tf.transpose(tags), [-1])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    mask = tf.reshape(tf.transpose(tf.sequence_mask(lengths, STEPS, tf.float32)), [-1])
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)


def torch_weights(torch: Any, values: Any) -> dict[str, Any]:
    """As PyTorch's own LSTM has them: [out, in], gates in the order in, forget, candidate, out."""
    i, j, f, o = values["kernel"].t().chunk(4, 0)
    bi, bj, bf, bo = values["bias"].chunk(4)
    kernel = torch.cat([i, f, j, o])
    cell = {"of_x": kernel[:, :SIZE].contiguous(), "of_h": kernel[:, SIZE:].contiguous()}
    others = {name: values[name] for name in ("embedding", "w", "b")}
    return others | cell | {"bias": torch.cat([bi, bf + 1.0, bj, bo])}


def torch_loss(torch: Any, v: Any, words: Any, lengths: Any, tags: Any) -> Any:
    """Outputs behind a sentence's end are masked."""
    F = torch.nn.functional
    x = F.embedding(words.t(), v["embedding"])
    cell = [v["of_x"], v["of_h"], v["bias"], torch.zeros_like(v["bias"])]
    zeros = x.new_zeros(1, x.shape[1], UNITS)
    outputs = torch.lstm(x, (zeros, zeros), cell, True, 1, 0.0, True, False, False)[0]
    logits = torch.addmm(v["b"], outputs.flatten(0, 1), v["w"])
    losses = F.cross_entropy(logits, tags.t().flatten(), reduction="none")
    mask = (torch.arange(STEPS)[:, None] < lengths).float().flatten()
    return (losses * mask).sum() / mask.sum()


def jax_loss(jax: Any, v: Any, words: Any, lengths: Any, tags: Any) -> Any:
    """Outputs behind a sentence's end are masked."""
    jnp = jax.numpy

    def cell(state: Any, x: Any) -> Any:
        h, c = state
        gates = jnp.concatenate([x, h], 1) @ v["kernel"] + v["bias"]
        i, j, f, o = jnp.split(gates, 4, axis=1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(j)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((words.shape[0], UNITS), jnp.float32)
    outputs = jax.lax.scan(cell, (zeros, zeros), v["embedding"][words.T])[1]
    logits = jax.nn.log_softmax(outputs @ v["w"] + v["b"])
    losses = -jnp.take_along_axis(logits, tags.T[..., None], 2)[..., 0]
    mask = (jnp.arange(STEPS)[:, None] < lengths).astype(jnp.float32)
    return (losses * mask).sum() / mask.sum()
