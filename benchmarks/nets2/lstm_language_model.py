"""A language model of two LSTM layers, its gradients clipped by their global norm."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("sgd", 1.0)
CLIP = 5.0
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (1, 1)
BATCH, STEPS, WORDS, UNITS, LAYERS = 16, 20, 2000, 256, 2


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def normal(scale: float, *shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype("f4")

    values = {"embedding": normal(0.1, WORDS, UNITS), "softmax": normal(0.05, UNITS, WORDS)}
    for layer in range(LAYERS):  # gates: in, candidate, forget, out
        values[f"kernel{layer}"] = normal(0.05, 2 * UNITS, 4 * UNITS)
        values[f"bias{layer}"] = np.zeros(4 * UNITS, "f4")
    return values | {"softmax_bias": np.zeros(WORDS, "f4")}


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    text = rng.integers(0, WORDS, (STEPS + 1, BATCH)).astype("i4")
    return text[:-1], text[1:]


def hpcflow_loss(hf: Any, v: Any, words: Any, following: Any) -> Any:
    outputs = hf.unstack(hf.nn.embedding_lookup(v["embedding"], words), STEPS)
    for layer in range(LAYERS):
        inputs, outputs = outputs, []
        h = c = hf.zeros([hf.shape(words)[1], UNITS])
        for x in inputs:
            both = hf.concat([x, h], 1)
            gates = hf.nn.bias_add(hf.matmul(both, v[f"kernel{layer}"]), v[f"bias{layer}"])
            i, j, f, o = hf.split(gates, 4, axis=1)
            c = hf.sigmoid(f + 1.0) * c + hf.sigmoid(i) * hf.tanh(j)
            h = hf.sigmoid(o) * hf.tanh(c)
            outputs.append(h)
    logits = hf.nn.bias_add(hf.matmul(hf.concat(outputs, 0), v["softmax"]), v["softmax_bias"])
    labels = hf.reshape(following, [-1])
    losses = hf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return hf.reduce_mean(losses)


def tensorflow_loss(tf: Any, v: Any, words: Any, following: Any) -> Any:
    outputs = tf.unstack(tf.nn.embedding_lookup(v["embedding"], words), STEPS)
    for layer in range(LAYERS):
        inputs, outputs = outputs, []
        h = c = tf.zeros([tf.shape(words)[1], UNITS])
        kernel, bias = (tf.convert_to_tensor(v[f"{name}{layer}"]) for name in ("kernel", "bias"))
        for x in inputs:
            i, j, f, o = tf.split(tf.matmul(tf.concat([x, h], 1), kernel) + bias, 4, axis=1)
            c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
            h = tf.sigmoid(o) * tf.tanh(c)
            outputs.append(h)
    logits = tf.matmul(tf.concat(outputs, 0), v["softmax"]) + v["softmax_bias"]
    labels = tf.reshape(following, [-1])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def torch_weights(torch: Any, values: Any) -> dict[str, Any]:
    """As PyTorch's own LSTM has them: [out, in], gates in the order in, forget, candidate, out."""
    values = dict(values)
    for layer in range(LAYERS):
        i, j, f, o = values.pop(f"kernel{layer}").t().chunk(4, 0)
        bi, bj, bf, bo = values[f"bias{layer}"].chunk(4)
        values[f"bias{layer}"] = torch.cat([bi, bf + 1.0, bj, bo])
        of_x, of_h = torch.cat([i, f, j, o]).chunk(2, 1)
        values |= {f"of_x{layer}": of_x.contiguous(), f"of_h{layer}": of_h.contiguous()}
    return values


def torch_loss(torch: Any, v: Any, words: Any, following: Any) -> Any:
    F = torch.nn.functional
    x = F.embedding(words, v["embedding"])
    cells = []
    for layer in range(LAYERS):
        bias = v[f"bias{layer}"]
        cells += [v[f"of_x{layer}"], v[f"of_h{layer}"], bias, torch.zeros_like(bias)]
    zeros = x.new_zeros(LAYERS, x.shape[1], UNITS)
    x = torch.lstm(x, (zeros, zeros), cells, True, LAYERS, 0.0, True, False, False)[0]
    logits = torch.addmm(v["softmax_bias"], x.flatten(0, 1), v["softmax"])
    return F.cross_entropy(logits, following.flatten())


def jax_loss(jax: Any, v: Any, words: Any, following: Any) -> Any:
    jnp = jax.numpy
    outputs = v["embedding"][words]
    for layer in range(LAYERS):
        kernel, bias = v[f"kernel{layer}"], v[f"bias{layer}"]

        def cell(state: Any, gates_of_x: Any, of_h: Any = kernel[UNITS:]) -> Any:
            h, c = state
            i, j, f, o = jnp.split(gates_of_x + h @ of_h, 4, axis=1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(j)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros(outputs.shape[1:], jnp.float32)
        outputs = jax.lax.scan(cell, (zeros, zeros), outputs @ kernel[:UNITS] + bias)[1]
    logits = jax.nn.log_softmax(outputs @ v["softmax"] + v["softmax_bias"])
    return -jnp.mean(jnp.take_along_axis(logits, following[..., None], 2))
