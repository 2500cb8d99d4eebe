"""Random inputs for random rows of the op table: any shape, dtype and value, however odd.

A case gives an op and attributes that make sense; its inputs are replaced. What does not fit must
be a typed error; what fits must be as the shape rule says.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hpcflow.autodiff.gradients import gradients
from hpcflow.errors import DTypeError, GradientError, HpcflowError
from hpcflow.graph.dtypes import bfloat16, is_floating, kind_of, string
from hpcflow.graph.graph import Graph
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import Spec, merge_shapes
from hpcflow.ops.array.array_ops import placeholder
from hpcflow.ops.math import arithmetic_kernels, elementwise_math_kernels
from tests.ops.cases import CASES, Case
from tests.ops.evaluate import call
from tests.ops.test_table import made

FLOATS = ["f2", "f4", "f8", bfloat16]
DTYPES = [np.dtype(d) for d in (*FLOATS, "c8", "c16", "i1", "i4", "i8", "u1", "?")]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.25, 1e-30, 6e4, np.inf, -np.inf, np.nan]


def arrays(dtype: np.dtype, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Small integers, or floats with all that is special among them."""
    if dtype == string:
        return hnp.arrays(object, shape, elements=st.binary(max_size=3), fill=st.nothing())
    kind = kind_of(dtype)
    special = st.sampled_from(SPECIAL)
    elements: dict[str, st.SearchStrategy[Any]] = {
        "b": st.booleans(),
        "i": st.integers(-3, 5),
        "u": st.integers(0, 5),
        "f": special,
        "c": st.builds(complex, special, special),
    }
    wide = {"f": np.dtype("f8"), "c": np.dtype("c16")}.get(kind, dtype)
    drawn = hnp.arrays(wide, shape, elements=elements[kind])
    return drawn.map(lambda x: _cast(x, dtype))


def _cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(dtype)


@st.composite
def replaced(draw: Any, case: Case) -> list[np.ndarray]:
    """Inputs for `case` of which some have another shape, another dtype, or other values."""
    with np.errstate(all="ignore"):
        inputs = made(case, draw(st.sampled_from(list(case.dtypes))))
    joint = draw(st.sampled_from([None, *DTYPES]))
    found = []
    for x in inputs:
        told = x.dtype.kind in "iu" and TOLD & set(case.attrs)
        if draw(st.integers(0, 3)) == 0 or told:
            found.append(x)
            continue
        shape = x.shape if draw(st.booleans()) else draw(SHAPES)
        dtype = x.dtype if joint is None or x.dtype.kind in "iub" else joint
        found.append(draw(arrays(dtype, shape)))
    return found


def quietly(function: Callable[[], Any]) -> Any:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return function()


# what no user makes: gradients, rows of pieces, boxes, candidates, formats of another dtype
INTERNAL = ("Grad", "PieceRows", "JoinRows", "BestBoxes", "SampleCandidates", "AsString")
TOLD = {"shape", "sizes", "paddings", "size"}  # attributes that say what an input says again


def of_each_op() -> list[Any]:
    """Cases of each op that is not about state, at most three; the first is tested oftener."""
    found: dict[str, list[Case]] = {}
    for case in CASES:
        row = lookup_op(case.type)
        if not (row.reads or row.writes or row.stateful or case.type.endswith(INTERNAL)):
            found.setdefault(case.type, []).append(case)
    chosen = [cases[:: max(1, len(cases) // 3)][:3] for cases in found.values()]
    first = [cases[0] for cases in chosen]
    others = [case for cases in chosen for case in cases[1:]]
    return [*first, *(pytest.param(case, marks=pytest.mark.slow(first=False)) for case in others)]


@pytest.mark.parametrize("case", of_each_op(), ids=str)
def test_any_input_is_computed_as_the_rule_says_or_refused(case: Case) -> None:
    @settings(max_examples=15, database=None, derandomize=True)
    @given(replaced(case))
    def check(inputs: list[np.ndarray]) -> None:
        infer = lookup_op(case.type).infer
        specs = [Spec(x.dtype, x.shape, _value(x)) for x in inputs]
        try:
            expected = quietly(lambda: infer(specs, case.attrs))
        except HpcflowError:
            return
        partly = infer([Spec(x.dtype, (None,) * x.ndim) for x in inputs], case.attrs)
        nothing = infer([Spec(x.dtype, None) for x in inputs], case.attrs)
        try:
            got = quietly(lambda: call(case.type, case.attrs, [x.copy() for x in inputs]))
        except HpcflowError:
            return
        for value, *rules in zip(got, expected, partly, nothing, strict=True):
            for spec in rules:
                assert value.dtype == spec.dtype
                merge_shapes(spec.shape, value.shape)
        builds_gradients(case, inputs)

    check()


def _value(x: np.ndarray) -> np.ndarray | None:
    return x if x.dtype.kind in "iub" and x.size <= 64 else None


def builds_gradients(case: Case, inputs: list[np.ndarray]) -> None:
    """Its gradient is made, or refused for a reason that is told."""
    if not inputs:
        return
    with Graph().as_default():
        feeds = [placeholder(x.dtype, [None] * x.ndim) for x in inputs]
        outputs = feeds[0].graph.create_op(case.type, feeds, case.attrs).outputs
        smooth = [y for y in outputs if is_floating(y.dtype)]
        sources = [t for t in feeds if is_floating(t.dtype)]
        if smooth and sources:
            try:
                gradients(smooth, sources, list(smooth))
            except (GradientError, DTypeError):
                return


# -- NaN and infinities go where NumPy sends them


def _reduced(name: str) -> Callable[..., Any]:
    return lambda x: getattr(np, name).reduce(x, axis=0)


PLAIN: dict[str, tuple[Callable[..., Any], int, dict]] = {
    **{t: (getattr(np, n), getattr(np, n).nin, {}) for t, n in arithmetic_kernels.UFUNCS.items()},
    **{
        t: (getattr(np, n), getattr(np, n).nin, {})
        for t, n in elementwise_math_kernels.UFUNCS.items()
    },
    **{
        t: (_reduced(n), 1, {"axis": 0, "keepdims": False})
        for t, n in [("Sum", "add"), ("Prod", "multiply"), ("Max", "maximum"), ("Min", "minimum")]
    },
    "FloorDiv": (lambda x, y: np.floor(x / y), 2, {}),
    "FloorMod": (np.remainder, 2, {}),
    "Select": (lambda x, y: np.where([True, False, True], x, y), 2, {}),
    "ClipByValue": (lambda x: np.clip(x, -0.5, 2), 1, {}),
    "Relu": (lambda x: np.maximum(x, 0), 1, {}),
    "Mean": (lambda x: np.mean(x, 0), 1, {"axis": 0, "keepdims": False}),
    "Cumsum": (np.cumsum, 1, {"axis": 0, "exclusive": False, "reverse": False}),
    "Cumprod": (np.cumprod, 1, {"axis": 0, "exclusive": False, "reverse": False}),
    "SquaredDifference": (lambda x, y: (x - y) * (x - y), 2, {}),
    "Lgamma": (lambda x: np.where(np.isnan(x), np.nan, 0), 1, {}),
    "Erf": (lambda x: np.where(np.isnan(x), np.nan, 0), 1, {}),
}
EXTRA = {
    "Select": lambda d: [np.array([True, False, True])],
    "ClipByValue": lambda d: [np.array(-0.5, d), np.array(2, d)],
}


NO_FLOATS = ("Logical", "Bitwise", "LeftShift", "RightShift", "Invert", "Conj")


@pytest.mark.parametrize("type", [t for t in PLAIN if not t.startswith(NO_FLOATS)])
def test_nan_and_infinity_go_where_numpy_sends_them(type: str) -> None:
    function, count, attrs = PLAIN[type]

    @settings(max_examples=30, database=None, derandomize=True)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        dtype = np.dtype(data.draw(st.sampled_from(["f4", "f8"])))
        inputs = [data.draw(arrays(dtype, (3,))) for _ in range(count)]
        more = EXTRA.get(type, lambda d: [])(dtype)
        given_ = [*more, *inputs] if type == "Select" else [*inputs, *more]
        (got,) = quietly(lambda: call(type, attrs, given_))
        expected = quietly(lambda: np.asarray(function(*inputs)))
        if type in ("Lgamma", "Erf"):
            np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-6, equal_nan=True)

    check()
