"""Modules whose names are imported when they are first used: a rank opens no file without need."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from hpcflow.platform.exception_translation import guarded

HOMES: dict[str, dict[str, tuple[str, str]]] = {}  # module -> name -> its module, its name there


class LaterFunction:
    """A static method that is a function of another module, imported when it is first used."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __get__(self, of: Any, kind: type | None = None) -> Any:
        return getattr(importlib.import_module(self.module), self.name)


def later(
    module: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__, __dir__, __all__` of `module`, which has names of other modules.

    `homes` are these modules and the names: "a b", or "a=b" for what is called `b` there; under ""
    are modules of hpcflow, "b" or "b=a.b". `tools/stubs.py` tells type checkers.
    """
    mine = HOMES[module] = {}
    for home, names in homes.items():
        for name in names.split():
            name, _, its = name.partition("=")
            mine[name] = (home, its or name) if home else (f"hpcflow.{its or name}", "")

    def get(name: str) -> Any:
        if name not in mine:
            raise AttributeError(f"module {module!r} has no attribute {name!r} (see docs/tf1.md)")
        home, its = mine[name]
        found = importlib.import_module(home)
        value = guarded(getattr(found, its)) if its else found
        setattr(sys.modules[module], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[module]), *mine})

    return get, listed, sorted(mine)
