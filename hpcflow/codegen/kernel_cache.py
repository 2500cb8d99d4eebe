"""Kernels in memory and on disk: what one rank has compiled, its node's others and later runs load.

A file holds the object code of the kernels that one plan needs.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from hpcflow.codegen import ptx_codegen, ptx_compiler
from hpcflow.codegen.llvm_cpu_compiler import machine
from hpcflow.platform import artifact_cache
from hpcflow.platform.artifact_cache import Folder

NAME = "@NAME"  # in a kernel's text, where the name of its function is to stand


class Maker(Protocol):
    """What makes code of kernels' texts: `native.machine` for processors, `native.ptx` for GPUs."""

    identity: str

    def build(self, texts: Iterable[str]) -> bytes:
        """The code of several modules together."""

    def load(self, code: bytes, names: Iterable[str]) -> None:
        """Make the kernels of some code, which have these names, ready to be called."""


_lock = threading.Lock()  # one compiler, whatever threads ask for kernels
_loaded: set[tuple[Any, str]] = set()  # for what, and names of functions
compiled, loaded, seconds = 0, 0, 0.0  # kernels so far, and how long that has taken
folder: Folder | None = None  # where files are; None: kernels are kept in memory alone


def name_of(text: str) -> str:
    """The name of the function that a kernel's text makes."""
    return f"k{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def prepare(texts: Iterable[str], here: Maker | None = None) -> None:
    """Have the kernels of these texts compiled or loaded, together those that are not.

    They are for this processor, or for the GPU `here`.
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
    """The function of a kernel's text, called with the objects that the text tells."""
    prepare([text])
    return machine().builtin(name_of(text))


def on_gpu(cuda: Any, text: str, part: str = "") -> Callable[..., None]:
    """The function of a kernel's text, or a part of it: `f(grid, block, arguments)`, by CuPy."""
    here = ptx_compiler.gpu(cuda)
    prepare([text], here)
    return here.kernel(name_of(text), part)


def loop_on_gpu(cuda: Any, text: str) -> Callable[..., None]:
    """The function of an update's text: of 0, the number of elements, and arrays."""
    run = on_gpu(cuda, text)
    count = on_gpu(cuda, text, "_count") if f"{NAME}_count" in text else None

    def call(first: int, last: int, *arrays: Any) -> None:
        how, given = ptx_codegen.flat(last), (*arrays, last)
        run(how.grid, how.block, given)
        if count is not None:  # behind all that have asked
            count((1, 1), (1, 1), given)

    return call


def use(path: str) -> None:
    """Keep files in the folder `path`; by default in one of the user's folder of caches."""
    global folder
    folder = artifact_cache.own(artifact_cache.KERNELS, path)


def _code(here: Maker, texts: dict[str, str]) -> bytes:
    """The object code of kernels, by name: from its file, or compiled and put there."""
    global loaded
    if folder is None:
        return _built(here, texts)
    key = hashlib.sha256(f"{here.identity} {' '.join(texts)}".encode()).hexdigest()
    found = folder.read(key)
    if found is None:
        with folder.turn("kernels"):
            found = folder.read(key)
            if found is None:
                found = _built(here, texts)
                folder.write(key, found)
                return found
    loaded += len(texts)
    return found


def _built(here: Maker, texts: dict[str, str]) -> bytes:
    global compiled
    compiled += len(texts)
    return here.build(text.replace(NAME, f"@{name}") for name, text in texts.items())
