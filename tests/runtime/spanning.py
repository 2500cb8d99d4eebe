"""A loop that lies on three devices, run with its gradients: for threads and for MPI ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

import hpcflow as hf

TASKS = [f"/job:worker/task:{k}" for k in range(3)]


def spanning(devices: list[str]) -> Any:
    """A loop whose body lies on three devices: state on the second, a sum on the third."""
    x, n = hf.placeholder(hf.float64, [None, 3]), hf.placeholder(hf.int32, [])
    with hf.device(devices[1]):
        w = hf.Variable(np.random.default_rng(0).standard_normal((3, 3)) / 2, name="w")

    def step(i: Any, h: Any, total: Any) -> Any:
        with hf.device(devices[1]):
            a = hf.tanh(hf.matmul(h, w))
            a = hf.cond(hf.equal(i % 3, 1), lambda: a * 0.5, lambda: hf.sin(a))
        with hf.device(devices[2]):
            b = hf.sin(a) + a
            total = total + hf.reduce_sum(b)
        return i + 1, b, total

    start = [hf.constant(0), x, hf.constant(0.0, hf.float64)]
    i, h, total = hf.while_loop(lambda i, h, total: i < n, step, start)
    loss = hf.reduce_sum(h * h) + total
    return x, n, [i, loss, *hf.gradients(loss, [w, x])]


def run_spanning(devices: list[str]) -> list[Any]:
    """What it gives for several numbers of iterations, without and with gradients."""
    x, n, wanted = spanning(devices)
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        feeds = [{x: np.ones((2, 3)), n: k} for k in (0, 1, 2, 7, 40)]
        forward = [session.run(wanted[:2], feed) for feed in feeds]
        return forward + [session.run(wanted, feed) for feed in feeds]


def same(found: list[Any], expected: list[Any]) -> None:
    """Bit for bit."""
    for mine, its in zip(found, expected, strict=True):
        for a, b in zip(mine, its, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
