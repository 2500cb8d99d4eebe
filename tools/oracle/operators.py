"""Python's operators and indices of tensors and variables, and the variables' methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tools.oracle.draw import INDICES, INTS, SIGNED, Case, Draw, Text
from tools.oracle.parts import after, indices

SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
TENSORS = ("fed", "listed", "constant", "variable")


def operator(d: Draw, f: str, dtypes: Sequence[str] = SIGNED, low: float = -3) -> Case:
    """`x + y`, or `y + x` for a reversed operator, whose left side is no tensor."""
    name = f.rpartition(".")[2].strip("_")
    turned = name not in SIGNS
    sign = SIGNS[name[1:] if turned else name]
    shape, dtype = d.shape(), d.one(dtypes)
    x = d.array(shape, dtype, low, way=_kind(d, f))
    other = d.one(dtypes) if d.chance(d.wrong) else dtype
    way = d.one(["given", "literal"]) if turned else ""
    if d.chance(0.3):
        y: Any = _number(d, dtype)
    else:
        y = d.array(d.beside(shape), other, low, way=way)
    left, right = (y, x) if turned else (x, y)
    return Case(f, f"{left} {sign} {right}", d.inputs)


def _kind(d: Draw, f: str) -> str:
    kind: str = d.one(TENSORS[:3]) if f.startswith("Tensor") else "variable"
    return kind


def _number(d: Draw, dtype: str) -> str:
    if dtype == "bool":
        return str(d.one([True, False]))
    if np.dtype(dtype).kind in "iu":
        return str(d.one(["2", "1", "3", "np.int64(2)", "2.5"]))
    return str(d.one(["0.5", "2", "1.5", "np.float32(1.5)", "np.float64(0.5)"]))


def product(d: Draw, f: str) -> Case:
    """`x @ y`."""
    d.finite = True
    m, k, n = d.size(), d.size(), d.size()
    dtype = d.one(("float32", "float64", "int32", "complex64"))
    x = d.array((m, k), dtype, way=_kind(d, f))
    y = d.array((k, n), dtype, way="given" if "rmatmul" in f else "")
    if "rmatmul" in f:
        d.inputs[1].value = d.numbers((n, m), dtype)
        return Case(f, f"{y} @ {x}", d.inputs)
    return Case(f, f"{x} @ {y}", d.inputs)


def signed(d: Draw, f: str) -> Case:
    """`-x`, `abs(x)`, `~x`."""
    name = f.rpartition(".")[2].strip("_")
    dtypes = ("bool", *INTS) if name == "invert" else SIGNED
    x = d.array(d.shape(), dtypes, way=_kind(d, f))
    return Case(f, {"neg": "-{}", "abs": "abs({})", "invert": "~{}"}[name].format(x), d.inputs)


def getitem(d: Draw, f: str) -> Case:
    """`x[...]` in every form: bounds are numbers, NumPy's numbers, tensors or left out."""
    shape = d.shape(0 if d.chance(0.05) else 1)
    x = d.array(shape, SIGNED, way=_kind(d, f))
    return Case(f, f"{x}[{keys(d, shape)}]", d.inputs)


def keys(d: Draw, shape: Sequence[int], new: bool = True) -> str:
    """What stands between the brackets."""
    made = [key(d, n) for n in shape[: d.whole(1, max(len(shape), 1))]]
    if d.chance(0.2):
        made.insert(d.whole(0, len(made)), "...")
    if new and d.chance(0.25):
        made.insert(d.whole(0, len(made)), d.one(["None", "tf.newaxis", "np.newaxis"]))
    return ", ".join(made) or "..."


def key(d: Draw, n: int) -> str:
    """The key of one axis."""
    if d.chance(0.3):
        return bound(d, d.whole(-n, max(n - 1, 0)) + (n + 1 if d.chance(d.wrong / 2) else 0))
    if d.chance(0.2):
        return ":"
    first, last = ("" if d.chance(0.4) else bound(d, d.whole(-n - 1, n + 1)) for _ in range(2))
    return f"{first}:{last}" + d.one(["", "", ":1", ":2", ":-1", ":-2", ":3"])


def bound(d: Draw, n: int) -> str:
    """A number in one of the forms that an index may have."""
    form = d.rng.random()
    if form < 0.08 and len(d.inputs) < 6:
        return d.given(np.int32(n), "fed")
    if form < 0.2:
        return f"tf.constant({n}, tf.{d.one(INDICES)})"
    return f"np.int64({n})" if form < 0.3 else str(n)


def assigned(d: Draw, f: str) -> Case:
    """`w.assign(x)` and its kin."""
    shape, dtype = d.shape(), d.one(("float32", "float64", "int32", "int64"))
    w = d.array(shape, dtype, way="variable")
    wrong = (*shape, 2) if d.chance(d.wrong) else shape
    value: Any = _number(d, dtype) if not shape and d.chance(0.5) else d.array(wrong, dtype)
    call = f"{w}.{f.rpartition('.')[2]}({value})"
    return Case(f, d.one([call, after(w, call)]), d.inputs)


def scattered(d: Draw, f: str) -> Case:
    """`w.scatter_add(tf.IndexedSlices(values, indices))` and its kin."""
    n, tail = d.whole(1, 4), d.shape(0, 2)
    dtype = d.one(("float32", "float64", "int32"))
    w = d.array((n, *tail), dtype, 1, 3, way="variable")
    lead = (1,) if "update" in f else (d.size(),)
    places = indices(d, lead, n)
    slices = f"tf.IndexedSlices({d.array((*lead, *tail), dtype, 1, 3)}, {places})"
    return Case(f, after(w, f"{w}.{f.rpartition('.')[2]}({slices})"), d.inputs)


def scattered_nd(d: Draw, f: str) -> Case:
    """`w.scatter_nd_add(indices, updates)` and its kin."""
    shape = (d.whole(1, 4), d.whole(1, 3))
    dtype, depth = d.one(("float32", "float64")), d.whole(1, 2)
    w = d.array(shape, dtype, way="variable")
    places = np.stack([d.rng.integers(0, n, 1) for n in shape[:depth]], -1).astype(d.one(INDICES))
    updates = d.array((1, *shape[depth:]), dtype)
    method = f.rpartition(".")[2]
    return Case(f, after(w, f"{w}.{method}({d.given(places)}, {updates})"), d.inputs)


def read_rows(d: Draw, f: str) -> Case:
    """`w.sparse_read(indices)`."""
    n = d.whole(1, 4)
    w = d.array((n, *d.shape(0, 2)), ("float32", "int32"), way="variable")
    return Case(f, f"{w}.sparse_read({indices(d, d.shape(0, 2), n)})", d.inputs)


def part_assigned(d: Draw, f: str) -> Case:
    """`w[1:2].assign(x)`: x has the shape of the part, or is a number."""
    shape, dtype = tuple(d.whole(1, 4) for _ in range(d.whole(1, 3))), d.one(("float32", "int32"))
    w = d.array(shape, dtype, way="variable")
    made = keys(d, shape, new=False)
    plain = {"np": np, "tf": _Plain, **{i.name: i.value for i in d.inputs}}
    try:
        part = np.shape(eval(f"{d.inputs[0].name}[{made}]", plain))
    except IndexError:
        part = ()
    value: Any = d.array(part, dtype) if d.chance(0.7) else Text(_number(d, dtype))
    call = f"{w}[{made}].assign({value})"
    return Case(f, after(w, call), d.inputs)


class _Plain:
    """What the text of an index names, for NumPy."""

    int32, int64 = np.int32, np.int64

    @staticmethod
    def constant(n: int, dtype: Any) -> Any:
        return dtype(n)
