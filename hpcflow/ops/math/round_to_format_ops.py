"""Round-to-format op: rounds numbers to a narrower floating-point format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hpcflow.errors import DTypeError
from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.custom_ops import custom_gradient
from hpcflow.ops.shape_inference import Attrs, as_first, first_output, require


class FloatFormat(NamedTuple):
    """A binary floating-point format.

    `digits` of the significand, `lowest` exponent of a normal number, `largest` number, and the
    result `beyond` it: "inf", "nan" or "largest". Without `negative_zero`, -0 becomes 0.
    """

    digits: int
    lowest: int
    largest: float
    beyond: str = "inf"
    negative_zero: bool = True


FORMATS = {  # OCP 8-bit formats, and with "uz" those of Graphcore, AMD and Qualcomm
    "bfloat16": FloatFormat(8, -126, 3.3895313892515355e38),
    "float16": FloatFormat(11, -14, 65504.0),
    "float8_e4m3fn": FloatFormat(4, -6, 448.0, "nan"),
    "float8_e4m3fnuz": FloatFormat(4, -7, 240.0, "nan", negative_zero=False),
    "float8_e5m2": FloatFormat(3, -14, 57344.0),
    "float8_e5m2fnuz": FloatFormat(3, -15, 57344.0, "nan", negative_zero=False),
    "float4_e2m1fn": FloatFormat(2, 0, 6.0, "largest"),
}


def _rounded(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("round_to_format", inputs[0], "f")
    return as_first(inputs, attrs)


op("RoundToFormat", infer=_rounded, grad=NoGrad("a step function; round_to_format passes it on"))


def round_to_format(x: Any, format: str, saturate: bool = False, name: str | None = None) -> Tensor:
    """`x` with each element rounded, ties to even, to a number of `format`; the dtype is unchanged.

    `saturate` clips to the largest number. The gradient passes unchanged.
    Errors: DTypeError for an unknown format.
    """
    if format not in FORMATS:
        raise DTypeError(f"format {format!r} is not known", hint=f"use one of {', '.join(FORMATS)}")
    digits, lowest, largest, beyond, negative_zero = FORMATS[format]
    attrs: Attrs = {"digits": digits, "lowest": lowest, "largest": largest}
    attrs.update(beyond="largest" if saturate else beyond, negative_zero=negative_zero)

    @custom_gradient
    def rounded(t: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return first_output("RoundToFormat", [t], attrs, name), lambda g: g

    return rounded(convert_to_tensor(x))
