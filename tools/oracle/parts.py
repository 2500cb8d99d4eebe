"""Arguments and expressions that several families share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tools.oracle.draw import INDICES, Case, Draw, Text


def indices(d: Draw, shape: Sequence[int], n: int, dtype: str = "") -> Text:
    high = n if d.chance(d.wrong) or n == 0 else n - 1
    value = d.rng.integers(0, high + 1, tuple(shape)) - (1 if d.chance(d.wrong / 2) else 0)
    return d.given(value.astype(dtype or d.one(INDICES)))


def sparse_tensor(
    d: Draw, rank: int, dtype: str = "float32", low: float = 1, high: float = 3, full: bool = False
) -> Text:
    shape = tuple(d.whole(1, 4) for _ in range(rank))
    there = d.rng.random(shape) < 0.5
    if full:
        there[..., 0] = True
    where = np.argwhere(there).astype("int64")
    value = d.numbers((len(where),), dtype, low, high)
    indices = d.given(where, d.one(["fed", "constant"]))
    if d.inputs[-1].way == "fed":
        d.inputs[-1].static = [None, rank]
    values = d.given(value, d.one(["fed", "constant"]))
    if d.inputs[-1].way == "fed":
        d.inputs[-1].static = [None]
    return Text(f"tf.SparseTensor({indices}, {values}, {list(shape)})")


def dense_shape(sparse: Text) -> list[int]:
    return [int(n) for n in sparse[sparse.rindex("[") + 1 : sparse.rindex("]")].split(",")]


def after(variable: str, call: str) -> str:
    """The variable's value behind the call."""
    return f"after({call}, lambda: {variable}.read_value())"


def checked_by(call: str) -> str:
    """A value that needs an assertion."""
    return f"after({call}, lambda: tf.constant(1.0))"


def unseeded(case: Case) -> Case:
    case.random = True
    return case


def square(d: Draw, batch: Sequence[int], n: int, definite: bool, dtype: str) -> Text:
    value = d.rng.uniform(-1, 1, (*batch, n, n))
    value = value @ np.swapaxes(value, -1, -2) if definite else value
    return d.given((value + n * np.eye(n)).astype(dtype))
