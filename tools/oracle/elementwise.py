"""Functions of single elements, reductions, segments and clipping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tools.oracle.draw import ANY, INDICES, NUMBERS, REALS, SIGNED, WIDE, Case, Draw, Text

# -- element by element


def unary(d: Draw, f: str, dtypes: Sequence[str] = REALS, low: float = -3, high: float = 3) -> Case:
    return d.call(f, d.array(d.shape(), dtypes, low, high))


def binary(
    d: Draw, f: str, dtypes: Sequence[str] = NUMBERS, low: float = -3, high: float = 3
) -> Case:
    shape, dtype = d.shape(), d.one(dtypes)
    x = d.array(shape, dtype, low, high)
    if d.chance(0.15):  # a Python number takes the other's dtype
        number = d.one([2, 1, 3] if np.dtype(dtype).kind in "iu" else [0.5, 2, 1.5])
        pair = (x, True if dtype == "bool" else number)
        return d.call(f, *(pair if d.chance(0.5) else pair[::-1]))
    other = d.one(dtypes) if d.chance(d.wrong) else dtype
    y = d.array(d.beside(shape), other, low, high)
    return d.call(f, *((x, y) if d.chance(0.5) else (y, x)))


def same_shapes(d: Draw, f: str, dtypes: Sequence[str] = NUMBERS) -> Case:
    shape, dtype = d.shape(), d.one(dtypes)
    return d.call(f, [d.array(shape, dtype) for _ in range(d.whole(1, 3))])


def comparison(d: Draw, f: str) -> Case:
    return binary(d, f, SIGNED)


def clip_by_value(d: Draw, f: str) -> Case:
    shape, dtype = d.shape(), d.one(SIGNED)
    low = -1 if d.chance(0.5) else d.array(d.beside(shape), dtype, -2, 0)
    return d.call(f, d.array(shape, dtype), low, 1)


def cast(d: Draw, f: str) -> Case:
    dtype = d.one(ANY)
    return d.call(f, d.array(d.shape(), dtype, 0 if d.chance(0.5) else -3), d.dtype(ANY))


def bitcast(d: Draw, f: str) -> Case:
    pair = d.one(
        [("float32", "int32"), ("int32", "float32"), ("int64", "int32"), ("int32", "int8")]
    )
    return d.call(f, d.array(d.shape(1), pair[0]), Text(f"tf.{pair[1]}"))


def complex_pair(d: Draw, f: str) -> Case:
    shape, dtype = d.shape(), d.one(["float32", "float64"])
    return d.call(f, d.array(shape, dtype), d.array(shape, dtype))


def triple_gamma(d: Draw, f: str) -> Case:
    shape = d.shape()
    return d.call(f, *(d.array(shape, "float32", 0.1, 1) for _ in range(3)))


def cross(d: Draw, f: str) -> Case:
    shape, dtype = (*d.shape(0, 2), 2 if d.chance(d.wrong) else 3), d.one(SIGNED)
    return d.call(f, d.array(shape, dtype), d.array(shape, dtype))


def scalar_mul(d: Draw, f: str) -> Case:
    dtype = d.one(SIGNED)
    by = 2 if d.chance(0.5) else d.array((), dtype)
    return d.call(f, by, d.array(d.shape(), dtype))


def checked(d: Draw, f: str) -> Case:
    return d.call(f, d.array(d.shape(), WIDE), "message")


# -- reductions


def reduction(d: Draw, f: str, dtypes: Sequence[str] = NUMBERS) -> Case:
    shape = d.shape()
    return d.call(
        f, d.array(shape, dtypes), **_some_axes(d, len(shape)), **d.some(keepdims=[True, False])
    )


def _some_axes(d: Draw, rank: int) -> dict[str, Any]:
    return {"axis": d.axes(rank)} if d.chance(0.8) else {}


def arg_reduction(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    named = {} if f.startswith("arg_") else d.some(output_type=[Text("tf.int32"), Text("tf.int64")])
    axis: Any = d.axis(len(shape))
    if d.chance(0.2):
        axis = d.given(np.int32(axis))
    else:
        axis = d.number(axis)
    args = [axis] if f.startswith("arg_") or d.chance(0.7) else []
    return d.call(f, d.array(shape, SIGNED), *args, **named)


def scan(d: Draw, f: str) -> Case:
    shape = d.shape(1)
    named = {} if d.chance(0.3) else {"axis": d.number(d.axis(len(shape)))}
    flags = d.some(exclusive=[True, False], reverse=[True, False])
    dtypes = WIDE if "logsumexp" in f else ("float32", "float64", "int32", "int64", "complex64")
    return d.call(f, d.array(shape, dtypes), **named, **flags)


def norm(d: Draw, f: str) -> Case:
    shape = d.shape(1, 3)
    order = d.some(ord=["euclidean", 1, 2, np.inf], keepdims=[True, False])
    if order.get("ord") == np.inf:
        order["ord"] = Text("np.inf")
    named = {"axis": d.axis(len(shape))} if d.chance(0.6) else {}
    return d.call(f, d.array(shape, WIDE), **order, **named)


def count_nonzero(d: Draw, f: str) -> Case:
    shape = d.shape()
    return d.call(f, d.array(shape, ANY), **_some_axes(d, len(shape)))


# -- segments, counting


def segments(d: Draw, f: str) -> Case:
    n, tail = d.whole(1, 5), d.shape(0, 2)
    ids = np.sort(d.rng.integers(0, 4, n)).astype(d.one(INDICES))
    if d.chance(d.wrong):
        ids = ids[::-1]
    dtype = d.one(WIDE if "mean" in f or "sqrt" in f else SIGNED)
    args = [4] if "unsorted" in f else []
    return d.call(f, d.array((n, *tail), dtype), d.given(ids), *args)


def bincount(d: Draw, f: str) -> Case:
    shape = d.shape(1, 2)
    named: dict[str, Any] = d.some(minlength=[0, 6], maxlength=[2, 4])
    if d.chance(0.3):
        named["weights"] = d.array(shape, "float32")
    return d.call(f, d.array(shape, "int32", 0, 5), **named)


def confusion_matrix(d: Draw, f: str) -> Case:
    n = d.size()
    named: dict[str, Any] = d.some(num_classes=[4, 6], dtype=[Text("tf.float32")])
    if d.chance(0.3):
        named["weights"] = d.array((n,), "float32", 0)
    return d.call(f, d.array((n,), INDICES, 0, 3), d.array((n,), INDICES, 0, 3), **named)


def histogram(d: Draw, f: str) -> Case:
    x = d.array(d.shape(1, 2), WIDE, 0, 4)
    dtype = d.inputs[0].value.dtype.name
    return d.call(f, x, Text(f"np.array([0, 3], '{dtype}')"), **d.some(nbins=[3, 5]))


# -- clipping and norms of lists


def clip_by_norm(d: Draw, f: str) -> Case:
    shape = d.shape(1, 3)
    named = {"axes": [d.whole(0, len(shape) - 1)]} if f == "clip_by_norm" and d.chance(0.4) else {}
    return d.call(f, d.array(shape, WIDE), d.one([0.5, 2.0]), **named)


def global_norm(d: Draw, f: str) -> Case:
    parts: list[Any] = [d.array(d.shape(0, 2), "float32") for _ in range(d.whole(1, 3))]
    if d.chance(0.3):
        parts.append(None)
    return d.call(f, parts, *([1.0] if f.startswith("clip") else []))
