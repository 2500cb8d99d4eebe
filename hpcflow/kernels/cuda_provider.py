"""Common parts of the CUDA kernel providers: CuPy, its stream, and the CUDA libraries.

A kernel of these providers asks the library for an algorithm when it is created. A call only
launches work on CuPy's current stream, in memory of the step, so that a CUDA graph can capture it.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import math
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from hpcflow.errors import KernelError, RangeError
from hpcflow.platform.install_hints import install_hint

INSTALL = install_hint("cuda12", "cuda13")
ALIGNED = 16  # bytes: the alignment of vector loads of the libraries
LOSES_NAN = "its relu was not seen to keep NaN"
Sizes = tuple[int, ...]
Plan = TypeVar("Plan")


def cupy() -> Any:
    """CuPy if this rank uses a GPU and has imported it, else None."""
    return sys.modules.get("cupy")


def absent() -> str:
    """Why this rank uses no NVIDIA GPU; "" if it does."""
    xp = cupy()
    return "" if xp is not None and xp.is_available() else "this rank uses no GPU"


def no_generated_code() -> str:
    """Why no kernels can be generated for the current GPU; "" if they can."""
    from hpcflow.codegen import ptx_compiler  # only a rank with a GPU needs it

    xp = cupy()
    return ptx_compiler.absent() or (ptx_compiler.too_old(xp.cuda) if xp is not None else "")


def load(name: str) -> Any:
    """The shared library `name` of CuPy's CUDA version; None if it is not found.

    It is searched in the packages nvidia-*, then by the system's loader.
    """
    file = f"lib{name}.so.{cupy().cuda.runtime.runtimeGetVersion() // 1000}"
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec is not None else None
    beside = [p for f in folders or () for p in glob.glob(os.path.join(f, "*", "lib", file))]
    for place in (*beside, file):
        try:
            return ctypes.CDLL(place, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    return None


def processor() -> str:
    """The architecture of the current GPU, as sm_90."""
    return f"sm_{cupy().cuda.Device().compute_capability}"


def stream(xp: Any) -> int:
    """The pointer of CuPy's current stream."""
    return xp.cuda.get_current_stream().ptr


def dense(xp: Any, *arrays: Any) -> list[Any]:
    """The arrays; those that are not C-contiguous are copied to memory of CuPy's pool."""
    return [x if x.flags.c_contiguous else xp.ascontiguousarray(x) for x in arrays]


class WrongIndex:
    """An index outside of [0, size) that a kernel has found, in memory of the host.

    The kernel stores it at `address`; 0 means none. `op` and `line` are those of the kernel's node.
    """

    def __init__(self, xp: Any, label: str, size: int) -> None:
        self.label, self.size, self.op, self.line = label, size, "", ""
        self._memory = xp.cuda.alloc_pinned_memory(8)  # GPUs and host share addresses of it
        self._value = np.frombuffer(self._memory, np.int64, 1)
        self._value[0] = 0
        self.address: int = self._value.ctypes.data
        self._kernel: Callable[[], Any] = lambda: self

    def belongs_to(self, kernel: Any) -> None:
        """Say which kernel stores it."""
        self._kernel = weakref.ref(kernel)

    @property
    def is_abandoned(self) -> bool:
        """Whether its kernel is gone; launches of it may still run."""
        return self._kernel() is None

    def error(self) -> RangeError | None:
        """The error of an index that was found, which is forgotten; call it after the kernel."""
        index, self._value[0] = int(self._value[0]), 0
        if not index:
            return None
        text = f"{self.label} {index} is outside [0, {self.size})"
        return RangeError(text, op=self.op, line=self.line)


def aligned(xp: Any, x: Any) -> Any:
    """The array, or a C-contiguous copy that is aligned for the libraries."""
    fits = x.flags.c_contiguous and x.data.ptr % ALIGNED == 0
    return x if fits else xp.array(x, order="C", copy=True)


def workspace(xp: Any, nbytes: int, buffer: Any) -> tuple[int, Any]:
    """The address and the owner of `nbytes` bytes: `buffer`, or memory of CuPy's pool."""
    if nbytes and buffer is None:
        buffer = xp.empty(nbytes, "u1")
    return (buffer.data.ptr if nbytes else 0), buffer


def keeps_nan(dtype: str, shapes: Sequence[Sizes], nbytes: int, run: Callable[..., None]) -> bool:
    """Whether `run` with a bias of NaN and a relu gives NaN; NVIDIA does not document it.

    `run` takes a stream, the address of the workspace, the addresses of arrays of these shapes, the
    last of which it writes, and the address of the bias.
    """
    xp = cupy()
    try:
        arrays = [xp.zeros(shape, dtype) for shape in shapes]
        bias = xp.asarray(np.full(max(shape[-1] for shape in shapes), np.nan, dtype))
        room, _held = workspace(xp, nbytes, None)
    except MemoryError:
        return False
    run(stream(xp), room, *(x.data.ptr for x in (*arrays, bias)))
    some = arrays[-1].reshape(-1)[:4096].get()
    return bool(np.isnan(some.astype(np.float32)).all())


def refusal(plan: Any, relu: bool) -> str:
    """Why a plan does not serve: it is a reason itself, or its relu loses NaN; "" if it serves."""
    if isinstance(plan, str):
        return plan
    return "" if not relu or plan.keeps_nan else LOSES_NAN


def plan_or_error(plan: Plan | str) -> Plan:
    """The plan; KernelError if it is a reason why there is none."""
    if isinstance(plan, str):
        raise KernelError(plan)
    return plan


def unsupported_reason(specs: Sequence[Any], dtypes: Any) -> str:
    """Why a library of these `dtypes` cannot take arrays of these specs; "" if it can."""
    dtype = specs[0].dtype.name
    if dtype not in dtypes:
        return f"its arrays are {dtype}"
    if any(s.shape is None or None in s.shape for s in specs):
        return "its sizes are known only in the step"
    return "" if all(math.prod(s.shape) for s in specs) else "it is empty"
