"""Put the figures of benchmarks/results/*.json into benchmarks/RESULTS.md.

    python benchmarks/report.py

Between `<!-- figures NAME -->` and `<!-- end -->` stands what results/NAME.json says; the rest of
the page, what limits each figure, is written by hand.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

from common import check_cells

HERE = pathlib.Path(__file__).resolve().parent


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def facts(record: dict[str, Any]) -> str:
    host = record["host"]
    versions: dict[str, str] = {}
    for found in record["versions"].values():
        versions |= found
    stack = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    load = f"load {host['load_before']:.1f}"
    return f"`{record['command']}`\n\n{host['cpu']}, {host['cores']} cores, {load}; {stack}."


def block(record: dict[str, Any]) -> str:
    """One benchmark: its figures beside the targets, then what was measured."""
    checks = [check_cells(row) for row in record["checks"]]
    unit = record["unit"]
    rows = [
        [row["case"], row["contender"], *(f"{row[k]:.4g}" for k in ("median", "min", "max"))]
        for row in record["rows"]
    ]
    parts = [
        table(["figure", "value (of minima)", "target", ""], checks),
        table(["case", "contender", f"median {unit}", "min", "max"], rows),
        *(f"Absent: {name} ({why})." for name, why in record["absent"].items()),
        facts(record),
    ]
    return "\n\n".join(parts)


def fill(page: pathlib.Path, results: pathlib.Path, block: Callable[[str, Any], str]) -> None:
    """Put `block(NAME, record)` of each results/NAME.json where the page asks for it."""

    def filled(match: re.Match[str]) -> str:
        file = results / f"{match[1]}.json"
        found = json.loads(file.read_text()) if file.exists() else None
        text = "Not measured yet." if found is None else block(match[1], found)
        return f"<!-- figures {match[1]} -->\n\n{text}\n\n<!-- end -->"

    pattern = r"<!-- figures (\w+) -->.*?<!-- end -->"
    page.write_text(re.sub(pattern, filled, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    fill(HERE / "RESULTS.md", HERE / "results", lambda name, record: block(record))
