"""Data types by TensorFlow's names; a dtype is a `numpy.dtype`."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.errors import DTypeError

float16 = np.dtype("float16")
float32 = np.dtype("float32")
float64 = np.dtype("float64")
int8 = np.dtype("int8")
int16 = np.dtype("int16")
int32 = np.dtype("int32")
int64 = np.dtype("int64")
uint8 = np.dtype("uint8")
uint16 = np.dtype("uint16")
uint32 = np.dtype("uint32")
uint64 = np.dtype("uint64")
complex64 = np.dtype("complex64")
complex128 = np.dtype("complex128")
bool_ = np.dtype("bool")
resource = np.dtype("V1")  # a handle to mutable state; never moves between devices
history = np.dtype("V3")  # what a loop keeps of its iterations; never leaves its task
tensor_array = np.dtype("V5")  # a TensorArray: an array of tensors that one step makes
# what is no array of numbers, by the names that messages give it
OPAQUE = {resource: "resource", history: "history", tensor_array: "tensor_array"}

NUMERIC = (
    *(float16, float32, float64, int8, int16, int32, int64),
    *(uint8, uint16, uint32, uint64, complex64, complex128),
)


def as_dtype(given: Any) -> np.dtype:
    """A numpy dtype from a dtype, a name or a Python type; DTypeError if it is none of ours."""
    try:
        dtype = np.dtype(given)
    except TypeError:
        raise DTypeError(
            f"{given!r} is not a data type", hint="use hf.float32 or 'float32'"
        ) from None
    if dtype not in NUMERIC and dtype != bool_ and dtype not in OPAQUE:
        raise DTypeError(f"data type {dtype} is not supported", hint="convert the array first")
    return dtype


def is_floating(dtype: np.dtype) -> bool:
    """True for real and complex floating types: those with gradients."""
    return dtype.kind in "fc"


def as_array(value: Any, dtype: np.dtype | None = None) -> np.ndarray:
    """A constant's array: Python floats become float32, ints int32 (int64 if they need it)."""
    array = np.asarray(value)
    if dtype is not None:
        return array.astype(as_dtype(dtype))
    if isinstance(value, (np.ndarray, np.generic)):
        return np.array(array, dtype=as_dtype(array.dtype))
    if array.dtype == float64:
        return array.astype(float32)
    if array.dtype == int64 and (array == array.astype(int32)).all():
        return array.astype(int32)
    return array.astype(as_dtype(array.dtype))
