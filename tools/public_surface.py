"""The public surface: names and their parameters, commands and options, settings, exit codes.

    python tools/public_surface.py            print it, a line each
    python tools/public_surface.py --record   write tests/public_surface.txt, which a test holds

A changed line is a change for users: CHANGELOG.md tells it, a renamed one docs/renames.json.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "tests" / "public_surface.txt"


def lines() -> list[str]:
    """All of it, sorted."""
    import hpcflow

    found = {*_names("hf", hpcflow, set()), *_settings(), *_commands(), *_exit_codes()}
    return sorted(found)


def _names(prefix: str, module: ModuleType, seen: set[ModuleType]) -> Iterator[str]:
    """The public names of a module and of the modules among them."""
    seen.add(module)
    for name in sorted(getattr(module, "__all__", None) or _own_names(module)):
        value = getattr(module, name)
        if not isinstance(value, ModuleType):
            yield from _described(f"{prefix}.{name}", value)
        elif value.__name__.startswith("hpcflow") and value not in seen:
            yield f"{prefix}.{name}"
            yield from _names(f"{prefix}.{name}", value, seen)


def _own_names(module: ModuleType) -> list[str]:
    """Of a module without `__all__`: what it defines itself."""
    of = module.__name__
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == of
    ]


def _described(path: str, value: Any) -> Iterator[str]:
    """A value's parameters; of a class also its public methods and properties."""
    yield path + _parameters(value)
    if not isinstance(value, type) or not value.__module__.startswith("hpcflow"):
        return
    for name in sorted(n for n in dir(value) if not n.startswith("_")):
        member = inspect.getattr_static(value, name)
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        yield f"{path}.{name}" + _parameters(member)


def _parameters(value: Any) -> str:
    """Names of parameters, with `=` behind those that may be left out; "" if it is no function."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, enum.Enum)):
        return ""
    with contextlib.suppress(TypeError, ValueError):
        parameters = inspect.signature(value).parameters.values()
        stars: dict[Any, str] = {
            inspect.Parameter.VAR_POSITIONAL: "*",
            inspect.Parameter.VAR_KEYWORD: "**",
        }
        words: list[str] = []
        for p in parameters:
            optional = "" if p.default is p.empty else "="
            kind = "*, " if p.kind is p.KEYWORD_ONLY and "*, " not in "".join(words) else ""
            words.append(f"{kind}{stars.get(p.kind, '')}{p.name}{optional}")
        return f"({', '.join(words)})"
    return ""


def _settings() -> Iterator[str]:
    from hpcflow.settings import PREFIX, Settings

    for field in dataclasses.fields(Settings):
        yield f"setting {field.name} = {field.default!r}"
    texts = [file.read_text() for file in (ROOT / "hpcflow").rglob("*.py")]
    names = {name for text in texts for name in re.findall(rf"\b{PREFIX}[A-Z_]+\b", text)}
    yield from (f"variable {name}" for name in names)


def _commands() -> Iterator[str]:
    from hpcflow.cli.main import COMMANDS

    for command in COMMANDS:
        yield f"command {command}"
        parser = argparse.ArgumentParser(add_help=False)
        importlib.import_module(f"hpcflow.cli.{command.replace('-', '_')}").add_arguments(parser)
        for action in parser._actions:
            names = "/".join(action.option_strings) or action.dest
            yield f"command {command} {names} {action.metavar or action.choices or ''}".rstrip()


def _exit_codes() -> Iterator[str]:
    text = (ROOT / "hpcflow" / "help" / "exit-codes.md").read_text()
    yield from (f"exit code {row}" for row in re.findall(r"^\| (\d+) \|", text, re.M))


def main() -> int:
    """Print the surface, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    text = "\n".join(lines()) + "\n"
    if parser.parse_args().record:
        RECORD.write_text(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
