"""Cases of ops that find, name and reorder places; no oracle calls a kernel of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.ops.cases import BOOL, CASES, F32, I32, I64, SHAPES, Case, b, f, n, v

# -- where things are


def _true(condition: np.ndarray) -> np.ndarray:
    found = [place for place in np.ndindex(condition.shape) if condition[place]]
    return np.array(found, np.int64).reshape(len(found), condition.ndim)


def _distinct(x: np.ndarray, counts: bool) -> tuple[list, ...]:
    seen: list[Any] = []
    which = []
    for value in x.tolist():
        if value not in seen:
            seen.append(value)
        which.append(seen.index(value))
    found = (seen, which)
    return (*found, [which.count(i) for i in range(len(seen))]) if counts else found


def _left(x: np.ndarray, y: np.ndarray) -> tuple[list, list]:
    kept = [i for i, value in enumerate(x.tolist()) if value not in y.tolist()]
    return [x[i] for i in kept], kept


def _first(x: np.ndarray) -> np.ndarray:
    found = np.zeros(x.shape, bool)
    for place in np.ndindex(x.shape):
        found[place] = x[place] not in x[place[:-1]][: place[-1]]
    return found


def _search(row: np.ndarray, values: np.ndarray, right: bool) -> np.ndarray:
    found = np.zeros(values.shape, int)
    for place in np.ndindex(values.shape):
        inside = row[place[:-1]]
        found[place] = sum(r <= values[place] if right else r < values[place] for r in inside)
    return found


def _sorted(*shape: int) -> Any:
    return lambda rng, d: np.sort(rng.integers(0, 9, shape), -1).astype(d)


CASES += [
    *(Case("Where", [b(*s)], _true, dtypes=(BOOL,)) for s in [*SHAPES, (1,)]),
    *(
        Case(
            "Unique",
            [n(*s, low=0, high=4)],
            lambda x, c=counts: _distinct(x, c),
            {"counts": counts, "dtype": t},
            dtypes=dtypes,
        )
        for s in [(7,), (1,), (0,)]
        for counts, t, dtypes in [(False, I32, (I32, I64)), (True, I64, (F32, np.dtype("f8")))]
    ),
    *(
        Case(
            "ListDiff",
            [n(i, low=0, high=5), n(j, low=0, high=5)],
            _left,
            {"dtype": t},
            dtypes=dtypes,
        )
        for i, j in [(8, 3), (0, 2), (4, 0)]
        for t, dtypes in [(I32, (I32, I64)), (I64, (F32, np.dtype("f8")))]
    ),
    *(
        Case("FirstInRow", [n(*s, low=0, high=4, dtype=t)], _first)
        for s in [(7,), (3, 6), (2, 3, 5), (2, 0), (0, 3)]
        for t in (I32, I64)
    ),
    *(
        Case("InvertPermutation", [v(p)], lambda p: [p.tolist().index(i) for i in range(p.size)])
        for p in [[3, 0, 2, 1], [0]]
    ),
    Case("InvertPermutation", [v(np.zeros(0))], lambda p: np.zeros(0)),
    *(
        Case(
            "SearchSorted",
            [_sorted(*s), n(*s[:-1], 3, low=-1, high=10)],
            lambda r, x, right=right: _search(r, x, right),
            {"right": right, "dtype": I32},
        )
        for s in [(5,), (2, 4), (2, 0), (0, 2), (2, 1, 3)]
        for right in (False, True)
    ),
    *(
        Case(
            "UnravelIndex",
            [n(*s, low=0, high=24, dtype=t), v((2, 3, 4), t)],
            lambda i, d: np.stack(np.unravel_index(i.astype(int), (2, 3, 4))),
        )
        for s in [(), (5,), (2, 2), (0,)]
        for t in (I32, I64)
    ),
    *(
        Case("BroadcastArgs", [v(a, t), v(c, t)], lambda a, c, o=out: np.array(o))
        for a, c, out in [
            ((2, 1), (3,), (2, 3)),
            ((), (4, 5), (4, 5)),
            ((1, 0), (7, 1), (7, 0)),
            ((2,), (2,), (2,)),
        ]
        for t in (I32, I64)
    ),
]

# -- index vectors


def _taken(p: np.ndarray, i: np.ndarray) -> np.ndarray:
    i = i.astype(int)
    shape = (*i.shape[:-1], *p.shape[i.shape[-1] :])
    parts = [p[tuple(vector)] for vector in i.reshape(-1, i.shape[-1])]
    return np.array(parts, p.dtype).reshape(shape)


def _put(out: np.ndarray, i: np.ndarray, u: np.ndarray, adds: bool) -> np.ndarray:
    i, out = i.astype(int), out.copy()
    vectors = i.reshape(-1, i.shape[-1])
    rows = u.reshape(len(vectors), *out.shape[i.shape[-1] :])
    for vector, row in zip(vectors, rows, strict=True):
        out[tuple(vector)] = out[tuple(vector)] + row if adds else row
    return out


def _vectors(lead: Sequence[int], limits: Sequence[int], t: Any, distinct: bool = False) -> Any:
    def make(rng: np.random.Generator, d: np.dtype) -> np.ndarray:
        count, whole = int(np.prod(lead)), int(np.prod(limits))
        flat = rng.choice(whole, count, replace=not distinct)
        return np.stack(np.unravel_index(flat, limits), -1).reshape(*lead, len(limits)).astype(t)

    return make


for _whole, _lead, _depth, _t in [
    ((5,), (3,), 1, I32),
    ((3, 4), (2, 2), 2, I64),
    ((3, 4), (2,), 1, I32),
    ((3, 4, 2), (), 2, I32),
    ((3, 0), (2,), 1, I32),
    ((3, 2), (0,), 1, I64),
]:
    _limits = _whole[:_depth]
    _rows = (*_lead, *_whole[_depth:])
    _i, _once = _vectors(_lead, _limits, _t), _vectors(_lead, _limits, _t, True)
    _sum = lambda i, u, *_, s=_whole: _put(np.zeros(s, u.dtype), i, u, True)  # noqa: E731
    CASES += [
        Case("GatherNd", [f(*_whole), _i], _taken),
        Case("ScatterNd", [_i, f(*_rows)], _sum, {"shape": _whole}),
        Case("ScatterNd", [_i, f(*_rows), v(_whole)], _sum, {"shape": None}),
        Case(
            "TensorScatterAdd",
            [f(*_whole), _i, f(*_rows)],
            lambda x, i, u: _put(x, i, u, True),
        ),
        Case(
            "TensorScatterUpdate",
            [f(*_whole), _once, f(*_rows)],
            lambda x, i, u: _put(x, i, u, False),
        ),
    ]
CASES += [
    Case("GatherNd", [f(2, 3), v(np.zeros((2, 0)))], lambda p, i: np.stack([p, p])),
    Case("ScatterNd", [v(np.zeros((2, 0))), f(2, 3)], lambda i, u: u[0] + u[1], {"shape": (3,)}),
]

# -- gather in groups

for _shape, _index, _axis, _batch in [
    ((2, 5, 3), (2, 4), 1, 1),
    ((2, 3, 5), (2, 2), 2, 1),
    ((2, 2, 5, 2), (2, 2, 3), 2, 2),
    ((2, 5), (2,), 1, 1),
    ((2, 3, 5, 2), (2, 0), -2, 1),
]:
    _at = _axis % len(_shape)

    def _groups(p: np.ndarray, i: np.ndarray, a: int = _at, k: int = _batch) -> np.ndarray:
        found = np.array(
            [np.take(p[g], i[g].astype(int), a - k) for g in np.ndindex(p.shape[:k])], p.dtype
        )
        return found.reshape(*p.shape[:k], *found.shape[1:])

    def _back(
        g: np.ndarray, i: np.ndarray, *_: Any, s: Any = _shape, a: int = _at, k: int = _batch
    ) -> np.ndarray:
        out = np.zeros(s, g.dtype)
        for group in np.ndindex(s[:k]):
            for place in np.ndindex(i.shape[k:]):
                to = (*group, *(slice(None),) * (a - k), int(i[group + place]))
                out[to] += g[(*group, *(slice(None),) * (a - k), *place)]
        return out

    _out = (*_shape[:_at], *_index[_batch:], *_shape[_at + 1 :])
    _attrs = {"axis": _axis, "batch_dims": _batch}
    _idx = n(*_index, low=0, high=5, dtype=I32)
    CASES += [
        Case("Gather", [f(*_shape), _idx], _groups, _attrs),
        Case("GatherGrad", [f(*_out), _idx], _back, {**_attrs, "shape": _shape}),
        Case("GatherGrad", [f(*_out), _idx, v(_shape)], _back, {**_attrs, "shape": None}),
    ]

# -- slices with limits that the step tells

for _shape, _key, _told, _take in [
    ((5,), (("at", ("t", 0)),), (3,), lambda x: x[3]),
    ((5,), (("at", ("t", 0)),), (-1,), lambda x: x[-1]),
    ((4, 3), (("slice", None, ("t", 0), None), ("at", 1)), (2,), lambda x: x[:2, 1]),
    (
        (4, 3),
        (("slice", ("t", 0), ("t", 1), ("t", 2)), ("new",), ("rest",)),
        (3, 0, -2),
        lambda x: x[3:0:-2, None],
    ),
    ((0, 2), (("slice", ("t", 0), None, None),), (1,), lambda x: x[1:]),
]:
    _out = np.shape(_take(np.zeros(_shape)))

    def _spread(g: np.ndarray, *_: Any, s: Any = _shape, take: Any = _take) -> np.ndarray:
        places = take(np.arange(int(np.prod(s))).reshape(s))
        out = np.zeros(int(np.prod(s)), g.dtype)
        out[np.ravel(places)] = np.ravel(g)
        return out.reshape(s)

    _scalars = [v(t) for t in _told]
    CASES += [
        Case("StridedSlice", [f(*_shape), *_scalars], lambda x, *_, t=_take: t(x), {"key": _key}),
        Case(
            "StridedSliceGrad",
            [f(*_out), *_scalars],
            _spread,
            {"key": _key, "shape": _shape},
        ),
        Case(
            "StridedSliceGrad",
            [f(*_out), *_scalars, v(_shape)],
            _spread,
            {"key": _key, "shape": None},
        ),
    ]

# -- another order

for _shape, _key in [
    ((3,), ("r",)),
    ((2, 3), ("", "r")),
    ((2, 3, 2), ("r", "", "r")),
    ((), ()),
    ((0, 2), ("r", "")),
]:
    _slices = tuple(slice(None, None, -1 if k else 1) for k in _key)
    _axes = tuple(i - (len(_key) if i else 0) for i, k in enumerate(_key) if k)
    CASES.append(Case("Reverse", [f(*_shape)], lambda x, s=_slices: x[s], {"axis": _axes}))


def _each_reversed(x: np.ndarray, lengths: np.ndarray, along: int, batch: int) -> np.ndarray:
    rows = np.moveaxis(x, (batch, along), (0, 1)).copy()
    for row, length in zip(rows, lengths.astype(int), strict=True):
        row[:length] = row[:length][::-1].copy()
    return np.moveaxis(rows, (0, 1), (batch, along))


for _shape, _along, _batch, _lengths in [
    ((3, 4), 1, 0, (0, 2, 4)),
    ((4, 2, 3), 0, 2, (4, 3, 1)),
    ((2, 3), -1, 0, (3, 1)),
    ((0, 3), 1, 0, ()),
]:
    CASES += [
        Case(
            "ReverseSequence",
            [f(*_shape), v(_lengths, t)],
            lambda x, k, a=_along, c=_batch: _each_reversed(x, k, a, c),
            {"seq_axis": _along, "batch_axis": _batch},
        )
        for t in (I32, I64)
    ]

# -- what the step tells of one_hot and pad

CASES += [
    Case(
        "OneHot",
        [n(4, low=-1, high=4, dtype=I32), v(3)],
        lambda i, d: np.where(i[:, None] == np.arange(3), 2.5, -1),
        {"depth": None, "axis": -1, "dtype": F32, "on_value": 2.5, "off_value": -1},
    ),
    Case(
        "Pad",
        [f(2, 3), v((1, 0, 2, 1))],
        lambda x, p: np.pad(x, ((1, 0), (2, 1)), constant_values=1.5),
        {"paddings": None, "value": 1.5},
    ),
]

# -- rows dealt out and put together


def _dealt(x: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(x[p == k] for k in range(3))


def _stitched(*parts: np.ndarray) -> np.ndarray:
    half = len(parts) // 2
    rows = {}
    for i, d in zip(parts[:half], parts[half:], strict=True):
        rows.update({int(i[place]): d[place] for place in np.ndindex(i.shape)})
    rest = parts[half].shape[parts[0].ndim :]
    size = max(rows, default=-1) + 1
    return np.array([rows.get(k, np.zeros(rest)) for k in range(size)]).reshape(size, *rest)


CASES += [
    *(
        Case("DynamicPartition", [f(*s), n(*p, low=0, high=3, dtype=I32)], _dealt, {"num": 3})
        for s, p in [((6,), (6,)), ((5, 2), (5,)), ((2, 3, 2), (2, 3)), ((0, 2), (0,))]
    ),
    Case("DynamicPartition", [f(4, 2), v((0, 0, 0, 0))], lambda x, p: x, {"num": 1}),
    Case("DynamicStitch", [v((2, 0)), v([[3], [1]]), f(2, 2), f(2, 1, 2)], _stitched),
    Case("DynamicStitch", [v(4), v((0, 1)), f(3), f(2, 3)], _stitched),
    Case("DynamicStitch", [v(np.zeros(0)), f(0, 3)], _stitched),
]
