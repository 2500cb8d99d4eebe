"""Data types by TensorFlow's names; a dtype is a `numpy.dtype`."""

from __future__ import annotations

import numbers
from typing import Any

import ml_dtypes
import numpy as np

from hpcflow.errors import MALFORMED, ArgumentError, DTypeError, ShapeError
from hpcflow.platform.exception_translation import value_text

bfloat16 = np.dtype(ml_dtypes.bfloat16)  # float32 without its last 16 bits
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
string = np.dtype("O")  # arrays of bytes objects; text is encoded as UTF-8
resource = np.dtype("V1")  # a handle to mutable state; never moves between devices
history = np.dtype("V3")  # a loop's saved values of its iterations; never leaves its task
tensor_array = np.dtype("V5")  # a TensorArray: an array of tensors that lives for one step
LISTS = (history, tensor_array)  # Python lists of arrays, which stay in their task
# dtypes of values that are no arrays, with their names in messages
OPAQUE = {resource: "resource", history: "history", tensor_array: "tensor_array"}

NUMERIC = (
    *(bfloat16, float16, float32, float64, int8, int16, int32, int64),
    *(uint8, uint16, uint32, uint64, complex64, complex128),
)

_NAMES = {"string": string, "float": float32}  # names with another meaning in NumPy


def as_dtype(given: Any) -> np.dtype:
    """A numpy dtype from a dtype, a name or a Python type; DTypeError if it is not supported."""
    if given is float:
        return float32  # as TensorFlow; NumPy's is float64
    try:
        if isinstance(given, str) and given.startswith("a"):
            raise TypeError("the letter for bytes that NumPy 2 has given up")
        dtype = _NAMES[given] if isinstance(given, str) and given in _NAMES else np.dtype(given)
    except (*MALFORMED, SyntaxError):  # NumPy reads some texts as Python
        raise DTypeError(
            f"{value_text(given)} is not a data type", hint="use hf.float32 or 'float32'"
        ) from None
    if dtype.kind in "US" or (dtype == string and isinstance(given, (np.dtype, str))):
        return string
    if dtype not in NUMERIC and dtype != bool_ and dtype not in OPAQUE:
        raise DTypeError(f"data type {dtype} is not supported", hint="convert the array first")
    return dtype


def name_of(dtype: np.dtype) -> str:
    """The name of a dtype in messages."""
    return "string" if dtype == string else OPAQUE.get(dtype, str(dtype))


def kind_of(dtype: np.dtype) -> str:
    """NumPy's kind letter, "f" also for bfloat16, which is no NumPy type."""
    return "f" if dtype == bfloat16 else dtype.kind


def is_floating(dtype: np.dtype) -> bool:
    """True for real and complex floating types, which have gradients."""
    return kind_of(dtype) in "fc"


def is_half(dtype: np.dtype) -> bool:
    """True for 16-bit floats: they are stored in 16 bits, and computed in float32."""
    return dtype in (float16, bfloat16)


def text_of(dtype: np.dtype) -> str:
    """A dtype as a string that `as_dtype` reads, on any machine."""
    return "bfloat16" if dtype == bfloat16 else dtype.str


def limits(dtype: np.dtype) -> Any:
    """The limits of a dtype, as `.min` and `.max`."""
    if kind_of(dtype) == "f":
        return ml_dtypes.finfo(dtype)
    return np.iinfo(dtype)


def as_strings(value: Any) -> np.ndarray:
    """Text, bytes, or nested lists or arrays of them, as an array of bytes objects.

    Errors: DTypeError if it contains anything else.
    """
    array = value if isinstance(value, np.ndarray) and value.dtype == string else None
    if array is None:
        try:
            array = np.array(value, dtype=string)
        except ValueError:  # rows of unequal length
            raise DTypeError(f"{value_text(value)} is not an array of strings") from None
    flat = array.reshape(-1).tolist()
    if all(type(v) is bytes for v in flat):
        return array
    strings = np.empty(len(flat), string)
    for i, v in enumerate(flat):
        if v is None:
            raise DTypeError(
                f"{value_text(value)} has no values: None is not a tensor", hint="give one"
            )
        if not isinstance(v, (str, bytes, numbers.Number, np.generic)):
            raise DTypeError(
                f"{value_text(v)} is neither a string nor a number",
                hint="give a number, a string, an array, a list or a tensor",
            )
        if not isinstance(v, (str, bytes)):
            raise DTypeError(
                f"{value_text(v)} is not a string", hint="convert numbers with hf.as_string"
            )
        strings[i] = v.encode() if isinstance(v, str) else bytes(v)
    return strings.reshape(array.shape)


def plain_array(value: Any) -> np.ndarray:
    """A Python value as a NumPy array; ShapeError if its rows are of unequal length."""
    try:
        return np.asarray(value)
    except (ValueError, RecursionError):
        raise ShapeError(f"{value_text(value)} has rows of unequal length") from None


def as_array(value: Any, dtype: np.dtype | None = None) -> np.ndarray:
    """The array of a constant: Python floats become float32, ints int32 (int64 if needed)."""
    if value is None:
        raise ArgumentError(
            "None is not a tensor", hint="give a number, an array, a list or a tensor"
        )
    if dtype is not None and as_dtype(dtype) == string:
        return as_strings(value)
    array = plain_array(value)
    if array.dtype.kind in "USO":
        return as_strings(value)
    if dtype is not None:
        return array.astype(as_dtype(dtype))
    if isinstance(value, (np.ndarray, np.generic)):
        return np.array(array, dtype=as_dtype(array.dtype))
    if array.dtype == float64:
        return array.astype(float32)
    if array.dtype == int64 and (array == array.astype(int32)).all():
        return array.astype(int32)
    return array.astype(as_dtype(array.dtype))
