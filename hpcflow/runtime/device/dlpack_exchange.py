"""DLPack exchange without copies: arrays of other libraries as feeds, variables as their arrays."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from hpcflow.errors import FeedError
from hpcflow.graph.dtypes import bfloat16, name_of
from hpcflow.graph.graph import Tensor
from hpcflow.runtime.dynamic_types import DeviceArray, FeedValue
from hpcflow.runtime.state.state_store import VariableState

_UINT, _BFLOAT = 1, 4  # type codes of DLPack (DLDataTypeCode)
_CODE = 20  # byte offset of the type code in a DLTensor, after data, device and ndim
# device types whose memory a CPU reads: kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDAManaged
HOSTS = (1, 3, 11, 13)


def exports_dlpack(value: FeedValue) -> bool:
    """Whether `value` is an array of another library that exports its memory by DLPack."""
    return hasattr(type(value), "__dlpack__") and not isinstance(value, (np.ndarray, np.generic))


def feed_from_dlpack(tensor: Tensor, value: FeedValue) -> np.ndarray:
    """The memory of `value`, an array of another library, as a feed of `tensor`.

    Errors: FeedError, with that library's reason, if the memory is not exported to the host.
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


def _by_dlpack(tensor: Tensor, value: FeedValue) -> np.ndarray:
    """The memory of `value`; bfloat16 too, which NumPy's DLPack import does not support."""
    if tensor.dtype != bfloat16:
        return np.from_dlpack(value)
    array = np.from_dlpack(_Bfloat16Export(value))
    return array.view(bfloat16) if array.dtype == np.uint16 else array


class _Bfloat16Export:
    """Exports a bfloat16 array to NumPy as uint16."""

    def __init__(self, value: FeedValue) -> None:
        self._value, self.__dlpack_device__ = value, value.__dlpack_device__

    def __dlpack__(self, **options: object) -> FeedValue:
        capsule = self._value.__dlpack__()  # without options: an unversioned capsule
        find = ctypes.pythonapi.PyCapsule_GetPointer
        find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        code = ctypes.c_uint8.from_address(find(capsule, b"dltensor") + _CODE)
        if code.value == _BFLOAT:
            code.value = _UINT
        return capsule


class ExternalAliases:
    """Represents all external arrays that alias one version of a variable; they keep it alive."""


def share_version(state: VariableState) -> DeviceArray:
    """The current version of a variable, as an array that other libraries import by DLPack.

    The version stays unchanged while a reference to that array exists: updates go into a second
    buffer. The caller holds the progress lock.
    """
    array, holder = state.pin(), ExternalAliases()
    # a finalizer runs at any moment, in any thread: the state drains `let_go` between its updates
    weakref.finalize(holder, state.let_go.append, array).atexit = False
    return state.device.lent(array, holder)
