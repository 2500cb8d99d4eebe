"""Print a short page on a topic; without a topic, the list of topics."""

from __future__ import annotations

import argparse
import difflib

from hpcflow.cli import help_topics
from hpcflow.cli.terminal_output import err, out
from hpcflow.plan.listing.plan_text import format_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow help`."""
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="the topic to explain")


def main(args: argparse.Namespace) -> int:
    """Print the page or the list; 2 if there is no such topic."""
    titles = help_topics.titles()
    if args.topic is None:
        out(format_table(("topic", "about"), list(titles.items())))
        out("\n`hpcflow help TOPIC` prints a page; `hpcflow COMMAND --help`, a command's options.")
        return 0
    if args.topic not in titles:
        near = difflib.get_close_matches(args.topic, titles, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "`hpcflow help` lists the topics"
        err(f"hpcflow help: there is no topic {args.topic!r}; {hint}")
        return 2
    out(help_topics.page(args.topic), end="")
    return 0
