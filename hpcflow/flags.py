"""Command-line flags `hf.flags`, also `hf.app.flags`: flags of a script, as in TensorFlow 1."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from hpcflow.graph.device_names import parse_device
from hpcflow.platform.exception_translation import translate_module
from hpcflow.platform.rank_logging import say_once
from hpcflow.runtime.job.job_membership import current_context, has_joined

__all__ = [
    "FLAGS",
    "DEFINE_bool",
    "DEFINE_boolean",
    "DEFINE_float",
    "DEFINE_integer",
    "DEFINE_string",
]
OF_THE_RANK = ("job_name", "task_index")


class FlagValues:
    """Values of the flags as attributes; the first access parses the command line.

    Under `hpcflow run`, `job_name` and `task_index` are those of the rank unless the command line
    sets them.
    """

    def __init__(self) -> None:
        self.__dict__["_parser"] = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
        self.__dict__["_defaults"] = {}
        self.__dict__["_values"] = None

    def _parse_flags(self, args: Sequence[str] | None = None) -> list[str]:
        """Parse a command line (default: this process's); returns the remaining arguments."""
        given, rest = self._parser.parse_known_args(args)
        self.__dict__["_values"] = {**self._defaults, **self._of_the_rank(), **vars(given)}
        return rest

    def _of_the_rank(self) -> dict[str, Any]:
        names = [name for name in OF_THE_RANK if name in self._defaults]
        if not (names and has_joined()):
            return {}
        context = current_context()
        say_once(f"{' and '.join(names)} are the rank's, unless the command line says them")
        task = parse_device(context.task_name(context.rank))
        return {name: task.job if name == "job_name" else task.task for name in names}

    def __getattr__(self, name: str) -> Any:
        if self._values is None or (name in self._defaults and name not in self._values):
            self._parse_flags()
        if name not in self._values:
            raise AttributeError(
                f"there is no flag {name!r}: define it with hf.app.flags.DEFINE_..."
            )
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if self._values is None:
            self._parse_flags()
        self._values[name] = value


FLAGS = FlagValues()


def _define(name: str, default: Any, help: str, kind: Any) -> None:
    FLAGS._defaults[name] = default
    FLAGS._parser.add_argument(f"--{name}", type=kind, help=help.replace("%", "%%"))


def DEFINE_string(flag_name: str, default_value: str | None, docstring: str) -> None:
    """Define a flag with a string value."""
    _define(flag_name, default_value, docstring, str)


def DEFINE_integer(flag_name: str, default_value: int | None, docstring: str) -> None:
    """Define a flag with an integer value."""
    _define(flag_name, default_value, docstring, int)


def DEFINE_float(flag_name: str, default_value: float | None, docstring: str) -> None:
    """Define a flag with a float value."""
    _define(flag_name, default_value, docstring, float)


def DEFINE_boolean(flag_name: str, default_value: bool | None, docstring: str) -> None:
    """Define a boolean flag: `--name` or `--name=true` sets it, `--noname` clears it."""
    FLAGS._defaults[flag_name] = default_value
    add = FLAGS._parser.add_argument
    add(f"--{flag_name}", nargs="?", const=True, type=_boolean, help=docstring.replace("%", "%%"))
    add(f"--no{flag_name}", dest=flag_name, action="store_false", help=argparse.SUPPRESS)


DEFINE_bool = DEFINE_boolean


def _boolean(text: str) -> bool:
    booleans = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
    if text.lower() not in booleans:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return booleans[text.lower()]


translate_module(globals(), __all__)
