"""File access `hf.gfile`: files and folders by TensorFlow 1's names, on mounted file systems.

Errors: Python's, for example FileNotFoundError.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from typing import Any

from hpcflow.errors import ArgumentError
from hpcflow.platform.exception_translation import translate_module, user_line, value_text

__all__ = [
    *("Copy", "DeleteRecursively", "Exists", "FastGFile", "GFile", "Glob", "IsDirectory"),
    *("ListDirectory", "MakeDirs", "MkDir", "Open", "Remove", "Rename", "Stat", "Walk"),
]


def GFile(name: Any, mode: str = "r") -> Any:
    """Open a file as `open` does; text is UTF-8."""
    return open(name, mode, encoding=None if "b" in mode else "utf-8")


FastGFile = Open = GFile


def Exists(filename: Any) -> bool:
    """Whether the file or folder exists."""
    return os.path.exists(filename)


def IsDirectory(dirname: Any) -> bool:
    """Whether the path is a folder."""
    return os.path.isdir(dirname)


def ListDirectory(dirname: Any) -> list[str]:
    """The names in a folder, sorted."""
    return sorted(os.listdir(dirname))


def MkDir(dirname: Any) -> None:
    """Create a folder; no error if it exists."""
    if not os.path.isdir(dirname):
        os.mkdir(dirname)


def MakeDirs(dirname: Any) -> None:
    """Create a folder and its parents; no error if they exist."""
    os.makedirs(dirname, exist_ok=True)


def Remove(filename: Any) -> None:
    """Remove a file."""
    os.remove(filename)


def DeleteRecursively(dirname: Any) -> None:
    """Remove a folder and its contents."""
    shutil.rmtree(dirname)


def Copy(oldpath: Any, newpath: Any, overwrite: bool = False) -> None:
    """Copy a file."""
    _check_free(newpath, overwrite)
    shutil.copyfile(oldpath, newpath)


def Rename(oldname: Any, newname: Any, overwrite: bool = False) -> None:
    """Rename or move a file."""
    _check_free(newname, overwrite)
    os.replace(oldname, newname)


def _check_free(path: Any, overwrite: bool) -> None:
    if not overwrite and os.path.exists(path):
        raise ArgumentError(
            f"{value_text(path)} exists", line=user_line(), hint="say overwrite=True to replace it"
        )


def Glob(filename: Any) -> list[str]:
    """The paths that match a pattern or one of a list of patterns, sorted."""
    patterns = filename if isinstance(filename, (list, tuple)) else [filename]
    return sorted(path for pattern in patterns for path in glob.glob(pattern))


def Stat(filename: Any) -> os.stat_result:
    """The result of `os.stat`; `length` is `st_size`."""
    return os.stat(filename)


def Walk(top: Any, in_order: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each folder below the path with its subfolders and files, parents first or last."""
    return os.walk(top, topdown=in_order)


translate_module(globals(), __all__)
