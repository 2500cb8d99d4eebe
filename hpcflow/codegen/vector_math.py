"""Vectorizable exponentials, logarithms and powers of float32, by polynomials.

Most are after the Cephes library (S. L. Moshier, single precision): range reduction, then a minimax
polynomial. Errors are at most a few units in the last place (tests/native). A product followed by a
sum is one `fma` on every processor: all compute the same bits.
"""

from __future__ import annotations

import math

from hpcflow.codegen.llvm_builder import InstructionBuilder, LlvmValue, number

LOG2_E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1)
LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
TANH_POLYNOMIAL_LIMIT = 0.625  # tanh is a polynomial below
TANH_SATURATION = 20.0  # tanh is 1 above half of it
SMALLEST_NORMAL = 1.17549435e-38  # the smallest normal number
OVER, UNDER = 88.7228394, -87.3365479  # exp is infinity above, and not normal below


# x P(x x) / Q(x x) on [-4, 4], to 4 units in the last place (Eigen's)
ERF_ABOVE = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
ERF_BELOW = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03),
    *(-7.37332916720468e-03, -1.42647390514189e-02),
)
ERF_END = 4.0
# Taylor coefficients of log2((1 + s) / (1 - s)) / s, by s^2, and of 2^f, in 64 bits
LOG2 = tuple(2 / math.log(2) / k for k in range(11, 0, -2))
EXP2 = tuple(math.log(2) ** k / math.factorial(k) for k in range(7, -1, -1))


def f(value: float) -> LlvmValue:
    """A float32 constant."""
    return number(value, "float")


def d(value: float) -> LlvmValue:
    """A float64 constant."""
    return number(value, "double")


def polynomial(b: InstructionBuilder, x: LlvmValue, coefficients: tuple[float, ...]) -> LlvmValue:
    """A polynomial by Horner's rule, the coefficient of the highest power first."""
    total = number(coefficients[0], x.type)
    for c in coefficients[1:]:
        total = b.call("fma", total, x, number(c, x.type))
    return total


def _bounded(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """x clamped to the range where exp(x) is a normal number."""
    return b.call("minnum", b.call("maxnum", x, f(UNDER)), f(OVER))


def _reduced(b: InstructionBuilder, inside: LlvmValue) -> tuple[LlvmValue, LlvmValue, LlvmValue]:
    """n, r and p so that a bounded x = n log 2 + r and exp(r) = 1 + r + p r r."""
    n = b.call("floor", b.call("fma", inside, f(LOG2_E), f(0.5)))
    r = b.call("fma", n, f(-LN2_HIGH), inside)
    r = b.call("fma", n, f(-LN2_LOW), r)
    return n, r, b.call("fma", polynomial(b, r, EXP), r, f(0.5))


def exp(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """e to the x; 0 where that is not a normal number, NaN of NaN."""
    n, r, p = _reduced(b, _bounded(b, x))
    near = b.call("fma", p, b.binary("mul", r, r), b.binary("add", r, f(1.0)))
    # 2^n in two factors, since 2^128 overflows
    exponent = b.add(f"fptosi float {n.text} to i32", "i32")
    half = b.add(f"ashr i32 {exponent.text}, 1", "i32")
    rest = b.binary("sub", exponent, half)
    y = b.binary("mul", b.binary("mul", near, _power(b, half)), _power(b, rest))
    return _ends(b, x, f(0.0), y)


def expm1(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """e to the x, minus 1, accurate near 0."""
    n, r, p = _reduced(b, _bounded(b, x))
    near = b.call("fma", p, b.binary("mul", r, r), r)
    exponent = b.add(f"fptosi float {n.text} to i32", "i32")
    half = _power(b, b.binary("sub", exponent, number(1, "i32")))  # 2^n / 2, since 2^128 overflows
    half_y = b.call("fma", half, near, b.binary("sub", half, f(0.5)))
    return _ends(b, x, f(-1.0), b.binary("add", half_y, half_y))


def _ends(b: InstructionBuilder, x: LlvmValue, least: LlvmValue, y: LlvmValue) -> LlvmValue:
    """Replace exponentials of very small and very large numbers, and of NaN."""
    y = b.choose(b.compare("lt", x, f(UNDER)), least, y)
    y = b.choose(b.compare("gt", x, f(OVER)), f(float("inf")), y)
    return b.choose(b.is_nan(x), x, y)


def _power(b: InstructionBuilder, n: LlvmValue) -> LlvmValue:
    """2 to an integer, by its bit pattern."""
    shifted = b.add(f"shl i32 {b.binary('add', n, number(127, 'i32')).text}, 23", "i32")
    return b.add(f"bitcast i32 {shifted.text} to float", "float")


def log(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """The natural logarithm: -infinity of 0, NaN of negative numbers."""
    tiny = b.compare("lt", x, f(SMALLEST_NORMAL))
    normal = b.choose(tiny, b.binary("mul", x, f(2.0**25)), x)
    bits = b.add(f"bitcast float {normal.text} to i32", "i32")
    exponent = b.add(f"ashr i32 {bits.text}, 23", "i32")
    exponent = b.binary("sub", exponent, number(126, "i32"))
    n = b.add(f"sitofp i32 {exponent.text} to float", "float")
    n = b.choose(tiny, b.binary("sub", n, f(25.0)), n)
    mantissa = b.add(f"and i32 {bits.text}, {0x007FFFFF}", "i32")
    mantissa = b.add(f"or i32 {mantissa.text}, {0x3F000000}", "i32")
    m = b.add(f"bitcast i32 {mantissa.text} to float", "float")  # in [0.5, 1)
    low = b.compare("lt", m, f(0.707106781186547524))
    n = b.choose(low, b.binary("sub", n, f(1.0)), n)
    m = b.binary("sub", b.choose(low, b.binary("add", m, m), m), f(1.0))
    square = b.binary("mul", m, m)
    y = b.binary("mul", b.binary("mul", polynomial(b, m, LOG), m), square)
    y = b.call("fma", n, f(LN2_LOW), y)
    y = b.call("fma", square, f(-0.5), y)
    y = b.call("fma", n, f(LN2_HIGH), b.binary("add", m, y))
    # infinity of infinity, NaN of NaN
    y = b.choose(b.compare("lt", x, f(float("inf"))), y, x)
    y = b.choose(b.compare("eq", x, f(0.0)), f(-float("inf")), y)
    return b.choose(b.compare("lt", x, f(0.0)), f(float("nan")), y)


def log1p(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """log(1 + x); the factor x / ((1 + x) - 1) corrects the rounding of 1 + x (W. Kahan)."""
    shifted = b.binary("add", x, f(1.0))
    lost = b.binary("sub", shifted, f(1.0))
    y = b.binary("mul", log(b, shifted), b.binary("fdiv", x, lost))
    y = b.choose(b.compare("eq", lost, f(0.0)), x, y)
    return b.choose(b.compare("eq", x, f(float("inf"))), x, y)


def tanh(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """1 - 2 / (exp(2x) + 1); a polynomial near 0."""
    square = b.binary("mul", x, x)
    near = b.call("fma", b.binary("mul", polynomial(b, square, TANH), square), x, x)
    size = b.call("fabs", x)
    n, r, p = _reduced(b, b.call("minnum", b.binary("add", size, size), f(TANH_SATURATION)))
    power = b.call("fma", p, b.binary("mul", r, r), b.binary("add", r, f(1.0)))
    exponent = b.add(f"fptosi float {n.text} to i32", "i32")
    power = b.call("fma", power, _power(b, exponent), f(1.0))
    far = b.binary("sub", f(1.0), b.binary("fdiv", f(2.0), power))
    far = b.call("copysign", far, x)
    return b.choose(b.compare("ge", size, f(TANH_POLYNOMIAL_LIMIT)), far, near)


def sigmoid(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """1 / (1 + exp(-x))."""
    power = exp(b, b.add(f"fneg float {x.text}", "float"))
    return b.binary("fdiv", f(1.0), b.binary("add", power, f(1.0)))


def erf(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """The error function, bitwise equal to `ops/math/special_function_kernels.py`."""
    x = b.choose(b.compare("lt", x, f(-ERF_END)), f(-ERF_END), x)
    x = b.choose(b.compare("gt", x, f(ERF_END)), f(ERF_END), x)
    square = b.binary("mul", x, x)
    above, below = f(ERF_ABOVE[0]), f(ERF_BELOW[0])
    for c in ERF_ABOVE[1:]:
        above = b.binary("add", b.binary("mul", above, square), f(c))
    for c in ERF_BELOW[1:]:
        below = b.binary("add", b.binary("mul", below, square), f(c))
    return b.binary("fdiv", b.binary("mul", x, above), below)


def power(b: InstructionBuilder, x: LlvmValue, y: LlvmValue) -> LlvmValue:
    """x to the y, computed in 64 bits; zeros, infinities, NaN and signs as in C99."""
    size = b.call("fabs", x)
    result = _exp2(b, b.binary("mul", _double(b, y), _log2(b, _double(b, size))))
    result = b.add(f"fptrunc double {result.text} to float", "float")
    result = b.choose(b.compare("eq", size, f(1.0)), f(1.0), result)
    half = b.binary("mul", y, f(0.5))
    is_integer = b.compare("eq", b.call("floor", y), y)
    odd = b.binary("and", is_integer, b.compare("ne", b.call("floor", half), half))
    result = b.choose(odd, b.call("copysign", result, x), result)
    finite = b.compare("lt", size, f(float("inf")))
    real = b.binary("or", is_integer, b.compare("ge", x, f(0.0)))
    real = b.binary("or", real, b.binary("xor", finite, number(1, "i1")))
    result = b.choose(real, result, f(float("nan")))
    result = b.choose(b.binary("or", b.is_nan(x), b.is_nan(y)), f(float("nan")), result)
    always = b.binary("or", b.compare("eq", x, f(1.0)), b.compare("eq", y, f(0.0)))
    return b.choose(always, f(1.0), result)


def _double(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    return b.add(f"fpext float {x.text} to double", "double")


def _log2(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """The logarithm to base 2 of a non-negative float32, given as float64."""
    bits = b.add(f"bitcast double {x.text} to i64", "i64")
    # exponent and fraction so that the latter is in [sqrt(1/2), sqrt(2))
    shifted = b.binary("sub", bits, number(0x3FE6A09E667F3BCD, "i64"))
    exponent = b.add(f"ashr i64 {shifted.text}, 52", "i64")
    exponent_bits = b.add(f"shl i64 {exponent.text}, 52", "i64")
    m = b.add(f"bitcast i64 {b.binary('sub', bits, exponent_bits).text} to double", "double")
    n = b.add(f"trunc i64 {exponent.text} to i32", "i32")
    n = b.add(f"sitofp i32 {n.text} to double", "double")
    s = b.binary("fdiv", b.binary("sub", m, d(1.0)), b.binary("add", m, d(1.0)))
    y = b.call("fma", polynomial(b, b.binary("mul", s, s), LOG2), s, n)
    y = b.choose(b.compare("eq", x, d(0.0)), d(-math.inf), y)
    return b.choose(b.compare("eq", x, d(math.inf)), d(math.inf), y)


def _exp2(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """2 to the x in float64, where the result fits float32."""
    x = b.call("minnum", b.call("maxnum", x, d(-200.0)), d(200.0))
    n = b.call("rint", x)
    exponent = b.add(f"fptosi double {n.text} to i32", "i32")
    wide = b.add(f"sext i32 {b.binary('add', exponent, number(1023, 'i32')).text} to i64", "i64")
    scale = b.add(f"shl i64 {wide.text}, 52", "i64")
    scale = b.add(f"bitcast i64 {scale.text} to double", "double")
    return b.binary("mul", polynomial(b, b.binary("sub", x, n), EXP2), scale)
