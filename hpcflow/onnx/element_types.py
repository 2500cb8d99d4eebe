"""ONNX element types: conversion to and from dtypes of hpcflow.

A type that hpcflow lacks is stored in a wider type: bfloat16, float8 and float4 as float32, 4-bit
and 2-bit integers as 8-bit integers. A cast to such a type rounds or truncates to its precision.
Arithmetic uses the wider type.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from hpcflow.errors import DTypeError, OnnxError
from hpcflow.graph.dtypes import as_dtype, float32, int8, uint8
from hpcflow.graph.graph import Tensor
from hpcflow.ops.math import arithmetic_ops
from hpcflow.ops.math.bitwise_ops import bitwise_and, bitwise_xor
from hpcflow.ops.math.round_to_format_ops import round_to_format

FLOATS: dict[int, str] = {
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT8E4M3FN: "float8_e4m3fn",
    TensorProto.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    TensorProto.FLOAT8E5M2: "float8_e5m2",
    TensorProto.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    TensorProto.FLOAT4E2M1: "float4_e2m1fn",
}
INTEGERS: dict[int, tuple[int, bool]] = {  # number of bits, whether signed
    TensorProto.INT4: (4, True),
    TensorProto.UINT4: (4, False),
    TensorProto.INT2: (2, True),
    TensorProto.UINT2: (2, False),
}


def from_onnx(elem_type: int) -> np.dtype:
    """The hpcflow dtype that stores an ONNX element type.

    Errors: OnnxError if there is none.
    """
    if elem_type in FLOATS:
        return float32
    if elem_type in INTEGERS:
        return int8 if INTEGERS[elem_type][1] else uint8
    name = TensorProto.DataType.Name(elem_type)
    if elem_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        raise OnnxError(f"tensors of {name} are not supported")
    try:
        return as_dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    except DTypeError as error:
        raise OnnxError(f"tensors of {name} are not supported") from error


def is_narrow(elem_type: int) -> bool:
    """Whether the type is stored in a wider one."""
    return elem_type in FLOATS or elem_type in INTEGERS


def carried(array: np.ndarray) -> np.ndarray:
    """An array of any ONNX type, converted to the dtype that stores it."""
    return array.astype(from_onnx(to_onnx(array.dtype)), copy=False)


def to_onnx(dtype: np.dtype) -> int:
    """The ONNX element type of a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def cast(x: Tensor, elem_type: int, saturate: bool = True) -> Tensor:
    """`x` cast to an ONNX element type; `saturate` applies to 8-bit floating-point types."""
    dtype = from_onnx(elem_type)
    if elem_type in FLOATS:
        format = FLOATS[elem_type]
        wide = x if x.dtype.kind == "f" else arithmetic_ops.cast(x, dtype)
        return arithmetic_ops.cast(
            round_to_format(wide, format, saturate and "float8" in format), dtype
        )
    if elem_type in INTEGERS:
        bits, signed = INTEGERS[elem_type]
        low = bitwise_and(arithmetic_ops.cast(x, dtype), dtype.type(2**bits - 1))
        if not signed:
            return low
        sign = dtype.type(2 ** (bits - 1))
        return arithmetic_ops.subtract(bitwise_xor(low, sign), sign)
    return arithmetic_ops.cast(x, dtype)
