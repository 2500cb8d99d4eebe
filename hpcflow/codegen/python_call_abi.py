"""Calling convention of kernels: built-in functions of Python with METH_FASTCALL.

`METH_FASTCALL` of Python's C API passes `(self, arguments, count)`, the arguments as an array of
object pointers. `self` is None, and is returned. A call takes 30 ns; by ctypes it takes 400 ns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from hpcflow.codegen import thread_team
from hpcflow.codegen.fused_loop_ir import DATA
from hpcflow.codegen.llvm_builder import LINE

DECLARATIONS = {
    "declare i64 @PyLong_AsSsize_t(ptr)",
    "declare ptr @PyLong_FromSsize_t(i64)",
    "declare void @Py_IncRef(ptr)",
    thread_team.DECLARED,
}
FASTCALL = 0x80
WIDEST = ' "prefer-vector-width"="512"'
GRAIN = 64  # elements: no two threads write to one cache line


class KernelRanges(NamedTuple):
    """How a kernel may be split into ranges for several threads, in numbers or names of values.

    It goes from `first` to `last`, in multiples of `grain`; `elements` is the total amount of work.
    Each range has `bytes` of partial sums of its own.
    """

    first: str
    last: str
    elements: str
    grain: int = 1
    bytes: int = 0


def text(
    declared: Set[str],
    head: Sequence[str],
    ranges: KernelRanges,
    body: Sequence[str],
    metadata: Sequence[str],
    join: Sequence[str] = (),
    computes: bool = False,
) -> str:
    """The LLVM module of a kernel: `head` runs once, then `body` for each range.

    The body computes the range from %begin to %end. Its partial sums go to %sums, if that is not
    null; `join` adds them from there to the kernel's outputs. All read the arguments from %args. A
    kernel that `computes` much for each element uses the widest vectors; LLVM prefers 256 bits.
    """
    r, joins = ranges, "@NAME.join" if join else "null"
    cut = f"i64 {r.first}, i64 {r.last}, i64 {r.grain}, i64 {r.elements}, i64 {r.bytes}"
    of_range = "ptr %args, i64 %begin, i64 %end, ptr %sums"
    begin = "define internal void @NAME.join(ptr %args, ptr %sums) {"
    return "\n".join(
        [
            *sorted(declared | DECLARATIONS),
            "define ptr @NAME(ptr %self, ptr %args, i64 %given) {",
            "entry:",
            *head,
            f"  call void @hpcflow.run(ptr @NAME.range, ptr {joins}, ptr %args, {cut})",
            "  call void @Py_IncRef(ptr %self)",
            "  ret ptr %self",
            "}",
            f"define internal void @NAME.range({of_range}){WIDEST if computes else ''} {{",
            "entry:",
            *body,
            "  ret void",
            "}",
            *([begin, "entry:", *join, "  ret void", "}"] if join else []),
            *metadata,
        ]
    )


def as_contiguous(value: Any) -> np.ndarray:
    """The value as a C-contiguous, aligned array, as kernels require."""
    array = np.asarray(value)
    flags = array.flags
    return array if flags.carray or (flags.c_contiguous and flags.aligned) else array.copy()


def data_address(array: np.ndarray) -> int:
    """The address of an array's data: `array.ctypes.data` in a fifth of the time."""
    return ctypes.c_size_t.from_address(id(array) + DATA).value


def objects(names: Sequence[str], first: int = 0) -> list[str]:
    """Load the arguments from `first` on as object pointers with these names."""
    loads = []
    for i, name in enumerate(names, first):
        loads.append(f"  {name}.at = getelementptr ptr, ptr %args, i64 {i}")
        loads.append(f"  {name} = load ptr, ptr {name}.at")
    return loads


def numbers(name: str, array: str) -> list[str]:
    """Load the data pointer of an array under this name."""
    address = f"  {name}.data = getelementptr i8, ptr {array}, i64 {DATA}"
    return [address, f"  {name} = load ptr, ptr {name}.data"]


def lines(bytes: int) -> int:
    """`bytes` rounded up to whole cache lines."""
    return -(-bytes // LINE) * LINE


def integer(name: str, argument: int) -> list[str]:
    """Load an integer argument under this name."""
    conversion = f"  {name} = call i64 @PyLong_AsSsize_t(ptr {name}.of)"
    return [*objects([f"{name}.of"], argument), conversion]


class _PyMethodDef(ctypes.Structure):
    """`PyMethodDef` of Python's C API."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_methods: list[_PyMethodDef] = []  # Python requires that a PyMethodDef is never freed


def function(address: int, name: str) -> Callable[..., Any]:
    """The kernel at an address as a Python function."""
    method = _PyMethodDef(name.encode(), address, FASTCALL, None)
    _methods.append(method)
    make = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.POINTER(_PyMethodDef), ctypes.py_object, ctypes.c_void_p
    )(("PyCFunction_NewEx", ctypes.pythonapi))
    kernel: Callable[..., Any] = make(ctypes.byref(method), None, None)
    return kernel
