"""Generated loops compute what NumPy does: bit by bit, or a few units in the last place away."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import hpcflow.ops.math.special_function_kernels  # noqa: F401  (fills the table)
from hpcflow.codegen import elementwise_formulas, kernel_cache
from hpcflow.codegen.fused_loop_ir import (
    COLUMN,
    FULL,
    ONE,
    ROW,
    KernelBody,
    KernelOperand,
    KernelStep,
)
from hpcflow.codegen.llvm_cpu_codegen import text
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels import kernel_registry

RNG = np.random.default_rng(5)
EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-40,
    -1e-40,
    3e38,
    -3e38,
    88.8,
    -87.4,
    0.625,
]
FLOATS = {
    dtype: np.concatenate(
        [
            *(np.repeat(EDGES, len(EDGES)), RNG.standard_normal(4000) * 20),
            *(RNG.standard_normal(4001) * 1e-3, np.logspace(-37, 37, 1500)),
            -np.logspace(-37, 37, 1500),
        ]
    ).astype(dtype)
    for dtype in ("f4", "f8")
}
WIDE_EDGES = np.array([709.78, 709.79, 708.39, 708.4, 745.2, 1e308, 1e-308, 1e-310, 5e-324, 1e-17])
OTHERS = {
    dtype: np.concatenate([np.tile(EDGES, len(EDGES)).astype(dtype), RNG.permutation(x[196:])])
    for dtype, x in FLOATS.items()
}
EXACT = {  # op -> the same of NumPy
    **{"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "RealDiv": np.true_divide},
    **{"Maximum": np.maximum, "Minimum": np.minimum, "BiasAdd": np.add},
    **{"Equal": np.equal, "NotEqual": np.not_equal, "Less": np.less, "LessEqual": np.less_equal},
    **{"Greater": np.greater, "GreaterEqual": np.greater_equal},
    **{"Neg": np.negative, "Abs": np.abs, "Square": np.square, "Sqrt": np.sqrt},
    "Reciprocal": lambda x: x.dtype.type(1) / x,
    "Rsqrt": lambda x: x.dtype.type(1) / np.sqrt(x),
    "Relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "ReluGrad": lambda g, y: g * (y > 0),
    "Relu6": lambda x: np.minimum(np.maximum(x, x.dtype.type(0)), x.dtype.type(6)),
    "Relu6Grad": lambda g, y: g * ((y > 0) & (y < 6)),
    "EluGrad": lambda g, y: (np.minimum(y, y.dtype.type(0)) + 1) * g,
    **{"Sign": np.sign, "Floor": np.floor, "Ceil": np.ceil, "Rint": np.rint},
    **{"IsNan": np.isnan, "IsInf": np.isinf, "IsFinite": np.isfinite},
    "DivNoNan": lambda x, y: np.where(y == 0, x.dtype.type(0), x / y),
    "MulNoNan": lambda x, y: np.where(y == 0, x.dtype.type(0), x * y),
    "SquaredDifference": lambda x, y: np.square(x - y),
    "AddN": np.add,
    "Identity": np.positive,
    "TanhGrad": lambda g, y: (1 - y * y) * g,
    "SigmoidGrad": lambda g, y: (1 - y) * y * g,
}
CLOSE = {  # op -> of wider floats, and how many units in the last place it may be away
    "Exp": (np.exp, 2),
    "Expm1": (np.expm1, 3),
    "Elu": (lambda x: np.where(x > 0, x, np.expm1(x)), 3),
    "Log": (np.log, 2),
    "Log1p": (np.log1p, 3),
    "Tanh": (np.tanh, 2),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 4),
    "Softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), 4),
}
LOGIC = {
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "LogicalXor": np.logical_xor,
    "LogicalNot": np.logical_not,
}
BITS = {
    **{"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor},
    "Invert": np.invert,
}


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with np.errstate(all="ignore"):
        yield


def run(body: KernelBody, *arrays: np.ndarray, out: np.ndarray) -> np.ndarray:
    """What the kernel of `body` makes of the arrays."""
    written = text(body, exact=False)
    assert written is not None
    kernel_cache.builtin(written)(*arrays, out)
    return out


def alone(type: str, *arrays: np.ndarray, **attrs: Any) -> KernelBody:
    """One operation on arrays of one shape."""
    operands = tuple(KernelOperand(a.dtype, FULL) for a in arrays)
    step = KernelStep(type, tuple(range(len(arrays))), attrs)
    return KernelBody(operands, (step,), (len(arrays),), 0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("type", EXACT)
def test_bits_of_numpy(type: str, dtype: str) -> None:
    arrays = (FLOATS[dtype], OTHERS[dtype])
    two = type.endswith("Grad") or type in ("SquaredDifference", "AddN", "DivNoNan", "MulNoNan")
    two = two or getattr(EXACT[type], "nin", 1) == 2
    given = arrays if two else arrays[:1]
    wanted = EXACT[type](*given)
    found = run(alone(type, *given), *given, out=np.empty_like(wanted))
    np.testing.assert_array_equal(found, wanted)
    assert type not in elementwise_formulas.CLOSE


@pytest.mark.parametrize("dtype, wide", [("f4", "f8"), ("f8", "longdouble")])
@pytest.mark.parametrize("type", CLOSE)
def test_a_few_units_in_the_last_place(type: str, dtype: str, wide: str) -> None:
    if np.finfo(wide).nmant < np.finfo(dtype).nmant + 10:
        pytest.skip("this machine has no wider floats: does not apply")
    function, most = CLOSE[type]
    if (type, dtype) == ("Tanh", "f8"):
        most = 3  # a quotient of exponentials, without a polynomial near 0
    x = np.concatenate([FLOATS[dtype], RNG.uniform(-3, 3, 20_000).astype(dtype)])
    if dtype == "f8":
        x = np.concatenate([x, RNG.uniform(-750, 750, 5000), WIDE_EDGES, -WIDE_EDGES])
    found = run(alone(type, x), x, out=np.empty_like(x))
    are_near(found, function(x.astype(wide)).astype(dtype), most)
    if type in ("Expm1", "Tanh"):
        zeros = x == 0
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(x[zeros]))


def are_near(found: np.ndarray, wanted: np.ndarray, most: int) -> None:
    """At most so many units in the last place; what is not finite is the same."""
    tiny = np.finfo(found.dtype).tiny
    normal = np.isfinite(wanted) & (np.abs(wanted) > tiny)
    np.testing.assert_array_equal(found[~np.isfinite(wanted)], wanted[~np.isfinite(wanted)])
    away = np.abs(found - wanted)[normal] / np.spacing(np.abs(wanted[normal]))
    assert away.max() <= most, (wanted[normal][away.argmax()], away.max())
    rest = ~normal & np.isfinite(wanted)
    np.testing.assert_allclose(found[rest], wanted[rest], atol=2 * tiny)


def test_powers() -> None:
    """All pairs of special numbers, of whole and other exponents; any sizes."""
    edges = np.array([*EDGES, 2, 3, -2, -3, 0.5, -0.5, 1 / 3, 1e9, 16777215], "f4")
    x, y = (m.ravel() for m in np.meshgrid(edges, edges))
    x = np.concatenate([x, np.exp(RNG.standard_normal(9000) * 9), RNG.standard_normal(999)])
    y = np.concatenate([y, RNG.standard_normal(9000) * 6, RNG.integers(-30, 30, 999)])
    x, y = x.astype("f4"), y.astype("f4")
    found = run(alone("Pow", x, y), x, y, out=np.empty_like(x))
    wanted = np.power(x.astype("f8"), y.astype("f8")).astype("f4")
    are_near(found, wanted, 1)
    ends = (wanted == 0) | np.isinf(wanted)
    np.testing.assert_array_equal(np.signbit(found)[ends], np.signbit(wanted)[ends])


def test_the_error_function() -> None:
    x = FLOATS["f4"]
    found = run(alone("Erf", x), x, out=np.empty_like(x))
    wanted = np.array([math.erf(v) for v in x.tolist()], "f4")
    are_near(found, wanted, 8)
    spec, plain = Spec(x.dtype, x.shape), np.empty_like(x)
    kernel_registry.find_plain_kernel("Erf", "cpu").make(
        np, kernel_registry.KernelNode("Erf", {}, [spec], [spec])
    )(x, plain)
    np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize("type", LOGIC)
def test_logic(type: str) -> None:
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    given = (x,) if type == "LogicalNot" else (x, y)
    wanted = LOGIC[type](*given)
    assert run(alone(type, *given), *given, out=np.empty(4, bool)).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    "type", ["Add", "Sub", "Mul", "Maximum", "Minimum", "Neg", "Square", "Abs", "Sign", *BITS]
)
@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_integers_wrap_around(type: str, dtype: str) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([0, 1, -1, 7, least, most], dtype)
    function = {**EXACT, **BITS}[type]
    given = (x,) if function.nin == 1 else (x, x[::-1].copy())
    found = run(alone(type, *given), *given, out=np.empty_like(x))
    assert found.tolist() == function(*given).tolist()


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("f4", "f8"),
        ("f8", "f4"),
        ("i4", "f4"),
        ("i8", "f8"),
        ("?", "f4"),
        ("?", "i8"),
        ("i4", "i8"),
        ("i8", "i4"),
        ("i8", "?"),
        ("f4", "?"),
    ],
)
def test_casts(source: str, wanted: str) -> None:
    x = np.array([0, 1, 3, -2, 2**31 + 7 if source == "i8" else 120], source)
    found = run(alone("Cast", x, dtype=np.dtype(wanted)), x, out=np.empty(5, wanted))
    assert found.tolist() == x.astype(wanted).tolist()


def test_a_float_that_may_not_fit_is_no_integer() -> None:
    assert text(alone("Cast", np.ones(1, "f4"), dtype=np.dtype("i4")), False) is None


def test_exactly_nothing_is_near() -> None:
    assert text(alone("Exp", np.ones(1, "f4")), exact=True) is None
    assert text(alone("Erf", np.ones(1)), exact=False) is None  # of 64 bits


@pytest.mark.parametrize("shape", [(5, 7), (3, 1, 33), (1, 1), (2, 3, 4)])
@pytest.mark.parametrize("split", [1, 2])
def test_rows_and_columns(shape: tuple[int, ...], split: int) -> None:
    if split >= len(shape):
        shape = (*shape, 3)
    x = RNG.standard_normal(shape).astype("f4")
    row = RNG.standard_normal(shape[split:]).astype("f4")
    column = RNG.standard_normal((*shape[:split], *(1 for _ in shape[split:]))).astype("f4")
    one = np.array(3.0, "f4")
    ways = (FULL, ROW, COLUMN, ONE)
    steps = (
        KernelStep("Mul", (0, 1), {}),
        KernelStep("Add", (4, 2), {}),
        KernelStep("Sub", (5, 3), {}),
    )
    body = KernelBody(tuple(KernelOperand(x.dtype, way) for way in ways), steps, (6, 4), row.size)
    written = text(body, exact=True)
    assert written is not None
    out, product = np.empty_like(x), np.empty_like(x)
    kernel_cache.builtin(written)(x, row, column, one, out, product)
    np.testing.assert_array_equal(product, x * row)
    np.testing.assert_array_equal(out, x * row + column - one)


def test_in_place_and_of_no_elements() -> None:
    x = RNG.standard_normal(1001).astype("f4")
    wanted = np.exp(x.astype("f8"))
    np.testing.assert_allclose(run(alone("Exp", x), x, out=x), wanted, rtol=1e-6)
    empty = np.empty((0, 3), "f4")
    run(alone("Exp", empty), empty, out=empty)


def test_nothing_beyond_the_end_is_written() -> None:
    for n in (1, 15, 16, 17, 63, 64, 65, 1000):
        memory = np.full(n + 64, 7, "f4")
        x = RNG.standard_normal(n).astype("f4")
        run(alone("Neg", x), x, out=memory[:n])
        assert (memory[:n] == -x).all() and (memory[n:] == 7).all()
