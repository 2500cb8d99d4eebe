"""How Python calls a kernel: as a built-in function, whose arguments lie side by side in memory.

That is `METH_FASTCALL` of Python's C interface, `(self, arguments, how many)`. `self` is None, and
is what is returned. A call takes 30 ns, where one by ctypes takes 400.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from hpcflow.codegen import thread_team
from hpcflow.codegen.fused_loop_ir import DATA
from hpcflow.codegen.llvm_builder import LINE

CALLED = {
    "declare i64 @PyLong_AsSsize_t(ptr)",
    "declare ptr @PyLong_FromSsize_t(i64)",
    "declare void @Py_IncRef(ptr)",
    thread_team.DECLARED,
}
FASTCALL = 0x80
GRAIN = 64  # elements: no two threads write to one line of memory


class Ranges(NamedTuple):
    """How a kernel may be cut for several threads, in numbers or names of values.

    It goes from `first` to `last`, in multiples of `grain`; `elements` tell how much it is in all.
    Each range has `bytes` of sums of its own.
    """

    first: str
    last: str
    elements: str
    grain: int = 1
    bytes: int = 0


def text(
    declared: Set[str],
    head: Sequence[str],
    ranges: Ranges,
    body: Sequence[str],
    metadata: Sequence[str],
    join: Sequence[str] = (),
) -> str:
    """The module of a kernel: `head` is done once, then `body` for each of the ranges.

    The body does what goes from %begin to %end; its sums go to %sums, if that is not null, from
    where `join` adds them to the kernel's outputs. All read the arguments from %args.
    """
    r, joins = ranges, "@NAME.join" if join else "null"
    cut = f"i64 {r.first}, i64 {r.last}, i64 {r.grain}, i64 {r.elements}, i64 {r.bytes}"
    begin = "define internal void @NAME.join(ptr %args, ptr %sums) {"
    return "\n".join(
        [
            *sorted(declared | CALLED),
            "define ptr @NAME(ptr %self, ptr %args, i64 %given) {",
            "entry:",
            *head,
            f"  call void @hpcflow.run(ptr @NAME.range, ptr {joins}, ptr %args, {cut})",
            "  call void @Py_IncRef(ptr %self)",
            "  ret ptr %self",
            "}",
            "define internal void @NAME.range(ptr %args, i64 %begin, i64 %end, ptr %sums) {",
            "entry:",
            *body,
            "  ret void",
            "}",
            *([begin, "entry:", *join, "  ret void", "}"] if join else []),
            *metadata,
        ]
    )


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


def lines(bytes: int) -> int:
    """So many bytes in whole lines of memory."""
    return -(-bytes // LINE) * LINE


def integer(name: str, argument: int) -> list[str]:
    """An argument that is a whole number, with this name."""
    made = f"  {name} = call i64 @PyLong_AsSsize_t(ptr {name}.of)"
    return [*objects([f"{name}.of"], argument), made]


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
