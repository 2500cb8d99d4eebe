"""Vectorizable exponentials, logarithms and powers of float32 and float64, by polynomials.

Those of float32 are mostly after the Cephes library (S. L. Moshier, single precision): range
reduction, then a minimax polynomial. Those of float64 use Taylor's polynomial of the exponential,
and the logarithm of fdlibm (Sun Microsystems, e_log.c). Errors are at most a few units in the last
place (tests/native). A product followed by a sum is one `fma` on every processor: all compute the
same bits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hpcflow.codegen.llvm_builder import InstructionBuilder, LlvmValue, number

LOG2_E = 1.44269504088896341


class FloatFormat(NamedTuple):
    """A format of floating-point numbers, and the constants of its exponential.

    e to the r is 1 + r + r r p(r) for r up to log(2) / 2, where `exp` are the coefficients of p. It
    is infinity above `over`, and not a normal number below `under`.
    """

    bits: str  # the integer type of as many bits
    mantissa: int  # stored bits
    bias: int
    ln2: tuple[float, float]  # log(2) in two parts: products of the first and an exponent are exact
    exp: tuple[float, ...]
    under: float
    over: float


EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
EXP_TAYLOR = tuple(1 / math.factorial(k) for k in range(13, 1, -1))
FORMATS = {
    "float": FloatFormat(
        *("i32", 23, 127, (0.693359375, -2.12194440e-4), EXP, -87.3365479, 88.7228394)
    ),
    "double": FloatFormat(
        *("i64", 52, 1023, (6.93147180369123816490e-01, 1.90821492927058770002e-10), EXP_TAYLOR),
        *(-708.3964185322641, 709.782712893384),
    ),
}
ROUNDING = 1.5 * 2.0**52  # a float64 that is added to it is rounded to an integer
LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
# (log((1 + s) / (1 - s)) - 2 s) / s, by s^2, in 64 bits
LOG_RATIO = (
    *(1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01),
    *(2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01),
    6.666666666666735130e-01,
)
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD  # of the float64 sqrt(1/2)
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
TANH_POLYNOMIAL_LIMIT = 0.625  # tanh of float32 is a polynomial below
TANH_SATURATION = {"float": 20.0, "double": 40.0}  # tanh is 1 above half of it
SMALLEST_NORMAL = 1.17549435e-38  # the smallest normal number of float32
SMALLEST_NORMAL_64 = 2.2250738585072014e-308


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
    limits = FORMATS[x.type]
    below = b.call("maxnum", x, number(limits.under, x.type))
    return b.call("minnum", below, number(limits.over, x.type))


def _reduced(b: InstructionBuilder, inside: LlvmValue) -> tuple[LlvmValue, LlvmValue, LlvmValue]:
    """The integer n, and r and p, so that a bounded x = n log 2 + r and exp(r) = 1 + r + p r r.

    Of float64 the upper bits of n are arbitrary.
    """
    of, kind = FORMATS[inside.type], inside.type
    if kind == "double":  # rounded to an integer, which is then in the low bits
        shifted = b.call("fma", inside, d(LOG2_E), d(ROUNDING))
        whole = b.binary("sub", shifted, d(ROUNDING))
        n = b.add(f"bitcast double {shifted.text} to i64", "i64")
    else:
        whole = b.call("floor", b.call("fma", inside, f(LOG2_E), f(0.5)))
        n = b.add(f"fptosi float {whole.text} to i32", "i32")
    r = inside
    for part in of.ln2:
        r = b.call("fma", whole, number(-part, kind), r)
    return n, r, polynomial(b, r, of.exp)


def exp(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """e to the x; 0 where that is not a normal number, NaN of NaN."""
    n, r, p = _reduced(b, _bounded(b, x))
    near = b.call("fma", p, b.binary("mul", r, r), b.binary("add", r, number(1.0, x.type)))
    return _ends(b, x, number(0.0, x.type), _scaled(b, near, n))


def _scaled(b: InstructionBuilder, y: LlvmValue, n: LlvmValue) -> LlvmValue:
    """y 2^n, which is normal, though 2^n may be too large for the format."""
    if y.type == "double":  # n is added to the exponent of y
        shifted = b.add(f"shl i64 {n.text}, 52", "i64")
        bits = b.add(f"bitcast double {y.text} to i64", "i64")
        return b.add(f"bitcast i64 {b.binary('add', bits, shifted).text} to double", "double")
    half = b.add(f"ashr i32 {n.text}, 1", "i32")
    rest = b.binary("sub", n, half)
    return b.binary("mul", b.binary("mul", y, _power(b, half)), _power(b, rest))


def expm1(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """e to the x, minus 1, accurate near 0."""
    half_y = _half_expm1(b, _bounded(b, x))
    y = b.call("copysign", b.binary("add", half_y, half_y), x)  # -0 of -0
    return _ends(b, x, number(-1.0, x.type), y)


def _half_expm1(b: InstructionBuilder, inside: LlvmValue) -> LlvmValue:
    """Half of e to a bounded x, minus 1: with 2^n / 2, since 2^128 overflows."""
    n, r, p = _reduced(b, inside)
    near = b.call("fma", p, b.binary("mul", r, r), r)
    half = _power(b, b.binary("sub", n, number(1, n.type)))
    return b.call("fma", half, near, b.binary("sub", half, number(0.5, inside.type)))


def _ends(b: InstructionBuilder, x: LlvmValue, least: LlvmValue, y: LlvmValue) -> LlvmValue:
    """Replace exponentials of very small and very large numbers, and of NaN."""
    of = FORMATS[x.type]
    y = b.choose(b.compare("lt", x, number(of.under, x.type)), least, y)
    infinite = number(float("inf"), x.type)
    y = b.choose(b.compare("gt", x, number(of.over, x.type)), infinite, y)
    return b.choose(b.is_nan(x), x, y)


def _power(b: InstructionBuilder, n: LlvmValue) -> LlvmValue:
    """2 to an integer, by its bit pattern: a float32 of an i32, a float64 of an i64."""
    kind, of = next((kind, of) for kind, of in FORMATS.items() if of.bits == n.type)
    biased = b.binary("add", n, number(of.bias, n.type))
    shifted = b.add(f"shl {n.type} {biased.text}, {of.mantissa}", n.type)
    return b.add(f"bitcast {n.type} {shifted.text} to {kind}", kind)


def log(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """The natural logarithm: -infinity of 0, NaN of negative numbers."""
    y = (_log if x.type == "float" else _log_64)(b, x)
    # infinity of infinity, NaN of NaN
    y = b.choose(b.compare("lt", x, number(float("inf"), x.type)), y, x)
    y = b.choose(b.compare("eq", x, number(0.0, x.type)), number(-float("inf"), x.type), y)
    return b.choose(b.compare("lt", x, number(0.0, x.type)), number(float("nan"), x.type), y)


def _log(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """The logarithm of a positive finite float32."""
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
    high, low_part = FORMATS["float"].ln2
    y = b.call("fma", n, f(low_part), y)
    y = b.call("fma", square, f(-0.5), y)
    return b.call("fma", n, f(high), b.binary("add", m, y))


def _log_64(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """The logarithm of a positive finite float64: x = 2^n (1 + m), s = m / (2 + m)."""
    tiny = b.compare("lt", x, d(SMALLEST_NORMAL_64))
    n, whole = _exponent_and_fraction(b, b.choose(tiny, b.binary("mul", x, d(2.0**54)), x))
    n = b.choose(tiny, b.binary("sub", n, d(54.0)), n)
    m = b.binary("sub", whole, d(1.0))
    s = b.binary("fdiv", m, b.binary("add", m, d(2.0)))
    square = b.binary("mul", s, s)
    ratio = b.binary("mul", square, polynomial(b, square, LOG_RATIO))
    half = b.binary("mul", b.binary("mul", m, m), d(0.5))
    high, low = FORMATS["double"].ln2
    y = b.call("fma", s, b.binary("add", half, ratio), b.binary("mul", n, d(low)))
    return b.call("fma", n, d(high), b.binary("sub", m, b.binary("sub", half, y)))


def log1p(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """log(1 + x); the factor x / ((1 + x) - 1) corrects the rounding of 1 + x (W. Kahan)."""
    one = number(1.0, x.type)
    shifted = b.binary("add", x, one)
    lost = b.binary("sub", shifted, one)
    y = b.binary("mul", log(b, shifted), b.binary("fdiv", x, lost))
    y = b.choose(b.compare("eq", lost, number(0.0, x.type)), x, y)
    return b.choose(b.compare("eq", x, number(float("inf"), x.type)), x, y)


def tanh(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """The hyperbolic tangent, with the sign of x."""
    return _tanh(b, x) if x.type == "float" else _tanh_64(b, x)


def _tanh_64(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """e / (e + 2) for e = exp(2x) - 1."""
    size = b.call("fabs", x)
    double = b.binary("add", size, size)
    bounded = b.call("minnum", double, d(TANH_SATURATION["double"]))
    half_e = _half_expm1(b, bounded)
    y = b.call("copysign", b.binary("fdiv", half_e, b.binary("add", half_e, d(1.0))), x)
    return b.choose(b.is_nan(x), x, y)


def _tanh(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """1 - 2 / (exp(2x) + 1); a polynomial near 0."""
    square = b.binary("mul", x, x)
    near = b.call("fma", b.binary("mul", polynomial(b, square, TANH), square), x, x)
    size = b.call("fabs", x)
    n, r, p = _reduced(
        b, b.call("minnum", b.binary("add", size, size), f(TANH_SATURATION["float"]))
    )
    power = b.call("fma", p, b.binary("mul", r, r), b.binary("add", r, f(1.0)))
    power = b.call("fma", power, _power(b, n), f(1.0))
    far = b.binary("sub", f(1.0), b.binary("fdiv", f(2.0), power))
    y = b.choose(b.compare("ge", size, f(TANH_POLYNOMIAL_LIMIT)), far, near)
    return b.call("copysign", y, x)


def sigmoid(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """1 / (1 + exp(-x))."""
    power = exp(b, b.add(f"fneg {x.type} {x.text}", x.type))
    one = number(1.0, x.type)
    return b.binary("fdiv", one, b.binary("add", power, one))


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
    n, m = _exponent_and_fraction(b, x)
    s = b.binary("fdiv", b.binary("sub", m, d(1.0)), b.binary("add", m, d(1.0)))
    y = b.call("fma", polynomial(b, b.binary("mul", s, s), LOG2), s, n)
    y = b.choose(b.compare("eq", x, d(0.0)), d(-math.inf), y)
    return b.choose(b.compare("eq", x, d(math.inf)), d(math.inf), y)


def _exponent_and_fraction(b: InstructionBuilder, x: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """n and m in [sqrt(1/2), sqrt(2)) of a normal float64 x = 2^n m, both float64."""
    bits = b.add(f"bitcast double {x.text} to i64", "i64")
    shifted = b.binary("sub", bits, number(SQRT_HALF_BITS, "i64"))
    exponent = b.add(f"ashr i64 {shifted.text}, 52", "i64")
    exponent_bits = b.add(f"shl i64 {exponent.text}, 52", "i64")
    m = b.add(f"bitcast i64 {b.binary('sub', bits, exponent_bits).text} to double", "double")
    n = b.add(f"trunc i64 {exponent.text} to i32", "i32")
    return b.add(f"sitofp i32 {n.text} to double", "double"), m


def _exp2(b: InstructionBuilder, x: LlvmValue) -> LlvmValue:
    """2 to the x in float64, where the result fits float32."""
    x = b.call("minnum", b.call("maxnum", x, d(-200.0)), d(200.0))
    n = b.call("rint", x)
    exponent = b.add(f"fptosi double {n.text} to i32", "i32")
    wide = b.add(f"sext i32 {b.binary('add', exponent, number(1023, 'i32')).text} to i64", "i64")
    scale = b.add(f"shl i64 {wide.text}, 52", "i64")
    scale = b.add(f"bitcast i64 {scale.text} to double", "double")
    return b.binary("mul", polynomial(b, b.binary("sub", x, n), EXP2), scale)
