"""Kernel cache in memory and on disk: other ranks of the node and later runs load compiled kernels.

A file has the object code of the kernels of one plan.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from hpcflow.codegen.llvm_cpu_compiler import machine
from hpcflow.platform import artifact_cache
from hpcflow.platform.artifact_cache import CacheFolder

NAME = "@NAME"  # the placeholder of the function's name in the LLVM IR of a kernel


class KernelCompiler(Protocol):
    """A compiler of LLVM IR: `CpuCompiler`, `PtxCompiler`."""

    identity: str

    def build(self, texts: Iterable[str]) -> bytes:
        """The object code of several modules linked together."""

    def load(self, code: bytes, names: Iterable[str]) -> None:
        """Load object code, so that the kernels `names` in it can be called."""


_lock = threading.Lock()  # one thread at a time compiles
_loaded: set[tuple[Any, str]] = set()  # (compiler, name of a function)
compiled, loaded, seconds = 0, 0, 0.0  # kernels so far, and the time they have taken
folder: CacheFolder | None = None  # the directory of cache files; None: cache in memory only


def name_of(text: str) -> str:
    """The function name of a kernel, a hash of its LLVM IR."""
    return f"k{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def prepare(texts: Iterable[str], here: KernelCompiler | None = None) -> None:
    """Compile or load the kernels of these texts; those missing are compiled together.

    They are for this CPU, or for the GPU `here`.
    """
    global seconds
    with _lock:
        missing = {name_of(text): text for text in texts}
        here = here or machine()
        missing = {n: missing[n] for n in sorted(missing) if (here, n) not in _loaded}
        if missing:
            start = time.perf_counter()
            here.load(_code(here, missing), missing)
            _loaded.update((here, name) for name in missing)
            seconds += time.perf_counter() - start


@functools.cache
def builtin(text: str) -> Callable[..., Any]:
    """The compiled function of a kernel's text, with the arguments its generator documents."""
    prepare([text])
    return machine().builtin(name_of(text))


def on_gpu(cuda: Any, text: str, part: str = "") -> Callable[..., None]:
    """The GPU function of a kernel's text, with name suffix `part`: `f(grid, block, args)`."""
    from hpcflow.codegen import ptx_compiler  # only a rank with a GPU needs it

    here = ptx_compiler.gpu(cuda)
    prepare([text], here)
    return here.kernel(name_of(text), part)


def loop_on_gpu(cuda: Any, text: str) -> Callable[..., None]:
    """The GPU function of an update's text: call it with 0, the element count, arrays."""
    from hpcflow.codegen import ptx_codegen  # only a rank with a GPU needs it

    run = on_gpu(cuda, text)
    count = on_gpu(cuda, text, "_count") if f"{NAME}_count" in text else None

    def call(first: int, last: int, *arrays: Any) -> None:
        how, arguments = ptx_codegen.flat(last), (*arrays, last)
        run(how.grid, how.block, arguments)
        if count is not None:  # after all threads have read the count
            count((1, 1), (1, 1), arguments)

    return call


def use(path: str) -> None:
    """Cache files in the folder `path`; by default in the user's cache folder."""
    global folder
    folder = artifact_cache.own_cache(artifact_cache.KERNELS, path)


def _code(here: KernelCompiler, texts: dict[str, str]) -> bytes:
    """The object code of kernels by name, from the cache file or compiled and cached."""
    global loaded
    if folder is None:
        return _built(here, texts)
    key = hashlib.sha256(f"{here.identity} {' '.join(texts)}".encode()).hexdigest()
    code = folder.read(key)
    if code is None:
        with folder.turn("kernels"):
            code = folder.read(key)
            if code is None:
                code = _built(here, texts)
                folder.write(key, code)
                return code
    loaded += len(texts)
    return code


def _built(here: KernelCompiler, texts: dict[str, str]) -> bytes:
    global compiled
    compiled += len(texts)
    return here.build(text.replace(NAME, f"@{name}") for name, text in texts.items())
