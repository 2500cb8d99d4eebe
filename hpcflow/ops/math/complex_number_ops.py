"""Complex number ops: real and imaginary parts, angle, conjugate.

As in TensorFlow, the gradient of a complex number is the gradient of its real part plus i times
that of its imaginary part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError
from hpcflow.graph.dtypes import complex64, complex128, float32, float64
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.graph.op_registry import op
from hpcflow.graph.static_shape import Spec, broadcast_shapes
from hpcflow.ops.array.broadcast_ops import sum_to, zeros_like
from hpcflow.ops.math.arithmetic_ops import greater_equal, multiply, negative, where
from hpcflow.ops.math.elementwise_math_ops import div_no_nan
from hpcflow.ops.shape_inference import Attrs, first_output, operands, require, require_equal

COMPLEX: dict[np.dtype, np.dtype] = {float32: complex64, float64: complex128}
REAL = {whole: part for part, whole in COMPLEX.items()}


def _part(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("a part of a complex number", inputs[0], "c")
    return [Spec(REAL[inputs[0].dtype], inputs[0].shape)]


def _complex(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require_equal("complex", inputs)
    if inputs[0].dtype not in COMPLEX:
        raise DTypeError(f"complex takes float32 or float64, not {inputs[0].dtype}")
    return [Spec(COMPLEX[inputs[0].dtype], broadcast_shapes([s.shape for s in inputs]))]


def _complex_back(op: Operation, g: Tensor) -> list[Any]:
    x, y = op.inputs
    return [lambda: sum_to(real(g), x, y), lambda: sum_to(imag(g), y, x)]


def _angle_back(op: Operation, g: Tensor) -> list[Any]:
    x = op.inputs[0]
    turned = complex(imag(x), real(x))
    return [negative(first_output("RealDiv", [complex(g, zeros_like(g)), turned]))]


def _abs_back(op: Operation, g: Tensor) -> list[Any]:
    share = div_no_nan(g, op.outputs[0])
    return [multiply(complex(share, zeros_like(share)), op.inputs[0])]


def complex(real: Any, imag: Any, name: str | None = None) -> Tensor:
    """Complex numbers from real and imaginary parts, which are broadcast."""
    x, y = operands(real, imag)
    return first_output("Complex", [x, y], {}, name)


def real(input: Any, name: str | None = None) -> Tensor:
    """The real part; `input` itself if it is real."""
    x = convert_to_tensor(input)
    return first_output("Real", [x], {}, name) if x.dtype.kind == "c" else x


def imag(input: Any, name: str | None = None) -> Tensor:
    """The imaginary part; zeros if `input` is real."""
    x = convert_to_tensor(input)
    return first_output("Imag", [x], {}, name) if x.dtype.kind == "c" else zeros_like(x, name=name)


def angle(input: Any, name: str | None = None) -> Tensor:
    """The argument of each complex number, from -pi to pi."""
    x = convert_to_tensor(input)
    if x.dtype.kind == "c":
        return first_output("Angle", [x], {}, name)
    return where(greater_equal(x, 0), zeros_like(x), x.dtype.type(np.pi), name)


op("Complex", infer=_complex, grad=_complex_back, elementwise=True)
op("Real", infer=_part, grad=lambda op, g: [complex(g, zeros_like(g))], elementwise=True)
op("Imag", infer=_part, grad=lambda op, g: [complex(zeros_like(g), g)], elementwise=True)
op("Angle", infer=_part, grad=_angle_back, elementwise=True)
op("ComplexAbs", infer=_part, grad=_abs_back, elementwise=True)
