"""The topics of `hpcflow help`: texts in hpcflow/help, and pages made from the code."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import hpcflow
from hpcflow.plan.listing.plan_text import format_table
from hpcflow.settings import PREFIX, Settings

FOLDER = Path(hpcflow.__file__).with_name("help")
FIELD = re.compile(r"^    (\w+): \w+ = [^#]*?  # (.*)$", re.MULTILINE)


def titles() -> dict[str, str]:
    """Title by topic."""
    files = {file.stem: _title(file.read_text(encoding="utf-8")) for file in FOLDER.glob("*.md")}
    return dict(sorted({**files, **{name: topic[0] for name, topic in GENERATED.items()}}.items()))


def page(topic: str) -> str:
    """The text of a topic."""
    if topic in GENERATED:
        title, make = GENERATED[topic]
        return f"# {title}\n\n{make()}"
    return (FOLDER / f"{topic}.md").read_text(encoding="utf-8")


def settings() -> list[tuple[str, str, str]]:
    """Name, default and meaning of each setting, in the order of the class `Settings`."""
    meanings = dict(FIELD.findall(inspect.getsource(Settings)))
    return [
        (field.name, _default(field.default), meanings[field.name])
        for field in dataclasses.fields(Settings)
    ]


def _title(text: str) -> str:
    return text.split("\n", 1)[0].removeprefix("# ")


def _default(value: object) -> str:
    """As it is given on the command line; sizes also in MiB."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 20:
        return f"{value} ({value >> 20} MiB)"
    return str(int(value) if isinstance(value, bool) else value)


def _settings_page() -> str:
    how = (
        f"`--set NAME=VALUE` of `hpcflow run` and `hpcflow plan`, or {PREFIX}NAME in the\n"
        "environment, sets a setting. 1 and 0 are yes and no. Of several values of a setting on a\n"
        "command line the last counts; it counts before the environment.\n\n"
    )
    return how + format_table(("setting", "default", "meaning"), settings()) + "\n"


def _ops_page() -> str:
    from hpcflow.graph.op_registry import all_ops

    head = (
        "An op is the type of an operation in a graph. Functions such as `hf.matmul` make\n"
        "operations; `hf.op` and `hf.kernel` add an op of your own (`help(hf.op)`).\n\n"
    )
    return head + "".join(f"    {name}\n" for name in sorted(all_ops()))


GENERATED: dict[str, tuple[str, Callable[[], str]]] = {
    "settings": ("All settings of a run", _settings_page),
    "ops": ("The op table", _ops_page),
}
