"""Bitwise ops: bit operations on integers (also `&`, `|`, `^`, `~`), and bitcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.dtypes import as_dtype
from hpcflow.graph.graph import Tensor, convert_to_tensor
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.operator_overloads import OPERATORS
from hpcflow.graph.static_shape import Spec, shape_text
from hpcflow.ops.math.arithmetic_ops import (
    BinaryFunction,
    UnaryFunction,
    binary,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    unary,
)
from hpcflow.ops.shape_inference import Attrs, first_output, operands


def _bitcast(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    spec, dtype = inputs[0], attrs["dtype"]
    have, want = spec.dtype.itemsize, dtype.itemsize
    if have % want and want % have:
        raise DTypeError(
            f"bitcast of {spec.dtype} to {dtype}: neither size is a multiple of the other"
        )
    if spec.shape is None or have == want:
        return [Spec(dtype, spec.shape)]
    if have > want:
        return [Spec(dtype, (*spec.shape, have // want))]
    if not spec.shape or spec.shape[-1] not in (None, want // have):
        raise ShapeError(
            f"bitcast of {spec.dtype}{shape_text(spec.shape)} to {dtype} needs a last axis of "
            f"{want // have}"
        )
    return [Spec(dtype, spec.shape[:-1])]


op("Bitcast", infer=_bitcast, grad=NoGrad("bits have no derivative"), kernels="bitcast_kernels")


def bitcast(input: Any, type: Any, name: str | None = None) -> Tensor:
    """The bytes of `input` interpreted as another data type.

    Shapes: unchanged for types of equal size; a larger type removes the last axis, a smaller one
            adds one.
    """
    return first_output("Bitcast", [convert_to_tensor(input)], {"dtype": as_dtype(type)}, name)


# -- bit operations


def _bits(type: str, doc: str, value: Any) -> BinaryFunction:
    why = NoGrad("its output is integers")
    return binary(type, "iu", why, doc, value, kernels="elementwise_math_kernels")


bitwise_and: BinaryFunction = _bits(
    "BitwiseAnd", "The bits set in both `x` and `y`.", np.bitwise_and
)
bitwise_or: BinaryFunction = _bits("BitwiseOr", "The bits set in `x` or `y`.", np.bitwise_or)
bitwise_xor: BinaryFunction = _bits(
    "BitwiseXor", "The bits set in one of `x`, `y`.", np.bitwise_xor
)
left_shift: BinaryFunction = _bits(
    "LeftShift", "The bits of `x` moved up by `y` places.", np.left_shift
)
right_shift: BinaryFunction = _bits(
    "RightShift", "The bits of `x` moved down by `y`; the sign stays.", np.right_shift
)
invert: UnaryFunction = unary(
    "Invert",
    "iu",
    NoGrad("its output is integers"),
    "All bits of `x` turned.",
    np.invert,
    kernels="elementwise_math_kernels",
)


def _either(logical: BinaryFunction, bits: BinaryFunction) -> BinaryFunction:
    """The operator for booleans, or for the bits of integers."""

    def function(x: Any, y: Any, name: str | None = None) -> Tensor:
        a, b = operands(x, y)
        return (bits if a.dtype.kind in "iu" else logical)(a, b, name)

    return function


def _not(x: Any, name: str | None = None) -> Tensor:
    x = convert_to_tensor(x)
    return invert(x, name) if x.dtype.kind in "iu" else logical_not(x, name)


OPERATORS.update(
    {
        "and": _either(logical_and, bitwise_and),
        "or": _either(logical_or, bitwise_or),
        "xor": _either(logical_xor, bitwise_xor),
        "invert": _not,
    }
)
