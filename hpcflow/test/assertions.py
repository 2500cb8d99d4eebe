"""TensorFlow 1's assertions, about tensors, which are computed, arrays and structures of them."""

from __future__ import annotations

import contextlib
import re
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from hpcflow.errors import HpcflowError
from hpcflow.graph.device_names import parse_device
from hpcflow.graph.dtypes import as_dtype, bfloat16, float16, float32, name_of
from hpcflow.graph.graph import Tensor

_FAIL = AssertionError


class Assertions(unittest.TestCase):
    """Each fails with an AssertionError that shows what differs; `msg` stands before it."""

    def evaluate(self, tensors: Any) -> Any:
        """The values of tensors, in their structure."""
        raise NotImplementedError

    def _array(self, target: Any) -> np.ndarray:
        if isinstance(target, Tensor) or hasattr(target, "as_tensor") or hasattr(target, "parts"):
            target = self.evaluate(target)
        return np.asarray(target)

    # -- near each other

    def assertAllClose(
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Arrays of one shape, or structures of them, with |a - b| <= atol + rtol |b|.

        NaN is near NaN.
        """
        self._close_within(a, b, lambda x, y: (rtol, atol), msg, "")

    def assertAllCloseAccordingToType(
        self,
        a: Any,
        b: Any,
        rtol: float = 1e-6,
        atol: float = 1e-6,
        float_rtol: float = 1e-6,
        float_atol: float = 1e-6,
        half_rtol: float = 1e-3,
        half_atol: float = 1e-3,
        bfloat16_rtol: float = 1e-2,
        bfloat16_atol: float = 1e-2,
        msg: str | None = None,
    ) -> None:
        """As `assertAllClose`, but not nearer than the less exact of both dtypes can be."""
        least = {
            np.dtype(float32): (float_rtol, float_atol),
            np.dtype("complex64"): (float_rtol, float_atol),
            np.dtype(float16): (half_rtol, half_atol),
            np.dtype(bfloat16): (bfloat16_rtol, bfloat16_atol),
        }

        def within(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
            pairs = [(rtol, atol), *(least[d] for d in (x.dtype, y.dtype) if d in least)]
            return max(r for r, _ in pairs), max(a for _, a in pairs)

        self._close_within(a, b, within, msg, "")

    def _close_within(
        self, a: Any, b: Any, within: Callable[..., tuple[float, float]], msg: Any, path: str
    ) -> None:
        self.assertEqual(_is_dict(a), _is_dict(b), _format(msg, path, "only one of them is a dict"))
        if isinstance(a, Mapping):
            self.assertEqual(sorted(a), sorted(b), _format(msg, path, "they have different keys"))
            for key in a:
                self._close_within(a[key], b[key], within, msg, f"{path}[{key!r}]")
        elif _is_list(a) and _is_list(b) and (_is_deep(a) or _is_deep(b)):
            self.assertEqual(len(a), len(b), _format(msg, path, "they have different lengths"))
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                self._close_within(x, y, within, msg, f"{path}[{i}]")
        else:
            x, y = self._array(a), self._array(b)
            self.assertEqual(x.shape, y.shape, _format(msg, path, "their shapes differ"))
            if x.dtype.kind in "OSU" or y.dtype.kind in "OSU":
                np.testing.assert_array_equal(x, y, _format(msg, path, ""))
                return
            rtol, atol = within(x, y)
            x, y = _wide(x), _wide(y)
            np.testing.assert_allclose(x, y, rtol, atol, err_msg=_format(msg, path, ""))

    def assertNotAllClose(
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """`assertAllClose` would fail."""
        try:
            self.assertAllClose(a, b, rtol, atol)
        except _FAIL:
            return
        self.fail(_format(msg, "", "the two are close to each other"))

    def assertArrayNear(
        self, farray1: Iterable[Any], farray2: Iterable[Any], err: float, msg: str | None = None
    ) -> None:
        """Lists of as many numbers, each pair not more than `err` apart."""
        first, second = list(farray1), list(farray2)
        self.assertEqual(len(first), len(second), _format(msg, "", "their lengths differ"))
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            self.assertNear(float(a), float(b), err, _format(msg, f"[{i}]", ""))

    def assertNear(self, f1: float, f2: float, err: float, msg: str | None = None) -> None:
        """Two numbers that are not more than `err` apart."""
        if not (f1 == f2 or abs(f1 - f2) <= err):
            self.fail(_format(msg, "", f"{f1} and {f2} are more than {err} apart"))

    def assertNDArrayNear(
        self, ndarray1: Any, ndarray2: Any, err: float, msg: str | None = None
    ) -> None:
        """Two arrays of which the norm of the difference is below `err`."""
        a, b = self._array(ndarray1), self._array(ndarray2)
        self.assertEqual(a.shape, b.shape, _format(msg, "", "their shapes differ"))
        norm = float(np.linalg.norm(_wide(a) - _wide(b)))
        if not norm < err:
            self.fail(_format(msg, "", f"the norm of the difference is {norm}, not below {err}"))

    # -- equal, in order

    def assertAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """Arrays of one shape with equal elements; NaN is NaN."""
        x, y = self._array(a), self._array(b)
        self.assertEqual(x.shape, y.shape, _format(msg, "", "their shapes differ"))
        np.testing.assert_array_equal(_text(x), _text(y), _format(msg, "", ""))

    def assertNotAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """`assertAllEqual` would fail."""
        try:
            self.assertAllEqual(a, b)
        except _FAIL:
            return
        self.fail(_format(msg, "", "the two are equal at all elements"))

    def assertAllGreater(self, a: Any, comparison_target: Any) -> None:
        """All elements are greater than a number."""
        self._compared(a, comparison_target, np.greater, "greater than")

    def assertAllGreaterEqual(self, a: Any, comparison_target: Any) -> None:
        """All elements are greater than a number, or equal to it."""
        self._compared(a, comparison_target, np.greater_equal, "at least")

    def assertAllLess(self, a: Any, comparison_target: Any) -> None:
        """All elements are less than a number."""
        self._compared(a, comparison_target, np.less, "less than")

    def assertAllLessEqual(self, a: Any, comparison_target: Any) -> None:
        """All elements are less than a number, or equal to it."""
        self._compared(a, comparison_target, np.less_equal, "at most")

    def _compared(self, a: Any, target: Any, holds: Callable[..., Any], relation: str) -> None:
        values, bound = self._array(a), self._array(target)
        self._all(values, holds(values, bound), f"not {relation} {bound}")

    def assertAllInRange(
        self,
        target: Any,
        lower_bound: Any,
        upper_bound: Any,
        open_lower_bound: bool = False,
        open_upper_bound: bool = False,
    ) -> None:
        """All elements lie between two numbers, which belong to the range unless it is open."""
        values = self._array(target)
        above = np.greater if open_lower_bound else np.greater_equal
        below = np.less if open_upper_bound else np.less_equal
        left, right = "(" if open_lower_bound else "[", ")" if open_upper_bound else "]"
        holds = above(values, lower_bound) & below(values, upper_bound)
        self._all(values, holds, f"not in {left}{lower_bound}, {upper_bound}{right}")

    def assertAllInSet(self, target: Any, expected_set: Iterable[Any]) -> None:
        """All elements are in a set."""
        values, allowed = self._array(target), list(expected_set)
        self._all(values, np.isin(values, allowed), f"not among {allowed}")

    def _all(self, values: np.ndarray, holds: np.ndarray, description: str) -> None:
        wrong = np.argwhere(~np.asarray(holds, bool))
        if len(wrong):
            first = tuple(int(i) for i in wrong[0])
            example = f", the first is {values[first]} at {list(first)}"
            self.fail(f"{len(wrong)} of {values.size} elements are {description}{example}")

    # -- shapes, dtypes, devices, texts

    def assertShapeEqual(self, np_array: Any, tf_tensor: Any, msg: str | None = None) -> None:
        """The static shape of a tensor is that of an array."""
        shape = tf_tensor.get_shape().as_list()
        self.assertEqual(list(np.shape(np_array)), list(shape), _format(msg, "", "shapes differ"))

    def assertDTypeEqual(self, target: Any, expected_dtype: Any) -> None:
        """An array or tensor has a dtype."""
        dtype = target.dtype if hasattr(target, "dtype") else np.asarray(target).dtype
        self.assertEqual(name_of(as_dtype(dtype)), name_of(as_dtype(expected_dtype)))

    def assertDeviceEqual(self, device1: Any, device2: Any, msg: str | None = None) -> None:
        """Two names mean the same device."""
        self.assertEqual(parse_device(str(device1 or "")), parse_device(str(device2 or "")), msg)

    def assertStartsWith(self, actual: str, expected_start: str, msg: str | None = None) -> None:
        """A text begins with another one."""
        if not actual.startswith(expected_start):
            self.fail(_format(msg, "", f"{actual!r} does not start with {expected_start!r}"))

    # -- errors

    @contextlib.contextmanager
    def assertRaisesWithPredicateMatch(
        self, exception_type: Any, expected_err_re_or_predicate: Any
    ) -> Iterator[None]:
        """Inside, an exception of this type is raised that a function, or a pattern, accepts."""
        expected = expected_err_re_or_predicate
        try:
            yield
        except Exception as error:
            holds = isinstance(error, exception_type) and (
                expected(error) if callable(expected) else re.search(expected, str(error))
            )
            if not holds:
                raise _FAIL(f"{type(error).__name__} is not as expected: {error}") from error
        else:
            name = getattr(exception_type, "__name__", exception_type)
            self.fail(f"{name} was not raised")

    def assertRaisesOpError(self, expected_err_re_or_predicate: Any) -> Any:
        """Inside, one of hpcflow's own errors is raised; otherwise the same."""
        return self.assertRaisesWithPredicateMatch(HpcflowError, expected_err_re_or_predicate)


def _format(msg: str | None, path: str, description: str) -> str:
    return ": ".join(part for part in (msg or "", path, description) if part)


def _is_dict(structure: Any) -> bool:
    return isinstance(structure, Mapping)


def _is_list(structure: Any) -> bool:
    return isinstance(structure, (list, tuple))


def _is_deep(structure: Any) -> bool:
    """Whether a list is a structure: it holds tensors, arrays, or rows of different lengths."""
    if any(isinstance(x, (Mapping, Tensor)) or hasattr(x, "as_tensor") for x in structure):
        return True
    return any(np.ndim(x) for x in structure if isinstance(x, np.ndarray)) or (
        any(_is_list(x) for x in structure) and len({_length(x) for x in structure}) > 1
    )


def _length(structure: Any) -> int:
    return len(structure) if _is_list(structure) else -1


def _wide(value: np.ndarray) -> np.ndarray:
    """Half floats as float32: NumPy's comparisons know them all then."""
    return value.astype(np.float32) if value.dtype == bfloat16 else value


def _text(value: np.ndarray) -> np.ndarray:
    """Texts as bytes, as tensors hold them."""
    if value.dtype.kind not in "OSU":
        return _wide(value)
    encoded = [x.encode() if isinstance(x, str) else x for x in value.reshape(-1).tolist()]
    flat = np.empty(len(encoded), object)
    flat[:] = encoded
    return flat.reshape(value.shape)
