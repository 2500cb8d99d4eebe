"""Pack this installation into one file, so that start-up of many ranks opens few files.

DIR then contains a folder `hpcflow` that replaces the installed package: `export PYTHONPATH=DIR` in
the job script, or copy DIR to node-local disk first. The pack is a copy for this version of Python:
pack again after each change.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import marshal
import os
import shutil
from pathlib import Path
from types import CodeType

import hpcflow
from hpcflow.cli.help_topics import FOLDER
from hpcflow.cli.terminal_output import err, out
from hpcflow.plan.serialization.plan_cache_key import PACKED

CODES, SOURCES = "modules.bin", "sources.bin"
LOADER = Path(__file__).with_name("single_file_loader.py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow pack`."""
    parser.add_argument("dir", metavar="DIR", help="where to write the folder hpcflow")


def main(args: argparse.Namespace) -> int:
    """Write the pack and print how to use it."""
    folder = Path(os.path.realpath(args.dir))
    try:
        count = pack(folder)
    except OSError as error:
        err(f"hpcflow: the pack cannot be written: {error}")
        return 1
    out(f"{count} modules in {folder / 'hpcflow' / CODES}; use it with: export PYTHONPATH={folder}")
    return 0


def pack(folder: Path) -> int:
    """Write all modules of the running hpcflow to `folder`; returns their number."""
    top, target = Path(hpcflow.__file__).parent, folder / "hpcflow"
    draft = folder / ".hpcflow-draft"
    shutil.rmtree(draft, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    if (top / CODES).exists():  # hpcflow itself runs from a pack
        shutil.copytree(top, draft)
        count = len(marshal.loads((top / SOURCES).read_bytes()))
    else:
        count = _compile(top, target, draft)
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
    return count


def _compile(top: Path, target: Path, draft: Path) -> int:
    """Fill `draft` with code and source of all modules below `top`, with paths below `target`."""
    codes: dict[str, tuple[bool, CodeType]] = {}
    sources: dict[str, str] = {}
    for file in sorted(top.rglob("*.py")):
        parts = file.relative_to(top.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        sources[name] = file.read_text(encoding="utf-8")
        path = str(target / file.relative_to(top))
        codes[name] = file.name == "__init__.py", compile(sources[name], path, "exec")
    draft.mkdir()
    magic = importlib.util.MAGIC_NUMBER
    (draft / CODES).write_bytes(magic + marshal.dumps(codes))
    (draft / SOURCES).write_bytes(marshal.dumps(sources))
    (draft / PACKED).write_text(hashlib.sha256(repr(sources).encode()).hexdigest())
    shutil.copy(LOADER, draft / "__init__.py")
    shutil.copytree(FOLDER, draft / FOLDER.name)
    return len(codes)
