"""Script entry point `hf.app`: parses the flags and calls `main`, as TensorFlow 1's `tf.app`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from hpcflow import flags
from hpcflow.platform.exception_translation import translate_module

__all__ = ["flags", "run"]


def run(
    main: Callable[[list[str]], Any] | None = None, argv: Sequence[str] | None = None
) -> NoReturn:
    """Parse the flags, call `main` (default: the script's) with the other arguments, and exit."""
    remaining = flags.FLAGS._parse_flags(list(argv[1:]) if argv else None)
    call: Callable[[list[str]], Any] = main or sys.modules["__main__"].main
    sys.exit(call([(argv or sys.argv)[0], *remaining]))


translate_module(globals(), __all__)
