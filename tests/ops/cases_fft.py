"""Cases of Fourier transforms; the oracle is the matrix of the transform."""

from __future__ import annotations

import numpy as np

from tests.ops.cases import C64, C128, CASES, I64, Case, c, f, v


def along(x: np.ndarray, axis: int, inverse: bool = False) -> np.ndarray:
    n = x.shape[axis]
    places = np.arange(n)
    matrix = np.exp((2j if inverse else -2j) * np.pi * np.outer(places, places) / n)
    matrix = matrix / n if inverse else matrix
    return np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)


def _whole(x: np.ndarray, rank: int, inverse: bool) -> np.ndarray:
    for axis in range(-rank, 0):
        x = along(x, axis, inverse)
    return x


def _half(x: np.ndarray, rank: int) -> np.ndarray:
    return _whole(x, rank, False)[..., : x.shape[-1] // 2 + 1]


def _joined(x: np.ndarray, rank: int, n: int) -> np.ndarray:
    """The first axes back, then the other half of the last one by symmetry."""
    for axis in range(-rank, -1):
        x = along(x, axis, True)
    other = x[..., 1 : (n + 1) // 2][..., ::-1].conj()
    whole = np.concatenate([x, other], -1)
    whole[..., 0] = whole[..., 0].real
    if n % 2 == 0:
        whole[..., n // 2] = whole[..., n // 2].real
    return along(whole, -1, True).real


for _rank, _shapes in [
    (1, [(6,), (5,), (2, 4), (1,)]),
    (2, [(3, 4), (2, 4, 5)]),
    (3, [(2, 3, 4), (2, 2, 3, 3)]),
]:
    for _shape in _shapes:
        for _inverse in (False, True):
            CASES.append(
                Case("Fft", [c(*_shape)], lambda x, r=_rank, i=_inverse: _whole(x, r, i),
                     {"rank": _rank, "inverse": _inverse}, dtypes=(C64, C128))
            )  # fmt: skip
        CASES.append(Case("Rfft", [f(*_shape)], lambda x, r=_rank: _half(x, r), {"rank": _rank}))
        for _n in {2 * (_shape[-1] - 1) or 1, 2 * _shape[-1] - 1}:
            CASES.append(
                Case("Irfft", [c(*_shape), v(_n, I64)], lambda x, n, r=_rank: _joined(x, r, int(n)),
                     {"rank": _rank}, dtypes=(C64, C128))
            )  # fmt: skip
CASES.append(Case("Fft", [c(0, 4)], lambda x: x, {"rank": 1, "inverse": False}, dtypes=(C64, C128)))
