"""Predict the time of a step on a cluster, from the plan of a script or from a finished run.

SCRIPT is planned as by `hpcflow plan`; the times of its operations come from the machine profile
(`hpcflow costs`), else from the cost model. RUN is
the folder of a run: its script is planned again, and the model is scaled to the run's measured own
work of a step. Computing, messages and updates of servers are then replayed, without MPI.
`hpcflow help prediction` describes the method and its limits.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcflow.cli.plan import plans_of
from hpcflow.cli.prediction_options import (
    add_network_arguments,
    add_replay_arguments,
    chosen_network,
    chosen_storage,
    chosen_topology,
    fitted_network,
    job_places,
    replay_settings,
)
from hpcflow.cli.run import add_settings, chosen_settings
from hpcflow.cli.terminal_output import err, out
from hpcflow.errors import HpcflowError, LaunchError
from hpcflow.graph.static_shape import Spec
from hpcflow.placement.durations import Seconds
from hpcflow.placement.job_replay import ReplicaClass
from hpcflow.plan.cost.corrected_seconds import corrected_node_seconds
from hpcflow.plan.cost.memory_estimate import predict_memory
from hpcflow.plan.cost.operation_costs import OperationCosts
from hpcflow.plan.cost.planned_steps import planned_step
from hpcflow.plan.cost.replay_of_plan import NodeSeconds, model_seconds
from hpcflow.plan.cost.step_prediction import StepPrediction, predict_step
from hpcflow.plan.ir.program import Node, Plan
from hpcflow.plan.listing.plan_text import format_bytes, format_table
from hpcflow.platform.measured_costs import OperationCost
from hpcflow.platform.measured_steps import PlannedStep
from hpcflow.ps import script_rules
from hpcflow.settings import Settings
from hpcflow.train.result_files import versions, write_text

if TYPE_CHECKING:
    from hpcflow.cli.measured_run import MeasuredRun
    from hpcflow.cli.setting_comparison import Comparison
    from hpcflow.plan.cost.memory_estimate import MemoryEstimate

TAKES_SCRIPT = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `hpcflow predict`."""
    parser.usage = "%(prog)s [options] SCRIPT|RUN [arguments of the script]"
    parser.add_argument("--ranks", type=int, metavar="N", help="number of ranks (1, or RUN's)")
    add_settings(parser)
    add_network_arguments(parser)
    add_replay_arguments(parser)
    parser.add_argument(
        "--compare",
        action="store_true",
        help="predict also with other values of settings that do not change results; the script "
        "is planned again for each",
    )
    parser.add_argument(
        "--no-correction", action="store_true", help="do not correct by earlier runs' steps"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--out", metavar="FILE", help="write the prediction, for `hpcflow report --predicted FILE`"
    )


def main(args: argparse.Namespace) -> int:
    """Predict. Exit code: 1 if the script or the plan failed, 2 for wrong arguments."""
    try:
        run = _measured_run(args)
        prediction, times, code = _predicted(args, run)
        if code or prediction is None:
            if not code:
                err(f"hpcflow predict: {args.script} ran no step, so there is no plan")
            return code or 1
        comparison = _compared(args, run, prediction) if args.compare else None
    except HpcflowError as error:
        err(f"hpcflow: {type(error).__name__}: {error}")
        return 2
    data = _data(args, prediction, run) | {"times": times}
    data |= {"comparison": comparison.as_data()} if comparison is not None else {}
    try:
        if args.out:
            write_text(Path(args.out), json.dumps(data, indent=1) + "\n")
    except OSError as error:
        err(f"hpcflow: {args.out} cannot be written: {error.strerror}")
        return 1
    text = prediction_text(prediction, times)
    text += f"\n\n{comparison.as_text()}" if comparison is not None else ""
    out(json.dumps(data, indent=1) if args.json else text)
    return 0


def _predicted(
    args: argparse.Namespace, run: MeasuredRun | None
) -> tuple[StepPrediction | None, str, int]:
    """The prediction, where the times of operations are from, and the script's exit code."""
    topology = chosen_topology(args)
    network = chosen_network(args, run)
    storage, replay = chosen_storage(args), replay_settings(args, run)
    ranks = args.ranks if topology is None else topology.size
    plan, step, memory, code = _planned(args, ranks, run)
    if code or plan is None:
        return None, "", code
    seconds, times = _node_seconds(args, run, plan, step)
    classes: Sequence[ReplicaClass] = ()
    error = None
    if run is not None:
        classes = run.classes(plan.cluster.replicas)
        network, error = fitted_network(args, run, network, replay)
    where = network if topology is None else job_places(args, topology, plan)
    prediction = predict_step(
        plan, where, memory, replay, classes, seconds, args.repeat, storage, error
    )
    return prediction, times, 0


def _compared(
    args: argparse.Namespace, run: MeasuredRun | None, given: StepPrediction
) -> Comparison:
    """The prediction with other values of settings."""
    from hpcflow.cli.setting_comparison import compare

    own = run.environment if run is not None else {}
    settings = Settings.from_environ({**os.environ, **own, **chosen_settings(args)})
    return compare(args, settings, given, lambda changed: _predicted(changed, run)[0])


def prediction_text(prediction: StepPrediction, times: str) -> str:
    """The prediction as text; `times` says where the times of operations are from."""
    cluster = prediction.plan.cluster
    rate, servers = prediction.samples_per_second, f" + {cluster.servers} servers"
    sync = f", sync={cluster.sync}" if cluster.mode == "ps" else ""
    rows = [
        ("time of a step, median", _time_text(prediction.median)),
        ("its interval", f"{_time_text(prediction.low)} to {_time_text(prediction.high)}"),
        ("time of a step, 90th percentile", _time_text(prediction.p90)),
        ("samples/s", f"{rate:,.0f}" if rate else "unknown: no array with samples is fed"),
        ("steps/s of all replicas", f"{prediction.steps_per_second:,.4g}"),
        ("efficiency of a rank", f"{prediction.efficiency:.0%} of one rank alone"),
        ("limited by", f"{prediction.limit}, busy {prediction.busy[prediction.limit]:.0%}"),
        *(
            (f"memory of {task}", format_bytes(nbytes))
            for task, nbytes in prediction.memory.items()
        ),
        ("times of operations", times),
    ]
    head = (
        f"prediction: mode {cluster.mode}{sync}, {prediction.ranks} ranks = "
        f"{cluster.workers} workers{servers if cluster.servers else ''}"
    )
    return f"{head}\n{format_table(('figure', 'predicted'), rows)}"


def _measured_run(args: argparse.Namespace) -> MeasuredRun | None:
    """The run that is predicted again; None if a script is given.

    Errors: LaunchError if there is neither.
    """
    if os.path.isdir(args.script):
        from hpcflow.cli.measured_run import MeasuredRun

        if args.script_args:
            raise LaunchError(
                f"{args.script} is a run, whose script has its arguments: "
                f"{' '.join(args.script_args)} are too many",
                hint="give a script to predict other arguments",
            )
        return MeasuredRun(Path(args.script))
    if not os.path.isfile(args.script):
        raise LaunchError(
            f"there is no script or run {args.script!r} in {os.getcwd()}", hint="give its path"
        )
    return None


def _planned(
    args: argparse.Namespace, ranks: int | None, run: MeasuredRun | None
) -> tuple[Plan | None, PlannedStep, dict[str, MemoryEstimate], int]:
    """The last plan of the script, its driver's step, its memory, and the script's exit code."""
    from hpcflow.runtime.step.kernel_selection import lower_for_devices, memory_lowering

    chosen = chosen_settings(args)
    if run is not None:
        ranks = run.ranks if ranks is None else ranks
        _check_ranks(ranks, int(chosen.get("HPCFLOW_PS", run.servers)))
        plan, devices, code = run.planned(ranks, chosen)
    else:
        settings = Settings.from_environ({**os.environ, **chosen})
        ranks = 1 if ranks is None else ranks
        _check_ranks(ranks, settings.ps)
        script_rules.look_in(args.script)
        plans, devices, code = plans_of(args.script, args.script_args, ranks, settings)
        plan = plans[-1][0] if plans else None
    if code or plan is None:
        return None, PlannedStep(()), {}, code
    step = planned_step(plan, lower_for_devices(plan.parts[plan.driver], devices))
    return plan, step, predict_memory(plan, memory_lowering(devices)), 0


def _node_seconds(
    args: argparse.Namespace, run: MeasuredRun | None, plan: Plan, step: PlannedStep
) -> tuple[NodeSeconds, str]:
    """The times of operations, and where they are from: the run, this machine, or the model."""
    if run is not None:
        return run.node_seconds(), f"measured in {os.path.abspath(args.script)}"
    from hpcflow.kernels.machine_facts import machine_facts
    from hpcflow.platform.machine_profile import MachineProfile, profile_file

    settings = Settings.from_environ({**os.environ, **chosen_settings(args)})
    file = profile_file(machine_facts(), settings.cost_cache)
    try:
        known = file.read() if file is not None else MachineProfile()
    except HpcflowError as error:
        err(f"hpcflow predict: {error.message}: the times are those of the cost model")
        known = MachineProfile()
    threads = settings.threads or max((args.cores or 0) // (args.ranks_per_node or 1), 1)
    seconds, times = operation_seconds(known.operations, threads)
    if args.no_correction:
        return seconds, times
    corrected = corrected_node_seconds(plan, step, known, seconds, threads)
    if corrected is None:
        return seconds, times
    return corrected.seconds, f"{times}; {corrected}"


def operation_seconds(rows: Sequence[OperationCost], threads: int) -> tuple[NodeSeconds, str]:
    """The times of operations by measured rows, else by the cost model, and which of them."""
    if not rows:
        return model_seconds, "cost model; `hpcflow costs --calibrate` measures this machine"
    costs = OperationCosts(rows)

    def seconds(node: Node, inputs: Sequence[Spec]) -> Seconds:
        found = costs.seconds(node, inputs, threads)
        return Seconds(found.median, found.low, found.high)

    return seconds, f"{len(rows)} operations measured on this machine, {threads} threads a rank"


def _check_ranks(ranks: int, servers: int) -> None:
    """Raise LaunchError unless there is a worker."""
    if ranks <= max(servers, 0):
        raise LaunchError(
            f"--ranks {ranks} with {servers} servers leaves no worker",
            hint=f"give at least {max(servers, 0) + 1} ranks",
        )


def _data(
    args: argparse.Namespace, prediction: StepPrediction, run: MeasuredRun | None
) -> dict[str, Any]:
    """The prediction as JSON data, with where it comes from."""
    from hpcflow.platform.git_state import git_state

    git = git_state(str(Path(__file__).parent)) or {}
    script = args.script if run is None else run.script
    return {
        **prediction.as_data(),
        "script": os.path.abspath(script),
        "arguments": args.script_args if run is None else run.script_args,
        "settings": chosen_settings(args),
        "commit": git.get("commit"),
        "versions": versions(),
    }


def _time_text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
