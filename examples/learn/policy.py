"""A policy-gradient agent that balances a pole: episodes of different lengths in one graph.

The cart is simulated in the graph too (Barto, Sutton and Anderson 1983, the equations of motion of
their cart and pole): a loop ends when the last of a batch of episodes has failed or lasted long
enough. The gradient of REINFORCE (Williams 1992) flows back through that loop.
"""

from __future__ import annotations

from typing import Any

from lesson import batches, glorot, main, trained, variables

import hpcflow as hf

import numpy as np  # isort: skip

LONGEST, UNITS, BATCH, STEPS, RATE, HELD_OUT = 100, 16, 24, 120, 0.02, 200
GRAVITY, CART, POLE, HALF, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02


def data() -> np.ndarray:
    """Where episodes begin: position, speed, angle, angular speed; the last ones for testing."""
    rng = np.random.Generator(np.random.Philox(7))
    return rng.uniform(-0.05, 0.05, (2000 + HELD_OUT, 4)).astype("float32")


def weights(seed: int) -> dict[str, np.ndarray]:
    """The initial values."""
    rng = np.random.Generator(np.random.Philox(seed))
    zeros = {"b": np.zeros(UNITS, "float32"), "c": np.zeros(1, "float32")}
    return {"w": glorot(rng, 4, UNITS), "u": glorot(rng, UNITS, 1), **zeros}


def moved(
    state: Any, push: Any, sin: Any = hf.sin, cos: Any = hf.cos, stack: Any = hf.stack
) -> Any:
    """The state 20 ms later, when the cart is pushed right (1) or left (-1)."""
    x, speed, angle, turn = (state[:, i] for i in range(4))
    total, length = CART + POLE, POLE * HALF
    pushed = (FORCE * push + length * turn * turn * sin(angle)) / total
    tilt = (GRAVITY * sin(angle) - cos(angle) * pushed) / (
        HALF * (4 / 3 - POLE * cos(angle) * cos(angle) / total)
    )
    gain = pushed - length * tilt * cos(angle) / total
    return stack([x + TAU * speed, speed + TAU * gain, angle + TAU * turn, turn + TAU * tilt], 1)


def upright(state: hf.Tensor) -> hf.Tensor:
    """Whether each cart is on its track and its pole has not fallen."""
    return hf.logical_and(hf.abs(state[:, 0]) < 2.4, hf.abs(state[:, 2]) < 0.2095)


def episodes(v: dict[str, hf.Variable], start: hf.Tensor, draw: bool) -> tuple[Any, Any]:
    """Of each step [time, episodes]: the logarithm of the action's probability, and if it lived.

    Actions are drawn from the policy, or without `draw` the likelier ones.
    """
    count = hf.shape(start)[:1]

    def step(t: Any, state: Any, alive: Any, logs: Any, lived: Any) -> Any:
        hidden = hf.tanh(hf.matmul(state, v["w"]) + v["b"])
        score = (hf.matmul(hidden, v["u"]) + v["c"])[:, 0]
        level = hf.random_uniform(count) if draw else hf.fill(count, 0.5)
        push = hf.stop_gradient(hf.where(level < hf.sigmoid(score), 1.0, -1.0))
        logs = logs.write(t, -hf.nn.softplus(-push * score) * alive)
        lived = lived.write(t, alive)
        state = moved(state, push)
        return t + 1, state, alive * hf.cast(upright(state), hf.float32), logs, lived

    arrays = [hf.TensorArray(hf.float32, 0, dynamic_size=True) for _ in range(2)]
    *_, logs, lived = hf.while_loop(
        lambda t, state, alive, *_: hf.logical_and(t < LONGEST, hf.reduce_any(alive > 0)),
        step,
        [hf.constant(0), start, hf.fill(count, 1.0), *arrays],
    )
    return logs.stack(), lived.stack()


def train(seed: int) -> float | None:
    """How many steps, of `LONGEST`, episodes last that begin where none was trained from."""
    starts = data()
    v = variables(weights(seed))
    x = hf.placeholder(hf.float32, [None, 4])
    logs, lived = episodes(v, x, draw=True)
    to_come = hf.cumsum(lived, 0, reverse=True)
    usual = hf.reduce_sum(to_come * lived, 1, keepdims=True) / hf.maximum(
        hf.reduce_sum(lived, 1, keepdims=True), 1.0
    )
    gain = hf.stop_gradient((to_come - usual) * lived / 10.0)
    loss = hf.reduce_mean(hf.reduce_sum(-logs * gain, 0))
    optimizer = hf.train.AdamOptimizer(RATE)
    step = optimizer.minimize(loss)
    lengths = hf.reduce_sum(episodes(v, x, draw=False)[1], 0)
    feeds = batches({x: starts[:-HELD_OUT]}, BATCH, STEPS, seed)
    return trained(step, feeds, hf.reduce_mean(lengths), {x: starts[-HELD_OUT:]})


if __name__ == "__main__":
    main(train, "steps that a pole stays upright")
