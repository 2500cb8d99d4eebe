"""Show how a script's graph is partitioned over ranks, without MPI and without computing it.

The script runs as the driver of the first replica; its steps are planned but not computed. It ends
at the first plan that updates state (apart from initialization). This plan is printed: ops per
device, bytes per edge and step, memory per rank, collectives, and checks that were not possible.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcflow.cli.cache import age
from hpcflow.cli.run import add_settings, chosen_settings, run_script
from hpcflow.cli.terminal_output import err, out
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.graph.device_names import parse_device
from hpcflow.placement.topology import MOST_RANKS
from hpcflow.plan.ir.node_effects import plan_trains
from hpcflow.plan.ir.program import Plan
from hpcflow.plan.listing.code_listing import code_data, code_text
from hpcflow.plan.listing.pass_listing import (
    diff_data,
    diff_text,
    passes_data,
    passes_text,
)
from hpcflow.plan.listing.plan_diagram import as_dot, as_mermaid
from hpcflow.plan.listing.plan_text import plan_data, plan_text
from hpcflow.plan.pass_list import all_passes
from hpcflow.plan.pass_row import find_passes
from hpcflow.plan.serialization.plan_cache_key import LEAST_NODES, MOST_BYTES
from hpcflow.plan.verification.plan_verifier import verify_plan
from hpcflow.platform.quantity_text import format_bytes, format_seconds
from hpcflow.ps import script_rules
from hpcflow.report.plan_picture import plan_page, plan_svg
from hpcflow.settings import Settings
from hpcflow.train.result_files import write_output

if TYPE_CHECKING:
    from hpcflow.lowering.kernel_metadata import LoweredPartition
    from hpcflow.runtime.device.device import Device
    from hpcflow.runtime.step.plan_cache import PlanOutlook, PlanPreview

TAKES_SCRIPT = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow plan`."""
    parser.usage = "%(prog)s [options] SCRIPT [arguments of the script]"
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        metavar="N",
        help="number of ranks; forecasts by measured times assume that they share this machine, "
        "or have the threads of --set threads=K",
    )
    add_settings(parser)
    parser.add_argument(
        "--json", action="store_true", help="print JSON, as `hpcflow help plan-format` describes"
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="show the kernel that is selected for each operation, and why",
    )
    parser.add_argument(
        "--code",
        action="store_true",
        help="show the instructions of one task of each job, and where its values are stored",
    )
    parser.add_argument(
        "--passes",
        action="store_true",
        help="show the passes in their order, with nodes and time",
    )
    parser.add_argument(
        "--diff", metavar="PASS", help="show what a pass changed: nodes added, removed, changed"
    )
    parser.add_argument("--dot", metavar="FILE", help="write the graph for Graphviz")
    parser.add_argument("--mermaid", metavar="FILE", help="write the graph for Mermaid")
    parser.add_argument("--svg", metavar="FILE", help="write a picture of the layers as SVG")
    parser.add_argument(
        "--html", metavar="FILE", help="write a page with the picture; its groups open by a click"
    )


def main(args: argparse.Namespace) -> int:
    """Plan the script and print the plan.

    Exit code: 1 if the script or the plan failed, 2 for wrong arguments.
    """
    try:
        if not os.path.isfile(args.script):
            raise LaunchError(
                f"there is no script {args.script!r} in {os.getcwd()}", hint="give its path"
            )
        check_listing(args)
        script_rules.look_in(args.script)
        check_ranks(args.ranks)
        settings = Settings.from_environ({**os.environ, **chosen_settings(args)})
        plans, devices, code = plans_of(args.script, args.script_args, args.ranks, settings)
    except HpcflowError as error:
        err(f"hpcflow: {type(error).__name__}: {error}")
        return 2
    note_end("hpcflow plan", args.script, plans[-1][0] if plans else None, code)
    if code or not plans:
        return code or 1
    if args.passes or args.diff is not None:
        return _write_passes(plans[-1].outlook(), args)
    try:
        last = plans[-1].plan
        for plan in (last, last.round):
            if plan is not None:
                verify_plan(plan)
    except HpcflowError as error:
        err(f"hpcflow: {type(error).__name__}: {error}")
        return 1
    try:
        codes = _codes(last, devices, settings) if args.code else []
        _write(last, plans[-1].outlook(), args, devices, codes)
    except OSError as error:
        err(f"hpcflow: {error.filename} cannot be written: {error.strerror}")
        return 1
    return 0


def check_listing(args: argparse.Namespace) -> None:
    """Raise LaunchError for options of the plan beside those of the passes, which print no plan."""
    names = ("kernels", "code", "dot", "mermaid", "svg", "html")
    given = ", ".join(f"--{name}" for name in names if getattr(args, name))
    if given and (args.passes or args.diff is not None):
        raise LaunchError(
            f"--passes and --diff show passes instead of the plan, which {given} would show",
            hint=f"leave out {given}, or --passes and --diff",
        )


def check_ranks(ranks: int) -> None:
    """Raise LaunchError unless a job can have so many ranks."""
    if not 1 <= ranks <= MOST_RANKS:
        raise LaunchError(f"--ranks {ranks}: give 1 to {MOST_RANKS:,}")


def note_end(command: str, script: str, plan: Plan | None, code: int) -> None:
    """Tell why a script's last plan is no training step, or that there is none."""
    if code:
        err(f"{command}: {script} ended with exit code {code} before its first training step")
    elif plan is None:
        err(f"{command}: {script} ran no step, so there is no plan")
    elif not plan_trains(plan):
        err(f"{command}: {script} ran no training step; the plan is that of its last step")


def plans_of(
    script: str, script_args: list[str], ranks: int, settings: Settings
) -> tuple[list[PlanPreview], Mapping[str, Device], int]:
    """The script's plans, up to the first that trains, and the script's exit code.

    They come with the devices whose kernels would run here. Output of the script goes to stderr,
    since stdout is for the plan.
    """
    from hpcflow.runtime.job.job_membership import PlanningFinished, simulated_driver

    plans: list[PlanPreview] = []
    code = 0
    driver = simulated_driver(ranks, settings, plans.append)
    with contextlib.redirect_stdout(sys.stderr), driver as here:
        try:
            code = run_script(script, script_args)
        except PlanningFinished:
            pass
        except SystemExit as end:
            if end.code is not None and not isinstance(end.code, int):
                err(str(end.code))  # as Python does at the end of a script
            code = 0 if end.code is None else int(end.code) if isinstance(end.code, int) else 1
    return plans, here.devices, code


def _codes(plan: Plan, devices: Mapping[str, Device], settings: Settings) -> list[LoweredPartition]:
    """The code of one task of each job, for the step and for the synchronous update of servers."""
    from hpcflow.runtime.step.lowered_partition import lower_partition

    codes = []
    for each in (plan, plan.round):
        parts = () if each is None else each.parts.values()
        firsts = {parse_device(part.task).job: part for part in reversed(parts)}
        codes += [lower_partition(part, devices, settings) for part in reversed(firsts.values())]
    return codes


def _write_passes(outlook: PlanOutlook, args: argparse.Namespace) -> int:
    """Print the passes, or what one of them changed; 2 if there is no such pass."""
    rows = all_passes()
    try:
        chosen = find_passes(args.diff, rows) if args.diff is not None else []
    except HpcflowError as error:
        err(f"hpcflow: {type(error).__name__}: {error}")
        return 2
    record = outlook.passes()
    data: dict[str, Any] = {}
    if args.passes:
        data |= passes_data(rows, record)
    if args.diff is not None:
        data["diff"] = diff_data(chosen, record)
    if args.json:
        out(json.dumps(data, indent=1))
        return 0
    texts = [passes_text(rows, record)] if args.passes else []
    texts += [diff_text(chosen, record)] if args.diff is not None else []
    out("\n\n".join(texts))
    return 0


def _write(
    plan: Plan,
    outlook: PlanOutlook,
    args: argparse.Namespace,
    devices: Mapping[str, Device],
    codes: list[LoweredPartition],
) -> None:
    from hpcflow.runtime.step.kernel_selection import (
        fused_loops_data,
        fused_loops_text,
        kernels_data,
        kernels_text,
        memory_lowering,
    )

    lowering = memory_lowering(devices)
    if args.dot:
        write_output(Path(args.dot), as_dot(plan))
    if args.mermaid:
        write_output(Path(args.mermaid), as_mermaid(plan))
    if args.svg:
        write_output(Path(args.svg), plan_svg(plan))
    if args.html:
        write_output(Path(args.html), plan_page(plan, os.path.basename(args.script)))
    if args.json:
        extras = {"fused": fused_loops_data(plan, devices), "kept": _kept_data(outlook)}
        if args.kernels:
            extras["kernels"] = kernels_data(plan, devices)
        if args.code:
            extras["code"] = [row for code in codes for row in code_data(code)]
        out(json.dumps(plan_data(plan, lowering) | extras, indent=1))
    else:
        out(plan_text(plan, lowering), end="")
        if groups := fused_loops_text(plan, devices):
            out(f"\n{groups}")
        if args.kernels:
            out(f"\n{kernels_text(plan, devices)}")
        for code in codes:
            out(f"\n{code.part.task}\n{code_text(code)}")
        out(f"\n{_kept_text(outlook)}")


def _kept_data(outlook: PlanOutlook) -> dict[str, Any]:
    cached = outlook.cached_file
    return {
        "seconds": outlook.seconds,
        "folder": outlook.folder,
        "path": str(cached.path) if cached else None,
        "bytes": cached.nbytes if cached else None,
        "age_s": max(0.0, time.time() - cached.modified) if cached else None,
        "threads": outlook.threads if cached else None,
    }


def _kept_text(outlook: PlanOutlook) -> str:
    """Text: whether a run would load the plan from the cache, and the cost of planning."""
    cached = outlook.cached_file
    if cached is not None:
        file = f"{cached.path} ({format_bytes(cached.nbytes)}, made {age(cached.modified)} ago"
        how = f"a run loads it: {file}, for ranks of {outlook.threads} thread(s))"
    elif outlook.keeps:
        how = f"a run makes it, and caches it in {outlook.folder}"
    elif outlook.folder is None:
        how = "each run makes it: plans are not cached (setting plan_cache, or no llvmlite)"
    else:
        how = (
            f"each run makes it: it has fewer than {LEAST_NODES} operations, constants above "
            f"{format_bytes(MOST_BYTES)}, or operations, kernels or passes of your own"
        )
    return f"making this plan took {format_seconds(outlook.seconds)} here; {how}"
