"""Cases of ops that move elements; no oracle calls a kernel of ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.cases import (
    CASES,
    F32,
    I32,
    I64,
    SHAPES,
    Case,
    f,
    n,
    v,
)

# -- other shapes for the same values

for _shape, _target in [
    ((3, 4), (2, 6)),
    ((3, 4), (-1,)),
    ((), (1, 1)),
    ((0, 4), (-1, 2)),
    ((6,), (3, -1)),
]:
    _real = np.zeros(_shape).reshape(_target).shape
    CASES += [
        Case("Reshape", [f(*_shape)], lambda x, s=_real: x.reshape(s), {"shape": _target}),
        Case(
            "Reshape",
            [f(*_shape), v(_target)],
            lambda x, t, s=_real: x.reshape(s),
            {"shape": (None,) * len(_target)},
        ),
    ]
CASES += [
    *(
        Case("ExpandDims", [f(*s)], lambda x, a=a: np.expand_dims(x, a), {"axis": a})
        for s, a in [((3, 4), 0), ((3, 4), -1), ((3, 4), 1), ((), 0), ((0,), 1)]
    ),
    *(
        Case("Squeeze", [f(*s)], lambda x, a=a: np.squeeze(x, a), {"axis": a})
        for s, a in [
            ((3, 1, 4), None),
            ((1, 3, 1), 0),
            ((1, 3, 1), (0, -1)),
            ((1,), None),
            ((0, 1), 1),
        ]
    ),
    *(
        Case(
            "Transpose",
            [f(*s)],
            lambda x, p=p: np.einsum(x, range(x.ndim), p or range(x.ndim)[::-1]),
            {"perm": p},
        )
        for s, p in [
            ((3, 4), None),
            ((3, 4), (1, 0)),
            ((2, 3, 2), (2, 0, 1)),
            ((), None),
            ((0, 4), (1, 0)),
            ((2, 3, 2), (0, 2, 1)),
        ]
    ),
    *(
        Case("Shape", [f(*s)], lambda x, s=s: np.array(s, int), {"dtype": t})
        for s in SHAPES
        for t in (I32, I64)
    ),
    *(Case("Size", [f(*s)], lambda x, s=s: int(np.prod(s)), {"dtype": I32}) for s in SHAPES),
    *(Case("Rank", [f(*s)], lambda x, s=s: len(s)) for s in SHAPES),
    *(
        Case(
            "Fill",
            [v(s)],
            lambda t, s=s: np.ones(s) * 3,
            {"shape": (None,) * len(s), "value": 3, "dtype": I32},
        )
        for s in SHAPES
    ),
    *(
        Case("Fill", [], lambda s=s: np.ones(s) * 2.5, {"shape": s, "value": 2.5, "dtype": F32})
        for s in SHAPES
    ),
    *(Case("Fill", [f()], lambda x, s=s: np.ones(s) * x, {"shape": s}) for s in SHAPES),
    *(Case("Fill", [f(), v(s)], lambda x, t, s=s: np.ones(s) * x, {"shape": None}) for s in SHAPES),
    *(
        Case("BroadcastTo", [f(*s)], lambda x, t=t: np.ones(t) * x, {"shape": t})
        for s, t in [
            ((), (3,)),
            ((3, 1), (3, 4)),
            ((4,), (3, 4)),
            ((1, 4), (0, 4)),
            ((3,), (3,)),
            ((1,), (2, 3, 2)),
        ]
    ),
    Case(
        "BroadcastTo",
        [f(3, 1), v((3, 4))],
        lambda x, t: np.ones((3, 4)) * x,
        {"shape": (None, None)},
    ),
    *(
        Case("SumToShape", [f(*s)], o, {"shape": t})
        for s, t, o in [
            ((3, 4), (), np.sum),
            ((3, 4), (4,), lambda x: x[0] + x[1] + x[2]),
            ((3, 4), (3, 1), lambda x: np.einsum("ij->i", x)[:, None]),
            ((3, 4), (3, 4), lambda x: x),
            ((2, 3, 2), (1, 2), lambda x: np.einsum("ijk->k", x)[None]),
            ((0, 4), (4,), lambda x: np.zeros(4)),
            ((0, 4), (1, 4), lambda x: np.zeros((1, 4))),
            ((), (), lambda x: x),
        ]
    ),
    Case(
        "SumToShape",
        [f(3, 4), v((1, 4))],
        lambda x, t: np.einsum("ij->j", x)[None],
        {"shape": (None, None)},
    ),
    Case("Range", [v(1), v(9), v(3)], lambda *_: [1, 4, 7]),
    Case("Range", [v(2.0, F32), v(0.0, F32), v(-0.5, F32)], lambda *_: [2.0, 1.5, 1.0, 0.5]),
    Case("Range", [v(3), v(3), v(1)], lambda *_: np.zeros(0, int)),
]

# -- slices, gathers

KEYS: list[tuple[tuple[int, ...], tuple, Any]] = [
    ((3, 4), (("at", 1),), lambda x: x[1]),
    ((3, 4), (("at", -1), ("at", 0)), lambda x: x[-1, 0]),
    ((3, 4), (("slice", 1, None, None),), lambda x: x[1:]),
    ((3, 4), (("rest",), ("slice", None, None, -2)), lambda x: x[..., ::-2]),
    (
        (3, 4),
        (("new",), ("slice", 0, 2, None), ("new",), ("at", 3)),
        lambda x: x[None, 0:2, None, 3],
    ),
    ((2, 3, 2), (("at", 0), ("rest",), ("at", 1)), lambda x: x[0, ..., 1]),
    ((0, 4), (("slice", None, None, None), ("slice", 1, 3, None)), lambda x: x[:, 1:3]),
    ((), (("new",),), lambda x: x[None]),
    ((3,), (("slice", -2, 99, None),), lambda x: x[-2:99]),
]
for _shape, _key, _take in KEYS:
    _out = np.shape(_take(np.zeros(_shape)))

    def _scatter(g: np.ndarray, *_: Any, s: Any = _shape, take: Any = _take) -> np.ndarray:
        places = take(np.arange(int(np.prod(s))).reshape(s))
        out = np.zeros(int(np.prod(s)), g.dtype)
        for place, x in zip(places.ravel(), g.ravel(), strict=True):
            out[place] += x
        return out.reshape(s)

    CASES += [
        Case("StridedSlice", [f(*_shape)], _take, {"key": _key}),
        Case("StridedSliceGrad", [f(*_out)], _scatter, {"key": _key, "shape": _shape}),
        Case("StridedSliceGrad", [f(*_out), v(_shape)], _scatter, {"key": _key, "shape": None}),
    ]
CASES += [
    Case(
        "Slice", [f(3, 4), v((1, 0)), v((2, 3))], lambda x, *_: x[1:3, 0:3], {"size": (None, None)}
    ),
    Case("Slice", [f(3, 4), v((1, 1)), v((-1, 0))], lambda x, *_: x[1:, 1:1], {"size": (-1, 0)}),
    Case("Slice", [f(0, 4), v((0, 1)), v((0, 2))], lambda x, *_: x[:, 1:3], {"size": (None, None)}),
    Case(
        "SliceGrad",
        [f(2, 3), v((1, 0)), v((3, 4))],
        lambda g, *_: np.pad(g, ((1, 0), (0, 1))),
        {"shape": (None, None)},
    ),
]


def _rows(p: np.ndarray, i: np.ndarray, axis: int) -> np.ndarray:
    return p[(slice(None),) * (axis % p.ndim) + (i.astype(int),)]


def _scattered(g: np.ndarray, i: np.ndarray, axis: int, shape: tuple[int, ...]) -> np.ndarray:
    hot = np.eye(shape[axis])[i.reshape(-1).astype(int)]
    at = axis % len(shape)
    rows = g.reshape(*shape[:at], i.size, *shape[at + 1 :])
    return np.moveaxis(np.tensordot(hot, rows, (0, at)), 0, at)


for _shape, _axis, _idx, _t in [
    ((5, 3), 0, (4,), I32),
    ((5, 3), 0, (2, 3), I64),
    ((3, 5), 1, (4,), I32),
    ((3, 5), -1, (), I64),
    ((5,), 0, (0,), I32),
    ((2, 5, 3), 1, (2, 2), I32),
    ((5, 0), 0, (4,), I32),
]:
    _whole = _shape[: _axis % len(_shape)] + _idx + _shape[_axis % len(_shape) + 1 :]
    _g = lambda g, i, *_, a=_axis, s=_shape: _scattered(g, i, a, s)  # noqa: E731
    _i = n(*_idx, low=0, high=5, dtype=_t)
    CASES += [
        Case("Gather", [f(*_shape), _i], lambda p, i, a=_axis: _rows(p, i, a), {"axis": _axis}),
        Case("GatherGrad", [f(*_whole), _i], _g, {"axis": _axis, "shape": _shape}),
        Case("GatherGrad", [f(*_whole), _i, v(_shape)], _g, {"axis": _axis, "shape": None}),
    ]


def _one_hot(i: np.ndarray, axis: int, on: float, off: float) -> np.ndarray:
    i = i.astype(int)
    hot = np.full((*i.shape, 3), float(off))
    for place in np.ndindex(i.shape):
        if 0 <= i[place] < 3:
            hot[(*place, i[place])] = on
    return np.moveaxis(hot, -1, axis)


for _shape, _axis in [((4,), -1), ((), 0), ((2, 3), 1), ((0,), 0)]:
    for _on, _off in ((1, 0), (2.5, -1)):
        CASES.append(
            Case(
                "OneHot",
                [n(*_shape, low=-1, high=4, dtype=I32)],
                lambda i, a=_axis, on=_on, off=_off: _one_hot(i, a, on, off),
                {"depth": 3, "axis": _axis, "dtype": F32, "on_value": _on, "off_value": _off},
            )
        )

# -- joining and parting

for _parts, _axis in [
    (((2, 3), (1, 3)), 0),
    (((2, 3), (2, 1), (2, 0)), -1),
    (((0, 2), (0, 2)), 0),
    (((4,),), 0),
]:
    _sizes = tuple(s[_axis] for s in _parts)
    _total = list(_parts[0])
    _total[_axis] = sum(_sizes)
    _cuts = np.cumsum(_sizes)[:-1].astype(int)
    _cut = lambda x, *_, a=_axis, c=_cuts: tuple(np.split(x, c, a))  # noqa: E731
    CASES += [
        Case(
            "Concat",
            [f(*s) for s in _parts],
            lambda *t, a=_axis: np.moveaxis(
                np.array([r for p in t for r in np.moveaxis(p, a, 0)]).reshape(
                    -1, *np.moveaxis(t[0], a, 0).shape[1:]
                ),
                0,
                a,
            ),
            {"axis": _axis},
        ),
        Case("Split", [f(*_total)], _cut, {"axis": _axis, "sizes": _sizes}),
        Case(
            "Split", [f(*_total), v(_sizes)], _cut, {"axis": _axis, "sizes": (None,) * len(_sizes)}
        ),
    ]
for _shape, _axis in [((2, 3), 0), ((2, 3), -1), ((), 0), ((0, 2), 1)]:
    _more = list(_shape)
    _more.insert(_axis % (len(_shape) + 1), 3)
    CASES += [
        Case(
            "Pack",
            [f(*_shape)] * 3,
            lambda *t, a=_axis: np.concatenate([np.expand_dims(x, a) for x in t], a),
            {"axis": _axis},
        ),
        Case(
            "Unpack",
            [f(*_more)],
            lambda x, a=_axis: tuple(np.moveaxis(x, a, 0)),
            {"axis": _axis, "num": 3},
        ),
    ]
for _shape, _pad in [
    ((2, 3), ((1, 0), (0, 2))),
    ((), ()),
    ((0, 2), ((0, 1), (0, 0))),
    ((3,), ((0, 0),)),
]:
    CASES.append(
        Case(
            "Pad",
            [f(*_shape)],
            lambda x, p=_pad: np.pad(x, p, constant_values=1.5) if p else x,
            {"paddings": _pad, "value": 1.5},
        )
    )
for _shape, _times in [
    ((2, 3), (2, 1)),
    ((2, 3), (1, 3)),
    ((3,), (0,)),
    ((), ()),
    ((0, 2), (2, 2)),
    ((2, 3), (2, 2)),
]:
    _whole = tuple(d * k for d, k in zip(_shape, _times, strict=True))

    def _untile(g: np.ndarray, s: Any = _shape) -> np.ndarray:
        out = np.zeros(s)
        for place in np.ndindex(g.shape):
            out[tuple(i % d for i, d in zip(place, s, strict=True))] += g[place]
        return out

    CASES += [
        Case("Tile", [f(*_shape)], lambda x, t=_times: np.tile(x, t), {"multiples": _times}),
        Case("TileGrad", [f(*_whole)], _untile, {"multiples": _times, "shape": _shape}),
    ]
