"""Job predictor: predictions of one script or run, by the options of `hpcflow predict`.

A prediction plans the script (`script_plans.py`), finds the seconds of its operations and the
network, and replays the plan (`plan/cost/step_prediction.py`). The script runs only where its graph
may differ, and what does not depend on a plan is computed once: the latency that is fitted to a
run, and the machine profile.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcflow.cli.measured_run import MeasuredRun
from hpcflow.cli.plan import check_ranks, plans_of
from hpcflow.cli.prediction_options import (
    chosen_network,
    chosen_storage,
    chosen_topology,
    fitted_network,
    rank_mapping,
    replay_settings,
    with_lateness,
)
from hpcflow.cli.run import chosen_settings
from hpcflow.cli.script_plans import ScriptPlans, TrainingPlan
from hpcflow.cli.thread_numbers import OF_RUN, OF_TOPOLOGY, ThreadNumbers, thread_numbers
from hpcflow.errors import LaunchError
from hpcflow.graph.graph import Graph
from hpcflow.graph.static_shape import Spec
from hpcflow.kernels.machine_facts import own_profile
from hpcflow.placement.durations import Seconds
from hpcflow.placement.job_replay import ReplicaClass
from hpcflow.placement.network import Network
from hpcflow.plan.cost.corrected_times import corrected_times
from hpcflow.plan.cost.memory_estimate import MemoryEstimate, predict_memory
from hpcflow.plan.cost.operation_costs import operation_costs
from hpcflow.plan.cost.replay_of_plan import NodeSeconds, model_seconds, own_seconds
from hpcflow.plan.cost.step_features import step_features
from hpcflow.plan.cost.step_prediction import StepPrediction, predict_step
from hpcflow.plan.ir.node_effects import plan_trains
from hpcflow.plan.ir.program import Node, Plan
from hpcflow.platform import cpu_threads
from hpcflow.platform.machine_profile import MachineProfile
from hpcflow.platform.measured_costs import OperationCost
from hpcflow.platform.quantity_text import counted, format_seconds
from hpcflow.ps import script_rules
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.step.kernel_selection import memory_lowering
from hpcflow.runtime.step.lowered_partition import lower_partition
from hpcflow.runtime.step.plan_cache import PlanPreview
from hpcflow.settings import Settings


@dataclasses.dataclass(frozen=True)
class PredictedJob:
    """A prediction, None without a plan; the source of its times; the script's exit code."""

    prediction: StepPrediction | None
    times: str
    code: int
    devices: Mapping[str, Device] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def memory(self) -> dict[str, MemoryEstimate]:
        """The memory of each task."""
        assert self.prediction is not None
        return predict_memory(self.prediction.plan, memory_lowering(self.devices))


class JobPredictor:
    """The predictions of one script or run."""

    def __init__(self, script: str, script_args: Sequence[str]) -> None:
        """Errors: LaunchError if there is neither a script nor a run."""
        self.script, self.script_args = script, list(script_args)
        self.run = _measured_run(script, script_args)
        self.scripts = ScriptPlans(self._run_script) if self.run is None else self.run.scripts
        self._fitted: tuple[Network, float] | None = None
        self._known: MachineProfile | None = None

    def settings(self, args: argparse.Namespace) -> dict[str, str]:
        """The settings of the job as `HPCFLOW_*` variables, those of its run included."""
        own = self.run.environment if self.run is not None else {}
        return {**own, **chosen_settings(args)}

    def predict(self, args: argparse.Namespace, is_quick: bool = False) -> PredictedJob:
        """Predict the job with the options `args`.

        A quick prediction has the same times without their interval, and no memory.
        """
        run, topology = self.run, chosen_topology(args)
        network = chosen_network(args, run)
        storage, replay = chosen_storage(args), replay_settings(args, run)
        planned = self._planned(args, args.ranks if topology is None else topology.size)
        plan = planned.plan
        if planned.code or plan is None:
            return PredictedJob(None, "", planned.code)
        classes: Sequence[ReplicaClass] = ()
        error, note = 0.0 if is_quick else None, ""
        if run is not None:
            classes = run.classes(plan.cluster.replicas)
            self._fitted = self._fitted or fitted_network(args, run, network, replay)
            network, error = self._fitted
            note = (
                f"; its own step: {format_seconds(run.measured)} measured, "
                f"{format_seconds(run.replayed)} replayed"
            )
        elif topology is None:
            network, note = with_lateness(args, network, self._profile(args).waits)
        where = network if topology is None else rank_mapping(args, topology, plan)
        ranks_on_node = min(where.ranks_per_node, plan.cluster.workers + plan.cluster.servers)
        seconds, times = self._node_seconds(args, plan, planned.devices, ranks_on_node)
        if not plan_trains(plan) and not own_seconds(plan, seconds).median:
            raise LaunchError(
                f"{self.script} ran no step that computes something",
                hint="give a script that trains",
            )
        needs_memory = not is_quick or (storage is not None and storage.save_every)
        memory = predict_memory(plan, memory_lowering(planned.devices)) if needs_memory else {}
        prediction = predict_step(
            plan, where, memory, replay, classes, seconds, args.repeat, storage, error
        )
        return PredictedJob(prediction, times + note, 0, planned.devices)

    def thread_numbers(self, args: argparse.Namespace) -> ThreadNumbers:
        """The numbers of threads of a rank by which the job may be predicted."""
        settings = Settings.from_environ({**os.environ, **self.settings(args)})
        if self.run is not None:
            return ThreadNumbers(settings.threads, (), {"threads": OF_RUN})
        given = predicted_threads(args, settings)
        if chosen_topology(args) is not None:
            return ThreadNumbers(given, (), {"threads": OF_TOPOLOGY})
        rows, per_node = self._profile(args).operations, args.ranks_per_node or 1
        return thread_numbers(rows, given, per_node, args.cores, cpu_threads.find_cores())

    def _planned(self, args: argparse.Namespace, ranks: int | None) -> TrainingPlan:
        """The plan of the job's training step."""
        chosen, run = chosen_settings(args), self.run
        if run is not None:
            ranks = run.ranks if ranks is None else ranks
            _check_ranks(ranks, int(chosen.get("HPCFLOW_PS", run.servers)))
            return run.planned(ranks, chosen)
        settings = Settings.from_environ({**os.environ, **chosen})
        settings = dataclasses.replace(settings, threads=predicted_threads(args, settings))
        ranks = 1 if ranks is None else ranks
        _check_ranks(ranks, settings.ps)
        return self.scripts.planned(ranks, settings)

    def _run_script(
        self, ranks: int, settings: Settings
    ) -> tuple[list[PlanPreview], Mapping[str, Device], int]:
        script_rules.look_in(self.script)
        with Graph().as_default():
            return plans_of(self.script, self.script_args, ranks, settings)

    def _profile(self, args: argparse.Namespace) -> MachineProfile:
        """The profile of this machine; an empty one, with a warning, if it cannot be read."""
        if self._known is None:
            folder = Settings.from_environ({**os.environ, **chosen_settings(args)}).cost_cache
            self._known = own_profile(folder, "the times are those of the cost model")
        return self._known

    def _node_seconds(
        self,
        args: argparse.Namespace,
        plan: Plan,
        devices: Mapping[str, Device],
        ranks_on_node: int,
    ) -> tuple[NodeSeconds, str]:
        """The times of operations, and where they are from: the run, this machine, or the model."""
        if self.run is not None:
            return self.run.node_seconds(), f"measured in {os.path.abspath(self.script)}"
        settings = Settings.from_environ({**os.environ, **chosen_settings(args)})
        known, threads = self._profile(args), predicted_threads(args, settings)
        seconds, times = operation_seconds(known.operations, threads)
        if args.no_correction:
            known = dataclasses.replace(known, steps=())
        step = step_features(plan, lower_partition(plan.parts[plan.driver], devices, settings))
        corrected = corrected_times(plan, step, known, seconds, threads, ranks_on_node)
        note = f"; {corrected.correction}" if corrected.correction is not None else ""
        return corrected.seconds, times + note


def predicted_threads(args: argparse.Namespace, settings: Settings) -> int:
    """The threads of a predicted rank: those of the setting, else its share of the cores."""
    return settings.threads or max((args.cores or 0) // (args.ranks_per_node or 1), 1)


def operation_seconds(rows: tuple[OperationCost, ...], threads: int) -> tuple[NodeSeconds, str]:
    """The seconds of operations by measured rows, or else the cost model; their source as text."""
    if not rows:
        return model_seconds, "cost model; `hpcflow costs --calibrate` measures this machine"
    costs = operation_costs(rows)

    def seconds(node: Node, inputs: Sequence[Spec]) -> Seconds:
        found = costs.seconds(node, inputs, threads)
        return Seconds(found.median, found.low, found.high)

    return (
        seconds,
        f"{len(rows)} operations measured on this machine, {counted(threads, 'thread')} a rank",
    )


def _measured_run(script: str, script_args: Sequence[str]) -> MeasuredRun | None:
    """The run in the folder `script`; None if `script` is a file.

    Errors: LaunchError if it is neither, or for arguments beside a run.
    """
    if os.path.isdir(script):
        if script_args:
            raise LaunchError(
                f"{script} is a run, whose script has its arguments: "
                f"{' '.join(script_args)} are too many",
                hint="give a script to predict other arguments",
            )
        return MeasuredRun(Path(script))
    if not os.path.isfile(script):
        raise LaunchError(
            f"there is no script or run {script!r} in {os.getcwd()}", hint="give its path"
        )
    return None


def _check_ranks(ranks: int, servers: int) -> None:
    """Raise LaunchError unless there is a worker."""
    if ranks > 0:
        check_ranks(ranks)
    if ranks <= max(servers, 0):
        raise LaunchError(
            f"--ranks {ranks} with {servers} servers leaves no worker",
            hint=f"give at least {max(servers, 0) + 1} ranks",
        )
