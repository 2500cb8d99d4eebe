"""Code snapshot: a copy of a script and of the code beside and below it.

The runs of a sweep import from the copy, so that editing the script does not change runs that
have not begun. Copied are Python files and small files of configuration.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hpcflow.errors import HpcflowError

KINDS = (".py", ".toml", ".json", ".yaml", ".yml", ".cfg", ".ini", ".txt")
LARGEST_FILE = 1 << 20  # larger ones are data
MOST_FILES, MOST_BYTES = 2000, 32 << 20
MARK = ".hpcflow-code"  # a file in each copy
OF_RUNS = ("manifest.json", "sweep.json", "pyvenv.cfg", MARK)  # folders that hold one: no code


def code_files(script: Path) -> dict[str, bytes]:
    """The content of the code, by its path from the script's folder.

    Hidden folders, folders of runs and virtual environments are left out.
    Errors: HpcflowError if there is too much; OSError if a file cannot be read.
    """
    root = script.parent
    found = {script.name: script.read_bytes()}
    total = len(found[script.name])
    for path in _candidates(root):
        name = path.relative_to(root).as_posix()
        if name in found:
            continue
        if len(found) == MOST_FILES or total > MOST_BYTES:
            raise HpcflowError(
                f"below {root} is more than {MOST_FILES:,} files or {MOST_BYTES >> 20} MiB of "
                "code, which a sweep would copy",
                hint=f"put {script.name} and what it imports into a folder of its own",
            )
        found[name] = path.read_bytes()
        total += len(found[name])
    return found


def _candidates(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        if MARK in files or (folder != str(root) and any(name in files for name in OF_RUNS)):
            folders.clear()
            continue
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n != "__pycache__")
        for name in sorted(files):
            path = Path(folder, name)
            if name.endswith(KINDS) and not name.startswith(".") and path.is_file():
                if path.stat().st_size <= LARGEST_FILE:
                    yield path


def digest(files: dict[str, bytes]) -> str:
    """The SHA-256 of names and contents."""
    total = hashlib.sha256()
    for name, content in sorted(files.items()):
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def check_place(script: Path, folder: Path) -> None:
    """Errors: HpcflowError if a sweep in `folder` would mix with what is there."""
    place = folder.resolve()
    if place == script.parent or place in script.parent.parents:
        raise HpcflowError(
            f"{folder} holds the script", hint="give a folder of its own: --out sweeps/NAME"
        )
    if place.exists() and not place.is_dir():
        raise HpcflowError(f"{folder} is no folder", hint="give another one by --out")


def write_snapshot(files: dict[str, bytes], folder: Path) -> None:
    """Write the files into `folder`, which has all of them or does not exist.

    Errors: HpcflowError if it has other files; OSError.
    """
    if folder.exists() and not (folder / MARK).is_file():
        raise HpcflowError(
            f"{folder} exists and is no copy of code that hpcflow has made",
            hint="give another folder by --out",
        )
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    for name, content in {**files, MARK: b""}.items():
        path = draft / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    shutil.rmtree(folder, ignore_errors=True)
    draft.replace(folder)


def changes(files: dict[str, bytes], folder: Path) -> list[str]:
    """The names of the Python files of a snapshot that have changed or are gone.

    Other files may be what the runs write; the script can use a new one only if it has changed.
    """
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    return sorted(n for n in there if n not in files or (folder / n).read_bytes() != files[n])
