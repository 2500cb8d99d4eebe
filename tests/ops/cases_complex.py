"""Cases of complex numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.cases import C64, C128, CASES, PAIRS, SHAPES, Case, b, c, f
from tests.ops.cases_math import binary, unary

BOTH = (C64, C128)


def _unary(type: str, oracle: Any, maker: Any = c, **facts: Any) -> None:
    unary(type, oracle, maker, dtypes=BOTH, **facts)


def _binary(type: str, oracle: Any, maker: Any = c, **facts: Any) -> None:
    binary(type, oracle, maker, dtypes=BOTH, **facts)


def _polar(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    size = np.sqrt(x.real**2 + x.imag**2)
    turn = np.sign(x.imag) * np.arccos(np.clip(x.real / np.where(size == 0, 1, size), -1, 1))
    return size, turn


_ANY = np.dtype("f8")

_unary("Conj", lambda x: x.real - 1j * x.imag)
_unary("Real", lambda x: (x + x.conj()) / 2)
_unary("Imag", lambda x: (x - x.conj()) / 2j)
_unary("Angle", lambda x: _polar(x)[1])
_unary("ComplexAbs", lambda x: _polar(x)[0])
binary("Complex", lambda x, y: x + y * 1j, f)

_unary("Neg", lambda x: 0 - x)
_unary("Square", lambda x: x * x)
_unary("Sign", lambda x: x / _polar(x)[0])
_unary("Exp", lambda x: np.exp(x.real) * (np.cos(x.imag) + 1j * np.sin(x.imag)))
_unary("Log", lambda x: np.log(_polar(x)[0]) + 1j * _polar(x)[1])
_unary("Log1p", lambda x: np.log(1 + x))
_unary("Expm1", lambda x: np.exp(x) - 1)
_unary("Sqrt", lambda x: np.exp(np.log(x) / 2))
_unary("Rsqrt", lambda x: np.exp(-np.log(x) / 2))
_unary("Reciprocal", lambda x: x.conj() / (x.real**2 + x.imag**2))
_unary("Sin", lambda x: (np.exp(1j * x) - np.exp(-1j * x)) / 2j)
_unary("Cos", lambda x: (np.exp(1j * x) + np.exp(-1j * x)) / 2)
_unary("Tan", lambda x: -1j * (np.exp(2j * x) - 1) / (np.exp(2j * x) + 1))
_unary("Sinh", lambda x: (np.exp(x) - np.exp(-x)) / 2)
_unary("Cosh", lambda x: (np.exp(x) + np.exp(-x)) / 2)
_unary("Tanh", lambda x: (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1))
_unary("Asinh", lambda x: np.log(x + np.sqrt(x * x + 1)))
_unary("Acosh", lambda x: np.log(x + np.sqrt(x + 1) * np.sqrt(x - 1)))
_unary("Atanh", lambda x: (np.log(1 + x) - np.log(1 - x)) / 2)
_unary("Asin", lambda x: -1j * np.log(1j * x + np.sqrt(1 - x * x)))
_unary("Acos", lambda x: np.pi / 2 + 1j * np.log(1j * x + np.sqrt(1 - x * x)))
_unary("Atan", lambda x: (np.log(1 + 1j * x) - np.log(1 - 1j * x)) / 2j)
_unary("Cast", lambda x: x, attrs={"dtype": C128})
_unary("Cast", lambda x: x.real, attrs={"dtype": _ANY})
CASES.append(Case("Cast", [f(3, 4)], lambda x: x + 0j, {"dtype": C128}, dtypes=(_ANY,)))
for _type, _rule in [("IsNan", lambda x: x != x), ("IsFinite", lambda x: x == x)]:
    _unary(_type, _rule)
_unary("IsInf", lambda x: x != x)

_binary("Add", lambda x, y: x - -y)
_binary("Sub", lambda x, y: x + -y)
_binary("Mul", lambda x, y: x.real * y + x.imag * (1j * y))
_binary("RealDiv", lambda x, y: x * (1 / y))
_binary("Pow", lambda x, y: np.exp(y * np.log(x)))
_binary("Equal", lambda x, y: (x - y) == 0)
_binary("NotEqual", lambda x, y: (x - y) != 0)
CASES += [
    *(Case("Select", [b(3, 4), c(*s), c(*t)], np.where, dtypes=BOTH) for s, t in PAIRS[1:3]),
    Case("AddN", [c(3, 4)] * 3, lambda *t: np.sum(t, axis=0), dtypes=BOTH),
    *(Case("TanhGrad", [c(*s), c(*s)], lambda g, y: g * (1 - y**2), dtypes=BOTH) for s in SHAPES),
]
