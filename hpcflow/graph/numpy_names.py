"""NumPy's functions on tensors: `array + tensor` is an operation, the rest is told hf's name.

A tensor has no value while the graph is built, so NumPy cannot compute with it. Imported when NumPy
is given a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError
from hpcflow.platform.exception_translation import user_line

# NumPy's name -> the name here, where they differ.
OTHER_NAMES = {
    **{"sum": "reduce_sum", "mean": "reduce_mean", "prod": "reduce_prod", "amax": "reduce_max"},
    **{"max": "reduce_max", "min": "reduce_min", "amin": "reduce_min", "any": "reduce_any"},
    **{"all": "reduce_all", "absolute": "abs", "fabs": "abs", "power": "pow", "dot": "matmul"},
    **{"float_power": "pow", "true_divide": "divide", "remainder": "mod", "fmod": "mod"},
    **{"concatenate": "concat", "hstack": "concat", "vstack": "concat", "clip": "clip_by_value"},
    **{"arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2"},
    **{"arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "var": "nn.moments"},
    **{"std": "nn.moments", "conjugate": "conj", "invert": "logical_not", "rint": "round"},
    **{"isnan": "is_nan", "isinf": "is_inf", "isfinite": "is_finite", "swapaxes": "transpose"},
    **{"moveaxis": "transpose", "ravel": "reshape", "repeat": "tile", "flip": "reverse"},
    **{"take": "gather", "inv": "matrix_inverse", "solve": "matrix_solve", "copy": "identity"},
    **{"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor"},
    **{"astype": "cast", "vdot": "tensordot", "inner": "tensordot", "split": "split"},
}
# ufunc -> the operator that calls it when its left operand is an array.
OF_OPERATORS = {
    **{"add": "add", "subtract": "sub", "multiply": "mul", "divide": "truediv"},
    **{"true_divide": "truediv", "floor_divide": "floordiv", "remainder": "mod", "power": "pow"},
    **{"matmul": "matmul", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"},
    **{"less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"},
}
OF_SHAPES = ("shape",)  # functions that need no value


def ufunc_result(
    operators: Mapping[str, Any],
    ufunc: np.ufunc,
    method: str,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:
    """The tensor of `array + tensor` and of `array += tensor`, made by one of `operators`.

    NumPy calls the same function for `np.add(array, tensor)`, which is answered alike.
    Errors: ArgumentError for every other call, naming hf's function.
    """
    operator = OF_OPERATORS.get(ufunc.__name__)
    in_place = dict(options).pop("out", (inputs[0],))[0] is inputs[0] and set(options) <= {"out"}
    arrays = sum(not _is_operand(given) for given in inputs)
    if operator is not None and method == "__call__" and arrays == 1 and in_place:
        return operators[operator](*inputs)
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    raise refusal(name, _first_tensor(inputs))


def function_result(function: Any, given: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The result of a function that reads shapes only.

    Errors: ArgumentError for every other function of NumPy, naming hf's.
    """
    if function.__name__ in OF_SHAPES:
        return function._implementation(*given, **options)
    raise refusal(function.__name__, _first_tensor([*given, *options.values()]))


def refusal(numpy_name: str, tensor: Any) -> ArgumentError:
    """The error for `np.NAME(tensor)`."""
    name = hf_name(numpy_name)
    build = f"hf.{name} makes an operation of the graph; " if name else ""
    return ArgumentError(
        f"np.{numpy_name} of {tensor!r}: NumPy computes with values, and a tensor has none while "
        "the graph is built",
        line=user_line(),
        hint=f"{build}session.run(tensor) returns an array for NumPy",
    )


def hf_name(numpy_name: str) -> str:
    """The function of hf that does what a function of NumPy does; "" if there is none."""
    name = OTHER_NAMES.get(numpy_name, numpy_name)
    found: Any = sys.modules.get("hpcflow")
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if callable(found) else ""


def _is_operand(value: Any) -> bool:
    """Whether NumPy leaves it to the value what a ufunc does, as tensors and variables have it."""
    return hasattr(type(value), "__array_ufunc__") and not isinstance(
        value, (np.ndarray, np.generic)
    )


def _first_tensor(values: Sequence[Any]) -> Any:
    for value in values:
        if _is_operand(value):
            return value
        if isinstance(value, (list, tuple)) and (inner := _first_tensor(value)) is not None:
            return inner
    return None
