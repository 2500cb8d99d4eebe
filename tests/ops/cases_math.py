"""Cases of elementwise ops and products of matrices; no oracle calls a kernel of ours."""

from __future__ import annotations

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
    PAIRS,
    SHAPES,
    Case,
    b,
    f,
    n,
    pos,
    v,
)

# -- elementwise


def unary(type: str, oracle: Any, maker: Any = f, **facts: Any) -> None:
    CASES.extend(Case(type, [maker(*s)], oracle, **facts) for s in SHAPES)


def binary(type: str, oracle: Any, maker: Any = f, second: Any = None, **facts: Any) -> None:
    second = second or maker
    CASES.extend(Case(type, [maker(*s), second(*t)], oracle, **facts) for s, t in PAIRS)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return sp.expit(x)


unary("Neg", lambda x: 0 - x)
unary("Neg", lambda x: 0 - x, n, dtypes=(I32,))
unary("Abs", lambda x: np.where(x < 0, -x, x))
unary("Sign", lambda x: (x > 0) * 1.0 - (x < 0) * 1.0)
unary("Square", lambda x: x * x)
unary("Sqrt", lambda x: x**0.5, pos)
unary("Rsqrt", lambda x: x**-0.5, pos)
unary("Exp", lambda x: np.e**x)
unary("Log", lambda x: np.log2(x) * np.log(2.0), pos)
unary("Log1p", lambda x: sp.log1p(x), pos)
unary("Sin", lambda x: np.imag(np.exp(1j * x)))
unary("Cos", lambda x: np.real(np.exp(1j * x)))
unary("Tanh", lambda x: 2 * sp.expit(2 * x) - 1)
unary("Sigmoid", sigmoid)
unary("Sigmoid", sigmoid, lambda *s: f(*s, low=-300, high=300), dtypes=(F64,))
unary("Relu", lambda x: np.where(x > 0, x, 0))
unary("Relu6", lambda x: np.clip(x, 0, 6), lambda *s: f(*s, low=-9, high=15))
unary("Elu", lambda x: np.where(x > 0, x, np.exp(x) - 1))
unary("Softplus", lambda x: np.logaddexp(0, x))
unary("LogicalNot", lambda x: x == 0, b, dtypes=(BOOL,))
unary("Identity", lambda x: x)
unary("EnsureShape", lambda x: x, attrs={"shape": None})
unary("StopGradient", lambda x: x, still={0: "a constant to gradients"})
CASES.extend(Case("PlaceholderWithDefault", [f(*s)], lambda x: x, {"shape": s}) for s in SHAPES)
unary("ZerosLike", lambda x: x * 0)
unary("OnesLike", lambda x: x * 0 + 1)
unary("CheckNumerics", lambda x: x, attrs={"message": "x", "of": "x:0"})
unary("Cast", lambda x: x.astype(F32), attrs={"dtype": F32}, dtypes=(F32, I32, BOOL))
unary("Cast", lambda x: x, attrs={"dtype": F64}, dtypes=(F64,))
unary("Cast", np.trunc, attrs={"dtype": I32}, dtypes=(F32, F64))
unary("L2Loss", lambda x: np.sum(x * x) / 2)

binary("Add", lambda x, y: x - -y)
binary("Add", lambda x, y: x - -y, n, dtypes=(I32, I64))
binary("Sub", lambda x, y: x + -y)
binary("Mul", lambda x, y: np.exp(np.log(x) + np.log(y)), pos)
binary("RealDiv", lambda x, y: x * (1 / y), f, pos)
binary("FloorDiv", lambda x, y: np.floor(x / y), f, pos)
binary("FloorDiv", lambda x, y: np.floor(x / y), n, lambda *s: n(*s, low=1), dtypes=(I32,))
binary("FloorMod", lambda x, y: x - np.floor(x / y) * y, f, pos)
binary("Pow", lambda x, y: np.exp(y * np.log(x)), pos, f)
binary("Maximum", lambda x, y: np.where(x > y, x, y))
binary("Minimum", lambda x, y: np.where(x < y, x, y))
for _type, _oracle in [
    ("Equal", lambda x, y: x == y),
    ("NotEqual", lambda x, y: x != y),
    ("Less", lambda x, y: x < y),
    ("LessEqual", lambda x, y: x <= y),
    ("Greater", lambda x, y: x > y),
    ("GreaterEqual", lambda x, y: x >= y),
]:
    binary(_type, _oracle, lambda *s: n(*s, low=0, high=3), dtypes=(F32, F64, I32))
binary("LogicalAnd", lambda x, y: x * y, b, dtypes=(BOOL,))
binary("LogicalOr", lambda x, y: (x + 0 + y) > 0, b, dtypes=(BOOL,))
binary("LogicalXor", lambda x, y: (x + 0 + y) == 1, b, dtypes=(BOOL,))
for _type, _back in [
    ("ReluGrad", lambda g, y: g * (y > 0)),
    ("Relu6Grad", lambda g, y: g * ((y > 0) & (y < 6))),
    ("EluGrad", lambda g, y: g * np.where(y > 0, 1, y + 1)),
    ("TanhGrad", lambda g, y: g * (1 - y**2)),
    ("SigmoidGrad", lambda g, y: g * (y - y**2)),
]:
    CASES.extend(Case(_type, [f(*s), f(*s, low=-9, high=15)], _back) for s in SHAPES)

CASES += [
    *(Case("Select", [b(3, 4), f(*s), f(*t)], np.where) for s, t in PAIRS[1:3]),
    Case("RowCondition", [b(3), f(3, 4), f(3, 4)], lambda c, x, y: c[:, None]),
    Case("RowCondition", [b(3), f(3), f()], lambda c, x, y: c),
    Case("RowCondition", [b(3, 2), f(3, 2), f()], lambda c, x, y: c),
    Case("Select", [b(), f(3), f()], lambda c, x, y: c * x + (1 - c) * y),
    Case("Select", [b(0, 4), f(4), f()], np.where),
    Case("AddN", [f(3, 4)] * 3, lambda *t: np.sum(t, axis=0)),
    Case("AddN", [f()] * 2, lambda *t: np.sum(t, axis=0)),
    Case("AddN", [f(0, 2)] * 4, lambda *t: np.sum(t, axis=0)),
    Case("ClipByValue", [f(3, 4), v(-0.7, F64), v(0.9, F64)], np.clip, dtypes=(F64,)),
    Case("ClipByValue", [f(3, 4), f(4, low=-1, high=-0.5), f(3, 1, low=0.5, high=1)], np.clip),
    Case("ClipByValue", [f(), f(high=-1), f(low=0)], np.clip),
]

# -- products of matrices


def _matmul(a: tuple, b: tuple, ta: bool = False, tb: bool = False, **facts: Any) -> Case:
    def oracle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        left = "...ji" if ta else "...ij"
        right = "...kj" if tb else "...jk"
        return np.einsum(f"{left},{right}->...ik", x, y)

    return Case("MatMul", [f(*a), f(*b)], oracle, {"transpose_a": ta, "transpose_b": tb}, **facts)


CASES += [
    _matmul((2, 3), (3, 4)),
    _matmul((3, 2), (3, 4), ta=True),
    _matmul((2, 3), (4, 3), tb=True),
    _matmul((3, 2), (4, 3), ta=True, tb=True),
    _matmul((5, 2, 3), (5, 3, 4)),
    _matmul((5, 3, 2), (5, 4, 3), ta=True, tb=True),
    _matmul((5, 2, 3), (3, 4)),
    _matmul((3, 2), (2, 1, 3, 4), ta=True),
    _matmul((0, 3), (3, 4)),
    _matmul((2, 0), (0, 4)),
    Case("BiasAdd", [f(3, 4), f(4)], lambda x, y: x + y),
    Case("BiasAdd", [f(4), f(4)], lambda x, y: x + y),
    Case("BiasAdd", [f(2, 3, 4), f(4)], lambda x, y: x + y),
    Case("BiasAdd", [f(0, 4), f(4)], lambda x, y: x + y),
]
