"""Cases of connectionist temporal classification; the oracle adds up all paths."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import scipy.special as sp

from tests.ops.cases import CASES, I32, I64, Case, f, v


def read(path: tuple[int, ...], blank: int, merge: bool) -> tuple[int, ...]:
    """What a path reads as: repetitions joined, blanks left out."""
    if merge:
        path = tuple(c for i, c in enumerate(path) if not i or c != path[i - 1])
    return tuple(c for c in path if c != blank)


def readings(logits: np.ndarray, blank: int, merge: bool = True) -> dict[tuple[int, ...], float]:
    """The probability of everything that one sample's logits [time, classes] can read as."""
    p = sp.softmax(logits, -1)
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(p.shape[1]), repeat=len(p)):
        found[read(path, blank, merge)] += float(np.prod([p[t, c] for t, c in enumerate(path)]))
    return found


def loss(x: Any, labels: Any, sizes: Any, steps: Any, attrs: dict[str, Any]) -> np.ndarray:
    blank = attrs["blank"] % x.shape[2]
    out = []
    for b in range(x.shape[1]):
        target = tuple(int(c) for c in labels[b, : sizes[b]])
        if attrs["collapse"]:
            target = tuple(c for i, c in enumerate(target) if not i or c != target[i - 1])
        p = readings(x[: steps[b], b], blank, attrs["merge"]).get(target, 0.0)
        out.append(-np.log(p) if p else 0.0)
    return np.array(out).reshape(-1)


def loss_grad(g: Any, x: Any, *given: Any, attrs: dict[str, Any]) -> np.ndarray:
    """By differences of fourth order of the sum over paths."""
    out = np.zeros(x.shape)
    h = 1e-3
    for place in np.ndindex(x.shape):
        for step, weight in ((1, 8), (-1, -8), (2, -1), (-2, 1)):
            moved = x.copy()
            moved[place] += step * h
            out[place] += weight * np.sum(g * loss(moved, *given, attrs)) / (12 * h)
    return out


def beam(x: Any, steps: Any, attrs: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """The most probable readings; the beam of these cases is wide enough for all."""
    time, batch, classes = x.shape
    paths = attrs["paths"]
    labels = np.full((paths, batch, time), -1)
    sizes, scores = np.zeros((paths, batch), int), np.full((batch, paths), -np.inf)
    for b in range(batch):
        found = readings(x[: steps[b], b], classes - 1)
        best = sorted(found.items(), key=lambda item: -item[1])[:paths]
        for k, (reading, p) in enumerate(best):
            if attrs["merge"]:
                reading = tuple(c for i, c in enumerate(reading) if not i or c != reading[i - 1])
            labels[k, b, : len(reading)], sizes[k, b] = reading, len(reading)
            scores[b, k] = np.log(p)
    return labels, sizes, scores


for _labels, _sizes, _steps, _blank, _more in [
    ([[0, 1], [1, 1], [0, 0]], [2, 2, 0], [4, 3, 2], 2, {}),
    ([[2, 1], [1, 1], [1, 2]], [2, 2, 1], [4, 4, 0], 0, {"ignore_longer": True}),
    ([[2, 1], [1, 1], [1, 2]], [2, 2, 1], [2, 2, 1], 0, {"ignore_longer": True}),
    ([[0, 0], [1, 1], [0, 1]], [2, 2, 2], [4, 3, 1], -1, {"collapse": True, "ignore_longer": True}),
    ([[0, 0], [1, 0], [1, 1]], [2, 2, 2], [4, 3, 2], 2, {"merge": False}),
    ([[], [], []], [0, 0, 0], [4, 1, 0], 1, {}),
]:
    _a = {"blank": _blank, "collapse": False, "merge": True, "ignore_longer": False, **_more}
    for _dtype in (I32, I64):
        _given = [v(_labels, _dtype), v(_sizes, _dtype), v(_steps, _dtype)]
        CASES.append(Case("CTCLoss", [f(4, 3, 3), *_given], lambda *t, a=_a: loss(*t, attrs=a), _a))
    CASES.append(
        Case(
            "CTCLossGrad", [f(3), f(4, 3, 3), *_given], lambda *t, a=_a: loss_grad(*t, attrs=a), _a
        )
    )
_none = [v(np.zeros((0, 2)), I32), v(np.zeros(0), I32), v(np.zeros(0), I32)]
_a = {"blank": 0, "collapse": False, "merge": True, "ignore_longer": False}
CASES.append(Case("CTCLoss", [f(4, 0, 3), *_none], lambda *t: np.zeros(0), _a))

for _paths, _merge in [(1, False), (3, False), (2, True)]:
    _a = {"width": 200, "paths": _paths, "blank": -1, "merge": _merge}
    for _dtype in (I32, I64):
        CASES.append(
            Case(
                "CTCBeamSearch",
                [f(4, 2, 3), v([4, 2], _dtype)],
                lambda x, s, a=_a: beam(x, s, a),
                _a,
            )
        )
