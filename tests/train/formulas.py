"""The papers' formulas of optimizers in NumPy, float64: what ours are held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import hpcflow as hf

Step = Callable[[int, np.ndarray, np.ndarray], np.ndarray]  # (t, value, gradient) -> value


class State(dict):
    """Slots that begin with a number."""

    def get(self, name: str, start: float, like: np.ndarray) -> np.ndarray:  # type: ignore[override]
        return self.setdefault(name, np.full(like.shape, start))


def descent(rate: float) -> Step:
    return lambda t, w, g: w - rate * g


def momentum(rate: float, mu: float, nesterov: bool = False) -> Step:
    s = State()

    def step(t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        s["a"] = mu * s.get("a", 0, w) + g
        return w - rate * (g + mu * s["a"] if nesterov else s["a"])

    return step


def prox(moved: np.ndarray, rate: Any, l1: float, l2: float) -> np.ndarray:
    """argmin over x of (x - moved)^2 / (2 rate) + l1 |x| + l2 x^2 / 2."""
    return np.sign(moved) * np.maximum(np.abs(moved) - rate * l1, 0) / (1 + rate * l2)


def proximal(rate: float, l1: float, l2: float) -> Step:
    return lambda t, w, g: prox(w - rate * g, rate, l1, l2)


def adagrad(rate: float, start: float = 0.1, l1: float = 0.0, l2: float = 0.0) -> Step:
    s = State()

    def step(t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        s["a"] = s.get("a", start, w) + g * g
        each = rate / np.sqrt(s["a"])
        return prox(w - each * g, each, l1, l2)

    return step


def adagrad_da(rate: float, start: float = 0.1, l1: float = 0.0, l2: float = 0.0) -> Step:
    """argmin of <sum of g, x> + t l1 |x| + t l2 x^2 / 2 + x sqrt(sum of g^2) x / (2 rate)."""
    s = State()

    def step(t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        s["g"], s["q"] = s.get("g", 0, w) + g, s.get("q", start, w) + g * g
        cut = np.sign(s["g"]) * np.maximum(np.abs(s["g"]) - t * l1, 0)
        return -cut / (t * l2 + np.sqrt(s["q"]) / rate)

    return step


def adadelta(rate: float, rho: float = 0.95, epsilon: float = 1e-8) -> Step:
    s = State()

    def step(t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        s["a"] = rho * s.get("a", 0, w) + (1 - rho) * g * g
        delta = np.sqrt(s.get("d", 0, w) + epsilon) / np.sqrt(s["a"] + epsilon) * g
        s["d"] = rho * s["d"] + (1 - rho) * delta**2
        return w - rate * delta

    return step


def rmsprop(rate: float, decay: float, mu: float, epsilon: float, centered: bool = False) -> Step:
    s = State()

    def step(t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        s["q"] = decay * s.get("q", 1, w) + (1 - decay) * g * g
        s["g"] = decay * s.get("g", 0, w) + (1 - decay) * g
        spread = s["q"] - s["g"] ** 2 if centered else s["q"]
        s["m"] = mu * s.get("m", 0, w) + rate * g / np.sqrt(spread + epsilon)
        return w - s["m"]

    return step


def adam(rate: float, epsilon: float = 1e-8, decay: float = 0.0, ahead: bool = False) -> Step:
    """Algorithm 1 with epsilon_t = epsilon / sqrt(1 - beta2^t)."""
    s, b1, b2 = State(), 0.9, 0.999

    def step(t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        s["m"] = b1 * s.get("m", 0, w) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0, w) + (1 - b2) * g * g
        m = b1 * s["m"] + (1 - b1) * g if ahead else s["m"]
        root = np.sqrt(s["v"] / (1 - b2**t)) + epsilon / np.sqrt(1 - b2**t)
        return w - rate * m / (1 - b1**t) / root - rate * decay * w

    return step


def adamax(rate: float, epsilon: float = 1e-8) -> Step:
    s = State()

    def step(t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        s["m"] = 0.9 * s.get("m", 0, w) + 0.1 * g
        s["u"] = np.maximum(0.999 * s.get("u", 0, w), np.abs(g))
        return w - rate / (1 - 0.9**t) * s["m"] / (s["u"] + epsilon)

    return step


def ftrl(
    rate: float, power: float, start: float, l1: float, l2: float, shrinkage: float = 0.0
) -> Step:
    """McMahan et al., Algorithm 1, with z as `linear` and n as `accum`; alpha the rate."""
    s = State()

    def step(t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        n, z = s.get("n", start, w), s.get("z", 0, w)
        more = n + g * g
        s["z"] = z + g + 2 * shrinkage * w - (more**-power - n**-power) / rate * w
        s["n"] = more
        solved = -(s["z"] - np.sign(s["z"]) * l1) / (more**-power / rate + 2 * l2)
        return np.where(np.abs(s["z"]) <= l1, 0, solved)

    return step


def lars(rate: float, mu: float, decay: float, eta: float) -> Step:
    s = State()

    def step(t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        size = np.linalg.norm(w), np.linalg.norm(g)
        local = eta * size[0] / (size[1] + decay * size[0]) if min(size) > 0 else 1.0
        s["v"] = mu * s.get("v", 0, w) + rate * local * (g + decay * w)
        return w - s["v"]

    return step


def lamb(rate: float, decay: float, epsilon: float) -> Step:
    s = State()

    def step(t: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        s["m"] = 0.9 * s.get("m", 0, w) + 0.1 * g
        s["v"] = 0.999 * s.get("v", 0, w) + 0.001 * g * g
        r = s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + epsilon) + decay * w
        size = np.linalg.norm(w), np.linalg.norm(r)
        return w - rate * (size[0] / size[1] if min(size) > 0 else 1.0) * r

    return step


def global_step() -> hf.Variable:
    return hf.train.get_or_create_global_step()


T = hf.train
# name -> (ours, the formula)
FORMULAS: dict[str, tuple[Callable[[], Any], Callable[[], Step]]] = {
    "descent": (lambda: T.GradientDescentOptimizer(0.2), lambda: descent(0.2)),
    "momentum": (lambda: T.MomentumOptimizer(0.1, 0.9), lambda: momentum(0.1, 0.9)),
    "nesterov": (
        lambda: T.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
        lambda: momentum(0.1, 0.9, True),
    ),
    "proximal": (
        lambda: T.ProximalGradientDescentOptimizer(0.1, 0.3, 0.2),
        lambda: proximal(0.1, 0.3, 0.2),
    ),
    "adagrad": (lambda: T.AdagradOptimizer(0.3), lambda: adagrad(0.3)),
    "proximal adagrad": (
        lambda: T.ProximalAdagradOptimizer(0.3, 0.2, 0.1, 0.4),
        lambda: adagrad(0.3, 0.2, 0.1, 0.4),
    ),
    "adagrad da": (
        lambda: T.AdagradDAOptimizer(0.3, global_step(), 0.1, 0.05, 0.2),
        lambda: adagrad_da(0.3, 0.1, 0.05, 0.2),
    ),
    "adadelta": (lambda: T.AdadeltaOptimizer(1.0, epsilon=1e-3), lambda: adadelta(1, 0.95, 1e-3)),
    "rmsprop": (
        lambda: T.RMSPropOptimizer(0.05, 0.8, 0.5, 1e-6),
        lambda: rmsprop(0.05, 0.8, 0.5, 1e-6),
    ),
    "rmsprop centered": (
        lambda: T.RMSPropOptimizer(0.05, 0.8, 0.5, 1e-2, centered=True),
        lambda: rmsprop(0.05, 0.8, 0.5, 1e-2, True),
    ),
    "adam": (lambda: T.AdamOptimizer(0.05), lambda: adam(0.05)),
    "adamw": (lambda: T.AdamWOptimizer(0.2, 0.05), lambda: adam(0.05, decay=0.2)),
    "lazy adam": (lambda: T.LazyAdamOptimizer(0.05), lambda: adam(0.05)),
    "nadam": (lambda: T.NadamOptimizer(0.05), lambda: adam(0.05, ahead=True)),
    "adamax": (lambda: T.AdamaxOptimizer(0.05), lambda: adamax(0.05)),
    "ftrl": (
        lambda: T.FtrlOptimizer(0.5, -0.4, 0.2, 0.3, 0.1),
        lambda: ftrl(0.5, -0.4, 0.2, 0.3, 0.1),
    ),
    "ftrl with shrinkage": (
        lambda: T.FtrlOptimizer(0.5, l2_shrinkage_regularization_strength=0.2),
        lambda: ftrl(0.5, -0.5, 0.1, 0, 0, 0.2),
    ),
    "lars": (
        lambda: T.LARSOptimizer(0.5, 0.9, 0.01, 0.1),
        lambda: lars(0.5, 0.9, 0.01, 0.1),
    ),
    "lamb": (lambda: T.LAMBOptimizer(0.05, 0.01), lambda: lamb(0.05, 0.01, 1e-6)),
}
