"""Result files: files of a run, written atomically, with versions of the software."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.launch.launcher_detection import short_version


def versions() -> dict[str, str]:
    """The versions of the software that computed the result."""
    packages = [name for name in ("hpcflow", "numpy", "mpi4py", "cupy") if name in sys.modules]
    by_package: dict[str, str] = {name: sys.modules[name].__version__ for name in packages}
    by_package["python"] = platform.python_version()
    if "mpi4py.MPI" in sys.modules:
        from hpcflow.comm.mpi_library import build_facts

        by_package["MPI"] = short_version(build_facts())
    return by_package


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON atomically."""
    write_text(path, json.dumps(value, indent=1, default=_plain) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it: a pipe of this name does not block.

    Errors: OSError; then no draft is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_output(path: Path, text: str) -> None:
    """Write a file that the user named: as `write_text`, but a link keeps its place.

    What is no plain file, such as /dev/stdout or a pipe, is written to.
    Errors: OSError that names `path`, also for a pipe that nobody reads.
    """
    try:
        if _is_stream(path):
            with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "w", encoding="utf-8") as file:
                os.set_blocking(file.fileno(), True)
                file.write(text)
        else:
            write_text(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe, or another name of an open file."""
    is_open_file = os.fspath(path).startswith(("/dev/std", "/dev/fd/", "/proc/"))
    return is_open_file or (path.exists() and not path.is_file() and not path.is_dir())


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays as JSON values."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"a result holds numbers, strings, lists and dicts, not {type(value).__name__}")
