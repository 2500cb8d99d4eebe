"""Kernels in memory and on disk: what one rank has compiled, its node's others and later runs load.

A file holds the object code of the kernels that one plan needs, behind a digest that tells a file
that was cut short. It is code that will run, so the folder has to be the user's own, and writable
by nobody else.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hpcflow.logs import logger
from hpcflow.native.machine import Machine, machine

NAME = "@NAME"  # in a kernel's text, where the name of its function is to stand
DIGEST = hashlib.sha256().digest_size
MOST_FILES = 2048  # in the folder; the oldest are removed
PATIENCE_S = 60.0  # to wait for the rank that compiles

_lock = threading.Lock()  # one compiler, whatever threads ask for kernels
_loaded: set[str] = set()  # names of functions
folder: Path | None = None  # where files are; None: kernels are kept in memory alone


def name_of(text: str) -> str:
    """The name of the function that a kernel's text makes."""
    return f"k{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def prepare(texts: Iterable[str]) -> None:
    """Have the kernels of these texts compiled or loaded, together those that are not."""
    with _lock:
        missing = {name_of(text): text for text in texts}
        missing = {name: missing[name] for name in sorted(missing) if name not in _loaded}
        if missing:
            here = machine()
            here.load(_code(here, missing))
            _loaded.update(missing)


@functools.cache
def builtin(text: str) -> Callable[..., Any]:
    """The function of a kernel's text, called with the objects that the text tells."""
    prepare([text])
    return machine().builtin(name_of(text))


def use(path: str) -> None:
    """Keep files in the folder `path`; by default in one of the user's folder of caches."""
    global folder
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = Path(path or os.path.join(home, "hpcflow", "kernels"))
    folder = place if path != "none" and _is_own(place) else None


def _is_own(place: Path) -> bool:
    """Whether a folder, made if need be, is the user's own; one line says so if it is not."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.stat()
    except OSError as error:
        why = error.strerror or str(error)
    else:
        if found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return True
        why = "others may write there"
    logger.warning(
        "compiled kernels are not kept in %s (%s): each rank and run compiles its own\n"
        "  next  set HPCFLOW_KERNEL_CACHE to a folder of yours with mode 700, or to none",
        place,
        why,
    )
    return False


def _code(here: Machine, texts: dict[str, str]) -> bytes:
    """The object code of kernels, by name: from its file, or compiled and put there."""
    if folder is None:
        return _built(here, texts)
    key = hashlib.sha256(f"{here.identity} {' '.join(texts)}".encode()).hexdigest()
    path = folder / f"{key}.o"
    found = _read(path)
    if found is None:
        with _turn():
            found = _read(path)
            if found is None:
                found = _built(here, texts)
                _write(path, found)
    return found


def _built(here: Machine, texts: dict[str, str]) -> bytes:
    return here.build(text.replace(NAME, f"@{name}") for name, text in texts.items())


def _read(path: Path) -> bytes | None:
    """What a file holds; None if it is not there, or not whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, code = data[:DIGEST], data[DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    """Put a file there as a whole; one that cannot be written is done without."""
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(file.name, path)
        files = list(path.parent.glob("*.o"))
        if len(files) > MOST_FILES:
            files.sort(key=lambda file: file.stat().st_mtime)
            for old in files[: MOST_FILES // 4]:
                old.unlink()


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """One process of a node at a time compiles, while the others wait for what it makes.

    The lock is a file of the node, so that nodes do not ask a file system they share for it.
    """
    name = os.path.join(tempfile.gettempdir(), f"hpcflow-{os.geteuid()}-kernels.lock")
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(name, flags, 0o600)
    except OSError:  # somebody else's, or there is no room: each compiles for itself
        yield
        return
    try:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.01)
        yield
    finally:
        os.close(file)
