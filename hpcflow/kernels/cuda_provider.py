"""What the providers of kernels for NVIDIA's GPUs share: CuPy, its stream, libraries beside it.

A kernel of theirs asks the library for an algorithm when it is made. A call of it only starts work
on CuPy's current stream, in memory of the step, so that a CUDA graph can capture it.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from hpcflow.errors import KernelError
from hpcflow.platform.install_hints import install_hint

INSTALL = install_hint("cuda12", "cuda13")
ALIGNED = 16  # bytes: where the libraries' vectors may begin
LOSES_NAN = "its relu was not seen to keep NaN"
Sizes = tuple[int, ...]
Plan = TypeVar("Plan")


def cupy() -> Any:
    """CuPy, which a rank that uses a GPU has imported; None on others."""
    return sys.modules.get("cupy")


def absent() -> str:
    """Why no GPU of NVIDIA's is used here, "" if one is."""
    xp = cupy()
    return "" if xp is not None and xp.is_available() else "this rank uses no GPU"


def load(name: str) -> Any:
    """The shared library `name` of the CUDA that CuPy is for; None if it is not found.

    It is looked for among the packages nvidia-*, then by the system's loader.
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
    """Which GPU it is for which a library chooses: sm_90."""
    return f"sm_{cupy().cuda.Device().compute_capability}"


def stream(xp: Any) -> int:
    """The pointer of CuPy's current stream."""
    return xp.cuda.get_current_stream().ptr


def dense(xp: Any, *arrays: Any) -> list[Any]:
    """The arrays; a view in another order is copied, to memory of CuPy's pool."""
    return [x if x.flags.c_contiguous else xp.ascontiguousarray(x) for x in arrays]


def workspace(xp: Any, nbytes: int, room: Any) -> tuple[int, Any]:
    """The address of `nbytes` bytes, and what holds them: `room`, or memory of CuPy's pool."""
    if nbytes and room is None:
        room = xp.empty(nbytes, "u1")
    return (room.data.ptr if nbytes else 0), room


def keeps_nan(dtype: str, shapes: Sequence[Sizes], nbytes: int, run: Callable[..., None]) -> bool:
    """Whether a bias of NaN comes out of `run` and its relu as NaN: NVIDIA does not say.

    `run` takes a stream, the address of scratch memory, and those of arrays of these shapes, the
    last of which it writes, and of the bias.
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
    """Why what a library has planned does not serve: the reason in place of a plan, or its relu."""
    if isinstance(plan, str):
        return plan
    return "" if not relu or plan.keeps_nan else LOSES_NAN


def there(plan: Plan | str) -> Plan:
    """What a library has planned; KernelError if it is a reason why there is none."""
    if isinstance(plan, str):
        raise KernelError(plan)
    return plan


def unfit(specs: Sequence[Any], dtypes: Any) -> str:
    """Why arrays of these specs are for no library that takes `dtypes`, "" if they may be."""
    dtype = specs[0].dtype.name
    if dtype not in dtypes:
        return f"its arrays are {dtype}"
    if any(s.shape is None or None in s.shape for s in specs):
        return "its sizes are known only in the step"
    return "" if all(math.prod(s.shape) for s in specs) else "it is empty"
