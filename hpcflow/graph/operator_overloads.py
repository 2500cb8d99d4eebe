"""Operator overloads: `a + b` of tensors and variables creates an operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
OPERATORS: dict[str, Callable[..., Any]] = {}  # filled by hpcflow.ops: operator -> op function


class OverloadedOperand(Generic[Result]):
    """Base of operands of Python operators; `Result` is the class of tensors."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        from hpcflow.graph.numpy_names import ufunc_result

        return ufunc_result(OPERATORS, ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, given: Any, options: Any) -> Any:
        from hpcflow.graph.numpy_names import function_result

        return function_result(function, given, options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        from hpcflow.graph.numpy_names import refusal

        raise refusal("asarray", self)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same object; a comparison of values in a script is warned of."""
        if self is other:
            return True
        if isinstance(other, (bool, int, float)) or hasattr(type(other), "__array__"):
            from hpcflow.graph.compared_objects import warn_of_comparison

            warn_of_comparison(self, other)
        return False

    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Result:
        return OPERATORS["add"](self, other)

    def __radd__(self, other: Any) -> Result:
        return OPERATORS["add"](other, self)

    def __sub__(self, other: Any) -> Result:
        return OPERATORS["sub"](self, other)

    def __rsub__(self, other: Any) -> Result:
        return OPERATORS["sub"](other, self)

    def __mul__(self, other: Any) -> Result:
        return OPERATORS["mul"](self, other)

    def __rmul__(self, other: Any) -> Result:
        return OPERATORS["mul"](other, self)

    def __truediv__(self, other: Any) -> Result:
        return OPERATORS["truediv"](self, other)

    def __rtruediv__(self, other: Any) -> Result:
        return OPERATORS["truediv"](other, self)

    def __floordiv__(self, other: Any) -> Result:
        return OPERATORS["floordiv"](self, other)

    def __rfloordiv__(self, other: Any) -> Result:
        return OPERATORS["floordiv"](other, self)

    def __mod__(self, other: Any) -> Result:
        return OPERATORS["mod"](self, other)

    def __rmod__(self, other: Any) -> Result:
        return OPERATORS["mod"](other, self)

    def __pow__(self, other: Any) -> Result:
        return OPERATORS["pow"](self, other)

    def __rpow__(self, other: Any) -> Result:
        return OPERATORS["pow"](other, self)

    def __matmul__(self, other: Any) -> Result:
        return OPERATORS["matmul"](self, other)

    def __rmatmul__(self, other: Any) -> Result:
        return OPERATORS["matmul"](other, self)

    def __and__(self, other: Any) -> Result:
        return OPERATORS["and"](self, other)

    def __rand__(self, other: Any) -> Result:
        return OPERATORS["and"](other, self)

    def __or__(self, other: Any) -> Result:
        return OPERATORS["or"](self, other)

    def __ror__(self, other: Any) -> Result:
        return OPERATORS["or"](other, self)

    def __xor__(self, other: Any) -> Result:
        return OPERATORS["xor"](self, other)

    def __rxor__(self, other: Any) -> Result:
        return OPERATORS["xor"](other, self)

    def __lt__(self, other: Any) -> Result:
        return OPERATORS["lt"](self, other)

    def __le__(self, other: Any) -> Result:
        return OPERATORS["le"](self, other)

    def __gt__(self, other: Any) -> Result:
        return OPERATORS["gt"](self, other)

    def __ge__(self, other: Any) -> Result:
        return OPERATORS["ge"](self, other)

    def __neg__(self) -> Result:
        return OPERATORS["neg"](self)

    def __abs__(self) -> Result:
        return OPERATORS["abs"](self)

    def __invert__(self) -> Result:
        return OPERATORS["invert"](self)

    def __getitem__(self, key: Any) -> Result:
        return OPERATORS["getitem"](self, key)
