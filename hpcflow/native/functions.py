"""Exponentials and logarithms of 32-bit floats as polynomials, which compilers put in vectors.

After the Cephes library (S. L. Moshier, single precision): range reduction, then a minimax
polynomial. Errors are at most a few units in the last place (tests/native). A product that is
followed by a sum is one operation, `fma`, on any processor: all compute the same bits.
"""

from __future__ import annotations

from hpcflow.native.words import Lines, Value, number

LOG2_E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1)
LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
SMALL = 0.625  # below it tanh is a polynomial
LEAST = 1.17549435e-38  # the smallest normal number
OVER, UNDER = 88.7228394, -87.3365479  # exp is infinity above, and no normal number below


def f(value: float) -> Value:
    """A constant of 32 bits."""
    return number(value, "float")


def polynomial(b: Lines, x: Value, coefficients: tuple[float, ...]) -> Value:
    """By Horner's rule, the highest power first."""
    found = f(coefficients[0])
    for c in coefficients[1:]:
        found = b.call("fma", found, x, f(c))
    return found


def exp(b: Lines, x: Value) -> Value:
    """e to the x; 0 where that is no normal number, NaN of NaN."""
    inside = b.call("minnum", b.call("maxnum", x, f(UNDER)), f(OVER))
    n = b.call("floor", b.call("fma", inside, f(LOG2_E), f(0.5)))
    r = b.call("fma", n, f(-LN2_HIGH), inside)
    r = b.call("fma", n, f(-LN2_LOW), r)
    p = b.call("fma", polynomial(b, r, EXP), r, f(0.5))
    near = b.call("fma", p, b.two("mul", r, r), b.two("add", r, f(1.0)))
    # 2^n in two factors, since 2^128 is none
    whole = b.add(f"fptosi float {n.text} to i32", "i32")
    half = b.add(f"ashr i32 {whole.text}, 1", "i32")
    rest = b.two("sub", whole, half)
    made = b.two("mul", b.two("mul", near, _power(b, half)), _power(b, rest))
    made = b.choose(b.compare("lt", x, f(UNDER)), f(0.0), made)
    made = b.choose(b.compare("gt", x, f(OVER)), f(float("inf")), made)
    return b.choose(b.add(f"fcmp uno float {x.text}, {x.text}", "i1"), x, made)


def _power(b: Lines, n: Value) -> Value:
    """2 to an integer, by its bits."""
    shifted = b.add(f"shl i32 {b.two('add', n, number(127, 'i32')).text}, 23", "i32")
    return b.add(f"bitcast i32 {shifted.text} to float", "float")


def log(b: Lines, x: Value) -> Value:
    """The natural logarithm: -infinity of 0, NaN of negative numbers."""
    tiny = b.compare("lt", x, f(LEAST))
    normal = b.choose(tiny, b.two("mul", x, f(2.0**25)), x)
    bits = b.add(f"bitcast float {normal.text} to i32", "i32")
    exponent = b.add(f"ashr i32 {bits.text}, 23", "i32")
    exponent = b.two("sub", exponent, number(126, "i32"))
    n = b.add(f"sitofp i32 {exponent.text} to float", "float")
    n = b.choose(tiny, b.two("sub", n, f(25.0)), n)
    kept = b.add(f"and i32 {bits.text}, {0x007FFFFF}", "i32")
    kept = b.add(f"or i32 {kept.text}, {0x3F000000}", "i32")
    m = b.add(f"bitcast i32 {kept.text} to float", "float")  # in [0.5, 1)
    low = b.compare("lt", m, f(0.707106781186547524))
    n = b.choose(low, b.two("sub", n, f(1.0)), n)
    m = b.two("sub", b.choose(low, b.two("add", m, m), m), f(1.0))
    square = b.two("mul", m, m)
    y = b.two("mul", b.two("mul", polynomial(b, m, LOG), m), square)
    y = b.call("fma", n, f(LN2_LOW), y)
    y = b.call("fma", square, f(-0.5), y)
    y = b.call("fma", n, f(LN2_HIGH), b.two("add", m, y))
    # of infinity and NaN themselves
    y = b.choose(b.compare("lt", x, f(float("inf"))), y, x)
    y = b.choose(b.compare("eq", x, f(0.0)), f(-float("inf")), y)
    return b.choose(b.compare("lt", x, f(0.0)), f(float("nan")), y)


def log1p(b: Lines, x: Value) -> Value:
    """log(1 + x): what 1 + x loses of x is a factor (W. Kahan)."""
    whole = b.two("add", x, f(1.0))
    lost = b.two("sub", whole, f(1.0))
    made = b.two("mul", log(b, whole), b.two("fdiv", x, lost))
    made = b.choose(b.compare("eq", lost, f(0.0)), x, made)
    return b.choose(b.compare("eq", x, f(float("inf"))), x, made)


def tanh(b: Lines, x: Value) -> Value:
    """1 - 2 / (exp(2x) + 1), a polynomial near 0."""
    square = b.two("mul", x, x)
    near = b.call("fma", b.two("mul", polynomial(b, square, TANH), square), x, x)
    size = b.call("fabs", x)
    power = b.two("add", exp(b, b.two("add", size, size)), f(1.0))
    far = b.two("sub", f(1.0), b.two("fdiv", f(2.0), power))
    far = b.call("copysign", far, x)
    return b.choose(b.compare("lt", size, f(SMALL)), near, far)


def sigmoid(b: Lines, x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    power = exp(b, b.add(f"fneg float {x.text}", "float"))
    return b.two("fdiv", f(1.0), b.two("add", power, f(1.0)))
