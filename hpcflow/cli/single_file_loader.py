"""Single-file loader: the `__init__.py` of a pack written by `hpcflow pack`."""

import _imp
import importlib.abc
import importlib.machinery
import importlib.util
import marshal
import os
import sys
import types
import typing

_HERE = os.path.dirname(os.path.abspath(__file__))


def _codes() -> "dict[str, tuple[bool, types.CodeType]]":
    with open(os.path.join(_HERE, "modules.bin"), "rb") as file:
        data = file.read()
    magic = importlib.util.MAGIC_NUMBER
    if data[: len(magic)] != magic:
        version = ".".join(map(str, sys.version_info[:2]))
        raise ImportError(
            f"{_HERE} was packed by another Python: run `hpcflow pack` with {version}"
        )
    return marshal.loads(data[len(magic) :])


class _PackImporter(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finder and loader of the packed modules; sources are read only for tracebacks."""

    def __init__(self) -> None:
        self.codes = _codes()

    def find_spec(
        self, fullname: str, path: typing.Any, target: typing.Any = None
    ) -> "importlib.machinery.ModuleSpec | None":
        """The spec of the module, if it is packed."""
        if fullname not in self.codes:
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=self.file(fullname), is_package=self.codes[fullname][0]
        )
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(self.file(fullname)))
        return spec

    def file(self, name: str) -> str:
        """The path that the module's file would have."""
        end = ("__init__.py",) if self.codes[name][0] else ()
        parts = name.split(".")[1:]
        return os.path.join(_HERE, *parts, *end) + ("" if end else ".py")

    def is_package(self, name: str) -> bool:
        """Whether the module is a package."""
        return self.codes[name][0]

    def get_code(self, name: str) -> types.CodeType:
        """The code object, with the pack's present path as file name."""
        code = self.codes[name][1]
        _imp._fix_co_filename(code, self.file(name))  # type: ignore[attr-defined]
        return code

    def get_source(self, name: str) -> str:
        """The source, for tracebacks."""
        with open(os.path.join(_HERE, "sources.bin"), "rb") as file:
            return str(marshal.load(file)[name])


class _PackFolder(importlib.abc.PathEntryFinder):
    """A folder of the pack, so that `pkgutil.iter_modules` and `walk_packages` list its modules."""

    def __init__(self, path: str) -> None:
        if path != _HERE and not path.startswith(_HERE + os.sep):
            raise ImportError(f"{path} is not in the pack {_HERE}")
        self.package = ".".join([__name__, *path[len(_HERE) + 1 :].split(os.sep)]).rstrip(".")

    def find_spec(
        self, fullname: str, target: typing.Any = None
    ) -> "importlib.machinery.ModuleSpec | None":
        """The spec of the module, if it is packed."""
        return _pack.find_spec(fullname, None, target)

    def iter_modules(self, prefix: str = "") -> "list[tuple[str, bool]]":
        """The modules of the package, and whether each is a package."""
        modules = [(name.rpartition("."), packed[0]) for name, packed in _pack.codes.items()]
        return sorted((prefix + name, pkg) for (of, _, name), pkg in modules if of == self.package)


_pack = _PackImporter()
sys.meta_path.insert(0, _pack)
sys.path_hooks.insert(0, _PackFolder)
exec(_pack.get_code(__name__), globals())
