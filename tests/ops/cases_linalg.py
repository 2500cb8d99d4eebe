"""Cases of linear algebra; the oracles are SciPy's and sums over elements."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import scipy.linalg as sl

from tests.ops.cases import C64, C128, CASES, F32, F64, I32, Case, Maker, c, f, n

BOTH = (C64, C128)
KINDS: list[tuple[Any, tuple]] = [(f, (F32, F64)), (c, BOTH)]


def each(function: Any, *arrays: np.ndarray) -> Any:
    """A function of matrices for each of a batch."""
    lead = np.broadcast_shapes(*(a.shape[:-2] for a in arrays))
    if not lead:
        return function(*arrays)
    given = [np.broadcast_to(a, (*lead, *a.shape[-2:])) for a in arrays]
    found = [function(*(a[i] for a in given)) for i in np.ndindex(lead)]
    if isinstance(found[0], tuple):
        parts = list(zip(*found, strict=True))
        return tuple(np.array(part).reshape(*lead, *part[0].shape) for part in parts)
    return np.array(found).reshape(*lead, *np.shape(found[0]))


def well(maker: Any, *lead: int, n: int = 3) -> Maker:
    """Matrices far from singular."""

    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        return (maker(*lead, n, n)(rng, dtype) + 4 * np.eye(n)).astype(dtype)

    return make


def positive(maker: Any, *lead: int, n: int = 3) -> Maker:
    """Hermitian positive definite matrices."""

    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        x = maker(*lead, n, n)(rng, dtype)
        return (x @ x.swapaxes(-1, -2).conj() + np.eye(n)).astype(dtype)

    return make


# -- parts


def _set(x: np.ndarray, d: np.ndarray) -> np.ndarray:
    x = x.copy()
    for i in range(d.shape[-1]):
        x[..., i, i] = d[..., i]
    return x


def _part(x: np.ndarray) -> np.ndarray:
    return np.stack([x[..., i, i] for i in range(min(x.shape[-2:]))], -1)


for _lead in [(), (2,), (2, 3)]:
    CASES += [
        Case("MatrixDiag", [f(*_lead, 4)], lambda d: d[..., None] * np.eye(4)),
        Case("MatrixDiag", [n(*_lead, 4)], lambda d: d[..., None] * np.eye(4), dtypes=(I32,)),
    ]
    for _m, _n in [(3, 3), (2, 4), (4, 2)]:
        _k = min(_m, _n)
        CASES += [
            Case("MatrixDiagPart", [f(*_lead, _m, _n)], _part),
            Case("MatrixSetDiag", [f(*_lead, _m, _n), f(*_lead, _k)], _set),
        ]
for _low, _up in itertools.product([-1, 0, 1], [-1, 0, 2]):
    _keep = lambda x, low=_low, up=_up: np.array(  # noqa: E731
        [
            [
                v if (low < 0 or i - j <= low) and (up < 0 or j - i <= up) else 0
                for j, v in enumerate(row)
            ]
            for i, row in enumerate(x)
        ]
    )
    _a = {"num_lower": _low, "num_upper": _up}
    CASES.append(Case("MatrixBandPart", [f(3, 4)], _keep, _a))
    CASES.append(Case("MatrixBandPart", [f(2, 4, 3)], lambda x, k=_keep: each(k, x), _a))
    CASES.append(Case("MatrixBandPart", [c(3, 4)], _keep, _a, dtypes=BOTH))
CASES += [
    Case("MatrixDiag", [f(0)], lambda d: np.zeros((0, 0))),
    Case("MatrixDiagPart", [f(0, 3)], lambda x: np.zeros(0)),
    Case("MatrixDiag", [c(3)], lambda d: d[:, None] * np.eye(3), dtypes=BOTH),
    Case("MatrixDiagPart", [c(3, 3)], _part, dtypes=BOTH),
    Case("MatrixSetDiag", [c(3, 3), c(3)], _set, dtypes=BOTH),
]

# -- solving


def _adjoint(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2).conj()


for _maker, _dtypes in KINDS:
    for _lead in [(), (2,)]:
        _one = well(_maker, *_lead)
        CASES += [
            Case("MatrixInverse", [_one], lambda x: each(sl.inv, x), dtypes=_dtypes),
            Case("MatrixDeterminant", [_one], lambda x: each(sl.det, x), dtypes=_dtypes),
            Case("Expm", [_maker(*_lead, 3, 3)], lambda x: each(sl.expm, x), dtypes=_dtypes),
            Case("Cholesky", [positive(_maker, *_lead)],
                 lambda x: each(lambda m: sl.cholesky(m, lower=True), x), dtypes=_dtypes,
                 hermitian=True),
        ]  # fmt: skip
    for _turn in (False, True):
        _solve = lambda a, b, t=_turn: each(sl.solve, _adjoint(a) if t else a, b)  # noqa: E731
        _a = {"adjoint": _turn}
        for _left, _right in [((), ()), ((2,), (2,)), ((), (2,)), ((2, 1), (3,))]:
            _inputs = [well(_maker, *_left), _maker(*_right, 3, 2)]
            CASES.append(Case("MatrixSolve", _inputs, _solve, _a, dtypes=_dtypes))
            for _low in (False, True):
                _triangle = lambda a, b, t=_turn, low=_low: each(  # noqa: E731
                    lambda x, y: sl.solve_triangular(x, y, "C" if t else "N", low), a, b
                )
                _more = {**_a, "lower": _low}
                CASES.append(
                    Case("MatrixTriangularSolve", _inputs, _triangle, _more, dtypes=_dtypes)
                )


def _log_det(x: np.ndarray) -> tuple:
    d = sl.det(x)
    return np.array(np.sign(d)), np.array(np.log(abs(d)))


CASES += [
    Case("LogMatrixDeterminant", [well(f)], _log_det),
    Case("LogMatrixDeterminant", [well(f, 2)], lambda x: each(_log_det, x)),
    Case("LogMatrixDeterminant", [lambda r, d: -well(f)(r, d)], _log_det),
    Case("MatrixInverse", [f(0, 0)], lambda x: x),
    Case("MatrixDeterminant", [f(2, 0, 0)], lambda x: np.ones(2)),
    Case("MatrixSolve", [well(f), f(3, 0)], lambda a, b: b, {"adjoint": False}),
    Case("Expm", [f(0, 0)], lambda x: x),
    Case("Expm", [f(3, 3, low=-30, high=30)], sl.expm, dtypes=(F64,)),
    Case("Expm", [f(1, 1)], np.exp),
]  # fmt: skip

# -- decompositions


def _qr(x: np.ndarray, full: bool) -> tuple:
    return tuple(sl.qr(x, mode="full" if full else "economic"))


def _svd(x: np.ndarray, full: bool) -> tuple:
    u, s, v = np.linalg.svd(x, full_matrices=full)
    return s, u, v.conj().T


def _upright(maker: Any, *shape: int) -> Maker:
    """Matrices whose singular values are apart."""

    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        u, _, v = np.linalg.svd(maker(*shape)(rng, C128 if dtype.kind == "c" else F64), False)
        k = min(shape[-2:])
        return (u * (1 + np.arange(k)) @ v).astype(dtype)

    return make


for _maker, _dtypes in KINDS:
    for _shape in [(3, 3), (4, 2), (2, 4), (2, 3, 3)]:
        for _full in (False, True):
            _wide = _shape[-2] < _shape[-1] or (_full and _shape[-2] != _shape[-1])
            CASES.append(
                Case("Qr", [_upright(_maker, *_shape)],
                     lambda x, full=_full: each(lambda m: _qr(m, full), x),
                     {"full_matrices": _full}, dtypes=_dtypes, refused=(0,) if _wide else (),
                     sized=True)
            )  # fmt: skip
            _whole = _full and _shape[-2] != _shape[-1]
            _no = _whole or _maker is c
            _a = {"full_matrices": _full, "compute_uv": True}
            CASES.append(
                Case("Svd", [_upright(_maker, *_shape)],
                     lambda x, full=_full: each(lambda m: _svd(m, full), x), _a,
                     dtypes=_dtypes, refused=(0,) if _no else (), sized=_full)
            )  # fmt: skip
        _a = {"full_matrices": False, "compute_uv": False}
        _values = lambda x: each(sl.svdvals, x)  # noqa: E731
        CASES.append(Case("Svd", [_upright(_maker, *_shape)], _values, _a, dtypes=_dtypes))
    for _lead in [(), (2,)]:
        _h = positive(_maker, *_lead)
        CASES.append(
            Case("SelfAdjointEig", [_h], lambda x: each(sl.eigvalsh, x), {"compute_v": False},
                 dtypes=_dtypes)
        )  # fmt: skip
CASES += [
    Case("SelfAdjointEig", [positive(f)], lambda x: np.linalg.eigh(x), {"compute_v": True}),
    Case("SelfAdjointEig", [positive(f, 2)], lambda x: each(lambda m: tuple(np.linalg.eigh(m)), x),
         {"compute_v": True}),
]  # fmt: skip
