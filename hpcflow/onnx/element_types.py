"""Element types of ONNX and what they are here.

Types narrower than hpcflow's are carried in the next wider one: bfloat16 and floating-point numbers
of 8 and 4 bits as float32, integers of 4 and 2 bits as those of 8. A cast to such a type rounds, or
cuts off bits, as it says; arithmetic is that of the wider type.
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
INTEGERS: dict[int, tuple[int, bool]] = {  # bits, and whether one of them is the sign
    TensorProto.INT4: (4, True),
    TensorProto.UINT4: (4, False),
    TensorProto.INT2: (2, True),
    TensorProto.UINT2: (2, False),
}


def from_onnx(elem_type: int) -> np.dtype:
    """The dtype of an ONNX element type here; OnnxError if hpcflow has none such."""
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
    """True for a type that is carried in a wider one."""
    return elem_type in FLOATS or elem_type in INTEGERS


def carried(array: np.ndarray) -> np.ndarray:
    """An array of any of ONNX's types as one of ours."""
    return array.astype(from_onnx(to_onnx(array.dtype)), copy=False)


def to_onnx(dtype: np.dtype) -> int:
    """The ONNX element type of a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(dtype))


def cast(x: Tensor, elem_type: int, saturate: bool = True) -> Tensor:
    """`x` as an ONNX element type says; `saturate` is of floating-point types of 8 bits."""
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
