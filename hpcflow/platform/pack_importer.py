"""Pack importer: imports hpcflow's modules from one file, so that a rank opens few files.

It imports nothing of hpcflow: it must work before any other module. `hpcflow/__init__.py` uses the
pack that the variable HPCFLOW_PACK_FILE names; `hpcflow pack DIR` writes this file as
`DIR/hpcflow/__init__.py`, with a last line that uses the pack beside it.
"""

import _imp
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import marshal
import os
import sys
import types
import typing

VARIABLE = "HPCFLOW_PACK_FILE"  # the pack of the ranks, set by `hpcflow run` or a job script
CODES, SOURCES = "modules.bin", "sources.bin"  # files in a folder of `hpcflow pack DIR`
DIGEST = hashlib.sha256().digest_size
problems: "list[str]" = []  # why this process could not use the pack of VARIABLE


class Pack(typing.NamedTuple):
    """The content of a pack: folder and fingerprint of the packed sources, and their code."""

    folder: str
    fingerprint: str
    modules: "dict[str, tuple[bool, bytes]]"


def pack_content(pack: Pack) -> bytes:
    """The content of a pack file, without its digest."""
    return importlib.util.MAGIC_NUMBER + marshal.dumps(tuple(pack))


def content_digest(name: str, content: bytes) -> bytes:
    """The digest at the start of a pack file called `name`."""
    return hashlib.sha256(f"{name}\n".encode() + content).digest()


def read_pack(path: str) -> Pack:
    """The pack in a file. Errors: ImportError with the reason, OSError."""
    with open(path, "rb") as file:
        data = file.read()
    content = data[DIGEST:]
    if content_digest(os.path.basename(path), content) != data[:DIGEST]:
        raise ImportError(f"{path} is damaged: pack again (hpcflow pack)")
    magic = importlib.util.MAGIC_NUMBER
    if content[: len(magic)] != magic:
        version = ".".join(map(str, sys.version_info[:2]))
        raise ImportError(f"{path} was packed by another Python: run `hpcflow pack` with {version}")
    return Pack(*marshal.loads(content[len(magic) :]))


class PackImporter(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finder and loader of the modules of `pack`, with paths below `folder`, that of hpcflow.

    `sources` is a file with their sources for tracebacks; "": they are at their paths.
    """

    def __init__(self, pack: Pack, folder: str, sources: str = "") -> None:
        self.modules, self.folder, self.sources = pack.modules, folder, sources
        self.fingerprint = pack.fingerprint

    def find_spec(
        self, fullname: str, path: typing.Any, target: typing.Any = None
    ) -> "importlib.machinery.ModuleSpec | None":
        """The spec of the module, if it is packed."""
        if fullname not in self.modules:
            return None
        is_package, origin = self.is_package(fullname), self.file(fullname)
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=origin, is_package=is_package)
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(origin))
        return spec

    def file(self, name: str) -> str:
        """The path that the module's file would have."""
        end = ("__init__.py",) if self.is_package(name) else ()
        parts = name.split(".")[1:]
        return os.path.join(self.folder, *parts, *end) + ("" if end else ".py")

    def is_package(self, name: str) -> bool:
        """Whether the module is a package."""
        return self.modules[name][0]

    def get_code(self, name: str) -> types.CodeType:
        """The code object, with the module's present path as file name."""
        code: types.CodeType = marshal.loads(self.modules[name][1])
        _imp._fix_co_filename(code, self.file(name))  # type: ignore[attr-defined]
        return code

    def get_source(self, name: str) -> str:
        """The source, for tracebacks."""
        if not self.sources:
            with open(self.file(name), encoding="utf-8") as text:
                return text.read()
        with open(self.sources, "rb") as file:
            return str(marshal.load(file)[name])

    def path_hook(self, path: str) -> "_PackFolder":
        """The finder of a folder. Errors: ImportError for a folder outside of hpcflow."""
        if path != self.folder and not path.startswith(self.folder + os.sep):
            raise ImportError(f"{path} is not in the pack {self.folder}")
        return _PackFolder(self, "hpcflow" + path[len(self.folder) :].replace(os.sep, "."))


class _PackFolder(importlib.abc.PathEntryFinder):
    """A folder of a pack, so that `pkgutil.iter_modules` and `walk_packages` list its modules."""

    def __init__(self, importer: PackImporter, package: str) -> None:
        self.importer, self.package = importer, package

    def find_spec(
        self, fullname: str, target: typing.Any = None
    ) -> "importlib.machinery.ModuleSpec | None":
        """The spec of the module, if it is packed."""
        return self.importer.find_spec(fullname, None, target)

    def iter_modules(self, prefix: str = "") -> "list[tuple[str, bool]]":
        """The modules of the package, and whether each is a package."""
        names = [
            (name.rpartition("."), packed[0]) for name, packed in self.importer.modules.items()
        ]
        return sorted((prefix + name, pkg) for (of, _, name), pkg in names if of == self.package)


def active_importer() -> "PackImporter | None":
    """The importer of this process, of whichever copy of this file; None without a pack."""
    for finder in sys.meta_path:
        if type(finder).__name__ == PackImporter.__name__:
            return typing.cast(PackImporter, finder)
    return None


def use_pack_file(folder: str) -> None:
    """Import the modules of hpcflow, which is in `folder`, from the file that VARIABLE names.

    If that is impossible, `problems` says why, and modules are imported from their files.
    """
    path = os.environ.get(VARIABLE, "")
    if active_importer() is not None:  # of `hpcflow pack DIR`
        return
    try:
        pack = read_pack(path)
        if pack.folder != folder and not os.path.samefile(pack.folder, folder):
            raise ImportError(f"{path} is the pack of another hpcflow, {pack.folder}")
    except (ImportError, OSError) as error:
        problems.append(str(error))
    else:
        sys.meta_path.insert(0, PackImporter(pack, folder))


def use_pack_folder(init: str) -> None:
    """Be the `__init__.py` at `init` of a folder that `hpcflow pack DIR` has written.

    Errors: ImportError, OSError if it cannot be read.
    """
    folder = os.path.dirname(os.path.abspath(init))
    pack = read_pack(os.path.join(folder, CODES))
    importer = PackImporter(pack, folder, os.path.join(folder, SOURCES))
    sys.meta_path.insert(0, importer)
    sys.path_hooks.insert(0, importer.path_hook)
    exec(importer.get_code("hpcflow"), globals())
