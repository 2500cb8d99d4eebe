"""Special function ops: erf, gamma functions, zeta, incomplete gamma and beta."""

from __future__ import annotations

import math
from typing import Any

from hpcflow.graph.deprecated_arguments import with_public_names
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.ops.array.broadcast_ops import sum_to
from hpcflow.ops.math.arithmetic_ops import (
    BinaryFunction,
    UnaryFunction,
    add,
    binary,
    equal,
    exp,
    log,
    log1p,
    multiply,
    negative,
    square,
    subtract,
    unary,
)
from hpcflow.ops.math.elementwise_math_ops import where_v2, xlogy
from hpcflow.ops.math.reduction_ops import reduce_sum
from hpcflow.ops.shape_inference import elementwise, first_output, operands

_F = "f"


def _bell(x: Tensor, g: Tensor, sign: float) -> Tensor:
    return multiply(g, multiply(exp(negative(square(x))), sign * 2 / math.sqrt(math.pi)))


erf: UnaryFunction = unary("Erf", _F, lambda x, y, g: _bell(x, g, 1), "The error function of `x`.")
erfc: UnaryFunction = unary(
    "Erfc", _F, lambda x, y, g: _bell(x, g, -1), "`1 - erf(x)`, exact where it is small."
)
lgamma: UnaryFunction = unary(
    "Lgamma",
    _F,
    lambda x, y, g: multiply(g, digamma(x)),
    "The logarithm of |gamma(x)|.",
    kernels="gamma_kernels",
)
digamma: UnaryFunction = unary(
    "Digamma",
    _F,
    lambda x, y, g: multiply(g, polygamma(1, x)),
    "The derivative of `lgamma`.",
    kernels="gamma_kernels",
)


def _unknown(argument: str) -> NoGrad:
    """The gradient rule for a derivative without formula."""
    return NoGrad(f"its derivative with respect to {argument} is not implemented", none=True)


polygamma: BinaryFunction = binary(
    "Polygamma",
    _F,
    (
        _unknown("its order"),
        lambda n, x, z, g: multiply(g, polygamma(add(n, 1), x)),
    ),
    "The derivative of `digamma` by its argument `x` of order `a`, a whole number.",
    None,
    kernels="gamma_kernels",
)
zeta: BinaryFunction = binary(
    "Zeta",
    _F,
    (
        _unknown("its exponent"),
        lambda s, q, z, g: multiply(multiply(g, negative(s)), zeta(add(s, 1), q)),
    ),
    "Hurwitz's zeta: the sum of `(q + k) ** -x` over k = 0, 1, ...",
    None,
    kernels="gamma_kernels",
)


def _gamma_density(a: Tensor, x: Tensor) -> Tensor:
    return exp(subtract(subtract(multiply(subtract(a, 1), log(x)), x), lgamma(a)))


_by_a: BinaryFunction = binary(
    "IgammaGradA",
    _F,
    NoGrad("second derivatives are not implemented"),
    "The derivative of `igamma` by its first argument.",
    None,
    kernels="gamma_kernels",
)
igamma: BinaryFunction = binary(
    "Igamma",
    _F,
    (
        lambda a, x, z, g: multiply(g, _by_a(a, x)),
        lambda a, x, z, g: multiply(g, _gamma_density(a, x)),
    ),
    "The lower incomplete gamma function P(a, x), which rises from 0 to 1 with `x`.",
    None,
    kernels="gamma_kernels",
)
igammac: BinaryFunction = binary(
    "Igammac",
    _F,
    (
        lambda a, x, z, g: negative(multiply(g, _by_a(a, x))),
        lambda a, x, z, g: negative(multiply(g, _gamma_density(a, x))),
    ),
    "The upper incomplete gamma function, `1 - igamma(a, x)`.",
    None,
    kernels="gamma_kernels",
)


polygamma, igamma, igammac = map(with_public_names(x="a", y="x"), (polygamma, igamma, igammac))
zeta = with_public_names(y="q")(zeta)


def _betainc_back(op: Operation, g: Tensor) -> list[Any]:
    a, b, x = op.inputs

    def density() -> Tensor:
        c = subtract(b, 1)
        above = multiply(c, log1p(negative(where_v2(equal(c, 0), 0, x))))  # 0 also at 1
        powers = add(xlogy(subtract(a, 1), x), above)
        scale = subtract(lgamma(add(a, b)), add(lgamma(a), lgamma(b)))
        return sum_to(multiply(g, exp(add(powers, scale))), x, a, b)

    return [_unknown("a"), _unknown("b"), density]


op(
    "Betainc",
    infer=elementwise("betainc", _F),
    grad=_betainc_back,
    elementwise=True,
    kernels="gamma_kernels",
)


def betainc(a: Any, b: Any, x: Any, name: str | None = None) -> Tensor:
    """The regularized incomplete beta function I_x(a, b), for `x` in [0, 1]."""
    first, second = operands(a, b)
    first, third = operands(first, x)
    return first_output("Betainc", [first, second, third], {}, name)


def lbeta(x: Any, name: str | None = None) -> Tensor:
    """The logarithm of |beta| of the numbers along the last axis, which is reduced."""
    x = convert_to_tensor(x)
    return subtract(reduce_sum(lgamma(x), -1), lgamma(reduce_sum(x, -1)), name)
