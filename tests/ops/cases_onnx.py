"""Cases of what models of ONNX brought along: narrow formats, bits, distinct slices, boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.ops.math.round_to_format_ops import FORMATS
from tests.ops.cases import CASES, F32, F64, I32, I64, Case, Maker, f, n, v

# -- numbers of a narrower format: nearest of all that there are


def _attrs(format: str, saturate: bool = False) -> dict[str, Any]:
    digits, lowest, largest, beyond, zero = FORMATS[format]
    beyond = "largest" if saturate else beyond
    return {"digits": digits, "lowest": lowest, "largest": largest, "beyond": beyond,
            "negative_zero": zero}  # fmt: skip


def _all_of(exponents: int, digits: int, bias: int, largest: float) -> np.ndarray:
    """Every finite number of a format, by its definition."""
    scale = 2.0 ** (digits - 1)
    small = np.arange(scale) / scale * 2.0 ** (1 - bias)
    normal = [(1 + np.arange(scale) / scale) * 2.0 ** (e - bias) for e in range(1, 2**exponents)]
    numbers = np.concatenate([small, *normal])
    numbers = numbers[numbers <= largest]
    return np.concatenate([-numbers[:0:-1], numbers])


def _nearest(numbers: np.ndarray, beyond: float) -> Any:
    def oracle(x: np.ndarray) -> np.ndarray:
        step = numbers[-1] - numbers[-2]
        near = numbers[np.abs(x[..., None] - numbers).argmin(-1)]
        out = np.abs(x) >= numbers[-1] + step / 2
        return np.where(np.isnan(x), x, np.where(out, np.copysign(beyond, x), near))

    return oracle


def _spread(*shape: int) -> Maker:
    """Numbers of all sizes, no two ties, with zeros, infinities and NaN."""

    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 6, shape)
        for i, special in enumerate((0.0, np.inf, -np.inf, np.nan)):
            x.reshape(-1)[i] = special
        return x.astype(dtype)

    return make


for _name, _exponents, _bias in (
    *(("float8_e4m3fn", 4, 7), ("float8_e5m2", 5, 15), ("float8_e4m3fnuz", 4, 8)),
    *(("float8_e5m2fnuz", 5, 16), ("float4_e2m1fn", 2, 1)),
):
    _format = FORMATS[_name]
    _numbers = _all_of(_exponents, _format.digits, _bias, _format.largest)
    _beyond = {"inf": np.inf, "nan": np.nan, "largest": _format.largest}
    for _saturate in (False, True):
        _to = _beyond["largest" if _saturate else _format.beyond]
        CASES.append(
            Case(
                "RoundToFormat",
                [_spread(40, 8)],
                _nearest(_numbers, _to),
                _attrs(_name, _saturate),
            )
        )


def _as_half(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float64)


CASES.append(
    Case(
        "RoundToFormat",
        [_spread(50)],
        _as_half,
        _attrs("float16"),
    )
)


# -- the same bytes


def _bytes(dtype: Any) -> Any:
    return lambda x: np.frombuffer(x.tobytes(), dtype).reshape(
        x.shape if np.dtype(dtype).itemsize == x.itemsize else (*x.shape, -1)
    )


CASES += [
    Case("Bitcast", [n(3, 4, dtype=I32)], _bytes("<f4"), {"dtype": F32}, (I32,)),
    Case("Bitcast", [n(dtype=I64)], _bytes("<f8"), {"dtype": F64}, (I64,)),
    Case("Bitcast", [n(2, 3, dtype=I32)], _bytes("u1"), {"dtype": np.dtype("u1")}, (I32,)),
    Case(
        "Bitcast",
        [n(3, 4, low=0, high=200, dtype=np.dtype("u1"))],
        lambda x: np.array([int.from_bytes(row.tobytes(), "little") for row in x]),
        {"dtype": np.dtype("u4")},
        (I32,),
    ),
]


# -- distinct slices


def _distinct(axis: int, in_order: bool) -> Any:
    def oracle(x: np.ndarray) -> tuple[np.ndarray, ...]:
        rows = [tuple(np.ravel(s)) for s in np.moveaxis(x, axis, 0)]
        kept = list(dict.fromkeys(rows))
        kept = sorted(kept) if in_order else kept
        first = [rows.index(row) for row in kept]
        which = [kept.index(row) for row in rows]
        counts = [rows.count(row) for row in kept]
        whole = np.take(x, first, axis)
        return whole, *(np.array(c, np.int64) for c in (first, which, counts))

    return oracle


CASES += [
    Case(
        "DistinctSlices",
        [n(*s, low=0, high=2)],
        _distinct(axis, order),
        {"axis": axis, "sorted": order},
        (I32, F32, F64),
    )
    for s, axis in [((9,), 0), ((6, 2), 0), ((2, 7), 1), ((3, 2, 5), -1), ((0, 3), 0)]
    for order in (True, False)
]


# -- boxes


def _best(centered: bool) -> Any:
    def area(box: np.ndarray) -> float:
        return float((box[2] - box[0]) * (box[3] - box[1]))

    def oracle(boxes: np.ndarray, scores: np.ndarray, most: Any, limit: Any, least: Any) -> Any:
        if centered:
            middle, size = boxes[..., :2], boxes[..., 2:]
            boxes = np.concatenate([middle - size / 2, middle + size / 2], -1)
        found = []
        for s, kinds in enumerate(scores):
            for k, row in enumerate(kinds):
                kept: list[int] = []
                for i in sorted(range(len(row)), key=lambda i: -row[i]):
                    overlaps = []
                    for j in kept:
                        a, b = boxes[s, i], boxes[s, j]
                        sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
                        shared = float(np.prod(np.clip(sides, 0, None)))
                        overlaps.append(shared / (area(a) + area(b) - shared))
                    if row[i] > least and len(kept) < most and max(overlaps, default=0) <= limit:
                        kept.append(i)
                found += [(s, k, i) for i in kept]
        return np.array(found, np.int64).reshape(-1, 3)

    return oracle


def _number(value: float) -> Maker:
    return lambda rng, dtype: np.array(value, dtype)


def _boxes(centered: bool) -> Maker:
    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        low, size = rng.uniform(0, 3, (2, 12, 2)), rng.uniform(0.5, 2, (2, 12, 2))
        return np.concatenate([low, size if centered else low + size], -1).astype(dtype)

    return make


CASES += [
    Case(
        "BestBoxes",
        [_boxes(centered), f(2, 3, 12), v([4], I64), _number(0.3), _number(-1.0)],
        _best(centered),
        {"centered": centered},
    )
    for centered in (False, True)
]
