"""Trains a network in JAX: one compiled function a step, its parameters donated."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nets2.drivers import network


def limit_threads() -> None:
    """As many as OMP_NUM_THREADS says: XLA takes one for each core that it may run on."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-int(os.environ.get("OMP_NUM_THREADS", "1")) :])


def step(net: Any, mode: str = "", unknown: bool = False) -> Callable[[], float]:
    limit_threads()
    trained, state = network.weights(net)
    if any(value.dtype == "f8" for value in trained.values()):
        jax.config.update("jax_enable_x64", True)
    v, state = (jax.tree.map(jnp.asarray, values) for values in (trained, state))
    train = by_rows(net) if hasattr(net, "jax_rows") else whole(net)
    held = [v, state, first_slots(net, v)]
    batches = network.batches(net)

    def run() -> float:
        *held[:], loss = train(*held, *map(jnp.asarray, next(batches)))
        return float(loss)

    return run


def first_slots(net: Any, v: Any) -> Any:
    """What the optimizer keeps."""
    count = {"sgd": 0, "momentum": 1, "adam": 2}[net.OPTIMIZER[0]]
    return [jax.tree.map(jnp.zeros_like, v) for _ in range(count)], jnp.float32(0)


def whole(net: Any) -> Any:
    def train(v: Any, state: Any, slots: Any, *batch: Any) -> Any:
        def loss(v: Any) -> Any:
            return network.loss_and_updates(net.jax_loss(jax, v | state, *batch))

        (value, updates), g = jax.value_and_grad(loss, has_aux=True)(v)
        v, slots = updated(net, v, clipped(net, g), slots)
        return v, state | updates, slots, value

    return jax.jit(train, donate_argnums=(0, 1, 2))


def clipped(net: Any, g: Any) -> Any:
    norm = network.clip_norm(net)
    if norm is None:
        return g
    whole_norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(g)))
    return jax.tree.map(lambda x: x * (norm / jnp.maximum(whole_norm, norm)), g)


def updated(net: Any, v: Any, g: Any, slots: Any) -> Any:
    (kind, rate), each, (values, t) = net.OPTIMIZER, jax.tree.map, slots
    t = t + 1
    if kind == "sgd":
        return each(lambda x, g: x - rate * g, v, g), (values, t)
    if kind == "momentum":
        a = each(lambda a, g: 0.9 * a + g, values[0], g)
        return each(lambda x, a: x - rate * a, v, a), ([a], t)
    m = each(lambda m, g: 0.9 * m + 0.1 * g, values[0], g)
    s = each(lambda s, g: 0.999 * s + 0.001 * g * g, values[1], g)
    now = rate * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    v = each(lambda x, m, s: (x - now * m / (jnp.sqrt(s) + 1e-8)).astype(x.dtype), v, m, s)
    return v, ([m, s], t)


def by_rows(net: Any) -> Any:
    """By gradient descent; gradients of rows are scattered into their tables.

    By a compiled function of its own: in one with the rest XLA copies the tables.
    """
    rate = net.OPTIMIZER[1]

    def gradients(v: Any, *batch: Any) -> Any:
        ids = net.jax_rows(v, *batch)
        inputs = v | {name: v[name][rows] for name, rows in ids.items()}
        return jax.value_and_grad(lambda inputs: net.jax_loss(jax, inputs, *batch))(inputs)

    def update(v: Any, g: Any, *batch: Any) -> Any:
        ids = net.jax_rows(v, *batch)
        rows = {name: v[name].at[ids[name]].add(-rate * g[name]) for name in ids}
        return {name: x - rate * g[name] for name, x in v.items() if name not in ids} | rows

    first, second = jax.jit(gradients), jax.jit(update, donate_argnums=0)

    def train(v: Any, state: Any, slots: Any, *batch: Any) -> Any:
        value, g = first(v, *batch)
        return second(v, g, *batch), state, slots, value

    return train
