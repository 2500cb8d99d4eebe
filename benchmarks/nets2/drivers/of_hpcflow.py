"""Trains a network in hpcflow: a graph and a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hpcflow as hf
from nets2.drivers import network


def step(net: Any, mode: str = "", unknown: bool = False) -> Callable[[], float]:
    hf.set_random_seed(1)
    feeds = [
        hf.placeholder(hf.as_dtype(dtype), shape)
        for dtype, shape in network.feed_shapes(net, unknown)
    ]
    trained, state = network.weights(net)
    v = {name: hf.Variable(value, name=name) for name, value in trained.items()}
    v |= {name: hf.Variable(value, name=name, trainable=False) for name, value in state.items()}
    loss, updates = network.loss_and_updates(net.hpcflow_loss(hf, v, *feeds))
    assigned = [hf.assign(v[name], value) for name, value in updates.items()]
    train = hf.group(minimized(net, loss), *assigned)
    session, batches = hf.Session(), network.batches(net)
    session.run(hf.global_variables_initializer())

    def run() -> float:
        return float(session.run([loss, train], dict(zip(feeds, next(batches), strict=True)))[0])

    return run


def minimized(net: Any, loss: Any) -> Any:
    """The operation that changes the weights."""
    kind, rate = net.OPTIMIZER
    makers = {
        "sgd": lambda: hf.train.GradientDescentOptimizer(rate),
        "momentum": lambda: hf.train.MomentumOptimizer(rate, 0.9),
        "adam": lambda: hf.train.AdamOptimizer(rate),
    }
    optimizer, norm = makers[kind](), network.clip_norm(net)
    if norm is None:
        return optimizer.minimize(loss)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, _ = hf.clip_by_global_norm(gradients, norm)
    return optimizer.apply_gradients(zip(clipped, variables, strict=True))
