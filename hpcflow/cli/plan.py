"""Show how a script's graph is cut over ranks, without MPI and without running it.

The script runs as the driver of the first replica; each step is planned, none is computed. It ends
at the first plan that updates state (initialization apart), which is printed: ops per device, bytes
per edge and step, memory per rank, collectives, and what could not be proved.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpcflow.cli.run import chosen_settings, run_script
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.plan.ir import Plan
from hpcflow.plan.picture import as_dot, as_mermaid
from hpcflow.plan.show import as_data, as_text
from hpcflow.plan.verify import verify
from hpcflow.settings import Settings

if TYPE_CHECKING:
    from hpcflow.runtime.device import Device

TAKES_SCRIPT = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow plan`."""
    parser.usage = "%(prog)s [options] SCRIPT [arguments of the script]"
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="number of ranks")
    parser.add_argument("--ps", type=int, metavar="P", help="ranks that serve variables")
    parser.add_argument(
        "--tasks-per-replica", type=int, metavar="K", help="worker ranks that one graph spans"
    )
    parser.add_argument(
        "--sync", metavar="RULE", help="how workers keep step: async, all, backup:K or stale:S"
    )
    parser.add_argument("--run-dir", metavar="DIR", help="folder for results and reports")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="any other setting; may be repeated",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, as docs/plan-format.md describes"
    )
    parser.add_argument(
        "--kernels", action="store_true", help="show whose kernel serves each operation, and why"
    )
    parser.add_argument("--dot", metavar="FILE", help="write a picture for Graphviz")
    parser.add_argument("--mermaid", metavar="FILE", help="write a picture for Mermaid")


def main(args: argparse.Namespace) -> int:
    """Plan the script and print the plan; 1 if the script or the plan failed, 2 if misused."""
    try:
        if not os.path.isfile(args.script):
            raise LaunchError(f"no script {args.script!r} in {os.getcwd()}", hint="give its path")
        settings = Settings.from_environ({**os.environ, **chosen_settings(args)})
        found, devices, code = plans_of(args.script, args.script_args, args.ranks, settings)
    except HpcflowError as error:
        print(f"hpcflow: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if code:
        return code
    if not found:
        print(f"hpcflow: {args.script} ran no step, so there is no plan", file=sys.stderr)
        return 1
    try:
        for plan in (found[-1], found[-1].round):
            if plan is not None:
                verify(plan)
    except HpcflowError as error:
        print(f"hpcflow: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    try:
        _write(found[-1], args, devices)
    except OSError as error:
        print(f"hpcflow: {error.filename} is not written: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def plans_of(
    script: str, script_args: list[str], ranks: int, settings: Settings
) -> tuple[list[Plan], Mapping[str, Device], int]:
    """The plans that the script asks for, up to the first that trains, and its exit code.

    With them come the devices whose kernels would run here.
    What the script prints goes to stderr: stdout is the plan's.
    """
    from hpcflow.runtime.job import Planned, planning

    found: list[Plan] = []
    code = 0
    with contextlib.redirect_stdout(sys.stderr), planning(ranks, settings, found.append) as here:
        try:
            code = run_script(script, script_args)
        except Planned:
            pass
        except SystemExit as end:
            code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    return found, here.devices, code


def _write(plan: Plan, args: argparse.Namespace, devices: Mapping[str, Device]) -> None:
    from hpcflow.runtime.serving import (
        groups_data,
        groups_text,
        kernels_data,
        kernels_text,
        made_for,
    )

    made = made_for(devices)
    if args.dot:
        Path(args.dot).write_text(as_dot(plan), encoding="utf-8")
    if args.mermaid:
        Path(args.mermaid).write_text(as_mermaid(plan), encoding="utf-8")
    if args.json:
        more = {"fused": groups_data(plan, devices)}
        if args.kernels:
            more["kernels"] = kernels_data(plan, devices)
        json.dump(as_data(plan, made) | more, sys.stdout, indent=1)
        print()
    else:
        print(as_text(plan, made), end="")
        if groups := groups_text(plan, devices):
            print(f"\n{groups}")
        if args.kernels:
            print(f"\n{kernels_text(plan, devices)}")
