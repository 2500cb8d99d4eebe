"""Cases of reductions, softmax and losses; no oracle calls a kernel of ours."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special as sp

from tests.ops.cases import (
    BOOL,
    CASES,
    F32,
    F64,
    I32,
    I64,
    Case,
    b,
    f,
    n,
    of,
    pos,
    v,
)

# -- reductions

AXES: list[tuple[tuple[int, ...], Any]] = [
    *[((), None), ((5,), None), ((3, 4), None), ((3, 4), 0), ((3, 4), -1), ((3, 4), (0, 1))],
    *[((2, 3, 2), (0, 2)), ((2, 3, 2), 1), ((0, 4), 1), ((3, 4), ())],
]


def _axes(axis: Any, rank: int) -> tuple[int, ...]:
    return tuple(range(rank)) if axis is None else tuple(np.atleast_1d(axis).astype(int) % rank)


def by_rows(function: Callable[[np.ndarray], Any]) -> Callable[..., Any]:
    """A reduction, written as a loop over the elements that stay."""

    def oracle(x: np.ndarray, axis: Any, keep: bool) -> np.ndarray:
        axes = _axes(axis, x.ndim) if x.ndim else ()
        stay = [i for i in range(x.ndim) if i not in axes]
        rows = (
            x.transpose([*stay, *axes]).reshape([x.shape[i] for i in stay] + [-1])
            if x.size
            else (
                np.zeros(
                    [x.shape[i] for i in stay] + [int(np.prod([x.shape[i] for i in axes]))], x.dtype
                )
            )
        )
        out = np.array([function(rows[i]) for i in np.ndindex(rows.shape[:-1])])
        kept = [1 if i in axes else d for i, d in enumerate(x.shape)]
        return out.reshape(kept if keep else rows.shape[:-1])

    return oracle


def _reduction(type: str, function: Any, maker: Any = f, empty: bool = True, **facts: Any) -> None:
    rows = by_rows(function)
    shapes = [*AXES, *([((0, 4), 0), ((0,), None), ((2, 0), None)] if empty else [])]
    for shape, axis in shapes:
        for keep in (False, True):
            attrs = {"axis": axis, "keepdims": keep}
            oracle = lambda x, axis=axis, keep=keep: rows(x, axis, keep)  # noqa: E731
            CASES.append(Case(type, [maker(*shape)], oracle, attrs, **facts))


def _mean(row: np.ndarray) -> float:
    return sum(row) / len(row) if len(row) else np.nan


_reduction("Sum", sum)
_reduction("Sum", sum, n, dtypes=(I32,))
_reduction("Mean", _mean)
_reduction("Prod", lambda row: np.exp(np.sum(np.log(row))), pos)
_reduction("Max", lambda row: sorted(row)[-1] if len(row) else -np.inf)
_reduction("Min", lambda row: sorted(row)[0] if len(row) else np.inf)
_reduction("Max", max, n, empty=False, dtypes=(I32,))
_reduction("Any", lambda row: bool(sum(row)), b, dtypes=(BOOL,))
_reduction("All", lambda row: sum(row) == len(row), b, dtypes=(BOOL,))
_reduction("LogSumExp", lambda row: sp.logsumexp(row) if len(row) else -np.inf)

for _type, _pick in (
    ("ArgMax", lambda r: list(r).index(max(r))),
    ("ArgMin", lambda r: list(r).index(min(r))),
):
    for _shape, _axis in [((5,), 0), ((3, 4), 0), ((3, 4), -1), ((2, 3, 2), 1), ((0, 4), 1)]:
        for _dtype in (I64, I32):
            CASES.append(
                Case(
                    _type,
                    [lambda rng, d, s=_shape: rng.integers(0, 3, s).astype(d)],
                    lambda x, a=_axis, p=_pick: by_rows(p)(x, a, False).astype(int),
                    {"axis": _axis, "dtype": _dtype},
                    dtypes=(F32, F64, I32),
                )
            )


def _kept(x: np.ndarray, shape: tuple[int, ...], axis: Any) -> np.ndarray:
    axes = _axes(axis, len(shape)) if shape else ()
    return x.reshape([1 if i in axes else d for i, d in enumerate(shape)])


def _reduced(shape: tuple[int, ...], axis: Any, keep: bool) -> tuple[int, ...]:
    axes = _axes(axis, len(shape)) if shape else ()
    if keep:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _count(shape: tuple[int, ...], axis: Any) -> int:
    axes = _axes(axis, len(shape)) if shape else ()
    return int(np.prod([shape[i] for i in axes]))


def _others(g: np.ndarray, x: np.ndarray, axis: Any) -> np.ndarray:
    """g times the product of all other elements of the row, one element after the other."""
    out = np.ones_like(x)
    axes = _axes(axis, x.ndim)
    for i, k in itertools.product(np.ndindex(x.shape), repeat=2):
        if i != k and all(i[a] == k[a] for a in range(x.ndim) if a not in axes):
            out[i] *= x[k]
    return out * _kept(g, x.shape, axis)


for _shape, _axis in [*AXES, ((0, 4), 0), ((0,), None)]:
    for _keep in (False, True):
        _a = {"axis": _axis, "keepdims": _keep}
        _small = _reduced(_shape, _axis, _keep)
        _ones = lambda g, *_, s=_shape, a=_axis: np.ones(s) * _kept(g, s, a)  # noqa: E731
        _mean_back = lambda g, *_, s=_shape, a=_axis: (  # noqa: E731
            np.ones(s) * _kept(g, s, a) / max(1, _count(s, a))
        )
        for _static in (True, False):
            _told = [] if _static else [v(_shape)]
            _attrs = {**_a, "shape": _shape if _static else (None,) * len(_shape)}
            CASES.append(Case("SumGrad", [f(*_small), *_told], _ones, _attrs))
            CASES.append(Case("MeanGrad", [f(*_small), *_told], _mean_back, _attrs))
        _place = lambda g, x, y, s=_shape, a=_axis: (  # noqa: E731
            (x == _kept(y, s, a))
            * _kept(g, s, a)
            / np.maximum(
                1, np.sum(x == _kept(y, s, a), axis=_axes(a, len(s)) if s else (), keepdims=True)
            )
        )
        if _count(_shape, _axis):
            _largest = lambda rng, d, s=_shape: rng.integers(0, 2, s).astype(d)  # noqa: E731
            _top = lambda rng, d, s=_small: np.ones(s, d)  # noqa: E731
            CASES.append(
                Case(
                    "ExtremeGrad",
                    [f(*_small), _largest, _top],
                    _place,
                    _a,
                    still={1: "piecewise constant", 2: "piecewise constant"},
                )
            )
        CASES.append(
            Case(
                "ProdGrad",
                [f(*_small), f(*_shape)],
                lambda g, x, a=_axis: _others(g, x, a),
                _a,
            )
        )

# -- softmax and losses


def _softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return sp.softmax(x, axis=axis)


for _shape, _axis in [
    ((4,), -1),
    ((3, 4), 1),
    ((3, 4), 0),
    ((2, 3, 2), -2),
    ((0, 4), -1),
    ((3, 0), 1),
]:
    _a = {"axis": _axis}
    _sum = lambda x, a=_axis: np.sum(x, axis=a, keepdims=True)  # noqa: E731
    CASES += [
        Case("Softmax", [f(*_shape)], lambda x, a=_axis: _softmax(x, a) if x.size else x, _a),
        Case(
            "LogSoftmax", [f(*_shape)], lambda x, a=_axis: sp.log_softmax(x, a) if x.size else x, _a
        ),
        Case(
            "SoftmaxGrad", [f(*_shape), f(*_shape)], lambda g, y, s=_sum: y * g - y * s(g * y), _a
        ),
        Case(
            "LogSoftmaxGrad",
            [f(*_shape), f(*_shape)],
            lambda g, y, s=_sum: g - np.exp(y) * s(g),
            _a,
        ),
    ]


def _xent(x: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return -np.sum(p * sp.log_softmax(x, -1), axis=-1), _softmax(x) - p


def _sparse(x: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _xent(x, np.eye(x.shape[-1])[k.astype(int)])


CASES += [
    *(
        Case(
            "SoftmaxCrossEntropy",
            [f(*s, low=-9, high=9), of(_softmax, f(*s))],
            _xent,
        )
        for s in [(3, 4), (4,), (0, 4), (2, 3, 4)]
    ),
    *(
        Case(
            "SparseSoftmaxCrossEntropy",
            [f(*s, low=-9, high=9), n(*s[:-1], low=0, high=4, dtype=t)],
            _sparse,
        )
        for s in [(3, 4), (4,), (0, 4), (2, 3, 4)]
        for t in (I32, I64)
    ),
    *(
        Case(
            "InTopK",
            [f(5, 4), n(5, low=0, high=4, dtype=I32)],
            lambda x, t, k=k: [i in np.argsort(-r)[:k] for r, i in zip(x, t, strict=True)],
            {"k": k},
        )
        for k in (1, 2, 4)
    ),
    Case(
        "InTopK",
        [f(0, 4), n(0, low=0, high=4, dtype=I64)],
        lambda x, t: np.zeros(0, bool),
        {"k": 1},
    ),
]
