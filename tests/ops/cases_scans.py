"""Cases of running sums, the largest, segments, counts; the oracles are loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ops.cases import C64, C128, CASES, F32, F64, I32, I64, Case, Maker, c, f, n, pos, v

# -- running sums


def _running(function: Callable[[list], Any], axis: int, exclusive: bool, reverse: bool) -> Any:
    def row(values: np.ndarray) -> np.ndarray:
        given = list(values[::-1] if reverse else values)
        out = [function(given[: i if exclusive else i + 1]) for i in range(len(given))]
        return np.array(out[::-1] if reverse else out).reshape(values.shape)

    return lambda x: np.apply_along_axis(row, axis, x) if x.size else x


def _product(values: list) -> Any:
    out = 1
    for value in values:
        out = out * value
    return out


def _log_sum(values: list) -> float:
    return np.log(sum(np.exp(value) for value in values)) if values else -np.inf


_PLACES = [((5,), 0), ((3, 4), 0), ((3, 4), -1), ((2, 3, 2), 1), ((0, 4), 0), ((2, 0), 1)]
for _shape, _axis in _PLACES:
    for _exclusive, _reverse in itertools.product([False, True], repeat=2):
        _a = {"axis": _axis, "exclusive": _exclusive, "reverse": _reverse}
        _three = (_axis, _exclusive, _reverse)
        for _type, _rule in (("Cumsum", sum), ("Cumprod", _product)):
            CASES.append(Case(_type, [f(*_shape)], _running(_rule, *_three), _a))
            CASES.append(
                Case(_type, [c(*_shape)], _running(_rule, *_three), _a, dtypes=(C64, C128))
            )
        CASES.append(Case("Cumsum", [n(*_shape)], _running(sum, *_three), _a, dtypes=(I32, I64)))
        if not _exclusive:
            CASES.append(Case("CumulativeLogSumExp", [f(*_shape)], _running(_log_sum, *_three), _a))


def _zeros_in(*shape: int) -> Maker:
    """Numbers of which about a third are 0, whose products have no other slope."""
    return lambda rng, d: (f(*shape)(rng, d) * rng.choice([0, 1, 1], shape)).astype(d)


CASES += [
    Case("Cumprod", [_zeros_in(4, 6)], _running(_product, 1, *e),
         {"axis": 1, "exclusive": e[0], "reverse": e[1]})
    for e in itertools.product([False, True], repeat=2)
]  # fmt: skip

# -- the largest


def _largest(k: int) -> Any:
    def oracle(x: np.ndarray) -> tuple:
        values, places = np.empty((*x.shape[:-1], k)), np.empty((*x.shape[:-1], k))
        for i in np.ndindex(x.shape[:-1]):
            order = sorted(range(x.shape[-1]), key=lambda j: (-x[i][j], j))[:k]
            values[i], places[i] = x[i][order], order
        return values, places

    return oracle


for _shape, _k in [((5,), 2), ((3, 4), 4), ((2, 3, 4), 1), ((3, 4), 0), ((0, 4), 2), ((2, 0), 0)]:
    CASES.append(Case("TopK", [f(*_shape)], _largest(_k), {"k": _k}))
    CASES.append(Case("TopK", [n(*_shape)], _largest(_k), {"k": _k}, dtypes=(I32, I64)))
CASES.append(Case("TopK", [f(2, 100)], _largest(3), {"k": 3}))  # picked, then sorted
CASES.append(Case("TopK", [n(2, 100)], _largest(6), {"k": 6}, dtypes=(I32, I64)))

# -- segments


def _by_segment(function: Callable[[list], Any], absent: Any) -> Any:
    def oracle(data: np.ndarray, ids: np.ndarray, num: Any = None) -> np.ndarray:
        count = (int(ids[-1]) + 1 if ids.size else 0) if num is None else int(num)
        inner = data.shape[ids.ndim :]
        rows, flat = data.reshape((ids.size, *inner)), ids.reshape(-1)
        found = [[r for r, i in zip(rows, flat, strict=True) if i == k] for k in range(count)]
        empty = absent(data.dtype) if callable(absent) else absent
        out = [function(rs) if rs else np.full(inner, empty, float) for rs in found]
        return np.array(out).reshape((count, *inner))

    return oracle


def _edge(which: str) -> Any:
    def edge(dtype: np.dtype) -> Any:
        if dtype.kind != "f":
            return getattr(np.iinfo(dtype), which)
        return getattr(np.finfo(dtype), which)

    return edge


_RULES = {
    "Sum": (lambda rows: sum(rows), 0, 0),
    "Prod": (_product, 1, 1),
    "Max": (lambda rows: np.max(np.array(rows), 0), 0, "min"),
    "Min": (lambda rows: np.min(np.array(rows), 0), 0, "max"),
}
for _kind, (_rule, _none, _absent) in _RULES.items():
    for _shape, _ids in [
        ((5,), [0, 0, 1, 1, 1]),
        ((4, 3), [0, 2, 2, 5]),
        ((3, 2, 2), [1, 1, 1]),
        ((0, 2), []),
    ]:
        _oracle = _by_segment(_rule, _none)
        CASES.append(Case(f"Segment{_kind}", [f(*_shape), v(_ids)], _oracle))
        CASES.append(Case(f"Segment{_kind}", [n(*_shape), v(_ids)], _oracle, dtypes=(I32,)))
    for _shape, _ids in [
        ((5,), [1, 0, 3, 1, 1]),
        ((4, 3), [2, -1, 0, 2]),
        ((2, 2, 3), [[0, 3], [3, -1]]),
        ((0, 2), []),
    ]:
        _last = _edge(_absent) if isinstance(_absent, str) else _absent
        _inputs = [v(_ids), v(4, I64)]
        _oracle = _by_segment(_rule, _last)
        if not isinstance(_absent, str):  # differences of the largest numbers have no digits
            CASES.append(Case(f"UnsortedSegment{_kind}", [f(*_shape), *_inputs], _oracle))
        CASES.append(
            Case(f"UnsortedSegment{_kind}", [n(*_shape), *_inputs], _oracle, dtypes=(I32,))
        )
    if isinstance(_absent, str):
        _all = [v([1, 0, 2, 3, 1, 1, -1]), v(4, I64)]
        _oracle = _by_segment(_rule, _edge(_absent))
        CASES.append(Case(f"UnsortedSegment{_kind}", [f(7, 2), *_all], _oracle))
CASES += [
    Case("SegmentProd", [_zeros_in(8, 3), v([0, 0, 0, 1, 1, 2, 2, 2])], _by_segment(_product, 1)),
    Case("UnsortedSegmentProd", [_zeros_in(8, 3), v([2, 0, 0, 1, 1, 2, 2, -1]), v(3)],
         _by_segment(_product, 1)),
    *(Case(f"Segment{k}", [c(4, 2), v([0, 0, 2, 2])], _by_segment(_RULES[k][0], _RULES[k][1]),
           dtypes=(C64, C128)) for k in ("Sum", "Prod")),
]  # fmt: skip

# -- counts


def _counted(low: int, high: int | None) -> Any:
    def oracle(x: np.ndarray, weights: Any = None) -> np.ndarray:
        flat = x.reshape(-1).tolist()
        count = max([low, *(i + 1 for i in flat)])
        count = count if high is None else min(count, high)
        each = [1] * len(flat) if weights is None else weights.reshape(-1).tolist()
        pairs = list(zip(flat, each, strict=True))
        return np.array([sum(w for i, w in pairs if i == k) for k in range(count)])

    return oracle


for _low, _high in [(0, None), (9, None), (0, 3), (2, 2)]:
    _a = {"minlength": _low, "maxlength": _high, "dtype": I32}
    for _shape in [(6,), (2, 3), (0,)]:
        _rule = _counted(_low, _high)
        CASES.append(Case("Bincount", [n(*_shape, low=0)], _rule, _a, dtypes=(I32, I64)))
        _inputs = [n(*_shape, low=0, dtype=I32), pos(*_shape)]
        CASES.append(Case("Bincount", _inputs, _rule, _a, dtypes=(F32, F64)))
