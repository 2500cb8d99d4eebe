"""Print a completion script for bash, zsh or fish, made from the parsers of the commands.

bash: eval "$(hpcflow completion bash)" in ~/.bashrc. zsh: the same with zsh, in ~/.zshrc after
compinit. fish: hpcflow completion fish > ~/.config/fish/completions/hpcflow.fish
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Iterator, Sequence

from hpcflow.cli import help_topics
from hpcflow.cli.main import COMMANDS
from hpcflow.cli.terminal_output import EscapingParser, out
from hpcflow.platform.fault_specification import USAGES
from hpcflow.settings import CHOICES, Settings

RULES = ["async", "all", "backup:", "stale:"]

BASH = """_hpcflow() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=""
  COMPREPLY=()
  local at=$COMP_CWORD
  if [ "$cur" = "=" ]; then cur=""; elif [ "$prev" = "=" ]; then at=$((at-1)); else at=0; fi
  if [ "$at" -gt 2 ]; then
    prev=${COMP_WORDS[at-1]}
    case ${COMP_WORDS[at-2]}${COMP_WORDS[at-3]} in --set*|=--set)
      case $prev in
VALUES
      esac
      COMPREPLY=($(compgen -W "$words" -- "$cur"))
      return ;;
    esac
  fi
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "COMMANDS" -- "$cur"))
    return
  fi
  if [ "$prev" = "--set" ]; then
    COMPREPLY=($(compgen -S = -W "SETTINGS" -- "$cur"))
    compopt -o nospace 2>/dev/null
    return
  fi
  case ${COMP_WORDS[1]} in
CASES
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  case ${COMPREPLY[0]} in *[:=]) compopt -o nospace 2>/dev/null ;; esac
}
complete -o default -F _hpcflow hpcflow
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def main(args: argparse.Namespace) -> int:
    """Print the script."""
    if args.shell == "fish":
        out("\n".join(_fish_lines()))
    else:
        out((ZSH if args.shell == "zsh" else "") + _bash_script(), end="")
    return 0


def shown_actions(name: str) -> list[argparse.Action]:
    """The arguments of a command that its help shows, without `--help`."""
    module = importlib.import_module(f"hpcflow.cli.{name.replace('-', '_')}")
    parser = EscapingParser(prog=f"hpcflow {name}", add_help=False)
    module.add_arguments(parser)
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


def _bash_script() -> str:
    cases = []
    for name in COMMANDS:
        options = " ".join([*_options(name), "--help"])
        values = " ".join(_values(name))
        cases.append(f'    {name}) words="{values}"; if [ "${{cur:0:1}}" = "-" ]; then')
        cases.append(f'      words="{options}"; fi')
        cases.append("      case $prev in")
        for words, choices in _option_values(name):
            cases.append(f'        {"|".join(words)}) words="{" ".join(choices)}" ;;')
        cases.append("      esac ;;")
    settings = " ".join(field.name for field in dataclasses.fields(Settings))
    text = BASH.replace("COMMANDS", " ".join(COMMANDS)).replace("CASES", "\n".join(cases))
    values = "\n".join(
        f'        {name}) words="{" ".join(words)}" ;;' for name, words in setting_values().items()
    )
    return text.replace("SETTINGS", settings).replace("VALUES", values)


def setting_values() -> dict[str, list[str]]:
    """The values of the settings that have few; what ends in a colon takes a number."""
    switches = {
        field.name: ["0", "1"]
        for field in dataclasses.fields(Settings)
        if isinstance(field.default, bool)
    }
    return {**switches, **{name: list(words) for name, words in CHOICES.items()}, "sync": RULES}


def _option_values(name: str) -> Iterator[tuple[Sequence[str], list[str]]]:
    """The options of a command whose values are few, with these values."""
    for action in shown_actions(name):
        words = action.option_strings
        if words and action.choices:
            yield words, [str(choice) for choice in action.choices]
        elif "--sync" in words:
            yield words, RULES
        elif "--inject" in words:
            yield words, [usage.partition(":")[0] + ":" for usage in USAGES]


def _options(name: str) -> list[str]:
    """The options of a command."""
    return [word for a in shown_actions(name) for word in a.option_strings]


def _values(name: str) -> list[str]:
    """What the command takes that is neither an option nor a file."""
    if name == "help":
        return list(help_topics.titles())
    positional = [a for a in shown_actions(name) if not a.option_strings]
    return [str(choice) for action in positional for choice in action.choices or ()]


def _fish_lines() -> Iterator[str]:
    few = setting_values()
    settings = " ".join(
        f"{field.name}={value}"
        for field in dataclasses.fields(Settings)
        for value in few.get(field.name, [""])
    )
    for name, line in COMMANDS.items():
        yield f"complete -c hpcflow -n __fish_use_subcommand -f -a {name} -d {_quoted(line)}"
        here = f"complete -c hpcflow -n {_quoted(f'__fish_seen_subcommand_from {name}')}"
        values_of = {words[0]: values for words, values in _option_values(name)}
        for action in shown_actions(name):
            if action.option_strings:
                words = " ".join(_fish_option(word) for word in action.option_strings)
                value = "" if action.nargs == 0 else " -r"
                value += f" -f -a {_quoted(settings)}" if "--set" in action.option_strings else ""
                if given := values_of.get(action.option_strings[0]):
                    value += f" -f -a {_quoted(' '.join(given))}"
                about = "" if action.help is None else f" -d {_quoted(action.help)}"
                yield f"{here} {words}{value}{about}"
        if values := " ".join(_values(name)):
            yield f"{here} -f -a {_quoted(values)}"


def _fish_option(word: str) -> str:
    if word.startswith("--"):
        return f"-l {word[2:]}"
    return f"-{'s' if len(word) == 2 else 'o'} {word[1:]}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
