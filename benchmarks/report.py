"""Put the figures of benchmarks/results/*.json into benchmarks/RESULTS.md.

    python benchmarks/report.py

Between `<!-- figures NAME -->` and `<!-- end -->` stands what results/NAME.json says; the rest of
the page, what each figure is and what limits it, is written by hand.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import growth
import step_profile
from common import check_cells
from nets import text

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def facts(record: dict[str, Any]) -> str:
    host = record["host"]
    versions: dict[str, str] = {}
    for found in record["versions"].values():
        versions |= found
    stack = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    if record.get("commit"):
        stack = f"hpcflow at {record['commit']}, {stack}"
    when = f"{host['date']}, load {host['load_before']:.1f}"
    cpu = [host["cpu"], " ".join(host.get("instructions", [])), f"{host['cores']} cores", when]
    return f"`{record['command']}`\n\n{', '.join(filter(None, cpu))}; {stack}."


def block(name: str, record: dict[str, Any]) -> str:
    """One benchmark: what it shows and how it was measured."""
    return "\n\n".join([SHOWS.get(name, figures)(record), facts(record)])


def figures(record: dict[str, Any]) -> str:
    """The figures beside the targets, then what was measured."""
    checks = [check_cells(row) for row in record["checks"]]
    unit = record["unit"]
    rows = [
        [row["case"], row["contender"], *(f"{row[k]:.4g}" for k in ("median", "min", "max"))]
        for row in record["rows"]
    ]
    parts = [
        table(["figure", "value (of minima)", "target", ""], checks),
        table(["case", "contender", f"median {unit}", "min", "max"], rows),
        *absent(record),
    ]
    return "\n\n".join(parts)


def steps(record: dict[str, Any]) -> str:
    """Training steps: times, losses, who is absent."""
    head = "Milliseconds of a step, the least in parentheses:"
    return "\n\n".join([head, text.times(record, table), text.agreement(record), *absent(record)])


def second_nets(record: dict[str, Any]) -> str:
    """Ratios to the best peer, and times, of the networks of nets2."""
    ratios = [check_cells(row) for row in record["checks"] if ": losses" not in row["figure"]]
    nets = list(dict.fromkeys(row["case"] for row in record["rows"]))
    return "\n\n".join(
        [
            table(["network", "ratio (of minima)", "target", ""], ratios),
            "Milliseconds of a step, the least in parentheses:",
            text.times(record, table, nets),
            text.agreement(record),
            *absent(record),
        ]
    )


def absent(record: dict[str, Any]) -> list[str]:
    return [f"Absent: {name} ({why})." for name, why in record["absent"].items()]


def classes(record: dict[str, Any]) -> str:
    """What grows how fast, beside its stated class."""
    checks = [check_cells(row) for row in record["checks"]]
    counted = growth.table(record["growth"])
    parts = [table(["figure", "value", "target", ""], checks), table(growth.HEAD, counted)]
    return "\n\n".join(parts)


SHOWS: dict[str, Callable[[Any], str]] = {
    "training_step": lambda record: f"{text.ratios(RESULTS, table)}\n\n{steps(record)}",
    "training_step_2": lambda record: steps(record),
    **{f"nets2{how}": second_nets for how in ("", "_2", "_unknown", "_unknown_2")},
    "growth": classes,
    "step_profile": lambda record: step_profile.show(record, table),
}


def fill(page: pathlib.Path, results: pathlib.Path, block: Callable[[str, Any], str]) -> None:
    """Put `block(NAME, record)` of each results/NAME.json where the page asks for it."""

    def filled(match: re.Match[str]) -> str:
        file = results / f"{match[1]}.json"
        found = json.loads(file.read_text()) if file.exists() else None
        shown = "Not measured yet." if found is None else block(match[1], found)
        return f"<!-- figures {match[1]} -->\n\n{shown}\n\n<!-- end -->"

    pattern = r"<!-- figures (\w+) -->.*?<!-- end -->"
    page.write_text(re.sub(pattern, filled, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    fill(HERE / "RESULTS.md", RESULTS, block)
