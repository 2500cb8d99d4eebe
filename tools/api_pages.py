"""The pages of the API reference: which public name is described where, and by what.

The names are those of the stubs and of `__all__`. Functions and classes are left to mkdocstrings,
which reads their sources. What a module makes by a call, as `sin = unary(...)`, is imported for its
signature and its docstring. A name that several modules have is described in the first of them.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hpcflow"
TOP = "hpcflow"
TITLES = {  # sub-packages of hpcflow.ops, whose functions are names of hf
    "array": "Arrays",
    "control_flow": "Control flow",
    "data_flow": "Queues, readers and accumulators",
    "graph": "Graphs and tensors",
    "linalg": "Linear algebra",
    "math": "Mathematics",
    "other": "Gradients, custom ops and others",
    "random": "Random numbers",
    "replicas": "Replicas",
    "runtime": "Sessions and devices",
    "sparse": "Sparse tensors",
    "strings": "Strings and files",
    "variables": "Variables",
}


class Name(NamedTuple):
    """A public name, and the object that it is."""

    public: str
    target: str


def pages() -> dict[str, str]:
    """The text of each page by its path in the site, in the order of the navigation."""
    groups: dict[str, list[Name]] = {f"hf: {title}": [] for title in TITLES.values()}
    left = [Name("hf", TOP)]  # modules whose names are not in groups yet
    seen = {TOP}
    for module in left:
        for name in _names_of(module):
            if _file_of(name.target) is None:
                top = f"hf: {TITLES[_group(name.target)]}"
                title = top if module.target == TOP else module.public
                groups.setdefault(title, []).append(name)
            elif name.target not in seen:
                left.append(name)
                seen.add(name.target)
    described: dict[str, str] = {}
    return {f"api/{_slug(title)}.md": _page(title, names, described)
            for title, names in groups.items() if names}  # fmt: skip


def _page(title: str, names: list[Name], described: dict[str, str]) -> str:
    """A page; `described` maps the objects of earlier pages to their public names there."""
    parts = [f"# {title}\n"]
    for name in sorted(names):
        first = described.setdefault(name.target, name.public)
        if first == name.public:
            parts.append(_described(name))
        else:
            parts.append(f"**{name.public}** is [{first}][{name.target}].\n")
    return "\n".join(parts)


def _described(name: Name) -> str:
    """The entry of a name."""
    module, _, own = name.target.rpartition(".")
    if own in _definitions(module):
        return f"::: {name.target}\n    options:\n      heading: {name.public}\n"
    head = f"## {name.public} {{ #{name.target} }}\n"
    try:
        value = getattr(importlib.import_module(module), own)
    except ImportError:
        return f"{head}\nIt needs an optional package.\n"
    if not callable(value) or isinstance(value, type):
        text = repr(value)
        return f"{head}\n`{type(value).__name__ if text.startswith('<') else text}`\n"
    parameters = inspect.signature(value).parameters.values()
    words = [str(p.replace(annotation=p.empty)) for p in parameters]
    call = f"{name.public}({', '.join(words)})"
    return f"{head}\n```python\n{call}\n```\n\n{inspect.getdoc(value) or ''}\n"


@functools.cache
def _definitions(module: str) -> frozenset[str]:
    """The functions and classes that the source of a module defines."""
    base = PACKAGE.joinpath(*module.split(".")[1:])
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    body = ast.parse(file.read_text(encoding="utf-8")).body
    kinds = (ast.FunctionDef, ast.ClassDef)
    return frozenset(node.name for node in body if isinstance(node, kinds))


def _home(target: str) -> str:
    """Where what a module imports from another one of hpcflow is defined."""
    module, _, own = target.rpartition(".")
    file = _file_of(module)
    if file is None or file.suffix == ".pyi" or own in _definitions(module):
        return target
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{TOP}."):
            for alias in node.names:
                if (alias.asname or alias.name) == own:
                    return _home(f"{node.module}.{alias.name}")
    return target


def _group(target: str) -> str:
    words = target.split(".")
    group = words[2] if words[1] == "ops" else words[1]
    return group if group in TITLES else "other"


def _slug(title: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in title.lower()).replace("--", "-").strip("-")


def _file_of(module: str) -> Path | None:
    """The source of a module, its stub if it has one; None if it is no module."""
    base = PACKAGE.joinpath(*module.split(".")[1:])
    package = base / "__init__"
    places = [where.with_suffix(end) for end in (".pyi", ".py") for where in (package, base)]
    return next((place for place in places if place.is_file()), None)


def _names_of(of: Name) -> Iterator[Name]:
    """The public names of a module: those of `__all__`, of a stub all, else its own definitions."""
    module = of.target
    file = _file_of(module)
    assert file is not None, module
    tree = ast.parse(file.read_text(encoding="utf-8"))
    imported: dict[str, str] = {}
    defined: list[str] = []
    listed: list[str] | None = None
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            found = {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            imported.update(found)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.append(node.name)
        elif isinstance(node, ast.Assign):
            targets = [t.id for t in node.targets if isinstance(t, ast.Name)]
            if targets == ["__all__"]:
                words = (c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant))
                listed = [word for word in words if isinstance(word, str)]
            else:
                defined += targets
    if file.suffix == ".pyi":
        listed = list(imported)
    elif listed is None:
        listed = [name for name in defined if not name.startswith("_")]
    for name in sorted(listed):
        yield Name(f"{of.public}.{name}", _home(imported.get(name, f"{module}.{name}")))
