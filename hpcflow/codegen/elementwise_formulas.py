"""Elementwise formulas: op -> a function that writes the LLVM IR for one element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpcflow.codegen import vector_math
from hpcflow.codegen.llvm_builder import (
    HALVES,
    InstructionBuilder,
    LlvmValue,
    number,
    storage_type_of,
    value_type,
)

Formula = Callable[..., Any]  # (lines, *operands, **attributes); None: types not supported
EXACT: dict[str, Formula] = {}  # bitwise equal to NumPy
CLOSE: dict[str, Formula] = {}  # of floats; within a few units in the last place of NumPy
LONG = frozenset({"Erf"})  # the expensive formulas of EXACT


def find_formula(type: str, exact: bool) -> Formula | None:
    """The formula of an operation, if any; with `exact`, only if bitwise equal to NumPy."""
    return EXACT.get(type) or (None if exact else CLOSE.get(type))


def formula(type: str, table: dict[str, Formula] = EXACT) -> Callable[[Formula], Formula]:
    """Decorator: register the formula of an operation."""

    def add(write: Formula) -> Formula:
        table[type] = write
        return write

    return add


def _register_binary(type: str, word: str) -> None:
    EXACT[type] = lambda b, x, y, **_: b.binary(word, x, y)


def _register_comparison(type: str, predicate: str) -> None:
    EXACT[type] = lambda b, x, y, **_: b.compare(predicate, x, y)


def _bits(type: str, word: str) -> None:
    EXACT[type] = lambda b, x, y, **_: b.add(f"{word} {x.type} {x.text}, {y.text}", x.type)


def _rounded(type: str, name: str) -> None:
    EXACT[type] = lambda b, x, **_: b.call(name, x)


for _type, _word in {"Add": "add", "Sub": "sub", "Mul": "mul", "BiasAdd": "add"}.items():
    _register_binary(_type, _word)
for _type, _word in {
    **{"Equal": "eq", "NotEqual": "ne", "Less": "lt", "LessEqual": "le"},
    **{"Greater": "gt", "GreaterEqual": "ge"},
}.items():
    _register_comparison(_type, _word)
for _word in ("And", "Or", "Xor"):
    _bits(f"Logical{_word}", _word.lower())
    _bits(f"Bitwise{_word}", _word.lower())
for _type, _word in {"Floor": "floor", "Ceil": "ceil", "Rint": "rint"}.items():
    _rounded(_type, _word)


def zero(x: LlvmValue) -> LlvmValue:
    """0 of the type of a value."""
    return number(0, x.type)


def one_of_type(x: LlvmValue) -> LlvmValue:
    """1 of the type of a value."""
    return number(1, x.type)


@formula("RealDiv")
def _divide(b: InstructionBuilder, x: LlvmValue, y: LlvmValue, **_: Any) -> Any:
    return b.binary("fdiv", x, y) if x.is_float else None


@formula("Neg")
def _negative(b: InstructionBuilder, x: LlvmValue, **_: Any) -> LlvmValue:
    if x.is_float:
        return b.add(f"fneg {x.type} {x.text}", x.type)
    return b.binary("sub", zero(x), x)


@formula("Abs")
def _absolute(b: InstructionBuilder, x: LlvmValue, **_: Any) -> Any:
    return b.call("fabs", x) if x.is_float else _larger(b, x, _negative(b, x))


@formula("Sign")
def _sign(b: InstructionBuilder, x: LlvmValue, **_: Any) -> LlvmValue:
    """NaN of NaN, 0 of -0."""
    below = b.choose(b.compare("lt", x, zero(x)), number(-1, x.type), x)
    sign = b.choose(b.compare("gt", x, zero(x)), one_of_type(x), below)
    return b.choose(b.compare("eq", x, zero(x)), zero(x), sign)


@formula("Square")
def _square(b: InstructionBuilder, x: LlvmValue, **_: Any) -> LlvmValue:
    return b.binary("mul", x, x)


@formula("Sqrt")
def _root(b: InstructionBuilder, x: LlvmValue, **_: Any) -> Any:
    return b.call("sqrt", x) if x.is_float else None


@formula("Reciprocal")
def _reciprocal(b: InstructionBuilder, x: LlvmValue, **_: Any) -> Any:
    return b.binary("fdiv", one_of_type(x), x) if x.is_float else None


@formula("Rsqrt")
def _reciprocal_root(b: InstructionBuilder, x: LlvmValue, **_: Any) -> Any:
    return b.binary("fdiv", one_of_type(x), b.call("sqrt", x)) if x.is_float else None


@formula("DivNoNan")
def _divide_no_nan(b: InstructionBuilder, x: LlvmValue, y: LlvmValue, **_: Any) -> LlvmValue:
    return b.choose(b.compare("eq", y, zero(y)), zero(x), b.binary("fdiv", x, y))


@formula("MulNoNan")
def _multiply_no_nan(b: InstructionBuilder, x: LlvmValue, y: LlvmValue, **_: Any) -> LlvmValue:
    return b.choose(b.compare("eq", y, zero(y)), zero(x), b.binary("mul", x, y))


@formula("IsNan")
def _is_nan(b: InstructionBuilder, x: LlvmValue, **_: Any) -> LlvmValue:
    return b.is_nan(x)


@formula("IsInf")
def _is_infinite(b: InstructionBuilder, x: LlvmValue, **_: Any) -> LlvmValue:
    return b.compare("eq", b.call("fabs", x), number(np.inf, x.type))


@formula("IsFinite")
def _is_finite(b: InstructionBuilder, x: LlvmValue, **_: Any) -> LlvmValue:
    return b.compare("lt", b.call("fabs", x), number(np.inf, x.type))


@formula("Maximum")
def _larger(b: InstructionBuilder, x: LlvmValue, y: LlvmValue, **_: Any) -> LlvmValue:
    """NaN if one operand is NaN, as in NumPy."""
    above = b.compare("gt", x, y)
    if x.is_float:
        above = b.add(f"or i1 {above.text}, {b.is_nan(x).text}", "i1")
    return b.choose(above, x, y)


@formula("Minimum")
def _smaller(b: InstructionBuilder, x: LlvmValue, y: LlvmValue, **_: Any) -> LlvmValue:
    below = b.compare("lt", x, y)
    if x.is_float:
        below = b.add(f"or i1 {below.text}, {b.is_nan(x).text}", "i1")
    return b.choose(below, x, y)


@formula("Relu")
def _relu(b: InstructionBuilder, x: LlvmValue, **_: Any) -> LlvmValue:
    return _larger(b, x, zero(x))


@formula("Relu6")
def _relu6(b: InstructionBuilder, x: LlvmValue, **_: Any) -> LlvmValue:
    return _smaller(b, _relu(b, x), number(6, x.type))


def _masked(b: InstructionBuilder, g: LlvmValue, condition: LlvmValue) -> Any:
    """The product with a mask of 0 or 1, so that infinities and NaN propagate."""
    mask = b.convert(condition, g.type)
    return mask and b.binary("mul", g, mask)


@formula("ReluGrad")
def _relu_grad(b: InstructionBuilder, g: LlvmValue, y: LlvmValue, **_: Any) -> Any:
    return _masked(b, g, b.compare("gt", y, zero(y)))


@formula("Relu6Grad")
def _relu6_grad(b: InstructionBuilder, g: LlvmValue, y: LlvmValue, **_: Any) -> Any:
    above, below = b.compare("gt", y, zero(y)), b.compare("lt", y, number(6, y.type))
    return _masked(b, g, b.binary("and", above, below))


@formula("EluGrad")
def _elu_grad(b: InstructionBuilder, g: LlvmValue, y: LlvmValue, **_: Any) -> LlvmValue:
    return b.binary("mul", b.binary("add", _smaller(b, y, zero(y)), one_of_type(y)), g)


@formula("Erf")
def _erf(b: InstructionBuilder, x: LlvmValue, **_: Any) -> Any:
    return vector_math.erf(b, x) if x.type == "float" else None


@formula("ClipByValue")
def _clip(
    b: InstructionBuilder, x: LlvmValue, low: LlvmValue, high: LlvmValue, **_: Any
) -> LlvmValue:
    return _larger(b, _smaller(b, x, high), low)


@formula("SquaredDifference")
def _squared_difference(b: InstructionBuilder, x: LlvmValue, y: LlvmValue, **_: Any) -> LlvmValue:
    return _square(b, b.binary("sub", x, y))


@formula("AddN")
def _add_n(b: InstructionBuilder, *addends: LlvmValue, **_: Any) -> LlvmValue:
    total = addends[0]
    for x in addends[1:]:
        total = b.binary("add", total, x)
    return total


@formula("Select")
def _select(
    b: InstructionBuilder, condition: LlvmValue, x: LlvmValue, y: LlvmValue, **_: Any
) -> LlvmValue:
    return b.choose(condition, x, y)


@formula("LogicalNot")
def _not(b: InstructionBuilder, x: LlvmValue, **_: Any) -> LlvmValue:
    return b.add(f"xor i1 {x.text}, 1", "i1")


@formula("Invert")
def _invert(b: InstructionBuilder, x: LlvmValue, **_: Any) -> LlvmValue:
    return b.binary("xor", x, number(-1, x.type))


@formula("Identity")
def _identity(b: InstructionBuilder, x: LlvmValue, **_: Any) -> LlvmValue:
    return x


@formula("Cast")
def _cast(b: InstructionBuilder, x: LlvmValue, dtype: Any = None, **_: Any) -> Any:
    target_type = storage_type_of(dtype)
    value = b.convert(x, value_type(target_type)) if target_type else None
    if value is not None and target_type in HALVES:
        return b.widened(b.rounded(value, target_type), target_type)
    return value


@formula("TanhGrad")
def _tanh_grad(b: InstructionBuilder, g: LlvmValue, y: LlvmValue, **_: Any) -> LlvmValue:
    return b.binary("mul", b.binary("sub", one_of_type(y), b.binary("mul", y, y)), g)


@formula("SigmoidGrad")
def _sigmoid_grad(b: InstructionBuilder, g: LlvmValue, y: LlvmValue, **_: Any) -> LlvmValue:
    return b.binary("mul", b.binary("mul", b.binary("sub", one_of_type(y), y), y), g)


def _function(write: Callable[[InstructionBuilder, LlvmValue], LlvmValue]) -> Formula:
    return lambda b, x, **_: write(b, x) if x.type in vector_math.FORMATS else None


CLOSE.update(
    {
        "Exp": _function(vector_math.exp),
        "Expm1": _function(vector_math.expm1),
        "Log": _function(vector_math.log),
        "Log1p": _function(vector_math.log1p),
        "Tanh": _function(vector_math.tanh),
        "Sigmoid": _function(vector_math.sigmoid),
    }
)


@formula("Elu", CLOSE)
def _elu(b: InstructionBuilder, x: LlvmValue, **_: Any) -> Any:
    if x.type not in vector_math.FORMATS:
        return None
    return _larger(b, x, vector_math.expm1(b, _smaller(b, x, zero(x))))


@formula("Pow", CLOSE)
def _power(b: InstructionBuilder, x: LlvmValue, y: LlvmValue, **_: Any) -> Any:
    return vector_math.power(b, x, y) if x.type == "float" else None


@formula("Softplus", CLOSE)
def _softplus(b: InstructionBuilder, x: LlvmValue, **_: Any) -> Any:
    if x.type not in vector_math.FORMATS:
        return None
    size = b.call("fabs", x)
    power = vector_math.exp(b, b.add(f"fneg {x.type} {size.text}", x.type))
    return b.binary("add", _larger(b, x, zero(x)), vector_math.log1p(b, power))


def written(
    b: InstructionBuilder,
    type: str,
    operands: list[LlvmValue],
    attrs: Mapping[str, Any],
    exact: bool,
) -> Any:
    """Write the operation on these operands; its value, None if it has no formula for them."""
    write = find_formula(type, exact)
    return write and write(b, *operands, **attrs)
