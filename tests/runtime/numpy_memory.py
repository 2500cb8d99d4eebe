"""What NumPy allocates for arrays, seen by a handler of its own."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
from collections.abc import Iterator

import numpy as np

SET_HANDLER = 304  # in the table of NumPy's C functions
POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t
_malloc = ctypes.CFUNCTYPE(POINTER, POINTER, SIZE)
_calloc = ctypes.CFUNCTYPE(POINTER, POINTER, SIZE, SIZE)
_realloc = ctypes.CFUNCTYPE(POINTER, POINTER, POINTER, SIZE)
_free = ctypes.CFUNCTYPE(None, POINTER, POINTER, SIZE)


class _Handler(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", POINTER),
        ("malloc", _malloc),
        ("calloc", _calloc),
        ("realloc", _realloc),
        ("free", _free),
    ]


libc = ctypes.CDLL(None)
for _name, _kind in (("malloc", [SIZE]), ("calloc", [SIZE, SIZE]), ("realloc", [POINTER, SIZE])):
    getattr(libc, _name).argtypes, getattr(libc, _name).restype = _kind, POINTER
libc.free.argtypes = [POINTER]


@contextlib.contextmanager
def allocations(context: contextvars.Context) -> Iterator[list[int]]:
    """Bytes of each array that NumPy makes in `context`; the arrays may outlive it."""
    found: list[int] = []

    def malloc(_, size):
        found.append(size)
        return libc.malloc(max(size, 1))

    def calloc(_, count, size):
        found.append(count * size)
        return libc.calloc(max(count, 1), max(size, 1))

    def realloc(_, pointer, size):
        found.append(size)
        return libc.realloc(pointer, max(size, 1))

    def free(_, pointer, size):
        libc.free(pointer)

    functions = _malloc(malloc), _calloc(calloc), _realloc(realloc), _free(free)
    handler = _Handler(b"counted", 1, None, *functions)
    _kept.append((handler, functions))  # arrays that live on are freed by it
    capsule = _capsule(ctypes.addressof(handler), b"mem_handler", None)
    old = context.run(_set_handler, capsule)
    try:
        yield found
    finally:
        context.run(_set_handler, old)


_kept: list[object] = []
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = [ctypes.py_object, ctypes.c_char_p], POINTER
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.argtypes = [POINTER, ctypes.c_char_p, POINTER]
_capsule.restype = ctypes.py_object
_table = ctypes.cast(
    _get_pointer(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(POINTER)
)
_set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_table[SET_HANDLER])
