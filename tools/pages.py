"""Writes all pages and stubs that follow from the code: `make pages`.

They are kept with the sources, so that they can be read without a build; a test compares them.
docs/tf1.md and docs/verified.md are written by tools/tf1_compare.py and tools/verified.py.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import re
from collections.abc import Callable
from pathlib import Path

from hpcflow.cli import help_topics
from hpcflow.cli.completion import shown_actions
from hpcflow.cli.main import COMMANDS
from hpcflow.settings import PREFIX
from tools import man_page, ops_page, pass_list_page, stubs

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"`hpcflow help ([a-z0-9-]+)`|(?<=\()help ([a-z0-9-]+)(?=\))")
# What a page of the site says in place of `hpcflow help TOPIC`.
GUIDES = {
    "checkpoints": "[Fault tolerance](survival.md)",
    "costs": "[Costs](costs.md)",
    "deadlines": "[Deadlines](deadlines.md)",
    "environment": "[Environment variables](environment.md)",
    "exit-codes": "[Exit codes](exit-codes.md)",
    "faults": "[Fault injection](rehearsal.md)",
    "gpu": "[GPUs](gpu.md)",
    "mpi": "[The site's MPI](sites.md#the-sites-mpi)",
    "onnx": "[ONNX](onnx.md)",
    "ops": "[The op table](ops.md)",
    "parallel-hdf5": "[Checkpoint format](checkpoint-format.md)",
    "placement": "[Placement](placement.md)",
    "plan-format": "[A plan as JSON](plan-format.md)",
    "prediction": "[Prediction](prediction.md)",
    "profiling": "[Profiling](profiling.md)",
    "run": "[Running](running.md)",
    "settings": "[Settings](settings.md)",
    "sharing": "[Beside PyTorch](sharing.md)",
    "survive": "[When a rank dies](parameter-servers.md#what-happens-when-a-rank-dies)",
    "sync": "[Synchronization rules](parameter-servers.md#synchronization-rules)",
    "tf1": "[TensorFlow 1's names](tf1.md)",
    "troubleshooting": "[Troubleshooting](troubleshooting.md)",
}
COMMANDS_HEAD = """# Commands

`hpcflow COMMAND`; each has `--help`. Options of commands that take a script stand before or behind
it; everything behind `--` reaches the script.
"""
SETTINGS_HEAD = """# Settings

`hpcflow/settings.py` declares them. `--set NAME=VALUE` of `hpcflow run` and `hpcflow plan` sets
one, or `PREFIX` and its name in capitals in the environment. 1 and 0 are yes and no. Sizes are in
bytes; names that end in `_s` and `_h` are seconds and hours. Of several values of a setting on a
command line the last counts: `--set ps=1 --ps 2` are 2 servers. Only faults of `--inject` add up.
The command line counts before the environment.

"""


def linked(text: str) -> str:
    """A text with links to pages in place of `hpcflow help TOPIC`."""
    return NAMED.sub(lambda found: GUIDES[found[1] or found[2]], text)


def topic_page(topic: str) -> str:
    """A topic of `hpcflow help` as a page."""
    return linked(help_topics.page(topic))


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def settings_page() -> str:
    """docs/settings.md."""
    head = SETTINGS_HEAD.replace("PREFIX", PREFIX)
    rows: list[tuple[str, ...]] = [
        (f"`{name}`", f"`{default}`" if default else "", linked(meaning))
        for name, default, meaning in help_topics.settings()
    ]
    return head + table(("setting", "default", "meaning"), rows)


def environment_page() -> str:
    """docs/environment.md: the topic, and the variable of each setting."""
    rows: list[tuple[str, ...]] = [
        (f"`{PREFIX}{name.upper()}`", f"[`{name}`](settings.md)", linked(meaning))
        for name, _, meaning in help_topics.settings()
    ]
    head = "\n## Variables of the settings\n\n"
    return topic_page("environment") + head + table(("variable", "setting", "meaning"), rows)


def commands_page() -> str:
    """docs/commands.md, from the parsers of the commands."""
    return COMMANDS_HEAD + "".join(_command(name, line) for name, line in COMMANDS.items())


def _command(name: str, line: str) -> str:
    module = importlib.import_module(f"hpcflow.cli.{name.replace('-', '_')}")
    rows: list[tuple[str, ...]] = [
        (f"`{_usage(action)}`", linked((action.help or "").replace("[", "\\[")))
        for action in shown_actions(name)
    ]
    about = (module.__doc__ or "").strip()
    options = "\n" + table(("argument", ""), rows) if rows else ""
    return (
        f"\n## hpcflow {name}\n\n{line[:1].upper()}{line[1:]}.\n\n```text\n{about}\n```\n{options}"
    )


def _usage(action: argparse.Action) -> str:
    """`--set FIELD=VALUE`, `-n N`, `SCRIPT`."""
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    value = str(action.metavar or choices or action.dest.upper())
    if not action.option_strings:
        return value
    name = ", ".join(action.option_strings)
    return name if action.nargs == 0 else f"{name} {value}"


PAGES: dict[Path, Callable[[], str]] = {
    ROOT / "docs" / "architecture.md": pass_list_page.architecture,
    ROOT / "docs" / "commands.md": commands_page,
    ROOT / "docs" / "environment.md": environment_page,
    ROOT / "docs" / "exit-codes.md": functools.partial(topic_page, "exit-codes"),
    ROOT / "docs" / "hpcflow.1": man_page.page,
    ROOT / "docs" / "ops.md": ops_page.page,
    ROOT / "docs" / "passes.md": pass_list_page.page,
    ROOT / "docs" / "settings.md": settings_page,
    ROOT / "docs" / "troubleshooting.md": functools.partial(topic_page, "troubleshooting"),
    **{stubs.path(name): functools.partial(stubs.page, name) for name in stubs.LATER},
}


def main() -> None:
    """Write all of them."""
    for path, make in PAGES.items():
        path.write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
