"""docs/hpcflow.1, the man page: the commands, their options and the settings.

It is made from the parsers, as docs/commands.md is, and installed in share/man/man1.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from hpcflow.cli import help_topics
from hpcflow.cli.completion import shown_actions
from hpcflow.cli.main import COMMANDS

HEAD = """.TH HPCFLOW 1 "" "hpcflow" "User Commands"
.ad l
.SH NAME
hpcflow \\- train models as one dataflow graph over MPI ranks
.SH SYNOPSIS
.B hpcflow
.I COMMAND
[\\fIOPTIONS\\fR]
.br
.B hpcflow run \\-n
.I N SCRIPT
[\\fIARGUMENTS\\fR]
.SH DESCRIPTION
hpcflow runs a Python script on MPI ranks.
Options of commands that take a script stand before or behind it; everything behind
.B \\-\\-
reaches the script.
.B hpcflow help
lists topics.
.SH COMMANDS
"""
FOOT = """.SH SEE ALSO
.BR mpirun (1),
.BR srun (1)
"""


def page() -> str:
    """The whole page, in roff with the macros of man(7)."""
    commands = "".join(line for name in COMMANDS for line in _command(name))
    settings = "".join(
        f".TP\n.B {_roff(name)}\n{_roff(_meaning(default, meaning))}\n"
        for name, default, meaning in help_topics.settings()
    )
    about = (
        ".SH SETTINGS\n\\fB\\-\\-set\\fR \\fINAME\\fR=\\fIVALUE\\fR, or \\fBHPCFLOW_\\fR and the "
        "name in capitals in the environment.\n"
    )
    topics = f".SH EXIT STATUS\n{_table_of('exit-codes')}"
    return f"{HEAD}{commands}{about}{settings}{topics}{FOOT}"


def _command(name: str) -> Iterator[str]:
    yield f".SS hpcflow {_roff(name)}\n{_roff(_sentence(COMMANDS[name]))}\n"
    for action in shown_actions(name):
        yield f".TP\n{_usage(action)}\n{_roff(_sentence(action.help or ''))}\n"


def _usage(action: argparse.Action) -> str:
    choices = "|".join(map(str, action.choices)) if action.choices else ""
    value = _roff(str(action.metavar or choices or action.dest.upper()))
    if not action.option_strings:
        return f"\\fI{value}\\fR"
    names = ", ".join(f"\\fB{_roff(word)}\\fR" for word in action.option_strings)
    return names if action.nargs == 0 else f"{names} \\fI{value}\\fR"


def _table_of(topic: str) -> str:
    """The rows of the first table of a topic: the first column, then the others."""
    first = help_topics.page(topic).split("|---|", 1)[1].split("\n\n", 1)[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in first.splitlines()[1:]
        if line.startswith("|")
    ]
    return "".join(f".TP\n.B {_roff(code)}\n{_roff(about)}.\n" for code, about, *_ in rows)


def _meaning(default: str, meaning: str) -> str:
    return f"{_sentence(meaning)} Default: {default}." if default else _sentence(meaning)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _roff(text: str) -> str:
    """A text without markup, escaped: a hyphen is one that can be copied."""
    plain = re.sub(r"`([^`]*)`", r"\1", text).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain[:1] in (".", "'") else plain
