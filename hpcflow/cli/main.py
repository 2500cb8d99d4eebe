"""Subcommand dispatch: the table of subcommands; only the requested one is imported.

A subcommand is a module of this package with `add_arguments(parser)` and `main(args) -> int`. A
subcommand that runs a user's script sets `TAKES_SCRIPT = True`. Its own options then stand before
or after the script, all other options are passed to the script, and `args.script` and
`args.script_args` are set.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from traceback import walk_tb

from hpcflow.cli.terminal_output import EscapingParser, err
from hpcflow.errors import HpcflowError
from hpcflow.platform.record_files import read_text

COMMANDS = {
    "run": "run a script on one rank or many",
    "submit": "submit a job script to SLURM, and say what to do if it is refused",
    "check-job": "check a job script for errors that would make the job fail",
    "plan": "show how a script's graph is placed and partitioned over ranks, without running it",
    "predict": "predict the time of a step on many ranks, from a script's plan or from a run",
    "cache": "show or remove the cached plans and kernels",
    "costs": "show the measured costs of operations on this machine, and how well they predict",
    "inspect": "show what is in a checkpoint, and whether it is complete",
    "verify": "check every byte and the structure of checkpoints; name what is damaged",
    "diff": "compare two checkpoints, array by array",
    "export": "write a checkpoint as one plain HDF5 or npz file, or its graph as an ONNX model",
    "infer": "run a trained graph on all samples of a file, sharded over ranks",
    "doctor": "check this installation or the ranks of a job, and say what is wrong",
    "pack": "pack this installation into one file, for thousands of ranks",
    "prove-resume": "check that a script that is stopped and resumed ends with the same bits",
    "report": "show what runs have done: loss, throughput, scaling; as one page",
    "sweep": "run a script with many settings and arguments, here or as SLURM job arrays",
    "scale": "run a script on several numbers of ranks: a scaling study by one command",
    "trace": "merge what a job that ended badly has left of its trace",
    "watch": "show what runs do while they go on: progress, rate, loss, slow ranks",
    "completion": "print a completion script for bash, zsh or fish",
    "help": "explain a topic: checkpoints, exit codes, settings and others",
}
# What arguments of these names name.
NAMED = {"DIR": "folder", "RUN": "folder"}
NAMED |= dict.fromkeys(("FILE", "DATA.h5", "OUT", "OUT.h5"), "file")
NAMED |= dict.fromkeys(("DIR|FILE", "PATH", "CHECKPOINT", "CKPT", "A", "B"), "file or folder")
INTERRUPTED = 128 + signal.SIGINT  # exit code, as that of a shell
# Other launchers' options for the number of ranks -> the option here.
USUAL = {"-np": "-n", "--np": "-n", "--ntasks": "-n", "--n": "-n", "--ranks": "-n"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code, or 2 for a wrong command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = f" {words[0]}" if words and words[0] in COMMANDS else ""
    try:
        if getattr(signal.getsignal(signal.SIGINT), "__module__", "") == "hpcflow":
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return _run_command(words[0], words[1:]) if name else _answer(words)
    except KeyboardInterrupt as stop:
        frames = [frame for frame, _ in walk_tb(stop.__traceback__)]
        if any(frame.f_globals.get("__name__") == "runpy" for frame in frames):
            raise  # the script's own traceback
        err(f"hpcflow{name}: interrupted")
        return INTERRUPTED


def _answer(words: Sequence[str]) -> int:
    """What a command line without a command is about: help, the version, or an error."""
    parser = EscapingParser(
        prog="hpcflow",
        description="Train models as one dataflow graph over MPI ranks.",
        allow_abbrev=False,
        epilog="`hpcflow COMMAND --help` lists the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"hpcflow {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, line in COMMANDS.items():
        commands.add_parser(name, help=line, add_help=False)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    near = difflib.get_close_matches(words[0], COMMANDS, 1)
    if near and not words[0].startswith("-"):
        parser.error(f"there is no command {words[0]}; did you mean {near[0]}?")
    parser.parse_args(words)
    return 2


@contextlib.contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    """Delay Ctrl-C to the end of the body: NumPy makes errors of one while it is imported."""
    noted: list[int] = []
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if noted:
        raise KeyboardInterrupt


def _run_command(name: str, words: list[str]) -> int:
    with _interrupted_afterwards():
        module = importlib.import_module(f"hpcflow.cli.{name.replace('-', '_')}")
    parser = EscapingParser(prog=f"hpcflow {name}", description=module.__doc__, allow_abbrev=False)
    module.add_arguments(parser)
    if getattr(module, "TAKES_SCRIPT", False):
        parser_words, script, script_args = split_script(parser, words)
        args = parser.parse_args(parser_words)
        if script is None:
            parser.error("no script is given")
        if shared := shared_option(parser, words, script, script):
            parser.error(shared)
        if name != "run":  # whose ranks would each say it
            for word in beside_options(parser, script, script_args, words):
                err(f"hpcflow {name}: {word}")
        args.script, args.script_args = script, script_args
    else:
        args = parser.parse_args(words)
    if empty := empty_name(parser, args):
        err(f"hpcflow {name}: {empty}")
        return 2
    return int(module.main(args) or 0)


def empty_name(parser: argparse.ArgumentParser, args: argparse.Namespace) -> str:
    """The error for a file or folder that is given as an empty text; "" if there is none.

    Such a text is usually that of a shell variable that is not set.
    """
    for action in parser._actions:
        value = getattr(args, action.dest, None)
        values = value if isinstance(value, list) else [value]
        if action.metavar in NAMED and "" in values:
            option = action.option_strings[-1] if action.option_strings else action.metavar
            kind = NAMED[str(action.metavar)]
            return f"{option}: the name of the {kind} is empty"
    return ""


def split_script(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[list[str], str | None, list[str]]:
    """Split a command line into the parser's own options, the script, and the script's arguments.

    The parser's options are recognized on both sides of the script, until a `--`. An unknown option
    before the script is an error: only its owner knows whether the next word is its value.
    """
    options = parser._option_string_actions
    parser_words: list[str] = []
    script: str | None = None
    script_args: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        name, equals, _ = word.partition("=")
        short = word[:2] if word[1:2] != "-" and word[2:].isdigit() else ""  # such as -n4
        if word == "--":
            script_args += remaining
            break
        asks_script = script is not None and word in ("-h", "--help")
        if (name in options or short in options) and not asks_script:
            parser_words.append(word)
            takes_value = options.get(name, options.get(short)).nargs != 0  # type: ignore[union-attr]
            if takes_value and not equals and name in options and remaining:
                parser_words.append(remaining.pop(0))
        elif script is not None:
            script_args.append(word)
        elif word.startswith("-"):
            usual = USUAL.get(name) if USUAL.get(name) in options else None
            if usual is None and "--ranks" in options and "-n" in (name, short, USUAL.get(name)):
                usual = "--ranks"
            usual = usual or (_as_setting(name) if "--set" in options else "")
            near = difflib.get_close_matches(name, options, n=1)
            parser.error(
                f"unknown option {word}; "
                + (f"use {usual}" if usual else "put options of the script after the script")
                + (f"; did you mean {near[0]}?" if near and not usual else "")
            )
        else:
            script = word
    if script is None and script_args:
        script = script_args.pop(0)
    return parser_words, script, script_args


def _as_setting(name: str) -> str:
    """How to give a setting that has no option of its own; "" if there is none of this name."""
    from hpcflow.settings import Settings

    field = name.lstrip("-").replace("-", "_")
    return f"--set {field}=VALUE" if field in Settings.__dataclass_fields__ else ""


def shared_option(
    parser: argparse.ArgumentParser, words: Sequence[str], script: str, path: str
) -> str:
    """The error for an option after the script that both the parser and the script define.

    It would be ambiguous. `path` is the path of the script. "" if there is no such option.
    """
    before = split_script(parser, words[: words.index(script) + 1])[0]
    behind = split_script(parser, words)[0][len(before) :]
    try:
        text = read_text(Path(path)) or "" if behind else ""
    except HpcflowError:  # reported by the next reader of the file
        return ""
    for word in behind:
        name = word.partition("=")[0]
        option = rf"(add_argument|option)\s*\([^()]*[\"']{re.escape(name)}[\"']"
        flag = rf"DEFINE_\w+\s*\(\s*[\"']{re.escape(name.lstrip('-'))}[\"']"
        if name.startswith("-") and re.search(f"{option}|{flag}", text):
            return (
                f"{name}: {script} has an option of this name, too; put it before {script} for "
                f"hpcflow, or after -- for the script: {script} -- {name} ..."
            )
    return ""


def beside_options(
    parser: argparse.ArgumentParser, script: str, script_args: Sequence[str], words: Sequence[str]
) -> Iterator[str]:
    """Notes about options that the script gets and does not mention, but the parser may mean.

    These are abbreviated options, and those of launchers for the number of ranks.
    """
    options = parser._option_string_actions
    until = words.index("--") if "--" in words else len(words)
    for word in script_args:
        name = word.partition("=")[0]
        is_long = len(name) > 3 and name.startswith("--")
        found = [each for each in options if is_long and each.startswith(name)]
        if "--ranks" in options and "-n" in (name, USUAL.get(name)):
            found = ["--ranks"]
        if not found or word not in words[:until]:
            continue
        try:
            text = read_text(Path(script)) or ""
        except HpcflowError:  # reported by the next reader of the file
            return
        if (name.lstrip("-") if is_long else name) not in text:
            yield f"{name} is passed to {script}; the option of this command is {found[0]}"


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    from hpcflow.platform.install_hints import DISTRIBUTION

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # a source tree that is not installed
        return "(not installed)"
