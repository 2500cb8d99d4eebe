"""Arrays of other libraries as feeds, and variables as theirs, by DLPack: no byte is copied."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from hpcflow.errors import FeedError
from hpcflow.graph.dtypes import bfloat16, name_of
from hpcflow.graph.graph import Tensor
from hpcflow.runtime.state.state_store import VariableState

_UINT, _BFLOAT = 1, 4  # codes of DLPack's kinds of numbers
_CODE = 20  # where that lies in its DLTensor: behind address, device and number of dimensions
HOSTS = (1, 3, 11, 13)  # kDLCPU, and memory that a CPU reads too: of CUDA and ROCm, managed


def hands_over(value: Any) -> bool:
    """Whether `value` is an array of another library that gives its memory by DLPack."""
    return hasattr(type(value), "__dlpack__") and not isinstance(value, (np.ndarray, np.generic))


def taken(tensor: Tensor, value: Any) -> np.ndarray:
    """The memory of `value`, an array of another library, as a feed of `tensor`.

    Errors: FeedError, with that library's reason, if it does not give it.
    """
    try:
        kind, index = value.__dlpack_device__()
        if kind in HOSTS:
            return _by_dlpack(tensor, value)
        why = f"it lies on device {index} of DLPack's kind {int(kind)}, not in the host's memory"
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        why = str(error).partition("\n")[0]
    raise FeedError(
        f"{tensor.name!r} was fed a {type(value).__module__}.{type(value).__name__} whose memory "
        f"cannot be used: {why}",
        op=tensor.op.name,
        line=tensor.op.line,
        hint=f"feed a {name_of(tensor.dtype)} array in the host's memory, detached from gradients "
        "(array.detach().cpu() in PyTorch)",
    )


def _by_dlpack(tensor: Tensor, value: Any) -> np.ndarray:
    """Its memory, of bfloat16 too, which NumPy's DLPack does not know."""
    if tensor.dtype != bfloat16:
        return np.from_dlpack(value)
    found = np.from_dlpack(_Bits(value))
    return found.view(bfloat16) if found.dtype == np.uint16 else found


class _Bits:
    """An array that tells NumPy of the bits of its bfloat16 numbers only."""

    def __init__(self, value: Any) -> None:
        self._value, self.__dlpack_device__ = value, value.__dlpack_device__

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._value.__dlpack__()  # without options: a capsule of the oldest kind
        find = ctypes.pythonapi.PyCapsule_GetPointer
        find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        code = ctypes.c_uint8.from_address(find(capsule, b"dltensor") + _CODE)
        if code.value == _BFLOAT:
            code.value = _UINT
        return capsule


class Holder:
    """Stands for all who see the memory of one version of a variable: their arrays keep it."""


def shared(state: VariableState) -> Any:
    """The current version of a variable, as an array that other libraries take by DLPack.

    The version stays as it is while someone holds that array: an update goes into a second buffer.
    The caller holds the baton.
    """
    array, holder = state.pin(), Holder()
    # garbage is let go of at any moment, in any thread: the state looks for it between its updates
    weakref.finalize(holder, state.let_go.append, array).atexit = False
    return state.device.lent(array, holder)
