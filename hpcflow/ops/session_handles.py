"""Handles of values that stay in the process between two runs, as TensorFlow 1 has them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, FetchError
from hpcflow.graph.composite_tensor import Composite
from hpcflow.graph.dtypes import as_dtype, string
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.ops.array.array_ops import placeholder
from hpcflow.ops.control_flow.host_callback_ops import py_func

_held: dict[bytes, np.ndarray] = {}  # values by their handles
_lock = threading.Lock()
_numbers = itertools.count()


def _hold(value: np.ndarray) -> bytes:
    handle = b"SessionHandle;%d" % next(_numbers)
    with _lock:
        _held[handle] = value
    return handle


def _found(handle: bytes) -> np.ndarray:
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
    """A value that stays in this process as long as this object lives, or until it is deleted.

    Fed in place of a value it is that value; `handle` is fed to what `hf.get_session_tensor` gives.
    """

    def __init__(self, handle: Any) -> None:
        self._key: bytes = np.asarray(handle).item()
        self._owned = True

    @property
    def handle(self) -> str:
        """The text that names the value."""
        return self._key.decode()

    def get_raw_handle(self) -> str:
        """The text that names the value, which from now on stays until it is deleted by it."""
        self._owned = False
        return self.handle

    def eval(self) -> np.ndarray:
        """The value; FetchError if it was deleted."""
        return _found(self._key).copy()

    def delete(self) -> None:
        """Forget the value; FetchError if it was deleted already."""
        _found(self._key)
        _drop(self._key)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(_found(self._key), dtype)

    def __str__(self) -> str:
        return self.handle

    def __del__(self) -> None:
        if getattr(self, "_owned", False):
            _drop(self._key)


class SessionHandle(Composite):
    """What `get_session_handle` gives; a session fetches it as a `TensorHandle`."""

    Value = TensorHandle

    def __init__(self, key: Tensor) -> None:
        self._key = key

    def parts(self) -> tuple[Tensor, ...]:
        """The string that names the value."""
        return (self._key,)

    def of(self, parts: Sequence[Tensor]) -> SessionHandle:
        """The same of another string."""
        return SessionHandle(parts[0])


def get_session_handle(data: Any, name: str | None = None) -> SessionHandle:
    """When it is fetched `data` stays in this process, and the fetch gives a `TensorHandle` of it.

    Ranks: the values are those of the rank that runs the script, on its host's memory.
    """
    value = convert_to_tensor(data)
    key = py_func(_hold, [value], string, True, name or "GetSessionHandle")
    key.set_shape([])
    return SessionHandle(key)


def get_session_tensor(handle: Any, dtype: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
    """A placeholder for a handle, and the value of the one that is fed there.

    `handle` is taken for TensorFlow's sake: each run says by its feed which value is meant.
    Errors: FetchError when it runs, for a value that was deleted; DTypeError for another dtype.
    """
    wanted = as_dtype(dtype)

    def read(key: np.ndarray) -> np.ndarray:
        found = _found(key.item())
        if found.dtype != wanted:
            raise DTypeError(f"the value of handle {key.item().decode()!r} is {found.dtype}")
        return found

    holder = placeholder(string, [])
    return holder, py_func(read, [holder], wanted, True, name or "GetSessionTensor")


def delete_session_tensor(handle: Any, name: str | None = None) -> tuple[Tensor, Operation]:
    """A placeholder for a handle, and an operation that forgets the value of the one fed there."""

    def forget(key: np.ndarray) -> None:
        _found(key.item())
        _drop(key.item())

    holder = placeholder(string, [])
    return holder, py_func(forget, [holder], [], True, name or "DeleteSessionTensor")
