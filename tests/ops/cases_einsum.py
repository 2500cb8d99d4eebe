"""Cases of einsum, and of products and reductions of complex numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.cases import C64, C128, CASES, I32, I64, Case, c, f, n
from tests.ops.cases_reduce import AXES, by_rows

EQUATIONS: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk->ik", [(3, 4), (4, 2)]),
    ("ij,kj->ik", [(3, 4), (2, 4)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]),
    ("i,j->ij", [(3,), (4,)]),
    ("i,i->", [(3,), (3,)]),
    ("ij->ji", [(3, 4)]),
    ("ij->j", [(3, 4)]),
    ("ij->", [(3, 4)]),
    ("ii->", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("iij,jk->ik", [(3, 3, 2), (2, 4)]),
    ("ij,jj,jk->ik", [(2, 3), (3, 3), (3, 2)]),
    ("ab,bc,cd,de->ae", [(2, 3), (3, 4), (4, 3), (3, 2)]),
    ("ijk,jil,kl->", [(2, 3, 4), (3, 2, 5), (4, 5)]),
    ("ij,jk->k", [(3, 4), (4, 2)]),
    ("ij,kl->jl", [(3, 4), (2, 3)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
    ("...ij,...jk->...ik", [(2, 1, 2, 3), (5, 3, 4)]),
    ("...ij,jk->...ik", [(2, 2, 3), (3, 4)]),
    ("i...,i->...", [(3, 2, 4), (3,)]),
    ("i...j,ji...->...i", [(2, 4, 3), (3, 2, 1)]),
    ("...,...->...", [(3, 1), (4,)]),
    ("...i->i...", [(2, 3, 4)]),
    (",ij->ij", [(), (2, 3)]),
    ("->", [()]),
    ("ij,jk->ik", [(0, 4), (4, 2)]),
    ("ij,jk->ik", [(3, 0), (0, 2)]),
]
for _equation, _shapes in EQUATIONS:
    _oracle = lambda *x, e=_equation: np.einsum(e, *x, optimize=False)  # noqa: E731
    _a = {"equation": _equation}
    CASES.append(Case("Einsum", [f(*s) for s in _shapes], _oracle, _a))
    CASES.append(Case("Einsum", [c(*s) for s in _shapes], _oracle, _a, dtypes=(C64, C128)))
CASES += [
    Case("Einsum", [n(3, 4), n(4, 2)], lambda x, y: np.dot(x, y), {"equation": "ij,jk->ik"},
         dtypes=(I32, I64)),
    Case("Einsum", [f(3, 2, 4), f(3)], lambda x, y: (x.transpose(1, 2, 0) * y).sum(),
         {"equation": "i...,i->"}),
    Case("Einsum", [f(3, 3, 2)], lambda x: x[0, 0].sum() + x[1, 1].sum() + x[2, 2].sum(),
         {"equation": "ii...->"}),
]  # fmt: skip

# -- complex numbers

BOTH = (C64, C128)


def _product(a: tuple, b: tuple, ta: bool = False, tb: bool = False) -> Case:
    equation = f"...{'ji' if ta else 'ij'},...{'kj' if tb else 'jk'}->...ik"
    attrs = {"transpose_a": ta, "transpose_b": tb}
    oracle = lambda x, y: np.einsum(equation, x, y)  # noqa: E731
    return Case("MatMul", [c(*a), c(*b)], oracle, attrs, dtypes=BOTH)


CASES += [
    _product((3, 4), (4, 2)),
    _product((4, 3), (4, 2), True),
    _product((3, 4), (2, 4), False, True),
    _product((4, 3), (2, 4), True, True),
    _product((2, 3, 4), (4, 2)),
]


def _reduction(type: str, rule: Any) -> None:
    rows = by_rows(rule)
    for shape, axis in AXES:
        for keep in (False, True):
            attrs = {"axis": axis, "keepdims": keep}
            oracle = lambda x, axis=axis, keep=keep: rows(x, axis, keep)  # noqa: E731
            CASES.append(Case(type, [c(*shape)], oracle, attrs, dtypes=BOTH))


_reduction("Sum", lambda row: sum(row))
_reduction("Mean", lambda row: sum(row) / len(row) if len(row) else np.nan)
_reduction("Prod", lambda row: np.exp(sum(np.log(row))))
