"""Print a completion script for bash, zsh or fish, made from the parsers of the commands.

bash: eval "$(hpcflow completion bash)" in ~/.bashrc. zsh: the same with zsh, in ~/.zshrc after
compinit. fish: hpcflow completion fish > ~/.config/fish/completions/hpcflow.fish
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Iterator

from hpcflow.cli import help_topics
from hpcflow.cli.main import COMMANDS
from hpcflow.cli.terminal_output import EscapingParser, out
from hpcflow.settings import Settings

BASH = """_hpcflow() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=""
  COMPREPLY=()
  if [ "$prev" = "=" ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
  if [ "$cur" = "=" ]; then cur=""; fi
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
        cases.append(f'      words="{options}"; fi ;;')
    settings = " ".join(field.name for field in dataclasses.fields(Settings))
    text = BASH.replace("COMMANDS", " ".join(COMMANDS)).replace("CASES", "\n".join(cases))
    return text.replace("SETTINGS", settings)


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
    settings = " ".join(f"{field.name}=" for field in dataclasses.fields(Settings))
    for name, line in COMMANDS.items():
        yield f"complete -c hpcflow -n __fish_use_subcommand -f -a {name} -d {_quoted(line)}"
        here = f"complete -c hpcflow -n {_quoted(f'__fish_seen_subcommand_from {name}')}"
        for action in shown_actions(name):
            if action.option_strings:
                words = " ".join(_fish_option(word) for word in action.option_strings)
                value = "" if action.nargs == 0 else " -r"
                value += f" -f -a {_quoted(settings)}" if "--set" in action.option_strings else ""
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
