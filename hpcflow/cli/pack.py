"""Pack this installation into one file, so that start-up of many ranks opens few files.

`hpcflow run` does this by itself (setting `pack`). Under another launcher, write in the job script
`export HPCFLOW_PACK_FILE=$(hpcflow pack)`: without DIR the pack is made in the cache folder, unless
it is there, and its path is printed. With DIR a copy is written: DIR then contains a folder
`hpcflow` that replaces the installed package by `export PYTHONPATH=DIR`, also where the
installation is absent. It is a copy for this version of Python: pack again after each change.
"""

from __future__ import annotations

import argparse
import hashlib
import marshal
import os
import shutil
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import hpcflow
from hpcflow.cli.terminal_output import err, error_text, out
from hpcflow.errors import HpcflowError
from hpcflow.plan.serialization.plan_cache_key import PACKED, file_stats, files_fingerprint
from hpcflow.platform import artifact_cache, pack_importer, private_files
from hpcflow.platform.pack_importer import CODES, SOURCES, Pack, content_digest, pack_content

LAST_LINE = "\nuse_pack_folder(__file__)\n"  # of the `__init__.py` of a folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow pack`."""
    parser.add_argument("dir", metavar="DIR", nargs="?", help="where to write the folder hpcflow")


def main(args: argparse.Namespace) -> int:
    """Write the pack and print its path, or how to use it."""
    try:
        if args.dir is None:
            out(str(cached_pack()))
            return 0
        folder = Path(os.path.realpath(args.dir))
        count = pack(folder)
    except (OSError, HpcflowError) as error:
        err(f"hpcflow: the pack cannot be written: {error_text(error)}")
        return 1
    out(f"{count} modules in {folder / 'hpcflow' / CODES}; use it with: export PYTHONPATH={folder}")
    return 0


def cached_pack() -> Path:
    """The pack of the running hpcflow in the cache folder; it is made if it is not there.

    Its name is a digest of the Python and of path, size and time of all sources.

    Errors: OSError for a folder that cannot be written or is not this user's own; HpcflowError if
            the cache is switched off, or the sources change meanwhile.
    """
    cache = artifact_cache.cache_place(artifact_cache.PACKS)
    if cache is None:
        raise HpcflowError(
            f"{artifact_cache.PACKS.setting}=none: there is no folder for it",
            hint=f"set {artifact_cache.PACKS.setting} to a folder, or pack=off",
        )
    top = Path(hpcflow.__file__).parent
    name = _sources_digest(top)
    private_files.make_folder(cache.directory)
    with cache.turn(name):
        if cache.read(name) is None:
            content = pack_content(Pack(str(top), files_fingerprint(), _modules(top)))
            if _sources_digest(top) != name:
                raise HpcflowError(f"the sources in {top} have changed meanwhile", hint="try again")
            cache.write(name, content)
    if cache.find(name) is None:
        raise OSError(None, "it cannot be written", str(cache.file(name)))
    return cache.file(name)


def _sources_digest(top: Path) -> str:
    stats = sorted((path, stat.st_size, stat.st_mtime_ns) for path, stat in file_stats(str(top)))
    facts = [sys.version, sys.flags.optimize, stats]
    return hashlib.sha256(repr(facts).encode(errors="surrogateescape")).hexdigest()


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
        count = _write_folder(top, target, draft)
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)
    return count


def _write_folder(top: Path, target: Path, draft: Path) -> int:
    """Fill `draft`, which moves to `target`, with all of hpcflow in `top`; number of modules."""
    shutil.copytree(top, draft, ignore=shutil.ignore_patterns("*.py*", "__pycache__"))
    for parent, _, _ in os.walk(draft, topdown=False):
        if not os.listdir(parent):
            os.rmdir(parent)
    modules = _modules(top)
    sources = {name: _file(top, name, row[0]).read_text("utf-8") for name, row in modules.items()}
    fingerprint = hashlib.sha256(repr(sources).encode()).hexdigest()
    content = pack_content(Pack(str(target), fingerprint, modules))
    (draft / CODES).write_bytes(content_digest(CODES, content) + content)
    (draft / SOURCES).write_bytes(marshal.dumps(sources))
    (draft / PACKED).write_text(fingerprint)
    importer = Path(pack_importer.__file__).read_text(encoding="utf-8")
    (draft / "__init__.py").write_text(importer + LAST_LINE, encoding="utf-8")
    return len(modules)


def _modules(top: Path) -> dict[str, tuple[bool, bytes]]:
    """All modules below `top`, as `Pack.modules`; the importer replaces the paths in the code."""
    modules: dict[str, tuple[bool, bytes]] = {}
    for file in sorted(top.rglob("*.py")):
        parts = file.relative_to(top.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        code = SourceFileLoader(name, str(file)).get_code(name)
        modules[name] = file.name == "__init__.py", marshal.dumps(code)
    return modules


def _file(top: Path, name: str, is_package: bool) -> Path:
    path = top.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if is_package else path.with_suffix(".py")
