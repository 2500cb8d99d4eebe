"""The device abstraction: one object that selects and builds kernels, allocates, and transfers."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hpcflow.codegen import kernel_cache, thread_team
from hpcflow.codegen.kernel_cache import KernelCompiler
from hpcflow.codegen.llvm_cpu_compiler import absent, machine
from hpcflow.codegen.python_call_abi import data_address
from hpcflow.errors import (
    MALFORMED,
    DeviceError,
    HpcflowError,
    KernelError,
    MissingPackageError,
)
from hpcflow.graph.dtypes import is_half
from hpcflow.graph.static_shape import Spec, is_known
from hpcflow.kernels.kernel_registry import (
    PLAIN,
    Kernel,
    KernelChoice,
    KernelPreferences,
    choose_kernel,
    kernel_preferences,
)
from hpcflow.kernels.kernel_registry import KernelNode as KernelNode
from hpcflow.lowering.arena_allocation import ALIGNED
from hpcflow.lowering.kernel_metadata import KernelInfo
from hpcflow.plan.ir.program import Cluster, Node
from hpcflow.platform.install_hints import install_hint
from hpcflow.runtime.device.memory_accounting import HeldMemory
from hpcflow.runtime.device.size_class_allocator import MIN_POOLED_BYTES, SizeClassPool
from hpcflow.runtime.dynamic_types import DeviceArray, KernelFunction, Value

if TYPE_CHECKING:  # only a rank with a GPU needs it
    from hpcflow.kernels.cuda_provider import WrongIndex

PAGE = 4096  # bytes


MAX_ROWS, MAX_ROWS_BYTES = 16, 512 << 10  # of the array in which small arrays are allocated


class _ArrayMemory(np.ndarray):
    """Backing memory of an array.

    It is a type of its own, so that views of the array keep the array as their base.
    """


class Device:
    """A NumPy device; subclasses override what differs. `kind` is the first part of `cpu:0`."""

    kind = "cpu"
    xp: Any = np  # the array module of plain kernels; None: only the device's own kernels
    captures = False  # whether its work can be captured as CUDA graphs

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.preferences = kernel_preferences()
        self.pool = SizeClassPool(self.hold, self.view)
        self.held_memory = HeldMemory(f"{self.kind}:0")  # as plans name it
        # of its kernels, in the order in which they were made: that of a step
        self.wrong_indices: list[WrongIndex] = []

    def choose(self, node: Node, inputs: list[Value]) -> KernelChoice:
        """The kernel that runs `node`, whose inputs have the specs `inputs`."""
        return choose_kernel(
            _cached_choice(node, inputs, self.preferences),
            self.kind,
            self.preferences,
            self.xp is not None,
        )

    def is_fast(self, node: Node, inputs: list[Value]) -> bool:
        """Whether a provider's kernel, not a plain one, runs `node`."""
        return self.choose(node, inputs).kernel.provider != PLAIN

    def provider(self, choice: KernelChoice) -> str:
        """The provider of a kernel; of a plain kernel, the array module or the device kind."""
        name = choice.kernel.provider
        plain = self.kind if self.xp is None else self.xp.__name__
        return plain if name == PLAIN else name

    def info(self, node: Node, inputs: list[Value]) -> KernelInfo:
        """The calling convention of the kernel that runs `node`."""
        row = self.choose(node, inputs).kernel
        tiles = row.tiles and self.kind == "cpu" and not is_half(node.attrs["dtype"])
        inplace = node.attrs.get("inplace", row.inplace)
        return KernelInfo(
            row.form,
            inplace,
            _scratch_bytes(row, _cached_choice(node, inputs, self.preferences)),
            tiles,
        )

    def kernel(self, node: Node, inputs: list[Value]) -> KernelFunction:
        """The function that computes `node`, whose inputs have the specs `inputs`.

        Errors: KernelError if the attributes or inputs are malformed.
        """
        row = self.choose(node, inputs).kernel
        if row.provider == PLAIN and node.row.uses_blas:
            thread_team.beside_blas()
        try:
            made = row.make(self.xp, _cached_choice(node, inputs, self.preferences))
        except HpcflowError:
            raise
        except MALFORMED as error:
            message = f"{node.type} cannot be computed as asked: {type(error).__name__}: {error}"
            raise KernelError(message, op=node.name, line=node.line) from error
        wrong = getattr(made, "wrong_index", None)
        if wrong is not None:
            wrong.op, wrong.line = node.name, node.line
            wrong.belongs_to(made)
            self.wrong_indices.append(wrong)
        return made

    def check_indices(self) -> None:
        """Call it after synchronizing. Errors: RangeError if a GPU kernel found a wrong index.

        Those of kernels that are gone are looked at once more, and forgotten.
        """
        if self.wrong_indices:
            gone = [wrong for wrong in self.wrong_indices if wrong.is_abandoned]
            errors = [wrong.error() for wrong in list(self.wrong_indices)]
            for wrong in gone:
                self.wrong_indices.remove(wrong)
            for error in filter(None, errors):
                raise error

    def uncaptured(self, node: Node, inputs: list[Value]) -> str:
        """Why a CUDA graph cannot hold the kernel that runs `node`; "" if it can."""
        return self.choose(node, inputs).kernel.uncaptured(
            _cached_choice(node, inputs, self.preferences)
        )

    @property
    def maker(self) -> KernelCompiler:
        """The compiler of the loops that are generated for this device."""
        return machine()

    def makes_loops(self) -> bool:
        """Whether loops are generated for it; with `exact` only loops that are bitwise exact."""
        return self.kind == "cpu" and not absent()

    def loop(self, text: str) -> Callable[..., None]:
        """The function of a generated update; it takes the first element, the last, and arrays."""
        return kernel_cache.builtin(text)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        """An uninitialized array; one of a page or more is aligned to `ALIGNED` bytes."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < PAGE or dtype.hasobject:
            return np.empty(shape, dtype)
        room = _ArrayMemory(nbytes + ALIGNED, np.uint8)
        return np.ndarray(shape, dtype, room, -data_address(room) % ALIGNED)

    def row_allocator(self, shape: tuple[int, ...], dtype: np.dtype) -> Callable[[], DeviceArray]:
        """A function that allocates arrays of one shape, small ones as rows of a larger array.

        That takes a third of the time of `allocate`. A row keeps the larger array in memory, and is
        aligned as its size allows.
        """
        rows = min(MAX_ROWS, MAX_ROWS_BYTES // max(1, math.prod(shape) * dtype.itemsize))
        if rows < 2 or not shape:
            return lambda: self.allocate(shape, dtype)
        arrays = map(lambda _: self.allocate((rows, *shape), dtype), itertools.repeat(None))
        return itertools.chain.from_iterable(arrays).__next__

    def limit(self, nbytes: int) -> None:
        """Set the limit of held memory to `nbytes`; 0: no limit."""
        self.held_memory.limit_to(nbytes)

    def reserved(self) -> int:
        """Bytes of device memory that its allocator has reserved, used or not; 0 if none."""
        return 0

    def hold(self, what: str, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        """An uninitialized array that outlives a step; it counts as held memory.

        Errors: MemoryError if there is not enough memory, or the limit would be exceeded.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        self.held_memory.ask(what, nbytes)
        array = self.allocate(shape, dtype)
        self.held_memory.keep(what, array, nbytes)
        return array

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        """An uninitialized array for a value of a step whose size is known only at run time."""
        if self.xp is not np or math.prod(shape) * dtype.itemsize < MIN_POOLED_BYTES:
            return self.allocate(shape, dtype)
        return self.pool.take(shape, dtype)

    def arena(self, nbytes: int) -> DeviceArray:
        """An arena for the buffers of a step; it starts at a multiple of `ALIGNED`."""
        room = self.hold("buffers", (nbytes + ALIGNED,), np.dtype(np.uint8))
        if not isinstance(room, np.ndarray):
            return room
        start = -room.ctypes.data % ALIGNED
        return room[start : start + nbytes]

    def host_empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Uninitialized host memory for messages, of the kind that this device copies fastest."""
        return np.empty(shape, dtype)

    def to_host(self, array: DeviceArray) -> np.ndarray:
        """`array` as a NumPy array; a copy unless it already is one."""
        return array

    def from_host(self, array: np.ndarray) -> DeviceArray:
        """A NumPy array as an array of this device."""
        return array

    def copied(self, array: DeviceArray) -> DeviceArray:
        """A copy of an array of this device, on this device."""
        if self.xp is None:
            return self.from_host(np.array(self.to_host(array)))
        return self.xp.array(array)

    def lent(self, array: DeviceArray, holder: DeviceArray) -> DeviceArray:
        """An alias of the memory of `array`; it and all views of it keep `holder` alive."""
        holder.__array_interface__ = array.__array_interface__
        return np.asarray(holder).view(array.dtype)

    def computes(self) -> bool:
        """Whether kernels that were launched are still running asynchronously."""
        return False

    def finish(self) -> None:
        """Wait for the kernels that were launched."""

    def trim(self) -> None:
        """Return free memory to the system."""
        self.pool.clear()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)

    def view(
        self, block: DeviceArray, shape: tuple[int, ...], dtype: np.dtype, start: int = 0
    ) -> DeviceArray:
        """An array in a block of bytes from `allocate`, starting at byte `start`."""
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return block[start : start + count].view(dtype).reshape(shape)


def _cached_choice(node: Node, inputs: list[Value], preferences: KernelPreferences) -> KernelNode:
    return KernelNode(node.type, node.attrs, inputs, node.specs, preferences.tf32)


def _scratch_bytes(row: Kernel, node: KernelNode) -> tuple[Spec, ...]:
    """The scratch memory of a kernel, if its sizes are known.

    Plain kernels of 16-bit floats allocate their own: the result is empty for them.
    """
    specs = (*node.inputs, *node.outputs)
    widened = row.provider == PLAIN and any(is_half(spec.dtype) for spec in specs)
    if widened or not all(is_known(spec.shape) for spec in specs):
        return ()
    return tuple(Spec(np.dtype(dtype), tuple(shape)) for dtype, shape in row.scratch(node))


class GpuDevice(Device):
    """A GPU by CuPy: the same kernels with `xp = cupy`."""

    kind = "gpu"
    captures = True

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        try:
            import cupy
        except ImportError as error:
            raise MissingPackageError(
                "gpu devices need the package cupy",
                hint=install_hint("cuda12", "cuda13"),
            ) from error
        if not cupy.is_available():
            raise DeviceError("cupy sees no GPU", hint="check nvidia-smi and CUDA_VISIBLE_DEVICES")
        self.xp = cupy
        cupy.cuda.Device(index).use()

    @property
    def maker(self) -> KernelCompiler:
        """The compiler of the loops that are generated for this device."""
        from hpcflow.codegen import ptx_compiler  # only a rank with a GPU needs it

        return ptx_compiler.gpu(self.xp.cuda)

    def makes_loops(self) -> bool:
        """Whether loops are generated for it; not with `exact`, as they may round unlike CuPy."""
        from hpcflow.codegen import ptx_compiler

        why = absent() or ptx_compiler.absent() or ptx_compiler.too_old(self.xp.cuda)
        return not (self.preferences.exact or why)

    def loop(self, text: str) -> Callable[..., None]:
        """The function of a generated update; it takes the first element, the last, and arrays."""
        return kernel_cache.loop_on_gpu(self.xp.cuda, text)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
        """An uninitialized array in GPU memory."""
        return self.xp.empty(shape, dtype)

    def limit(self, nbytes: int) -> None:
        """Set the limit of held memory to `nbytes`.

        It includes temporary values of kernels, but not those of CUDA graphs.
        """
        super().limit(nbytes)
        self.xp.get_default_memory_pool().set_limit(size=nbytes)

    def reserved(self) -> int:
        """Bytes that CuPy's memory pool has reserved; it grows on demand and does not shrink."""
        return int(self.xp.get_default_memory_pool().total_bytes())

    def host_empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Pinned host memory, which the GPU copies without an intermediate buffer."""
        import cupyx

        return cupyx.empty_pinned(shape, dtype)

    def to_host(self, array: DeviceArray) -> np.ndarray:
        """A copy in pinned host memory."""
        host = self.host_empty(array.shape, array.dtype)
        array.get(out=host)
        return host

    def from_host(self, array: np.ndarray) -> DeviceArray:
        """A copy in GPU memory."""
        return self.xp.asarray(array)

    def lent(self, array: DeviceArray, holder: DeviceArray) -> DeviceArray:
        """An alias of the memory of `array`; it and all views of it keep `holder` alive."""
        cuda = self.xp.cuda
        memory = cuda.UnownedMemory(array.data.ptr, array.nbytes, holder, self.index)
        return self.xp.ndarray(array.shape, array.dtype, cuda.MemoryPointer(memory, 0))

    def computes(self) -> bool:
        """Whether kernels that were launched are still running asynchronously."""
        return not self.xp.cuda.get_current_stream().done

    def trim(self) -> None:
        """Return free memory to the GPU and to the system."""
        self.xp.get_default_memory_pool().free_all_blocks()
        self.xp.get_default_pinned_memory_pool().free_all_blocks()

    def finish(self) -> None:
        """Wait for the kernels that were launched."""
        self.xp.cuda.get_current_stream().synchronize()


def device_of(node: Node, task: str, devices: Mapping[str, Device]) -> Device:
    """The device of `task` that a node runs on.

    Errors: KernelError if the task has no device of that name.
    """
    name = node.device.removeprefix(task + "/")
    if name not in devices:
        raise KernelError(f"{task} has no device {name}", op=node.name, line=node.line)
    return devices[name]


_FACTORIES: dict[str, Callable[[int], Device]] = {"cpu": Device, "gpu": GpuDevice}


def register_device(kind: str, factory: Callable[[int], Device]) -> None:
    """Give every rank a device `kind:0`, made by `factory(0)`; call it before the first session."""
    _FACTORIES[kind] = factory


def make_device(
    name: str, preferences: KernelPreferences | None = None, memory_limit: int | None = None
) -> Device:
    """The device of a name such as `cpu:0`, with these preferences of kernels if given.

    `memory_limit` bounds the bytes that it holds; 0: no bound.

    Errors: DeviceError if its kind is not registered.
    """
    kind, _, index = name.partition(":")
    if kind not in _FACTORIES:
        raise DeviceError(
            f"there is no device kind {kind!r}",
            hint=f"known: {', '.join(sorted(_FACTORIES))}; add one with hf.register_device",
        )
    device = _FACTORIES[kind](int(index or 0))
    if preferences is not None:
        device.preferences = preferences
    if memory_limit is not None:
        device.limit(memory_limit)
    return device


def device_names(server: bool, index: int) -> list[str]:
    """The devices of a rank by their numbers on the node, its default first.

    A worker has the GPU of its index on the node.

    Servers, and ranks without CuPy, have no GPU. Errors: DeviceError if the node has several GPUs
    but fewer than workers.
    """
    custom_devices = [f"{kind}:0" for kind in _FACTORIES if kind not in ("cpu", "gpu")]
    if server or importlib.util.find_spec("cupy") is None:
        return ["cpu:0", *custom_devices]
    import cupy

    if not cupy.is_available():
        return ["cpu:0", *custom_devices]
    count = cupy.cuda.runtime.getDeviceCount()
    if count > 1 and index >= count:
        raise DeviceError(
            f"worker {index} of this node has no GPU: there are {count}",
            hint="start one worker a GPU, or show each rank its own (CUDA_VISIBLE_DEVICES)",
        )
    return [f"gpu:{index if count > 1 else 0}", "cpu:0", *custom_devices]


class DeviceAttributes(NamedTuple):
    """A device that steps may use: its full name, and "CPU" or "GPU"."""

    name: str
    device_type: str


def device_attributes(cluster: Cluster) -> list[DeviceAttributes]:
    """The devices of all tasks of a cluster."""
    attrs = []
    for task in cluster.tasks():
        devices = cluster.server_devices if task.startswith("/job:ps") else cluster.devices
        attrs += [DeviceAttributes(f"{task}/{d}", d.partition(":")[0].upper()) for d in devices]
    return attrs
