"""A linear-chain CRF's log-likelihood over a small dense tagger, with lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("adam", 1e-3)
TOLERANCE = (1e-4, 1e-2)
BATCH_AXES = (0, 0, 0)
BATCH, STEPS, SIZE, UNITS, TAGS = 32, 32, 64, 128, 24


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def normal(scale: float, *shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype("f4")

    return {
        "w0": normal(SIZE**-0.5, SIZE, UNITS),
        "b0": np.zeros(UNITS, "f4"),
        "w1": normal(UNITS**-0.5, UNITS, TAGS),
        "b1": np.zeros(TAGS, "f4"),
        "transitions": normal(0.3, TAGS, TAGS),
    }


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    x = rng.standard_normal((BATCH, STEPS, SIZE)).astype("f4")
    tags = rng.integers(0, TAGS, (BATCH, STEPS)).astype("i4")
    return x, tags, rng.integers(STEPS // 2, STEPS + 1, BATCH).astype("i4")


def hpcflow_loss(hf: Any, v: Any, x: Any, tags: Any, lengths: Any) -> Any:
    """As tf.contrib.crf, the loop over time unrolled."""
    h = hf.tanh(hf.nn.bias_add(hf.matmul(hf.reshape(x, [-1, SIZE]), v["w0"]), v["b0"]))
    rows = hf.nn.bias_add(hf.matmul(h, v["w1"]), v["b1"])
    logits, transitions = (
        hf.reshape(rows, [-1, STEPS, TAGS]),
        hf.convert_to_tensor(v["transitions"]),
    )
    inputs = hf.unstack(logits, STEPS, axis=1)
    alpha, table = inputs[0], hf.expand_dims(transitions, 0)
    for t in range(1, STEPS):
        new = hf.reduce_logsumexp(hf.expand_dims(alpha, 2) + table, 1) + inputs[t]
        alpha = hf.where(hf.expand_dims(t < lengths, 1), new, alpha)
    norm = hf.reduce_logsumexp(alpha, 1)
    mask = hf.sequence_mask(lengths, STEPS, hf.float32)
    unary = hf.gather(logits, tags, axis=2, batch_dims=2)
    binary = hf.gather(hf.reshape(transitions, [-1]), tags[:, :-1] * TAGS + tags[:, 1:])
    score = hf.reduce_sum(unary * mask, 1) + hf.reduce_sum(binary * mask[:, 1:], 1)
    return hf.reduce_mean(norm - score)


def tensorflow_loss(tf: Any, v: Any, x: Any, tags: Any, lengths: Any) -> Any:
    return hpcflow_loss(tf, v, x, tags, lengths)


def torch_loss(torch: Any, v: Any, x: Any, tags: Any, lengths: Any) -> Any:
    h = torch.tanh(torch.addmm(v["b0"], x.flatten(0, 1), v["w0"]))
    logits = torch.addmm(v["b1"], h, v["w1"]).view(-1, STEPS, TAGS)
    alpha, *inputs = logits.unbind(1)
    on = (torch.arange(STEPS)[:, None] < lengths).unsqueeze(2)
    for t, now in enumerate(inputs, 1):
        new = torch.logsumexp(alpha.unsqueeze(2) + v["transitions"], 1) + now
        alpha = torch.where(on[t], new, alpha)
    mask = on[:, :, 0].t().float()
    unary = logits.gather(2, tags.unsqueeze(2)).squeeze(2)
    binary = v["transitions"].flatten()[tags[:, :-1] * TAGS + tags[:, 1:]]
    score = (unary * mask).sum(1) + (binary * mask[:, 1:]).sum(1)
    return (torch.logsumexp(alpha, 1) - score).mean()


def jax_loss(jax: Any, v: Any, x: Any, tags: Any, lengths: Any) -> Any:
    jnp = jax.numpy
    logits = jnp.tanh(x @ v["w0"] + v["b0"]) @ v["w1"] + v["b1"]
    by_time = logits.transpose(1, 0, 2)

    def step(alpha: Any, now: Any) -> Any:
        row, on = now
        new = jax.nn.logsumexp(alpha[:, :, None] + v["transitions"], 1) + row
        return jnp.where(on[:, None], new, alpha), None

    on = jnp.arange(STEPS)[:, None] < lengths
    alpha = jax.lax.scan(step, by_time[0], (by_time[1:], on[1:]))[0]
    mask = on.T.astype(jnp.float32)
    unary = jnp.take_along_axis(logits, tags[..., None], 2)[..., 0]
    binary = v["transitions"][tags[:, :-1], tags[:, 1:]]
    score = (unary * mask).sum(1) + (binary * mask[:, 1:]).sum(1)
    return jnp.mean(jax.nn.logsumexp(alpha, 1) - score)
