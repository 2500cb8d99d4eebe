"""Writes the passes into the pages: a diagram in docs/architecture.md, a table in docs/passes.md.

python tools/pass_list_page.py
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from hpcflow.plan.pass_list import PASSES
from hpcflow.plan.pass_row import Pass

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- passes: written by tools/pass_list_page.py -->\n", "<!-- end of passes -->\n"
WIDTH = 124  # columns of the diagram
HEAD = """# The passes

All passes from the graph to the code of a task, in the order in which they run: the rows of
`hpcflow/plan/pass_list.py`, written by `tools/pass_list_page.py`. *Bodies*: the pass also runs on
the programs of loops and branches. `hpcflow plan --passes SCRIPT` shows the list as it ran for a
script, with nodes and time. `hpcflow plan --diff PASS SCRIPT` shows what a pass changed.
[A pass of your own](running.md#a-pass-of-your-own) runs at a named place of the list.

| pass | form | why it is there | what holds after it | when | bodies |
|---|---|---|---|---|---|
"""


def page() -> str:
    """docs/passes.md, the table of all passes."""
    return HEAD + "".join(_row(row) for row in PASSES)


def architecture() -> str:
    """docs/architecture.md with the diagram of the passes between its two marks."""
    before, _, rest = (DOCS / "architecture.md").read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{diagram()}{END}{after}"


def diagram() -> str:
    """The phases in order, with the passes of each and the forms between them."""
    lines: list[str] = []
    form = PASSES[0].takes
    for phase, rows in groupby(PASSES, lambda row: row.phase):
        passes = list(rows)
        if passes[0].takes is not form or not lines:
            form = passes[0].takes
            lines.append(form.value)
        names = list(dict.fromkeys(row.base for row in passes))
        lines += _wrapped(f"  │ {phase:<15}", names)
        if passes[-1].gives is not form:
            form = passes[-1].gives
            lines.append(form.value)
    return "\n```text\n" + "\n".join(lines) + "\n```\n\n"


def _wrapped(head: str, names: list[str]) -> list[str]:
    lines, line = [], head
    for i, name in enumerate(names):
        word = f"{name} → " if i + 1 < len(names) else name
        if len(line) + len(word) > WIDTH:
            lines.append(line.rstrip())
            line = f"  │ {'':<15}"
        line += word
    return [*lines, line]


def _row(row: Pass) -> str:
    form = row.takes.value if row.takes is row.gives else f"{row.takes.value} → {row.gives.value}"
    bodies = "yes" if row.in_bodies else ""
    return f"| `{row.name}` | {form} | {row.rationale} | {row.holds} | {row.when} | {bodies} |\n"
