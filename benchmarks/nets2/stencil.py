"""Diffusion on a torus in float64, step by step in a loop; conductivities are learned."""

from __future__ import annotations

from typing import Any

import numpy as np

OPTIMIZER = ("sgd", 1.0)
TOLERANCE = (1e-9, 1e-5)
BATCH_AXES = (0, 0)
BATCH, SIDE, STEPS = 4, 64, 40


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"conductivity": 0.1 + 0.05 * rng.random((SIDE, SIDE))}


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    start = rng.standard_normal((BATCH, SIDE, SIDE))
    near = sum(np.roll(start, k, axis) for axis in (1, 2) for k in (-2, -1, 0, 1, 2))
    return start, near / 10


def hpcflow_loss(hf: Any, v: Any, start: Any, target: Any) -> Any:
    def diffused(i: Any, u: Any) -> Any:
        near = hf.add_n([hf.roll(u, k, axis) for axis in (1, 2) for k in (1, -1)])
        return i + 1, u + v["conductivity"] * (near - 4.0 * u)

    u = hf.while_loop(lambda i, u: i < STEPS, diffused, [hf.constant(0), start])[1]
    return hf.reduce_mean(hf.square(u - target))


def tensorflow_loss(tf: Any, v: Any, start: Any, target: Any) -> Any:
    k = tf.convert_to_tensor(v["conductivity"])

    def diffused(i: Any, u: Any) -> Any:
        near = tf.add_n([tf.roll(u, by, axis) for axis in (1, 2) for by in (1, -1)])
        return i + 1, u + k * (near - 4.0 * u)

    bounds = {"maximum_iterations": STEPS}
    u = tf.while_loop(lambda i, u: i < STEPS, diffused, [tf.constant(0), start], **bounds)[1]
    return tf.reduce_mean(tf.square(u - target))


def torch_loss(torch: Any, v: Any, start: Any, target: Any) -> Any:
    u = start
    for _ in range(STEPS):
        near = u.roll(1, 1) + u.roll(-1, 1) + u.roll(1, 2) + u.roll(-1, 2)
        u = u + v["conductivity"] * (near - 4.0 * u)
    return (u - target).square().mean()


def jax_loss(jax: Any, v: Any, start: Any, target: Any) -> Any:
    jnp = jax.numpy

    def diffused(u: Any, _: Any) -> Any:
        near = sum(jnp.roll(u, k, axis) for axis in (1, 2) for k in (1, -1))
        return u + v["conductivity"] * (near - 4.0 * u), None

    u = jax.lax.scan(diffused, start, None, length=STEPS)[0]
    return jnp.mean((u - target) ** 2)
