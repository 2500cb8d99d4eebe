"""Writes what modules have whose names are imported later, for type checkers: *.pyi beside them."""

from __future__ import annotations

import importlib
from pathlib import Path

from hpcflow.namespaces import NAMESPACES
from hpcflow.platform.lazy_imports import HOMES

ROOT = Path(__file__).parent.parent
LATER = (
    *("hpcflow", "hpcflow.data", "hpcflow.notebook", "hpcflow.test", "hpcflow.train"),
    *(f"hpcflow.{name}" for name in NAMESPACES),
)
HEAD = '"""Made by tools/stubs.py."""\n\n# ruff: noqa\n# fmt: off\n'
OWN = {"hpcflow": "from hpcflow import errors as errors\n__version__: str\nnewaxis: None\n"}


def main() -> None:
    """Write all of them."""
    for name in LATER:
        path(name).write_text(page(name), encoding="utf-8")


def path(name: str) -> Path:
    """Where the page of a module is."""
    place = ROOT / name.replace(".", "/")
    return place / "__init__.pyi" if place.is_dir() else place.with_suffix(".pyi")


def page(name: str) -> str:
    """The page of a module."""
    importlib.import_module(name)
    lines = []
    for mine, (home, its) in HOMES[name].items():
        package, _, last = home.rpartition(".")
        lines.append(f"from {home if its else package} import {its or last} as {mine}\n")
    return HEAD + OWN.get(name, "") + "".join(sorted(lines))


if __name__ == "__main__":
    main()
