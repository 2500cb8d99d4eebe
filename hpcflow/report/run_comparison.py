"""Run comparison: the options that a run was started with and the results of its script."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.train.job_result import FIELDS

LONGEST = 40  # characters of a value
IGNORED_SETTINGS = ("run_dir", "default_checkpoints")  # settings that always differ
FLAG_VALUE = "yes"  # shown for an option without a value
ARGUMENTS = "arguments"  # positional arguments of the script
_NUMBER = re.compile(r"-\.?\d")


def options(manifest: FileFacts) -> dict[str, str]:
    """The script's options and arguments, the settings, versions and the commit, by name."""
    by_name = script_options(script_words(manifest))
    settings = manifest.get("settings", {}, {})
    by_name |= {name: value for name, value in settings.items() if name not in IGNORED_SETTINGS}
    by_name |= manifest.get("versions", {}, {})
    git = manifest.get("git", {}, {})
    if git:
        changes = " with changes" if git.get("changed") else ""
        by_name["commit"] = f"{str(git.get('commit'))[:10]}{changes}"
    return {escape_line(str(name)): value_text(value) for name, value in by_name.items()}


def script_options(words: Sequence[str]) -> dict[str, str]:
    """The options of a command line; the words after an option, up to the next, are its value."""
    option_words: dict[str, list[str]] = {}
    name = ARGUMENTS
    for word in words:
        if word.startswith("-") and not _NUMBER.match(word):
            name, equals, value = word.partition("=")
            option_words.setdefault(name, []).extend([value] if equals else [])
            name = ARGUMENTS if equals else name
        else:
            option_words.setdefault(name, []).append(word)
    return {name: " ".join(values) or FLAG_VALUE for name, values in option_words.items()}


def script_words(manifest: FileFacts) -> list[str]:
    """The words of the command line after the script."""
    command: list[str] = manifest.get("command", [str], [])
    name = os.path.basename(manifest.get("script", str, ""))
    at = next((i for i, word in enumerate(command) if name and os.path.basename(word) == name), -1)
    words = command[at + 1 :] if at >= 0 else []
    return words[1:] if words[:1] == ["--"] else words


def script_values(result: FileFacts) -> dict[str, str]:
    """The values that the script has added to `result`, such as accuracy, by name."""
    added = {name: value for name, value in result.said.items() if name not in FIELDS}
    return {escape_line(name): value_text(value) for name, value in added.items()}


def all_names(values: Sequence[Mapping[str, str]]) -> list[str]:
    """The names that occur in at least one run."""
    return list(dict.fromkeys(name for run_values in values for name in run_values))


def differing(all_options: Sequence[Mapping[str, str]]) -> list[str]:
    """The names of options that differ between runs.

    A setting or version is compared only between the runs that have one: a single rank needs no
    MPI.
    """
    names = []
    for name in all_names(all_options):
        values = {run_options.get(name) for run_options in all_options}
        if not name.startswith("-") and name != ARGUMENTS:
            values.discard(None)
        if len(values) > 1:
            names.append(name)
    return names


def value_text(value: Any) -> str:
    """A value on one line, truncated if it is long."""
    if isinstance(value, (list, dict)):
        return f"{len(value):,} values"
    text = f"{value:.6g}" if isinstance(value, float) else escape_line(str(value))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
