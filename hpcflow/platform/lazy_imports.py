"""Lazy imports: names of a module that are imported at first use, so a rank opens fewer files."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hpcflow.platform.exception_translation import translate_exceptions

TOPIC = "`hpcflow help tf1`"
HOMES: dict[str, dict[str, tuple[str, str]]] = {}  # module -> name -> (home module, name there)


class LazyStaticMethod:
    """A static method that is a function of another module, imported at first use."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        return getattr(importlib.import_module(self.module), self.name)


class LazyMethod:
    """A method that is a function of another module, which takes the object, imported at first use.

    So a class can have a method of a package that its own does not import, as `_repr_html_`.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        function = getattr(importlib.import_module(self.module), self.name)
        return function if instance is None else types.MethodType(function, instance)


def lazy_names(
    module: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__, __dir__, __all__` of `module`, which re-exports names of other modules lazily.

    `homes` maps a home module to its names: "a b", or "a=b" for what is called `b` there. Under ""
    are modules of hpcflow, "b" or "b=a.b". `tools/stubs.py` writes the stubs for type checkers.
    """
    mine = HOMES[module] = {}
    for home, names in homes.items():
        for name in names.split():
            name, _, its = name.partition("=")
            mine[name] = (home, its or name) if home else (f"hpcflow.{its or name}", "")

    def get(name: str) -> Any:
        if name not in mine:
            raise MissingNameError(module, name, mine)
        home, its = mine[name]
        loaded = importlib.import_module(home)
        value = translate_exceptions(_with_name(getattr(loaded, its), its)) if its else loaded
        setattr(sys.modules[module], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[module]), *mine})

    return get, listed, sorted(mine)


class MissingNameError(AttributeError):
    """A module has no such name; the message is made if it is shown.

    `from package import module` of a module that is not loaded yet raises and drops one.
    """

    def __init__(self, module: str, name: str, names: Iterable[str]) -> None:
        super().__init__(module, name, names)

    def __str__(self) -> str:
        return missing_name(*self.args)


def missing_name(module: str, name: str, names: Iterable[str]) -> str:
    """The message for an unknown name: its place here, or the nearest name."""
    import difflib  # only here: the standard library's modules are files that each rank opens

    from hpcflow.platform.other_frameworks import ELSEWHERE

    text = f"module {module!r} has no attribute {name!r}"
    place = ELSEWHERE.get(f"{module}.{name}".removeprefix("hpcflow."))
    if place is not None:
        return f"{text}: {place}"
    optimizer = f"{name}Optimizer"
    names = list(names)
    near = [optimizer] if optimizer in names else difflib.get_close_matches(name, names, 1, 0.75)
    return f"{text}; did you mean {near[0]!r}? ({TOPIC})" if near else f"{text} ({TOPIC})"


def _with_name(value: Any, name: str) -> Any:
    """`value`; if it is a function that another function made, messages call it `name`."""
    function = value
    while isinstance(function, types.FunctionType):
        if "<locals>" in function.__qualname__:
            function.__name__ = function.__qualname__ = name
        function = getattr(function, "__wrapped__", None)
    return value


def namespace(module: str, homes: Mapping[str, str]) -> None:
    """Create the module `module`, which has no file and re-exports lazily, as `later` does.

    `import module` finds it; it is an attribute of its package.
    """
    package, _, name = module.rpartition(".")
    made = types.ModuleType(module, f"Names of TensorFlow 1's tf.{name} that hpcflow has.")
    made.__spec__ = importlib.machinery.ModuleSpec(module, None)
    made.__package__ = package
    get, listed, public = lazy_names(module, homes)
    vars(made).update(__getattr__=get, __dir__=listed, __all__=public)
    sys.modules[module] = made
    setattr(sys.modules[package], name, made)
