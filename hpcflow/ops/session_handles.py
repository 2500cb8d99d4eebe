"""Session handles: values that stay in the process between runs, as in TensorFlow 1."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, FetchError
from hpcflow.graph.composite_tensor import CompositeTensor
from hpcflow.graph.dtypes import as_dtype, string
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.ops.array.array_ops import placeholder
from hpcflow.ops.control_flow.host_callback_ops import py_func

_held: dict[bytes, np.ndarray] = {}  # handle -> value
_lock = threading.Lock()
_numbers = itertools.count()


def _keep_value(value: np.ndarray | np.generic | bytes) -> bytes:
    handle = b"SessionHandle;%d" % next(_numbers)
    with _lock:
        _held[handle] = np.asarray(value, object if isinstance(value, bytes) else None)
    return handle


def _held_value(handle: bytes) -> np.ndarray:
    value = _held.get(handle)
    if value is None:
        raise FetchError(
            f"there is no tensor with the handle {handle.decode(errors='replace')!r}",
            hint="was it deleted? keep the TensorHandle, or take its get_raw_handle()",
        )
    return value


def _drop(handle: bytes) -> None:
    with _lock:
        _held.pop(handle, None)


class TensorHandle:
    """A value that stays in this process while this object exists, or until deleted.

    It can be fed in place of the value; `handle` is fed to the placeholder of
    `hf.get_session_tensor`.
    """

    def __init__(self, handle: Any) -> None:
        self._key: bytes = np.asarray(handle).item()
        self._owned = True

    @property
    def handle(self) -> str:
        """The string that identifies the value."""
        return self._key.decode()

    def get_raw_handle(self) -> str:
        """The string that identifies the value, which from now on stays until deleted by it."""
        self._owned = False
        return self.handle

    def eval(self) -> np.ndarray:
        """The value.

        Errors: FetchError if it was deleted.
        """
        return _held_value(self._key).copy()

    def delete(self) -> None:
        """Delete the value.

        Errors: FetchError if it was deleted before.
        """
        _held_value(self._key)
        _drop(self._key)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(_held_value(self._key), dtype)

    def __str__(self) -> str:
        return self.handle

    def __del__(self) -> None:
        if getattr(self, "_owned", False):
            _drop(self._key)


class SessionHandle(CompositeTensor):
    """The result of `get_session_handle`; a session fetches it as a `TensorHandle`."""

    Value = TensorHandle

    def __init__(self, key: Tensor) -> None:
        self._key = key

    def parts(self) -> tuple[Tensor, ...]:
        """The string that identifies the value."""
        return (self._key,)

    def of(self, parts: Sequence[Tensor]) -> SessionHandle:
        """The same with another string."""
        return SessionHandle(parts[0])


def get_session_handle(data: Any, name: str | None = None) -> SessionHandle:
    """When fetched, `data` is stored in this process and a `TensorHandle` is returned.

    Ranks: the values are in host memory of the rank that runs the script.
    """
    value = convert_to_tensor(data)
    key = py_func(_keep_value, [value], string, True, name or "GetSessionHandle")
    key.set_shape([])
    return SessionHandle(key)


def get_session_tensor(handle: Any, dtype: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
    """A placeholder for a handle, and the value of the handle fed to it.

    `handle` is accepted for compatibility with TensorFlow; the feed of each run selects the value.
    Errors: at run time FetchError for a deleted value, DTypeError for another dtype.
    """
    expected = as_dtype(dtype)

    def read(key: bytes) -> np.ndarray:
        array = _held_value(key)
        if array.dtype != expected:
            raise DTypeError(f"the value of handle {key.decode()!r} is {array.dtype}")
        return array

    holder = placeholder(string, [])
    return holder, py_func(read, [holder], expected, True, name or "GetSessionTensor")


def delete_session_tensor(handle: Any, name: str | None = None) -> tuple[Tensor, Operation]:
    """A placeholder for a handle, and an operation that deletes the value of the fed handle."""

    def forget(key: bytes) -> None:
        _held_value(key)
        _drop(key)

    holder = placeholder(string, [])
    return holder, py_func(forget, [holder], [], True, name or "DeleteSessionTensor")
