"""oneDNN bindings by ctypes: descriptors, primitives, and programs of primitives.

No other file loads the library. It is searched beside this Python (the package onednn-cpu-gomp),
then by the system's loader. Handles are freed with the Python objects that hold them. Any thread
may create and run programs, but a program runs in one thread at a time (`kernel` sees to it).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from hpcflow.codegen import thread_team
from hpcflow.codegen.python_call_abi import data_address
from hpcflow.errors import KernelError
from hpcflow.platform import cpu_threads
from hpcflow.platform.install_hints import install_hint

NAME = "onednn"
FILE = "libdnnl.so.3"
STATUS = ("success", "out of memory", "invalid arguments", "unimplemented", "last impl reached",
          "runtime error", "not required")  # fmt: skip
OPENMP, SEQUENTIAL = 2, 1  # CPU runtimes of the library that are supported
MAX_DIMS, ANY_LAYOUT = 12, 1
FLOAT = "float32"
TYPES = {"float16": 1, "bfloat16": 2, FLOAT: 3}  # element types
# bits of an instruction set: those that the library computes 16-bit floats by
INSTRUCTIONS = {"bfloat16": 0x80, "float16": 0x100}
# arguments of an execution
SRC, DST, WEIGHTS, BIAS, WORKSPACE, SCRATCH = 1, 17, 33, 41, 64, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS = 129, 145, 161
POST_OP = 32768  # times the number of the operation that follows, from 1
# queries of a primitive descriptor
IMPLEMENTATION, OF_SRC, OF_DIFF_SRC, OF_WEIGHTS, OF_DIFF_WEIGHTS = 8, 129, 130, 131, 132
OF_DST, OF_DIFF_DST, OF_WORKSPACE, OF_SCRATCH = 133, 134, 135, 136
ALIGNED = 64  # bytes: a cache line
MAX_CACHED_PROGRAMS = 32  # cached programs of one kernel, one for each shape

_lock = threading.Lock()
_thread_local = threading.local()  # of each thread: its workspace and its number of OpenMP threads


class _Version(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
    ]


class _Argument(ctypes.Structure):
    _fields_ = [("argument", ctypes.c_int), ("memory", ctypes.c_void_p)]


# -- the library


def absent() -> str:
    """Why the library cannot be used here; "" if it can."""
    if several() and importlib.util.find_spec("threadpoolctl") is None:
        return f"beside it BLAS may have one thread only: {install_hint('fast')}"
    with _lock:
        return _loaded()[1]


def several() -> bool:
    """Whether this rank has more than one thread: then only the library has a thread pool."""
    return cpu_threads.chosen_threads().threads > 1


@functools.cache
def _loaded() -> tuple[Any, str]:
    for place in (os.path.join(sys.prefix, "lib", FILE), FILE):
        try:
            lib = ctypes.CDLL(place)
            break
        except OSError:
            continue
    else:
        return None, f"{FILE} is not found: {install_hint('fast')}"
    lib.dnnl_version.restype = ctypes.POINTER(_Version)
    version = lib.dnnl_version().contents
    if version.cpu_runtime not in (OPENMP, SEQUENTIAL):
        return None, f"{lib._name} does not run its threads by OpenMP: their number cannot be set"
    thread_team.use(lib)
    pointer, number = ctypes.c_void_p, ctypes.c_int
    lib.dnnl_primitive_execute.argtypes = [pointer, pointer, number, pointer]
    lib.dnnl_primitive_desc_query_md.argtypes = [pointer, number, number]
    lib.dnnl_primitive_desc_query_md.restype = pointer
    lib.dnnl_memory_desc_get_size.argtypes = [pointer]
    lib.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    lib.dnnl_memory_desc_equal.argtypes = [pointer, pointer]
    lib.dnnl_memory_set_data_handle.argtypes = [pointer, pointer]
    return lib, ""


def version() -> str:
    """The version of the library, which must not be absent."""
    release = library().dnnl_version().contents
    return f"{release.major}.{release.minor}.{release.patch} {release.hash.decode()}"


@functools.cache
def has_instructions(dtype: str) -> bool:
    """Whether this CPU has instructions for products of such floats, and the library uses them."""
    if dtype == FLOAT:
        return True
    return bool(library().dnnl_get_effective_cpu_isa() & INSTRUCTIONS.get(dtype, 0))


def element_type(node: Any) -> str:
    """The name of the dtype of a node's arrays, a key of TYPES if the library serves it."""
    return str(node.inputs[0].dtype)


def library() -> Any:
    """The library; it must not be absent."""
    lib, why = _loaded()
    if lib is None:
        raise KernelError(f"oneDNN: {why}")
    return lib


def check(status: int, label: str) -> None:
    """Raise KernelError unless `status`, the result of a function, is success."""
    if status:
        status_text = STATUS[status] if status < len(STATUS) else str(status)
        raise KernelError(f"oneDNN: {label}: {status_text}")


class OnednnHandle:
    """An object of the library, destroyed with this one; `kind` is the end of its type's name."""

    __slots__ = ("__weakref__", "destroy", "value")

    def __init__(self, kind: str, value: int) -> None:
        self.value = value
        self.destroy = getattr(library(), f"dnnl_{kind}_destroy")
        self.destroy.argtypes = [ctypes.c_void_p]

    def __del__(self) -> None:
        self.destroy(self.value)


def create(kind: str, function: str, *arguments: Any) -> OnednnHandle:
    """The handle that a function returns through its first argument."""
    return OnednnHandle(kind, _created(function, *arguments))


def _created(function: str, *arguments: Any) -> int:
    handle = ctypes.c_void_p()
    c_args = [ctypes.c_void_p(a.value) if isinstance(a, OnednnHandle) else a for a in arguments]
    check(getattr(library(), function)(ctypes.byref(handle), *c_args), function)
    assert handle.value is not None
    return handle.value


def engine() -> Any:
    """The CPU engine; sets the number of OpenMP threads of this thread at its first call."""
    if not hasattr(_thread_local, "threads"):
        _thread_local.threads = cpu_threads.chosen_threads().threads
        use_threads(_thread_local.threads)
    return _cpu()


@functools.cache
def _cpu() -> Any:
    """The engine, one a process. It is never destroyed: others may be destroyed after it."""
    return ctypes.c_void_p(_created("dnnl_engine_create", 1, ctypes.c_size_t(0)))


# -- descriptors: logical sizes are [batch, channels, *space] and [filters, channels, *kernel]


def dims(sizes: Sequence[int]) -> Any:
    """Sizes as an array of the library."""
    return (ctypes.c_int64 * MAX_DIMS)(*sizes)


def strided(sizes: Sequence[int], strides: Sequence[int], dtype: str = FLOAT) -> OnednnHandle:
    """The descriptor of an array of these sizes and strides, in elements."""
    function = "dnnl_memory_desc_create_with_strides"
    return create("memory_desc", function, len(sizes), dims(sizes), TYPES[dtype], dims(strides))


def free_layout(sizes: Sequence[int], dtype: str = FLOAT) -> OnednnHandle:
    """The descriptor of an array of these sizes in the layout that the primitive chooses."""
    function = "dnnl_memory_desc_create_with_tag"
    return create("memory_desc", function, len(sizes), dims(sizes), TYPES[dtype], ANY_LAYOUT)


def packed(sizes: Sequence[int]) -> tuple[int, ...]:
    """The strides of a C-contiguous array."""
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def layout_of(primitive: OnednnHandle, query: int) -> OnednnHandle:
    """The memory descriptor that a primitive descriptor has chosen for one of its arguments."""
    descriptor = library().dnnl_primitive_desc_query_md(primitive.value, query, 0)
    return create("memory_desc", "dnnl_memory_desc_clone", ctypes.c_void_p(descriptor))


def nbytes(layout: OnednnHandle) -> int:
    """The bytes of an array of this layout."""
    return library().dnnl_memory_desc_get_size(layout.value)


def equal(a: OnednnHandle, b: OnednnHandle) -> bool:
    """Whether two descriptors are the same."""
    return bool(library().dnnl_memory_desc_equal(a.value, b.value))


def implementation(primitive: OnednnHandle) -> str:
    """The name of the implementation, as `brgconv:avx512_core`; `ref` is slow."""
    name = ctypes.c_char_p()
    query = library().dnnl_primitive_desc_query
    status = query(ctypes.c_void_p(primitive.value), IMPLEMENTATION, 0, ctypes.byref(name))
    check(status, "the name of an implementation")
    return (name.value or b"").decode()


@functools.cache
def attributes(relu: bool = False) -> OnednnHandle:
    """Attributes of a primitive: a user-managed scratchpad; with `relu`, it ends in max(x, 0).

    The relu is a prelu with a slope of 0, since the library's own relu maps NaN to 0. This one maps
    -inf to NaN, where max(x, 0) is 0.
    """
    attr = create("primitive_attr", "dnnl_primitive_attr_create")
    lib, value = library(), ctypes.c_void_p(attr.value)
    check(lib.dnnl_primitive_attr_set_scratchpad_mode(value, 1), "scratchpad mode")
    if relu:
        after = create("post_ops", "dnnl_post_ops_create")
        check(lib.dnnl_post_ops_append_prelu(ctypes.c_void_p(after.value), 0), "prelu")
        check(lib.dnnl_primitive_attr_set_post_ops(value, ctypes.c_void_p(after.value)), "post-ops")
    return attr


def reorder(source: OnednnHandle, dest: OnednnHandle) -> OnednnHandle:
    """The primitive descriptor of a copy from one layout to another."""
    function = "dnnl_reorder_primitive_desc_create"
    return create("primitive_desc", function, source, engine(), dest, engine(), attributes())


# -- programs


class PrimitiveStep:
    """One primitive of a program, with the memory of each of its arguments."""

    def __init__(self, primitive: OnednnHandle, memories: dict[int, ProgramMemory]) -> None:
        self.primitive, self.memories = primitive, memories


class ProgramMemory:
    """A memory of a program: an array of the caller, a constant, or workspace."""

    def __init__(self, layout: OnednnHandle, constant: np.ndarray | None = None) -> None:
        address = constant.ctypes.data if constant is not None else None
        self.layout, self.constant = layout, constant
        function = "dnnl_memory_create"
        self.memory = create("memory", function, layout, engine(), ctypes.c_void_p(address))
        self.holds: Callable[[], Any] = _nothing  # the array that it points at
        self.offset = 0  # bytes from the start of its array, or of the workspace

    def point(self, address: int) -> None:
        """Set the address of the memory."""
        check(library().dnnl_memory_set_data_handle(self.memory.value, address), "set_data_handle")


def _nothing() -> None:
    return None


def zero_slope(axes: int) -> ProgramMemory:
    """The argument POST_OP | WEIGHTS of a primitive that ends in a relu."""
    return ProgramMemory(strided((1,) * axes, (1,) * axes), np.zeros(1, np.float32))


class PrimitiveProgram:
    """A sequence of primitives on the arrays `arguments`; its other memories are in the workspace.

    Primitives are created at the first run; `bytes`, the size of the workspace, is known before.
    """

    def __init__(self, arguments: Sequence[ProgramMemory], steps: Sequence[PrimitiveStep]) -> None:
        self.arguments, self.steps, self.bytes = list(arguments), list(steps), 0
        for step in steps:
            room = layout_of(step.primitive, OF_SCRATCH)
            if nbytes(room):
                step.memories[SCRATCH] = ProgramMemory(room)
        places = dict.fromkeys(place for step in steps for place in step.memories.values())
        self.scratch = [p for p in places if p not in self.arguments and p.constant is None]
        for place in self.scratch:
            place.offset = self.bytes
            self.bytes += -(-nbytes(place.layout) // ALIGNED) * ALIGNED
        self.workspace: Callable[[], Any] = _nothing  # the workspace that it points at
        self.execute = library().dnnl_primitive_execute

    @functools.cached_property
    def calls(self) -> list[tuple[Any, Any, int, Any, Any]]:
        """The arguments of each execution, and the objects that they point at."""
        stream = create("stream", "dnnl_stream_create", engine(), ctypes.c_uint(1))
        return [self._call(step, stream) for step in self.steps]

    @staticmethod
    def _call(step: PrimitiveStep, stream: OnednnHandle) -> tuple[Any, Any, int, Any, Any]:
        primitive = create("primitive", "dnnl_primitive_create", step.primitive)
        arguments = (_Argument * len(step.memories))(
            *[_Argument(which, place.memory.value) for which, place in step.memories.items()]
        )
        refs = (primitive, stream, arguments)
        return primitive.value, stream.value, len(arguments), ctypes.addressof(arguments), refs

    def run(self, arrays: Sequence[np.ndarray], workspace: np.ndarray | None = None) -> None:
        """Run on arrays of the layouts of `arguments`, in this `workspace`.

        Arrays that are not contiguous are copied first.
        """
        copies = []
        for place, array in zip(self.arguments, arrays, strict=True):
            if place.holds() is not array:
                if not array.flags.c_contiguous:
                    array = np.ascontiguousarray(array)
                    copies.append(array)
                place.point(data_address(array) + place.offset)
                place.holds = weakref.ref(array)
        if self.bytes:
            if workspace is None or workspace.nbytes < self.bytes:
                workspace = _scratch(self.bytes)
            if workspace is not self.workspace():
                self.workspace, first = weakref.ref(workspace), data_address(workspace)
                for place in self.scratch:
                    place.point(first + place.offset)
        execute = self.execute
        for primitive, stream, count, arguments, _ in self.calls:
            status = execute(primitive, stream, count, arguments)
            if status:
                check(status, "execution")


def _scratch(size: int) -> np.ndarray:
    """A workspace of at least `size` bytes, of this thread."""
    room = getattr(_thread_local, "workspace", None)
    if room is None or room.nbytes < size:
        block = np.empty(size + ALIGNED, np.uint8)
        start = -block.ctypes.data % ALIGNED
        room = _thread_local.workspace = block[start : start + size]
    return room


def use_threads(number: int) -> None:
    """Set the number of threads of the primitives that this thread runs.

    If it is more than 1, BLAS is limited to one thread: idle threads of two pools spin before they
    sleep, and so compete for the cores.
    """
    lib = library()
    if number > 1:
        _one_pool()
    if hasattr(lib, "omp_set_num_threads"):
        lib.omp_set_num_threads(number)


@functools.cache
def _one_pool() -> None:
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="blas")
    thread_team.blas_is_single_threaded()


def kernel(make: Callable[..., PrimitiveProgram], *key: Hashable) -> Callable[..., None]:
    """The function that runs `make(*key)` on arrays; each concurrent call has a program of its own.

    `room` is the workspace that `scratch` asks for; without it, the workspace of the thread is
    used.
    """
    idle: list[PrimitiveProgram] = []

    def run(*arrays: np.ndarray, room: Sequence[np.ndarray] = ()) -> None:
        try:
            program = idle.pop()
        except IndexError:
            program = make(*key)
        program.run(arrays, *room)
        idle.append(program)

    return run


class ProgramCache:
    """Kernels by key, created at first use."""

    def __init__(self, make: Callable[..., PrimitiveProgram]) -> None:
        self.make = make
        self.kernels: dict[Hashable, Callable[..., None]] = {}

    def run(self, key: tuple, *arrays: np.ndarray, room: Sequence[np.ndarray] = ()) -> None:
        """Run `make(*key)` on the arrays."""
        if len(self.kernels) > MAX_CACHED_PROGRAMS:
            self.kernels.clear()
        if key not in self.kernels:
            self.kernels[key] = kernel(self.make, *key)
        self.kernels[key](*arrays, room=room)


@functools.lru_cache(maxsize=1024)
def scratch(
    make: Callable[..., PrimitiveProgram], *key: Hashable
) -> list[tuple[Any, tuple[int, ...]]]:
    """The workspace of `make(*key)` in the form of `Kernel.scratch`."""
    size = make(*key).bytes
    return [(np.uint8, (size,))] if size else []
