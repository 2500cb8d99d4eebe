"""What a case of the walk over the op table is: an op, makers of its inputs, an oracle."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

Maker = Callable[[np.random.Generator, np.dtype], np.ndarray]
F32, F64, I32, I64, BOOL = (np.dtype(t) for t in ("f4", "f8", "i4", "i8", "?"))
C64, C128 = np.dtype("c8"), np.dtype("c16")


@dataclasses.dataclass
class Case:
    """An op, its inputs, its oracle.

    `still` says why an input that matters has no gradient, `refused` where asking is an error.
    """

    type: str
    inputs: Sequence[Maker]
    oracle: Callable[..., Any]
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)
    dtypes: Sequence[np.dtype] = (F32, F64)
    still: dict[int, str] = dataclasses.field(default_factory=dict)
    refused: tuple[int, ...] = ()
    sized: bool = False  # its gradient is refused where sizes are not known
    hermitian: bool = False  # its matrices are, and differences of them stay so

    def __str__(self) -> str:
        return self.type


def for_each_case(cases: Iterable[Case]) -> Callable[[Callable[..., None]], Any]:
    """A test of one `case` becomes a test of all cases of an op: thousands of tests cost more.

    An error names the case.
    """
    by_op: dict[str, list[tuple[int, Case]]] = {}
    for number, case in enumerate(cases):
        by_op.setdefault(case.type, []).append((number, case))

    def decorate(check: Callable[..., None]) -> Any:
        @functools.wraps(check)
        def test(op: str, **others: Any) -> None:
            for number, case in by_op[op]:
                try:
                    check(case, **others)
                except Exception as error:
                    raise AssertionError(f"case {number}: {op} with {case.attrs}") from error

        first, *more = inspect.signature(check).parameters.values()
        parameters = [first.replace(name="op", annotation=str), *more]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return pytest.mark.parametrize("op", by_op)(test)

    return decorate


# -- makers of inputs


def f(*shape: int, low: float = -2.0, high: float = 2.0) -> Maker:
    """Numbers of the dtype tested: distinct, and not near a whole number, where steps are."""

    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        count = int(np.prod(shape))
        grid = low + (high - low) * (rng.permutation(count) + 0.35 + 0.1 * rng.random()) / max(
            count, 1
        )
        grid = np.where(np.abs(grid - np.round(grid)) < 0.02, grid + 0.04, grid)
        return grid.reshape(shape).astype(dtype)

    return make


def pos(*shape: int) -> Maker:
    return f(*shape, low=0.3, high=3.0)


def c(*shape: int, low: float = -2.0, high: float = 2.0) -> Maker:
    """Complex numbers whose parts are as those of `f`."""

    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        parts = [f(*shape, low=low, high=high)(rng, F64) for _ in range(2)]
        return (parts[0] + 1j * parts[1]).astype(dtype)

    return make


def n(*shape: int, low: int = -5, high: int = 6, dtype: Any = None) -> Maker:
    """Integers."""
    return lambda rng, d: rng.integers(low, high, shape).astype(dtype or d)


def b(*shape: int) -> Maker:
    return lambda rng, d: rng.random(shape) < 0.5


def v(value: Any, dtype: Any = I32) -> Maker:
    """A value that shapes depend on."""
    return lambda rng, d: np.array(value, dtype)


def of(function: Callable[..., Any], *makers: Maker) -> Maker:
    """An input computed from others, e.g. an output that a gradient op needs."""
    return lambda rng, d: np.asarray(function(*(m(rng, d) for m in makers)), d)


# -- shapes for elementwise ops

SHAPES = [(), (5,), (3, 4), (0, 4), (2, 3, 2)]
PAIRS = [((), ()), ((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((), (3,)), ((0, 4), (4,))]
CASES: list[Case] = []
