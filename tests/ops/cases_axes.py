"""Cases of ops whose axes and counts the step tells; no oracle calls a kernel of ours."""

from __future__ import annotations

import numpy as np

from tests.ops.cases import CASES, F32, F64, I32, I64, Case, f, v

_SHAPE = (2, 3, 4)

CASES += [
    *(
        Case("AroundAxis", [v(_SHAPE, I64), v(axis), v(middle, I64)], oracle, {"insert": insert})
        for axis, middle, insert, oracle in [
            (1, [5, 6], False, lambda *_: ([2, 3, 4], [2, 5, 6, 4])),
            (-1, [], False, lambda *_: ([6, 4, 1], [2, 3])),
            (3, [1], True, lambda *_: ([1, 1, 1], [2, 3, 4, 1])),
            (-4, [1], True, lambda *_: ([1, 1, 1], [1, 2, 3, 4])),
        ]
    ),
    Case(
        "JoinedShapes",
        [v(-2), v((2, 3, 4), I64), v((2, 1, 4), I64)],
        lambda *_: ([2, 3, 4], [2, 1, 4], [2, 4, 4]),
    ),
    *(
        Case("ReducedAxes", [v(_SHAPE, I64), v(axes, t)], oracle, {"keepdims": keep})
        for t in (I32, I64)
        for axes, keep, oracle in [
            ([2, 0], False, lambda *_: ([1, 2, 0], [3, 8], [3])),
            ([-1], True, lambda *_: ([0, 1, 2], [6, 4], [2, 3, 1])),
            (1, False, lambda *_: ([0, 2, 1], [8, 3], [2, 4])),
            ([], False, lambda *_: ([0, 1, 2], [24, 1], [2, 3, 4])),
        ]
    ),
    Case(
        "DotAxes",
        [v((2, 3, 4), I64), v((4, 5, 3), I64), v([2, 1]), v([0, -1])],
        lambda *_: ([0, 2, 1], [2, 12], [0, 2, 1], [12, 5], [2, 5]),
    ),
    *(
        Case("TransposeTold", [f(*_SHAPE), v(p)], lambda x, p: np.einsum(x, [0, 1, 2], list(p)))
        for p in [(2, 0, 1), (0, 2, 1)]
    ),
    *(
        Case("ReverseTold", [f(*_SHAPE), v(axes)], oracle)
        for axes, oracle in [
            ((1, -1), lambda x, a: x[:, ::-1, ::-1]),
            ((), lambda x, a: x),
            (0, lambda x, a: x[::-1]),
        ]
    ),
    *(
        Case("Roll", [f(4, 3), v(by), v(axes)], oracle)
        for by, axes, oracle in [
            (1, 0, lambda x, *_: x[[3, 0, 1, 2]]),
            ((-1, 5), (0, 1), lambda x, *_: x[[1, 2, 3, 0]][:, [1, 2, 0]]),
        ]
    ),
    *(
        Case("RollBy", [f(*_SHAPE)], lambda x, by=by, a=axes: np.roll(x, by, a), attrs)
        for by, axes in [((1,), (0,)), ((-1, 5), (0, 1)), ((0,), (2,)), ((3, -1), (1, 1)), ((), ())]
        for attrs in [{"shift": by, "axis": axes}]
    ),
    Case("CheckSizes", [v((3, 0))], lambda x: x, {"what": "a size", "least": 0}, dtypes=(I32,)),
    Case(
        "TopK",
        [f(3, 5), v(2)],
        lambda x, k: (-np.sort(-x, -1)[:, :2], np.argsort(-x, -1)[:, :2]),
        {"k": None},
        dtypes=(F32, F64),
    ),
    Case(
        "InTopK",
        [f(5, 4), v((0, 1, 2, 3, 0)), v(2)],
        lambda x, t, k: [i in np.argsort(-r)[:2] for r, i in zip(x, t, strict=True)],
        {"k": None},
    ),
]
