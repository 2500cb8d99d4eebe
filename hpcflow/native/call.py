"""How Python calls a kernel: as a built-in function, whose arguments lie side by side in memory.

That is `METH_FASTCALL` of Python's C interface, `(self, arguments, how many)`. `self` is None, and
is what is returned. A call takes 30 ns, where one by ctypes takes 400.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.native.loop import DATA

SIGNATURE = "ptr %self, ptr %args, i64 %given"
CALLED = {
    "declare i64 @PyLong_AsSsize_t(ptr)",
    "declare ptr @PyEval_SaveThread()",
    "declare void @PyEval_RestoreThread(ptr)",
    "declare void @Py_IncRef(ptr)",
}
MANY = 1 << 14  # elements: while so many are computed other threads may run Python
FASTCALL = 0x80


def plain(value: Any) -> np.ndarray:
    """An array whose elements lie in C order, as kernels take them."""
    array = np.asarray(value)
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy()


def objects(names: Sequence[str], first: int = 0) -> list[str]:
    """The arguments from `first` on, as pointers to objects with these names."""
    found = []
    for i, name in enumerate(names, first):
        found.append(f"  {name}.at = getelementptr ptr, ptr %args, i64 {i}")
        found.append(f"  {name} = load ptr, ptr {name}.at")
    return found


def numbers(name: str, array: str) -> list[str]:
    """Where the numbers of an array begin, with this name."""
    found = f"  {name}.data = getelementptr i8, ptr {array}, i64 {DATA}"
    return [found, f"  {name} = load ptr, ptr {name}.data"]


def integer(name: str, argument: int) -> list[str]:
    """An argument that is a whole number, with this name."""
    made = f"  {name} = call i64 @PyLong_AsSsize_t(ptr {name}.of)"
    return [*objects([f"{name}.of"], argument), made]


def unlocked(size: str, before: str) -> list[str]:
    """Give Python's lock back if there are many elements; `before` is the block that this ends.

    The lines that follow are in the block `py.unlocked`.
    """
    return [
        f"  %py.many = icmp sge i64 {size}, {MANY}",
        "  br i1 %py.many, label %py.unlock, label %py.unlocked",
        "py.unlock:",
        "  %py.thread = call ptr @PyEval_SaveThread()",
        "  br label %py.unlocked",
        "py.unlocked:",
        f"  %py.held = phi ptr [null, %{before}], [%py.thread, %py.unlock]",
    ]


END = [  # of a function that is `unlocked`
    "  br i1 %py.many, label %py.lock, label %py.over",
    "py.lock:",
    "  call void @PyEval_RestoreThread(ptr %py.held)",
    "  br label %py.over",
    "py.over:",
    "  call void @Py_IncRef(ptr %self)",
    "  ret ptr %self",
]


class _Method(ctypes.Structure):
    """`PyMethodDef` of Python's C interface."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_methods: list[_Method] = []  # which Python takes to be there for ever


def function(address: int, name: str) -> Callable[..., Any]:
    """The kernel at an address as a function of Python."""
    method = _Method(name.encode(), address, FASTCALL, None)
    _methods.append(method)
    make = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p
    )(("PyCFunction_NewEx", ctypes.pythonapi))
    made: Callable[..., Any] = make(ctypes.byref(method), None, None)
    return made
