"""Compare hpcflow's names and parameters with TensorFlow 1's, and write docs/tf1.md.

    python tools/tf1_compare.py             # writes docs/tf1.md
    python tools/tf1_compare.py --record    # first writes tools/tf1_api.json, from TensorFlow

tools/tf1_api.json holds what `tensorflow.compat.v1` has, so the page is made without TensorFlow.
tools/tf1_notes.md says why a name or a parameter is absent and what behaves differently. Exits 0
when each difference has a reason there, 1 when one has none (each is printed), 2 when it cannot
run. `--count N --seed S` looks at N names drawn at random and writes no page; `--json FILE` writes
what was found.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import textwrap
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hpcflow as hf
from tools import tf1_record
from tools.tf1_record import Api, Entry, attribute

HERE = Path(__file__).resolve().parent
API, NOTES = HERE / "tf1_api.json", HERE / "tf1_notes.md"
PAGE = HERE.parent / "docs" / "tf1.md"
MODULES = (
    " nn nn.rnn_cell train losses layers metrics summary data math linalg strings image "
    "initializers random bitwise sets signal spectral queue sparse debugging manip io gfile "
    "logging errors test app flags graph_util python_io distributions"
).split(" ")


@dataclass
class Name:
    """One name of TensorFlow's beside hpcflow's: what is missing of it, or all."""

    path: str
    of: str = ""  # the path of the same object, if it has a shorter one
    absent: bool = False
    parameters: list[str] = field(default_factory=list)  # absent, or "order"
    methods: list[str] = field(default_factory=list)  # absent


Row = list[str]  # the cells of a row of a table


def main() -> int:
    """Write the page, or say what has no reason."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--record", action="store_true", help="ask the installed TensorFlow")
    options.add_argument("--seed", type=int, default=0, help="of the names that are drawn")
    options.add_argument("--count", type=int, help="how many names; without it all")
    options.add_argument("--json", type=Path, metavar="FILE", help="write what was found there")
    chosen = options.parse_args()
    if chosen.record and (problem := record()):
        print(problem, file=sys.stderr)
        return 2
    if not API.exists():
        print(f"{API} is missing: run {Path(__file__).name} --record", file=sys.stderr)
        return 2
    found = compared(json.loads(API.read_text())["modules"])
    if chosen.count is not None:
        found = random.Random(chosen.seed).sample(found, min(chosen.count, len(found)))
    else:
        PAGE.write_text(page())
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(n) for n in found], indent=1) + "\n")
    unexplained = without_reason(found, Notes.read())
    print(*unexplained, sep="\n", end="\n" if unexplained else "")
    return 1 if unexplained else 0


def record() -> str:
    """Write tools/tf1_api.json; says what hinders."""
    try:
        tf1 = tf1_record.tensorflow()
        api = tf1_record.recorded(tf1, MODULES)
    except ImportError as error:
        return f"TensorFlow cannot be asked: {error}\nrun: make differential"
    API.write_text(as_text(tf1.__version__, api))
    return ""


def as_text(version: str, api: Api) -> str:
    """JSON with a name a line."""
    modules = []
    for where, names in api.items():
        lines = [f"{json.dumps(n)}: {json.dumps(e)}" for n, e in names.items()]
        modules.append(f"{json.dumps(where)}: {{\n" + ",\n".join(lines) + "\n}")
    return f'{{"tensorflow": "{version}", "modules": {{\n' + ",\n".join(modules) + "\n}}\n"


def compared(api: Api) -> list[Name]:
    """Each of TensorFlow's names beside hpcflow's."""
    return [
        compare(f"{where}.{name}".strip("."), entry, attribute(hf, where), name)
        for where, names in api.items()
        for name, entry in names.items()
    ]


def compare(path: str, theirs: Entry, module: Any, name: str) -> Name:
    """One name beside hpcflow's."""
    found = Name(path)
    if isinstance(theirs, str) and theirs.startswith("= "):
        found.of = theirs.removeprefix("= ")
    if not has(module, name):
        found.absent = True
        return found
    mine = tf1_record.entry(getattr(module, name))
    if theirs is None or mine is None or found.of:
        return found
    if isinstance(theirs, list) and isinstance(mine, list):
        found.methods = [m for m in theirs[1].split() if m not in mine[1].split()]
    here, there = listed(theirs), listed(mine)
    if "..." not in here + there:
        found.parameters = [p for p in here if p not in there and p != "*"]
        by_place = there[: there.index("*")] if "*" in there else there
        if [p for p in by_place if p in here] != [p for p in here if p in by_place]:
            found.parameters.append("order")
    return found


def has(module: Any, name: str) -> bool:
    """Whether the name is public there: a module's own imports are not."""
    if module is None or not hasattr(module, name):
        return False
    return name in getattr(module, "__all__", dir(module))


def listed(entry: Entry) -> list[str]:
    """The names of the parameters of a function or class."""
    text = entry[0] if isinstance(entry, list) else entry or ""
    return [p.partition("=")[0] for p in re.split(r", (?=[*\w]+(?:=|,|$))", text) if p]


@dataclass
class Notes:
    """tools/tf1_notes.md: text, and tables of reasons."""

    intro: str
    different: list[Row]  # names | what differs
    absent: list[Row]  # family | patterns of names | why
    parameters: list[Row]  # patterns of parameters | patterns of functions | why
    methods: list[Row]  # patterns of classes | why

    @classmethod
    def read(cls) -> Notes:
        """From the file: a part begins with a line `%% name`."""
        parts = re.split(r"^%% (\w+)\n", NOTES.read_text(), flags=re.MULTILINE)
        text = dict(zip(parts[1::2], parts[2::2], strict=True))
        return cls(
            text.pop("intro").strip(),
            **{k: [_cells(x) for x in v.splitlines() if x] for k, v in text.items()},
        )


def _cells(line: str) -> Row:
    return [cell.strip() for cell in line.split(" | ")]


def reason(rows: list[Row], *keys: str) -> int | None:
    """The first row whose leading cells each match their key."""
    first = len(rows[0]) - 1 - len(keys) if rows else 0
    for number, row in enumerate(rows):
        cells = row[first:-1]
        if all(any(fnmatchcase(k, p) for p in c.split()) for k, c in zip(keys, cells, strict=True)):
            return number
    return None


def without_reason(found: list[Name], notes: Notes) -> list[str]:
    """What is absent without a word why."""
    told = {n for row in notes.different for n in re.findall(r"`([\w.]+)`", row[0])}
    wrong = []
    for name in found:
        if name.absent and reason(notes.absent, name.path) is None:
            wrong.append(f"hf.{name.path} is absent")
        for one in name.parameters:
            if reason(notes.parameters, one, name.path) is None:
                wrong.append(f"hf.{name.path} has no parameter {one}")
        if name.methods and name.path not in told and reason(notes.methods, name.path) is None:
            wrong.append(f"hf.{name.path} lacks {', '.join(name.methods)}")
    return wrong


def page() -> str:
    """The text of docs/tf1.md."""
    stored = json.loads(API.read_text())
    found, notes = compared(stored["modules"]), Notes.read()
    parts = [
        notes.intro.replace("{version}", stored["tensorflow"]).replace("{counts}", counts(found)),
        "## What differs\n\n| Name | What differs |\n|---|---|\n" + _table(notes.different),
        "## Parameters that are absent\n\nCalling with them is a `TypeError`.\n\n"
        "| Parameters | Why |\n|---|---|\n" + _table(parameter_rows(found, notes)),
        "## Methods and properties that are absent\n\n"
        "| Methods | Why |\n|---|---|\n" + _table(method_rows(found, notes)),
        "## Names that are absent\n\nUsing them is an `AttributeError`.\n\n"
        "| Family | Names | Why |\n|---|---|---|\n" + _table(absent_rows(found, notes)),
        "## Present with all parameters\n\n" + present(found, notes),
        "## Only in hpcflow\n\n" + _wrapped(", ".join(f"`{n}`" for n in ours(found)), ""),
    ]
    return "\n\n".join(parts) + "\n"


def counts(found: list[Name]) -> str:
    """A table: how many names of each module are present."""
    rows = []
    for where in MODULES:
        here = [n for n in found if n.path.rpartition(".")[0] == where]
        some = [n for n in here if not n.absent]
        less = [n for n in some if n.parameters or n.methods]
        rows.append(["`tf" + f".{where}".rstrip(".") + "`", len(here), len(some), len(less)])
    head = "| Module | Names | Present | of these with less parameters or methods |\n"
    head += "|---|---|---|---|\n"
    return head + _table([[str(c) for c in row] for row in rows])


def absent_rows(found: list[Name], notes: Notes) -> list[Row]:
    """Absent names by family; a second name of an absent object is left out."""
    gone = {n.path for n in found if n.absent}
    rows: dict[int | None, list[str]] = {}
    for name in found:
        if name.absent and name.of not in gone:
            rows.setdefault(reason(notes.absent, name.path), []).append(name.path)
    return [
        [notes.absent[n][0], _shortened(rows[n]), notes.absent[n][2]]
        for n in range(len(notes.absent))
        if n in rows
    ]


def _shortened(paths: list[str]) -> str:
    """Names by module, the module named once."""
    by: dict[str, list[str]] = {}
    for path in paths:
        where, _, name = path.rpartition(".")
        by.setdefault(where, []).append(name)
    return "; ".join(
        (f"{where}: " if where else "") + ", ".join(f"`{n}`" for n in names)
        for where, names in by.items()
    )


def parameter_rows(found: list[Name], notes: Notes) -> list[Row]:
    """Absent parameters by reason: those that the same functions lack together."""
    rows: dict[int | None, dict[str, list[str]]] = {}
    for name in found:
        for one in name.parameters:
            of = rows.setdefault(reason(notes.parameters, one, name.path), {})
            of.setdefault(name.path, []).append(one)
    chosen = [n for n in range(len(notes.parameters)) if n in rows]
    return [[_alike(rows[n]), notes.parameters[n][2]] for n in chosen]


def method_rows(found: list[Name], notes: Notes) -> list[Row]:
    """What classes lack, by reason."""
    rows: dict[int | None, dict[str, list[str]]] = {}
    for name in (n for n in found if n.methods):
        rows.setdefault(reason(notes.methods, name.path), {})[name.path] = name.methods
    chosen = [n for n in range(len(notes.methods)) if n in rows]
    return [[_alike(rows[n]), notes.methods[n][1]] for n in chosen]


def _alike(lacking: dict[str, list[str]]) -> str:
    """`a`, `b` of `f`, `g`: names that lack the same are joined."""
    alike: dict[str, list[str]] = {}
    for path, names in lacking.items():
        alike.setdefault(", ".join(f"`{n}`" for n in names), []).append(f"`{path}`")
    return "; ".join(f"{names} of {', '.join(paths)}" for names, paths in alike.items())


def present(found: list[Name], notes: Notes) -> str:
    """The names that are there with all parameters, by module."""
    told = {n for row in notes.different for n in re.findall(r"`([\w.]+)`", row[0])}
    lines = []
    for where in MODULES:
        names = [
            n.path.rpartition(".")[2]
            for n in found
            if n.path.rpartition(".")[0] == where
            and not (n.absent or n.parameters or n.path in told)
        ]
        if names:
            text = ", ".join(f"`{n}`" for n in names)
            lines.append(_wrapped(f"- `tf{'.' + where if where else ''}`: {text}", "  "))
    return "\n".join(lines)


def ours(found: list[Name]) -> list[str]:
    """The public names that TensorFlow does not have."""
    theirs = {n.path for n in found} | set(MODULES)
    mine = {
        f"{where}.{name}".strip(".")
        for where in MODULES
        for name in getattr(attribute(hf, where), "__all__", [])
    }
    return sorted(mine - theirs, key=str.lower)


def _table(rows: list[Row]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        text, 140, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    sys.exit(main())
