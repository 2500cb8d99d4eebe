"""Every kernel of a provider equals the plain one of the same node, on random sizes and inputs.

Those for GPUs run on a real one alone (`make test-gpu`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpcflow.graph.dtypes import bfloat16, is_floating, limits
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels import kernel_registry
from hpcflow.kernels.kernel_registry import (
    Kernel,
    KernelNode,
    choose_kernel,
    find_plain_kernel,
    kernel_preferences,
)
from hpcflow.runtime.device import device

kernel_registry.names()  # all kernels are imported
ROWS = [(type, kind, name) for (type, kind), rows in kernel_registry._FAST.items() for name in rows]
TEXT = "the text of the loop comes with the node; "
ELSEWHERE = {  # where a fast kernel is held to its reference that is not among CASES
    "Fused": f"{TEXT}tests/plan/test_fuse.py",
    **dict.fromkeys(
        [f"UpdateRows{n}" for n in range(1, 7)], f"{TEXT}tests/plan/test_row_updates.py"
    ),
    **dict.fromkeys(["Packed", "PackedMatMul"], "one reads the other's; test_packed.py"),
    "StridedMatMul": "test_strided.py",
    **dict.fromkeys(["Cholesky", "MatrixTriangularSolve"], "test_llvm_triangular.py"),
    **dict.fromkeys(["ExtremeGrad", "LogSumExp", "Max", "Min"], "test_extremes.py"),
    **dict.fromkeys(["Concat", "Pack", "Split", "Unpack"], "test_llvm_concat_split.py"),
}
ROUNDINGS = 8  # of the dtype, by norm, for sums in another order


class Case(NamedTuple):
    """Attributes and inputs; of a kernel that changes or reads rows of a table, that table too."""

    attrs: dict[str, Any]
    inputs: list[np.ndarray]
    rows: np.ndarray | None = None


Draw = Callable[[st.DataObject], Case]
CASES: dict[str, Draw] = {}


def case(*types: str) -> Callable[[Callable[[st.DataObject, str], Case]], Any]:
    """Decorator: how a case of each of these types is drawn."""

    def add(made: Callable[[st.DataObject, str], Case]) -> Any:
        for type in types:
            CASES[type] = lambda data, type=type: made(data, type)  # type: ignore[misc]
        return made

    return add


# -- what is drawn


def number(data: st.DataObject, least: int, most: int) -> int:
    return data.draw(st.integers(least, most))


def chance(data: st.DataObject) -> bool:
    return data.draw(st.booleans())


def array(data: st.DataObject, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Of normal numbers, or small integers; it may be a view of every second row."""
    rng = np.random.default_rng(number(data, 0, 2**31))
    dtype = np.dtype(dtype)
    real = is_floating(dtype)
    made = rng.standard_normal(shape) if real else rng.integers(1, 9, shape)
    made = made.astype(dtype)
    return np.repeat(made, 2, 0)[::2] if shape and chance(data) else made


def element(data: st.DataObject) -> Any:
    """A dtype of products."""
    return data.draw(st.sampled_from([np.float32, np.float32, bfloat16, np.float16]))


def places(data: st.DataObject, among: int, shape: tuple[int, ...]) -> np.ndarray:
    """Indices of that many rows."""
    rng = np.random.default_rng(number(data, 0, 2**31))
    return rng.integers(0, among, shape).astype(data.draw(st.sampled_from(["i4", "i8"])))


def shape(data: st.DataObject, axes: int, most: int) -> tuple[int, ...]:
    return tuple(number(data, 1, most) for _ in range(axes))


@case("MatMul")
def _product(data: st.DataObject, type: str) -> Case:
    if chance(data):  # of few elements and 64 bits
        rows, summed, columns = (number(data, 16, 64) for _ in range(3))
        lead, dtype = (), np.dtype("f8")
        turns = data.draw(st.sampled_from([(False, False), (False, True), (True, False)]))
    else:
        rows, summed, columns = (
            number(data, 64, 130),
            number(data, 100, 200),
            number(data, 164, 300),
        )
        lead, dtype = shape(data, number(data, 0, 2), 3), element(data)
        turns = (chance(data), chance(data))
    sizes = [(rows, summed), (summed, columns)]
    a, b = (
        array(data, *lead, *(s[::-1] if turn else s), dtype=dtype)
        for s, turn in zip(sizes, turns, strict=True)
    )
    return Case({"transpose_a": turns[0], "transpose_b": turns[1]}, [a, b])


@case("MatMulBias")
def _product_bias(data: st.DataObject, type: str) -> Case:
    rows, summed, columns = number(data, 64, 130), number(data, 100, 200), number(data, 164, 300)
    attrs = {"transpose_a": False, "transpose_b": False, "relu": chance(data)}
    dtype, shapes = element(data), [(rows, summed), (summed, columns), (columns,)]
    return Case(attrs, [array(data, *sizes, dtype=dtype) for sizes in shapes])


@case("Normalize", "NormalizeGrad")
def _normalization(data: st.DataObject, type: str) -> Case:
    kept, inner = number(data, 1, 40), number(data, 1, 3)
    sizes, axis = (number(data, 2, 300), kept), [0]
    if inner > 1:
        sizes, axis = (number(data, 1, 3), *sizes, inner), [1, 3]
    x = array(data, *sizes, dtype=data.draw(st.sampled_from(["f4", "f8", bfloat16])))
    attrs = {"axis": tuple(axis), "epsilon": 1e-3}
    if type == "Normalize":
        return Case(attrs, [x])
    statistic = tuple(1 if i in axis else n for i, n in enumerate(sizes))
    (kind,) = {s.dtype for s in lookup_op("Normalize").infer([Spec(x.dtype, x.shape)], attrs)[1:]}
    variance = np.abs(array(data, *statistic, dtype=kind))
    return Case(attrs, [x, array(data, *sizes, dtype=x.dtype), variance])


@case("Sum", "Mean", "SumToShape")
def _reduction(data: st.DataObject, type: str) -> Case:
    """Over axes in the middle, or over the first ones, perhaps with a last one."""
    kept, rows, inner = number(data, 2, 40), number(data, 300, 900), number(data, 1, 3)
    sizes, axes = (number(data, 2, 12), 3, rows, kept, inner), (1, 2, 4)
    if chance(data):
        sizes, axes = (number(data, 2, 12), rows, 3 * kept), (0, 1)
    if chance(data):  # bags of few rows
        sizes, axes = (rows, number(data, 2, 5), number(data, 16, 60)), (1,)
    x = array(data, *sizes, dtype=data.draw(st.sampled_from(["f4", "f8", bfloat16])))
    if type == "SumToShape":
        return Case({"shape": tuple(1 if i in axes else n for i, n in enumerate(sizes))}, [x])
    return Case({"axis": axes, "keepdims": chance(data)}, [x])


@case("Conv", "ConvBias", "ConvInputGrad", "ConvFilterGrad")
def _convolution(data: st.DataObject, type: str) -> Case:
    first, groups = chance(data) and type != "ConvBias", number(data, 1, 3)
    space, window = shape(data, 2, 12), shape(data, 2, 4)
    counts = groups * number(data, 2, 9), groups * number(data, 1, 9)
    pads = data.draw(st.sampled_from(["SAME", "VALID", ((1, 2), (0, 1))]))
    attrs = {"strides": shape(data, 2, 3), "dilations": (1, 1), "padding": pads}
    attrs |= {"first": first, "groups": groups}
    assume(all(n >= k for n, k in zip(space, window, strict=True)))
    if type == "ConvFilterGrad" and chance(
        data
    ):  # images of few channels have kernels of their own
        counts, attrs = (number(data, 1, 4), counts[1]), {**attrs, "first": False, "groups": 1}
        first, groups = False, 1
    batch = number(data, 1, 4)
    sizes = (batch, counts[0], *space) if first else (batch, *space, counts[0])
    dtype = element(data) if counts[0] > 4 else "f4"
    x = array(data, *sizes, dtype=dtype)
    w = array(data, *window, counts[0] // groups, counts[1], dtype=dtype)
    if type == "Conv":
        return Case(attrs, [x, w])
    if type == "ConvBias":
        return Case({**attrs, "relu": chance(data)}, [x, w, array(data, counts[1], dtype=dtype)])
    (y,) = lookup_op("Conv").infer([Spec(a.dtype, a.shape) for a in (x, w)], attrs)
    g = array(data, *y.shape, dtype=dtype)
    if type == "ConvInputGrad":
        return Case({**attrs, "shape": x.shape}, [g, w])
    return Case({**attrs, "shape": w.shape}, [x, g])


def pooling(data: st.DataObject, apart: bool) -> tuple[dict[str, Any], np.ndarray]:
    """Attributes, and x with many equal elements."""
    window = shape(data, 2, 4)
    strides = window if apart else shape(data, 2, 4)
    space = tuple(number(data, k, 12) for k in window)
    attrs = {"window": window, "strides": strides, "dilations": (1, 1)}
    padding = "SAME" if chance(data) else "VALID"
    x = array(data, number(data, 1, 4), *space, number(data, 1, 20))
    return {**attrs, "padding": padding, "first": False}, np.round(x)


@case("MaxPool")
def _largest(data: st.DataObject, type: str) -> Case:
    attrs, x = pooling(data, False)
    return Case(attrs, [x])


@case("MaxPoolGrad", "MaxPoolReluGrad")
def _largest_back(data: st.DataObject, type: str) -> Case:
    attrs, x = pooling(data, True)
    if type == "MaxPoolReluGrad":
        x = np.maximum(x, 0)
    y = by_plain("MaxPool", Case(attrs, [x]))[0]
    more = {"bias": chance(data)} if type == "MaxPoolReluGrad" else {}
    return Case({**attrs, **more}, [x, y, array(data, *y.shape)])


@case("AvgPool", "AvgPoolGrad")
def _mean(data: st.DataObject, type: str) -> Case:
    attrs, x = pooling(data, False)
    attrs["count_include_pad"] = chance(data)
    if type == "AvgPool":
        return Case(attrs, [x])
    y = by_plain("AvgPool", Case(attrs, [x]))[0]
    return Case({**attrs, "shape": x.shape}, [array(data, *y.shape)])


@case("Einsum")
def _einsum(data: st.DataObject, type: str) -> Case:
    equation = data.draw(st.sampled_from(["bd,bnd->bn", "bn,bnd->bd", "bn,bd->bnd", "bd,bd->b"]))
    dtype = data.draw(st.sampled_from(["f4", "f8"]))
    size = {label: number(data, 2, 40) for label in "bnd"}
    terms = equation.partition("->")[0].split(",")
    inputs = [array(data, *(size[c] for c in term), dtype=dtype) for term in terms]
    return Case({"equation": equation}, inputs)


@case("Gather")
def _gather(data: st.DataObject, type: str) -> Case:
    x = array(data, *shape(data, 3, 9), dtype=data.draw(st.sampled_from(["f4", "f8", "i4"])))
    axis = number(data, -3, 2)
    return Case({"axis": axis}, [x, places(data, x.shape[axis], shape(data, 2, 9))])


@case("GatherGrad")
def _gather_back(data: st.DataObject, type: str) -> Case:
    x, axis = shape(data, 3, 9), number(data, 0, 2)
    at = places(data, x[axis], shape(data, 2, 9))
    g = array(data, *x[:axis], *at.shape, *x[axis + 1 :])
    return Case({"axis": axis, "shape": x}, [g, at])


HANDLE = np.zeros((), "V1")


@case("ReadRows")
def _read_rows(data: st.DataObject, type: str) -> Case:
    rows = array(data, *shape(data, 2, 40)).copy()
    attrs = {"dtype": rows.dtype, "shape": rows.shape}
    return Case(attrs, [HANDLE, places(data, len(rows), shape(data, 2, 9))], rows)


@case(*(f"Scatter{how}" for how in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max")))
def _scatter(data: st.DataObject, type: str) -> Case:
    rows = array(data, *shape(data, 2, 40), dtype=data.draw(st.sampled_from(["f4", "f8"]))).copy()
    at = places(data, len(rows), shape(data, 2, 9))
    updates = array(data, *at.shape, *rows.shape[1:], dtype=rows.dtype)
    return Case({"dtype": rows.dtype, "shape": rows.shape}, [HANDLE, at, updates], rows)


@case(*(f"UnsortedSegment{kind}" for kind in ("Sum", "Prod", "Max", "Min")))
def _segments(data: st.DataObject, type: str) -> Case:
    dtype, number_of = data.draw(st.sampled_from(["f4", "f8", "i8"])), number(data, 1, 9)
    ids = places(data, number_of + 1, shape(data, 2, 9)) - 1  # those of -1 are left out
    return Case({}, [array(data, *ids.shape, 7, dtype=dtype), ids, np.array(number_of)])


@case("SumEqualRows")
def _equal_rows(data: st.DataObject, type: str) -> Case:
    at = places(data, number(data, 1, 90), (number(data, 0, 90),))
    dtype = data.draw(st.sampled_from(["f4", "f8", "i8"]))
    return Case({}, [array(data, *at.shape, *shape(data, 1, 40), dtype=dtype), at])


# -- what is compared


def node_of(type: str, one: Case) -> KernelNode:
    """With the outputs that its shape rule infers."""
    specs = [Spec(x.dtype, x.shape) for x in one.inputs]
    return KernelNode(type, one.attrs, specs, lookup_op(type).infer(specs, one.attrs))


def computed(kernel: Kernel, node: KernelNode, one: Case, kind: str = "cpu") -> list[np.ndarray]:
    """The outputs, which start as garbage, or the table that is changed."""
    xp = np if kind == "cpu" else device.make_device("gpu:0").xp
    run, given = kernel.make(xp, node), one.inputs
    if one.rows is not None:
        given = [one.rows.copy(), *given[1:]]
    given = [xp.asarray(x) for x in given]
    if kernel.form == "update":
        run(*given)
        outs = [given[0]]
    elif kernel.form == "new":
        outs = list(run(*given))
    else:
        rows = zip(sized(node, one), node.outputs, strict=True)
        outs = [xp.asarray(np.full(shape, 77, spec.dtype)) for shape, spec in rows]
        run(*given, *outs)
    return outs if kind == "cpu" else [out.get() for out in outs]


def sized(node: KernelNode, one: Case) -> list[tuple[int, ...]]:
    """The shapes of the outputs; a number of segments is known only by its value."""
    if node.type.startswith("UnsortedSegment"):
        data, ids, number_of = one.inputs
        return [(int(number_of), *data.shape[ids.ndim :])]
    return [spec.shape for spec in node.outputs]


def by_plain(type: str, one: Case) -> list[np.ndarray]:
    return computed(find_plain_kernel(type, "cpu"), node_of(type, one), one)


def size(arrays: list[np.ndarray]) -> float:
    return max(float(np.linalg.norm(a.astype(np.float64))) for a in arrays)


def positive(one: Case) -> Case:
    """The same without cancellation: as large as the sums of what is added up can be."""
    return one._replace(inputs=[abs(x) if is_floating(x.dtype) else x for x in one.inputs])


def marked(row: tuple[str, str, str]) -> Any:
    marks = [pytest.mark.gpu] if row[1] == "gpu" else []
    return pytest.param(*row, marks=marks, id="-".join(n for n in row if n != "cpu"))


@pytest.mark.slow
@pytest.mark.parametrize(("type", "kind", "name"), [marked(r) for r in ROWS if r[0] in CASES])
@given(data=st.data())
@settings(max_examples=25)
def test_a_fast_kernel_equals_its_reference(
    type: str, kind: str, name: str, data: st.DataObject
) -> None:
    if why := kernel_registry._PROVIDERS[name]():
        pytest.skip(f"needs {name}: {why}")
    one = CASES[type](data)
    node = node_of(type, one)
    kernel = choose_kernel(node, kind, kernel_preferences(name)).kernel
    assume(kernel.provider == name)
    fast, plain = computed(kernel, node, one, kind), by_plain(type, one)
    for a, b in zip(fast, plain, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        if kernel.exact or not is_floating(a.dtype):
            assert np.array_equal(a, b)
            continue
        scale = max(size(plain), size(by_plain(type, positive(one))))
        apart = np.linalg.norm(a.astype(np.float64) - b.astype(np.float64))
        assert apart <= ROUNDINGS * float(limits(a.dtype).eps) * scale


def test_every_fast_kernel_is_held_to_its_reference() -> None:
    """A row without a case here fails: add one."""
    types = {type for type, _, _ in ROWS}
    assert types == CASES.keys() | ELSEWHERE.keys() and not CASES.keys() & ELSEWHERE.keys()
