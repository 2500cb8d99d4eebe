"""Cases of normalization; the oracle goes over the groups of elements one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.cases import CASES, Case, f, pos


def _groups(shape: tuple[int, ...], axis: tuple[int, ...]) -> Any:
    """For each group of elements normalized together: where it is, and its moment's place."""
    axes = [a % len(shape) for a in axis]
    for place in np.ndindex(*(1 if i in axes else n for i, n in enumerate(shape))):
        yield tuple(slice(None) if i in axes else p for i, p in enumerate(place)), place


def normalize(x: np.ndarray, axis: tuple[int, ...], epsilon: float) -> tuple[np.ndarray, ...]:
    kept = [1 if i in [a % x.ndim for a in axis] else n for i, n in enumerate(x.shape)]
    y, mean, variance = np.zeros(x.shape), np.zeros(kept), np.zeros(kept)
    for where, place in _groups(x.shape, axis) if x.size else ():
        values = x[where].ravel().tolist()
        m = sum(values) / len(values)
        v = sum((a - m) ** 2 for a in values) / len(values)
        mean[place], variance[place] = m, v
        y[where] = (x[where] - m) / np.sqrt(v + epsilon)
    return y, mean, variance


def back(
    g: np.ndarray, y: np.ndarray, v: np.ndarray, axis: tuple[int, ...], epsilon: float
) -> np.ndarray:
    """The transpose of the Jacobian (1 - 1/n - y y / n) / sqrt(v + epsilon), as a matrix."""
    out = np.zeros(g.shape)
    for where, place in _groups(g.shape, axis) if g.size else ():
        a, b = g[where].ravel(), y[where].ravel()
        jacobian = (np.eye(a.size) - (1 + np.outer(b, b)) / a.size) / np.sqrt(v[place] + epsilon)
        out[where] = (jacobian.T @ a).reshape(out[where].shape)
    return out


for _shape, _axis in [
    ((3, 4), (1,)),
    ((3, 4), (-1,)),
    ((4, 3), (0,)),
    ((2, 3, 4), (0, 1)),
    ((2, 3, 4), (0, 2)),
    ((2, 3, 2, 2), (1, 3)),
    ((5,), (0,)),
    ((0, 3), (0,)),
    ((3, 0), (1,)),
]:
    for _epsilon in (1e-3, 0.5):
        _a = {"axis": _axis, "epsilon": _epsilon}
        _small = [1 if i in [a % len(_shape) for a in _axis] else n for i, n in enumerate(_shape)]
        CASES.append(Case("Normalize", [f(*_shape)], lambda x, a=_a: normalize(x, **a), _a))
        CASES.append(
            Case(
                "NormalizeGrad",
                [f(*_shape), f(*_shape), pos(*_small)],
                lambda g, y, v, a=_a: back(g, y, v, **a),
                _a,
            )
        )
