"""Types of the runtime: `Any` is rare, and what is known only at run time has a name."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "hpcflow" / "runtime"
MOST = 92  # a number that may only become smaller


def test_any_is_rare_in_the_runtime() -> None:
    found = {
        str(file.relative_to(ROOT)): sum(
            isinstance(node, ast.Name) and node.id == "Any"
            for node in ast.walk(ast.parse(file.read_text()))
        )
        for file in ROOT.rglob("*.py")
    }
    counts = sorted(found.items(), key=lambda row: -row[1])[:8]
    assert sum(found.values()) <= MOST, f"use a type, or a name of dynamic_types.py: {counts}"
