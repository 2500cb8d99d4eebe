"""The package's own files, read and parsed once for all tests of a process that look at them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "hpcflow"


@functools.cache
def syntax_trees() -> dict[Path, ast.Module]:
    """The syntax tree of each file, by its path in the package, in the order of the paths."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {file.relative_to(PACKAGE): ast.parse(file.read_text()) for file in files}
