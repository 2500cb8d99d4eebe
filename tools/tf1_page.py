"""Writes docs/tf1.md: `python tools/tf1_page.py > docs/tf1.md`.

tools/tf1_names.txt holds TensorFlow 1's public names by module and subject; which of them hpcflow
has, the package says. What differs is written by hand in tools/tf1_page.md.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from types import ModuleType

import hpcflow as hf

HERE = Path(__file__).parent
MODULES: dict[str, ModuleType] = {"hf": hf, "hf.nn": hf.nn, "hf.train": hf.train}
NAME = re.compile(r"(\w+)(?: \(([^)]*)\))?")
Groups = dict[str, dict[str, str]]  # subject -> name -> remark


def main() -> None:
    """Print the page."""
    print(page(), end="")


def names() -> dict[str, Groups]:
    """TensorFlow 1's names, by module and subject; a remark says what to write instead."""
    found: dict[str, Groups] = {}
    for line in (HERE / "tf1_names.txt").read_text().splitlines():
        if line.startswith("["):
            groups = found[line.strip("[]")] = {}
        elif line:
            subject, _, rest = line.partition(": ")
            groups.setdefault(subject, {}).update(NAME.findall(rest))
    return found


def different(text: str) -> set[str]:
    """The names in the first column of the table of what differs."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def page() -> str:
    """The whole page."""
    text, listed = (HERE / "tf1_page.md").read_text(), names()
    apart = different(text)
    present, absent = [], []
    for where, groups in listed.items():
        prefix = where.removeprefix("hf").removeprefix(".")
        same = {n for g in groups.values() for n in g if f"{prefix}.{n}".strip(".") not in apart}
        have = {n for n in same if hasattr(MODULES[where], n)}
        present.append(_part(f"## Present in `{where}`", groups, have))
        absent.append(_part(f"## Absent from `{where}`", groups, same - have))
    return text.format(
        present="\n".join(present), ours=_paragraph(_ours(listed, apart)), absent="\n".join(absent)
    )


def _ours(listed: dict[str, Groups], apart: set[str]) -> list[str]:
    theirs = {
        f"{where}.{n}".removeprefix("hf.")
        for where, groups in listed.items()
        for g in groups.values()
        for n in g
    }
    mine = {f"{prefix}{n}" for prefix, m in _modules() for n in m.__all__}
    return sorted(mine - theirs - apart, key=str.lower)


def _modules() -> list[tuple[str, ModuleType]]:
    return [("", hf), ("nn.", hf.nn), ("train.", hf.train), ("data.", hf.data)]


def _part(head: str, groups: Groups, chosen: set[str]) -> str:
    lines = [head, ""]
    for subject, told in groups.items():
        here = {n: remark for n, remark in told.items() if n in chosen}
        if here:
            text = ", ".join(f"`{n}`" + (f" ({r})" if r else "") for n, r in here.items())
            lines.append(_wrapped(f"- {subject}: {text}", "  "))
    return "\n".join(lines) + "\n"


def _paragraph(found: list[str]) -> str:
    return _wrapped(", ".join(f"`{n}`" for n in found), "")


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    main()
