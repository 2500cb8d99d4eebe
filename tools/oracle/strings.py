"""Functions of strings, and assertions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.oracle.draw import ANY, Case, Draw, Text, written
from tools.oracle.parts import checked_by

# -- strings


def string_alone(d: Draw, f: str) -> Case:
    return d.call(f, d.array(d.shape(0, 2), "string"))


def to_number(d: Draw, f: str) -> Case:
    words = np.array(
        [d.one([b"1", b"-2", b"3", b"x" if d.chance(d.wrong) else b"7"]) for _ in range(3)], object
    )
    return d.call(
        f,
        d.given(words),
        **d.some(out_type=[Text("tf.float32"), Text("tf.int32"), Text("tf.int64")]),
    )


def as_string(d: Draw, f: str) -> Case:
    dtype = d.one(["float32", "int32", "bool", "int64", "float64"])
    named = d.some(width=[8], fill=["0"]) if dtype != "bool" else {}
    if dtype.startswith("float"):
        named |= d.some(precision=[2], shortest=[False], scientific=[False])
    return d.call(f, d.array(d.shape(0, 2), dtype, 0), **named)


def join(d: Draw, f: str) -> Case:
    shape = d.shape(0, 2)
    parts = [
        d.array(d.one([shape, ()]), "string", way=d.one(["fed", "constant"]))
        for _ in range(d.whole(1, 3))
    ]
    return d.call(f, parts, **d.some(separator=[" ", "--"]))


def reduce_join(d: Draw, f: str) -> Case:
    shape = d.shape(0, 3)
    return d.call(f, d.array(shape, "string"), d.axes(len(shape)), **d.some(separator=["+"]))


def substr(d: Draw, f: str) -> Case:
    return d.call(f, d.array(d.shape(0, 2), "string"), d.whole(-1, 1), d.whole(0, 2))


def hash_bucket(d: Draw, f: str) -> Case:
    args = [[3, 4]] if "strong" in f else []
    return d.call(f, d.array(d.shape(0, 2), "string", way=d.one(["fed", "constant"])), 7, *args)


def string_split(d: Draw, f: str) -> Case:
    return d.call(
        f,
        d.array((d.whole(0, 3),), "string"),
        **d.some(delimiter=[" ", "", ","], skip_empty=[True, False]),
    )


def regex(d: Draw, f: str) -> Case:
    args = ["b+", "X"] if "replace" in f else ["a.*"]
    return d.call(f, d.array(d.shape(0, 2), "string"), *args)


def coded(d: Draw, f: str) -> Case:
    if "encode" in f:
        return d.call(f, d.array(d.shape(0, 1), "string"), **d.some(pad=[True]))
    words = np.array([d.one([b"YQ", b"YWI", b"", b"MS41"]) for _ in range(2)], object)
    return d.call(f, d.given(words))


def decode_raw(d: Draw, f: str) -> Case:
    words = np.array([bytes(range(8)), bytes(8)], object)[: d.whole(0, 2)]
    return d.call(
        f,
        d.given(words),
        d.dtype(("uint8", "int32", "float32", "int16")),
        **d.some(little_endian=[False]),
    )


def decode_csv(d: Draw, f: str) -> Case:
    words = np.array([d.one([b"1,2.5,a", b"3,,b", b",1,"]) for _ in range(d.whole(0, 3))], object)
    return d.call(f, d.given(words), [[1], [0.5], ["z"]])


# -- assertions


def assertion(d: Draw, f: str) -> Case:
    shape, dtype = d.shape(0, 2), d.one(("float32", "int32"))
    base = d.numbers(shape, dtype, -1, 2)
    x = d.given(np.nan_to_num(base))
    if f.rpartition("_")[2] in ("negative", "positive"):
        call = written(f, x)
    else:
        shift = d.one([0, 1, -1])
        call = written(f, x, d.given((np.nan_to_num(base) + shift).astype(dtype)))
    return Case(f, checked_by(call), d.inputs)


def static_assertion(d: Draw, f: str) -> Case:
    x = d.array(d.shape(0, 2), ANY)
    if "rank" in f:
        rank: Any = [d.whole(0, 2), d.whole(0, 2)] if f.endswith("in") else d.whole(0, 2)
        return Case(f, checked_by(written(f, x, rank)), d.inputs)
    if f.endswith("assert_type"):
        return d.call(f, x, d.dtype(("float32", "int32")))
    if f.endswith("float_dtype"):
        return d.call(f, [x, d.array((), "float32")])
    return d.call(f, x)


def monotonic(d: Draw, f: str) -> Case:
    value = np.sort(d.numbers(d.shape(1, 2), "int32"), -1)
    return d.call(f, d.given(value if d.chance(0.7) else d.rng.permuted(value)))
