"""The differences that are meant, or TensorFlow's alone: tools/oracle/known.json.

A row has the functions it is about (patterns), the kind of difference, a part of what was told
(a regular expression), and the reason.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

ROWS: list[dict[str, str]] = json.loads((Path(__file__).parent / "known.json").read_text())


def reason(function: str, kind: str, told: str) -> str:
    """Why this difference is known, or nothing."""
    for row in ROWS:
        if not any(fnmatchcase(function, p) for p in row["functions"].split()):
            continue
        if kind in row["kind"].split(", ") and re.search(row.get("told", ""), told):
            return row["reason"]
    return ""
