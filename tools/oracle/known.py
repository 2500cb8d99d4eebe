"""The differences that are meant, or TensorFlow's alone: tools/oracle/known.json.

A row has the functions it is about (patterns), the kind of difference, a part of what was told
(a regular expression), and the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

ROWS: list[dict[str, str]] = json.loads((Path(__file__).parent / "known.json").read_text())


def reason(function: str, kind: str, told: str) -> str:
    """Why this difference is known, or nothing."""
    found = row(function, kind, told)
    return found["reason"] if found else ""


def row(function: str, kind: str, told: str) -> dict[str, str] | None:
    """The first row that is about this difference."""
    for one in ROWS:
        if about(one, function) and kind in one["kind"].split(", "):
            if re.search(one["told"], told):
                return one
    return None


def about(row: dict[str, str], function: str) -> bool:
    """Whether the row is about the function."""
    return any(fnmatchcase(function, pattern) for pattern in row["functions"].split())


def idle(functions: Sequence[str], found: Sequence[tuple[str, str, str]]) -> list[dict[str, str]]:
    """The rows about `functions` that explain none of what was found: (function, kind, told)."""
    used = [row(*one) for one in found]
    return [r for r in ROWS if r not in used and any(about(r, f) for f in functions)]
