"""A double of CuPy in host memory, as strict as a GPU about streams, capture and freed memory.

What is launched waits in the queue of its stream, and runs when somebody waits for it or, on
streams that are `eager`, as soon as events let it: so what lacks an event reads what is too old or
too new.
A capturing stream runs nothing. CuPy's refusals are CuPy's: of cuBLAS and cuSOLVER, copies from and
to the host, and waiting. A graph's launches name memory, not values; memory that was freed is
filled with NaN, and a launch that names it is an error, unless it lies in a private pool.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import inspect
import operator
import sys
import threading
import types
import weakref

import numpy as np

POISON = 0xFF  # NaN of floats, -1 of integers
BLAS = frozenset("matmul dot vdot inner outer tensordot einsum".split())
SIZED = frozenset(  # what they make is as large as values say, so the host waits for them
    "nonzero flatnonzero argwhere unique bincount repeat extract compress".split()
)
MADE = frozenset("empty zeros ones full arange eye linspace empty_like zeros_like".split())


_lock = threading.RLock()  # of all queues


class CudaError(RuntimeError):
    """CUDARuntimeError."""


class Stream:
    def __init__(self, null=False, non_blocking=False):
        assert null or non_blocking, "the null stream would wait for it"
        self.ptr, self.queue, self.capture = 0 if null else id(self), collections.deque(), None
        gpu.streams.append(self)

    def __enter__(self):
        gpu.current.append(self)
        return self

    def __exit__(self, *error):
        assert gpu.current.pop() is self

    @property
    def done(self):
        return not self.queue

    def add(self, work, named=()):
        """Launch `work`, which names the blocks of memory `named`."""
        if self.capture is not None:
            self.capture.append((work, [weakref.ref(b) for b in named], [b.pool for b in named]))
            return
        with _lock:
            self.queue.append(work)
            for stream in gpu.streams:
                if ("null" if not stream.ptr else "others") in gpu.eager:
                    stream.run()

    def run(self, until=None):
        """Do what was launched, in order, up to the recording `until`."""
        with _lock:
            while self.queue and (until is None or not until.over):
                self.queue.popleft()()

    def synchronize(self):
        refuse_in_capture("cudaErrorStreamCaptureUnsupported: synchronize")
        self.run()

    def wait_event(self, event):
        recording = event.last
        if recording is not None and recording.stream is not self:
            self.add(lambda: recording.stream.run(until=recording))

    def begin_capture(self, mode=None):
        if not self.ptr:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        assert self.capture is None and gpu.current[-1] is self
        self.capture = []

    def end_capture(self):
        calls, self.capture = self.capture, None
        if any(call is None for call, _, _ in calls):
            raise CudaError("cudaErrorStreamCaptureInvalidated")
        return Graph(calls)


class Recording:
    def __init__(self, stream):
        self.stream, self.over = stream, False

    def __call__(self):
        self.over = True


class Event:
    def __init__(self, block=False, disable_timing=False):
        self.last = None

    def record(self, stream=None):
        stream = stream or gpu.current[-1]
        assert stream.capture is None
        self.last = Recording(stream)
        stream.add(self.last)

    def synchronize(self):
        refuse_in_capture("cudaErrorStreamCaptureUnsupported: event")
        if self.last is not None:
            self.last.stream.run(until=self.last)


class Graph:
    def __init__(self, calls):
        self.calls = calls
        gpu.captures += 1

    def launch(self, stream=None):
        stream = stream or gpu.current[-1]
        assert stream.capture is None
        gpu.launches += 1
        for work, named, pools in self.calls:
            for block, pool in zip(named, pools, strict=True):
                if (block() if pool is None else pool()) is None:
                    raise CudaError("illegal memory access: a graph names freed memory")
            stream.add(work)


def refuse_in_capture(why, kind=CudaError):
    stream = gpu.current[-1]
    if stream.capture is not None:
        stream.capture.append((None, (), ()))
        raise kind(why)


class MemoryPool:
    def __init__(self):
        self.used = 0

    def malloc(self, nbytes):
        self.used += nbytes
        return weakref.ref(self)

    def total_bytes(self):
        return self.used

    def set_limit(self, size):
        self.limit = size

    def free_all_blocks(self):
        pass


class Block:
    """Memory of the GPU; arrays hold it, launches do not."""

    def __init__(self, nbytes):
        self.memory = np.full(nbytes, POISON, np.uint8)
        self.pool = gpu.allocators[-1](nbytes) if gpu.allocators else None
        stream = gpu.current[-1] if self.pool is None else gpu.null
        weakref.finalize(self, _freed, self.memory, stream).atexit = False


def _freed(memory, stream):
    stream.queue.append(lambda: memory.fill(POISON))


class ndarray:
    """Device memory: `raw` is NumPy's array of it, which only what runs may look at."""

    __slots__ = ("__weakref__", "block", "raw")

    def __init__(self, raw, block):
        self.raw, self.block = raw, block

    shape = property(lambda self: self.raw.shape)
    dtype = property(lambda self: self.raw.dtype)
    size = property(lambda self: self.raw.size)
    ndim = property(lambda self: self.raw.ndim)
    nbytes = property(lambda self: self.raw.nbytes)
    itemsize = property(lambda self: self.raw.itemsize)
    strides = property(lambda self: self.raw.strides)
    flags = property(lambda self: self.raw.flags)
    T = property(lambda self: self.transpose())
    real = property(lambda self: launch(np.real, self))
    imag = property(lambda self: launch(np.imag, self))
    data = property(lambda self: types.SimpleNamespace(ptr=self.raw.ctypes.data))
    __hash__ = None

    def __len__(self):
        return len(self.raw)

    def __iter__(self):
        return (self[i] for i in range(len(self.raw)))

    def __array__(self, *given, **options):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc, method, *given, out=None, **options):
        assert method == "__call__"
        return launch(ufunc, *given, out=out[0] if out else None, **options)

    def read(self):
        """The values, for the host."""
        refuse_in_capture("cudaErrorStreamCaptureUnsupported: a copy to the host")
        gpu.current[-1].run()
        return self.raw.copy()

    def get(self, stream=None, order="C", out=None, blocking=True):
        if blocking:
            found = self.read()
            if out is not None:
                out[...] = found
            return found if out is None else out
        refuse_in_capture("cudaErrorStreamCaptureUnsupported: a copy to the host")
        raw, target = self.raw, unheld(out)
        gpu.current[-1].add(lambda: np.copyto(target, raw))
        return out

    def set(self, array, stream=None):
        refuse_in_capture("H2D transfers are disallowed")
        raw, source = self.raw, unheld(array)
        (stream or gpu.current[-1]).add(lambda: np.copyto(raw, source))
        if stream is None:
            gpu.current[-1].run()

    def fill(self, value):
        self[...] = value

    def astype(self, dtype, copy=True, **options):
        if not copy and self.dtype == dtype:
            return self
        return launch(np.ndarray.astype, self, dtype)

    def __getitem__(self, key):
        return launch(operator.getitem, self, key)

    def __setitem__(self, key, value):
        launch(_assign, self, key, value, out=self)

    def __bool__(self):
        return bool(self.read())

    def __int__(self):
        return int(self.read())

    __index__ = __int__

    def __float__(self):
        return float(self.read())

    def item(self, *place):
        return self.read().item(*place)

    def tolist(self):
        return self.read().tolist()

    def __getattr__(self, name):
        method = getattr(np.ndarray, name)  # AttributeError of NumPy's
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **options: launch(method, self, *given, **options)


def _assign(array, key, value):
    array[key] = value


def _operators():
    """Those of arrays, each a launch."""
    for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split():
        of = getattr(operator, {"and": "and_", "or": "or_"}.get(name, name))
        ufunc = {
            "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "mod": "remainder",
            "floordiv": "floor_divide", "pow": "power", "and": "bitwise_and", "or": "bitwise_or",
            "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
        }.get(name, name)  # fmt: skip
        inplace = getattr(np, ufunc)
        setattr(ndarray, f"__{name}__", lambda a, b, of=of: launch(of, a, b))
        setattr(ndarray, f"__r{name}__", lambda a, b, of=of: launch(of, b, a))
        setattr(ndarray, f"__i{name}__", lambda a, b, u=inplace: launch(u, a, b, out=a))
    for name in "lt le eq ne gt ge".split():
        of = getattr(operator, name)
        setattr(ndarray, f"__{name}__", lambda a, b, of=of: launch(of, a, b))
    for name in "neg invert abs".split():
        of = getattr(operator, name)
        setattr(ndarray, f"__{name}__", lambda a, of=of: launch(of, a))


_operators()


def unheld(array):
    """A pinned array as one that does not keep it: the GPU does not know who holds it."""
    address = array.ctypes.data
    for memory in gpu.pinned:
        start = address - memory.ctypes.data
        if 0 <= start <= memory.nbytes - array.nbytes:
            return np.ndarray(array.shape, array.dtype, memory, start, array.strides)
    raise AssertionError("the memory is not pinned: the copy would be waited for")


def empty_pinned(shape, dtype):
    """Pinned host memory, which others get when nobody holds it."""
    dtype = np.dtype(dtype)
    memory = np.full(max(int(np.prod(shape)) * dtype.itemsize, 1), POISON, np.uint8)
    gpu.pinned.append(memory)
    lent = (ctypes.c_char * memory.nbytes).from_address(memory.ctypes.data)
    weakref.finalize(lent, _unpinned, memory, gpu.pinned).atexit = False
    return np.ndarray(shape, dtype, lent)


def _unpinned(memory, pinned):
    memory.fill(POISON)
    pinned[:] = [other for other in pinned if other is not memory]


def new(shape, dtype):
    dtype = np.dtype(dtype)
    block = Block(int(np.prod(shape)) * dtype.itemsize)
    return ndarray(np.ndarray(shape, dtype, block.memory), block)


def launch(function, *given, out=None, **options):
    """What `function` of NumPy makes of arrays of the GPU, when the stream comes to it."""
    if getattr(function, "__name__", "") in BLAS:
        refuse_in_capture("calling cuBLAS API during stream capture", NotImplementedError)
    if _is_sized(function, given):
        refuse_in_capture("cudaErrorStreamCaptureUnsupported: a size is copied to the host")
        gpu.current[-1].run()
    if function is np.matmul and len(given) > 2:
        raise TypeError("_try_fastcall_matmul() got multiple values for argument 'out'")
    place = _place_of_out(function)
    if place is not None and len(given) > place:
        out = given[place]
    elif place is not None and out is not None:
        options["out"] = out
    blocks = []

    def raw(x):
        if isinstance(x, ndarray):
            blocks.append(x.block)
            return x.raw
        if isinstance(x, (list, tuple)):
            return type(x)(map(raw, x))
        if isinstance(x, np.ndarray):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>: a host array")
        return x

    arrays, named = raw(given), {key: raw(value) for key, value in options.items()}
    if out is not None:
        if not isinstance(out, ndarray):
            raise TypeError("the output is no array of the GPU")
        gpu.current[-1].add(quietly(lambda: function(*arrays, **named)), blocks)
        return out
    probe = _probe(function, arrays, named)
    if isinstance(probe, (tuple, list)):
        found = [_launched(i, p, function, arrays, named, blocks) for i, p in enumerate(probe)]
        return type(probe)(found) if type(probe) in (tuple, list) else tuple(found)
    return _launched(None, probe, function, arrays, named, blocks)


def _probe(function, arrays, named):
    """What `function` makes of what is in memory now: its shape and dtype are those of its result.

    Indices that are not computed yet may be outside of an array: 0 is not.
    """
    try:
        return quietly(lambda: function(*arrays, **named))()
    except IndexError:
        zeroed = [np.zeros_like(x) if _holds_integers(x) else x for x in arrays]
        return quietly(lambda: function(*zeroed, **named))()


def _holds_integers(x):
    return isinstance(x, np.ndarray) and x.dtype.kind in "iu"


@functools.cache
def _place_of_out(function):
    """Where a function takes the array that it writes, if it may be given so."""
    if isinstance(function, np.ufunc):
        return function.nin
    if function is np.copyto:
        return 0
    try:
        names = [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        return None
    return names.index("out") if "out" in names else None


def _is_sized(function, given):
    """Whether the size of what is taken or set depends on values."""
    if function in (operator.getitem, _assign):
        keys = given[1] if isinstance(given[1], tuple) else (given[1],)
        is_mask = any(isinstance(key, ndarray) and key.dtype == bool for key in keys)
        return is_mask and (function is not _assign or np.ndim(getattr(given[2], "raw", 0)) > 0)
    return getattr(function, "__name__", "") in SIZED


def _launched(at, probe, function, arrays, named, blocks):
    if not isinstance(probe, (np.ndarray, np.generic)):
        return probe
    for block in blocks:
        if isinstance(probe, np.ndarray) and np.may_share_memory(probe, block.memory):
            start = probe.ctypes.data - block.memory.ctypes.data
            place = (probe.shape, probe.dtype, block.memory, start, probe.strides)
            return ndarray(np.ndarray(*place), block)
    made = new(probe.shape, probe.dtype)
    target = made.raw

    def work():
        found = function(*arrays, **named)
        target[...] = found if at is None else found[at]

    gpu.current[-1].add(quietly(work), [*blocks, made.block])
    return made


def quietly(work):
    def run():
        with np.errstate(all="ignore"):
            return work()

    return run


def as_strided(x, shape, strides):
    """A view, which tells its reader nothing of where it ends."""
    start = x.raw.ctypes.data - x.block.memory.ctypes.data
    return ndarray(np.ndarray(shape, x.dtype, x.block.memory, start, strides), x.block)


class Module(types.ModuleType):
    """cupy: NumPy's functions on device memory."""

    ndarray = ndarray
    lib = types.SimpleNamespace(stride_tricks=types.SimpleNamespace(as_strided=as_strided))

    def __getattr__(self, name):
        if name in ("linalg", "fft"):
            return _Library(name)
        of_numpy = getattr(np, name)
        if isinstance(of_numpy, type) or not callable(of_numpy):
            return of_numpy
        if name in MADE:
            return lambda *given, **options: self._new(of_numpy, *given, **options)

        def function(*given, **options):
            return launch(of_numpy, *given, **options)

        function.at = lambda array, *given: launch(of_numpy.at, array, *given, out=array)
        return function

    def _new(self, function, *given, **options):
        probe = function(*[x.raw if isinstance(x, ndarray) else x for x in given], **options)
        made = new(probe.shape, probe.dtype)
        if "empty" not in function.__name__:
            target = made.raw
            gpu.current[-1].add(lambda: np.copyto(target, probe), [made.block])
        return made

    def asarray(self, x, dtype=None):
        if isinstance(x, ndarray):
            return x if dtype in (None, x.dtype) else x.astype(dtype)
        return self.array(x, dtype)

    def ascontiguousarray(self, x, dtype=None):
        return launch(np.ascontiguousarray, x, dtype=dtype)

    def array(self, x, dtype=None, copy=True):
        if isinstance(x, ndarray):
            return launch(np.array, x, dtype)
        if isinstance(x, (list, tuple)) and any(isinstance(e, ndarray) for e in x):
            return launch(np.stack, list(x))
        host = np.array(x, dtype)
        if host.ndim:  # a number is filled in
            refuse_in_capture("H2D transfers are disallowed")
        made = new(host.shape, host.dtype)
        target = made.raw
        gpu.current[-1].add(lambda: np.copyto(target, host), [made.block])
        return made

    def asnumpy(self, x):
        return x.get()

    def is_available(self):
        return True

    def get_default_memory_pool(self):
        return gpu.pool

    get_default_pinned_memory_pool = get_default_memory_pool


class _Library:
    """cuSOLVER's or cuFFT's routines."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        of_numpy = getattr(getattr(np, self.name), name)

        def function(*given, **options):
            why = f"calling a library of {self.name} during stream capture"
            refuse_in_capture(why, NotImplementedError)
            gpu.current[-1].run()
            return launch(of_numpy, *given, **options)

        return function


class Gpu:
    """The one GPU: its streams and what is current."""

    def __init__(self, eager=()):
        self.eager = frozenset(eager)  # of "null" and "others": streams that do not wait

    def start(self):
        self.streams, self.pinned, self.captures, self.launches = [], [], 0, 0
        self.null, self.pool = Stream(null=True), MemoryPool()
        self.threads = threading.local()

    @property
    def current(self):
        """The streams that this thread has made current, the last one in force."""
        return self.threads.__dict__.setdefault("current", [self.null])

    @property
    def allocators(self):
        return self.threads.__dict__.setdefault("allocators", [])


gpu = Gpu()


def launched(kernel):
    """A kernel that runs when its stream comes to it; `kernel(grid, block, arguments)`."""

    def call(self, grid, block, given):
        raw = [x.raw if isinstance(x, ndarray) else x for x in given]
        named = [x.block for x in given if isinstance(x, ndarray)]
        gpu.current[-1].add(lambda: kernel(self, grid, block, raw), named)

    return call


@contextlib.contextmanager
def using_allocator(allocator):
    gpu.allocators.append(allocator)
    try:
        yield
    finally:
        gpu.allocators.pop()


def install(monkeypatch, eager=()):
    """Put the double in the place of cupy and cupyx; the module."""
    global gpu
    gpu = Gpu(eager)
    gpu.start()
    cupy, cupyx = Module("cupy"), types.ModuleType("cupyx")
    cupy.cuda = types.ModuleType("cupy.cuda")
    cupy.cuda.Stream, cupy.cuda.Event, cupy.cuda.MemoryPool = Stream, Event, MemoryPool
    cupy.cuda.using_allocator = lambda allocator: using_allocator(allocator)  # of this module, now
    cupy.cuda.get_current_stream = lambda: gpu.current[-1]
    cupy.cuda.Device = lambda index=0: types.SimpleNamespace(
        use=lambda: None, compute_capability="90"
    )
    cupyx.empty_pinned = empty_pinned
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupyx", cupyx)
    return cupy
