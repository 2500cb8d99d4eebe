"""A physics-informed net for Burgers' equation in float64: second derivatives in the loss."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

OPTIMIZER = ("adam", 1e-3)
TOLERANCE = (1e-8, 1e-4)
BATCH_AXES = (0, 0, 0, 0, 0)
POINTS, KNOWN, LAYERS, VISCOSITY = 1024, 256, (2, 64, 64, 64, 1), 0.01 / np.pi


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {}
    for i, (n, m) in enumerate(itertools.pairwise(LAYERS)):
        values |= {f"w{i}": rng.standard_normal((n, m)) / n**0.5, f"b{i}": np.zeros(m)}
    return values


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    x, t = rng.uniform(-1, 1, (POINTS, 1)), rng.random((POINTS, 1))
    start = rng.uniform(-1, 1, (KNOWN, 1))
    return x, t, start, np.zeros((KNOWN, 1)), -np.sin(np.pi * start)


def hpcflow_loss(hf: Any, v: Any, x: Any, t: Any, start: Any, zero: Any, known: Any) -> Any:
    def u(x: Any, t: Any) -> Any:
        h = hf.concat([x, t], 1)
        for i in range(4):
            h = hf.nn.bias_add(hf.matmul(h, v[f"w{i}"]), v[f"b{i}"])
            h = hf.tanh(h) if i < 3 else h
        return h

    inside = u(x, t)
    u_x, u_t = hf.gradients(inside, [x, t])
    u_xx = hf.gradients(u_x, x)[0]
    residual = u_t + inside * u_x - VISCOSITY * u_xx
    errors = hf.reduce_mean(hf.square(u(start, zero) - known))
    return hf.reduce_mean(hf.square(residual)) + errors


def tensorflow_loss(tf: Any, v: Any, x: Any, t: Any, start: Any, zero: Any, known: Any) -> Any:
    def u(x: Any, t: Any) -> Any:
        h = tf.concat([x, t], 1)
        for i in range(4):
            h = tf.nn.bias_add(tf.matmul(h, v[f"w{i}"]), v[f"b{i}"])
            h = tf.tanh(h) if i < 3 else h
        return h

    inside = u(x, t)
    u_x, u_t = tf.gradients(inside, [x, t])
    u_xx = tf.gradients(u_x, x)[0]
    residual = u_t + inside * u_x - VISCOSITY * u_xx
    errors = tf.reduce_mean(tf.square(u(start, zero) - known))
    return tf.reduce_mean(tf.square(residual)) + errors


def torch_loss(torch: Any, v: Any, x: Any, t: Any, start: Any, zero: Any, known: Any) -> Any:
    """Derivatives by the forward mode, which compiles: dh, d2h by x and dt by t of each layer."""

    def layers(h: Any, derivatives: Any) -> Any:
        for i in range(4):
            h = torch.addmm(v[f"b{i}"], h, v[f"w{i}"])
            derivatives = [d @ v[f"w{i}"] for d in derivatives]
            if i < 3:
                h = torch.tanh(h)
                derivatives = of_tanh(h, *derivatives) if derivatives else []
        return h, derivatives

    def of_tanh(h: Any, by_x: Any, by_xx: Any, by_t: Any) -> Any:
        slope = 1 - h * h
        return [slope * by_x, slope * by_xx - 2 * h * slope * by_x * by_x, slope * by_t]

    ones, zeros = torch.ones_like(x), torch.zeros_like(x)
    first = [torch.cat(pair, 1) for pair in ((ones, zeros), (zeros, zeros), (zeros, ones))]
    inside, (u_x, u_xx, u_t) = layers(torch.cat([x, t], 1), first)
    residual = u_t + inside * u_x - VISCOSITY * u_xx
    error = layers(torch.cat([start, zero], 1), [])[0] - known
    return residual.square().mean() + error.square().mean()


def jax_loss(jax: Any, v: Any, x: Any, t: Any, start: Any, zero: Any, known: Any) -> Any:
    """Derivatives by the forward mode."""
    jnp = jax.numpy

    def u(x: Any, t: Any) -> Any:
        h = jnp.concatenate([x, t], 1)
        for i in range(4):
            h = h @ v[f"w{i}"] + v[f"b{i}"]
            h = jnp.tanh(h) if i < 3 else h
        return h

    ones = jnp.ones_like(x)

    def by_x(x: Any) -> Any:
        return jax.jvp(lambda x: u(x, t), (x,), (ones,))[1]

    u_x, u_xx = jax.jvp(by_x, (x,), (ones,))
    inside, u_t = jax.jvp(lambda t: u(x, t), (t,), (ones,))
    residual = u_t + inside * u_x - VISCOSITY * u_xx
    return jnp.mean(residual**2) + jnp.mean((u(start, zero) - known) ** 2)
