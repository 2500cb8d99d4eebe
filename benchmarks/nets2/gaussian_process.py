"""A Gaussian process in float64 with a deep kernel: its log marginal likelihood is maximized."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

OPTIMIZER = ("adam", 1e-2)
TOLERANCE = (1e-8, 1e-4)
BATCH_AXES = (0, 0)
POINTS, LAYERS = 400, (8, 32, 32, 4)


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    values = {}
    for i, (n, m) in enumerate(itertools.pairwise(LAYERS)):
        values |= {f"w{i}": rng.standard_normal((n, m)) / n**0.5, f"b{i}": np.zeros(m)}
    values["log_length"] = np.zeros(LAYERS[-1])
    return values | {"log_scale": np.zeros(()), "log_noise": np.array(-2.0)}


def batch(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    x = rng.standard_normal((POINTS, LAYERS[0]))
    return x, np.sin(x.sum(1)) + 0.1 * rng.standard_normal(POINTS)


def hpcflow_loss(hf: Any, v: Any, x: Any, y: Any) -> Any:
    h = x
    for i in range(len(LAYERS) - 1):
        h = hf.nn.bias_add(hf.matmul(h, v[f"w{i}"]), v[f"b{i}"])
        h = hf.tanh(h) if i < len(LAYERS) - 2 else h
    h = h * hf.exp(-v["log_length"])
    squares = hf.reduce_sum(hf.square(h), 1, keepdims=True)
    apart = squares + hf.transpose(squares) - 2.0 * hf.matmul(h, h, transpose_b=True)
    kernel = hf.exp(v["log_scale"] - 0.5 * hf.maximum(apart, 0.0))
    noise = hf.exp(v["log_noise"]) + 1e-6
    kernel = hf.linalg.set_diag(kernel, hf.linalg.diag_part(kernel) + noise)
    lower = hf.cholesky(kernel)
    white = hf.matrix_triangular_solve(lower, hf.expand_dims(y, 1))
    determinant = hf.reduce_sum(hf.log(hf.linalg.diag_part(lower)))
    n = hf.cast(hf.size(y), hf.float64)
    return (0.5 * hf.reduce_sum(hf.square(white)) + determinant) / n + 0.5 * math.log(2 * math.pi)


def tensorflow_loss(tf: Any, v: Any, x: Any, y: Any) -> Any:
    h = x
    for i in range(len(LAYERS) - 1):
        h = tf.nn.bias_add(tf.matmul(h, v[f"w{i}"]), v[f"b{i}"])
        h = tf.tanh(h) if i < len(LAYERS) - 2 else h
    h = h * tf.exp(-v["log_length"])
    squares = tf.reduce_sum(tf.square(h), 1, keepdims=True)
    apart = squares + tf.transpose(squares) - 2.0 * tf.matmul(h, h, transpose_b=True)
    kernel = tf.exp(v["log_scale"] - 0.5 * tf.maximum(apart, tf.constant(0.0, tf.float64)))
    noise = tf.exp(v["log_noise"]) + 1e-6
    kernel = tf.linalg.set_diag(kernel, tf.linalg.diag_part(kernel) + noise)
    lower = tf.linalg.cholesky(kernel)
    white = tf.linalg.triangular_solve(lower, tf.expand_dims(y, 1))
    determinant = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(lower)))
    n = tf.cast(tf.size(y), tf.float64)
    return (0.5 * tf.reduce_sum(tf.square(white)) + determinant) / n + 0.5 * math.log(2 * math.pi)


def torch_loss(torch: Any, v: Any, x: Any, y: Any) -> Any:
    h = x
    for i in range(len(LAYERS) - 1):
        h = torch.addmm(v[f"b{i}"], h, v[f"w{i}"])
        h = torch.tanh(h) if i < len(LAYERS) - 2 else h
    h = h * torch.exp(-v["log_length"])
    squares = h.square().sum(1, keepdim=True)
    apart = torch.addmm(squares + squares.t(), h, h.t(), alpha=-2.0)
    kernel = torch.exp(v["log_scale"] - 0.5 * apart.clamp_min(0.0))
    noise = torch.exp(v["log_noise"]) + 1e-6
    kernel = kernel + torch.diag(noise.expand(x.shape[0]))
    lower = torch.linalg.cholesky(kernel)
    white = torch.linalg.solve_triangular(lower, y.unsqueeze(1), upper=False)
    determinant = lower.diagonal().log().sum()
    n = y.numel()
    return (0.5 * white.square().sum() + determinant) / n + 0.5 * math.log(2 * math.pi)


def jax_loss(jax: Any, v: Any, x: Any, y: Any) -> Any:
    jnp = jax.numpy
    h = x
    for i in range(len(LAYERS) - 1):
        h = h @ v[f"w{i}"] + v[f"b{i}"]
        h = jnp.tanh(h) if i < len(LAYERS) - 2 else h
    h = h * jnp.exp(-v["log_length"])
    squares = jnp.sum(h * h, 1, keepdims=True)
    apart = squares + squares.T - 2 * h @ h.T
    kernel = jnp.exp(v["log_scale"] - 0.5 * jnp.maximum(apart, 0))
    noise = jnp.exp(v["log_noise"]) + 1e-6
    kernel = kernel + noise * jnp.eye(x.shape[0])
    lower = jnp.linalg.cholesky(kernel)
    white = jax.scipy.linalg.solve_triangular(lower, y, lower=True)
    determinant = jnp.sum(jnp.log(jnp.diagonal(lower)))
    return (0.5 * white @ white + determinant) / y.size + 0.5 * math.log(2 * math.pi)
