"""Measured run: the script of a finished run, planned again, with the times that it measured."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hpcflow.cli.plan import plans_of
from hpcflow.cli.script_plans import ScriptPlans, TrainingPlan
from hpcflow.errors import DataError, LaunchError
from hpcflow.graph.graph import Graph
from hpcflow.graph.static_shape import Spec
from hpcflow.placement.durations import NOTHING, Seconds
from hpcflow.placement.job_replay import JobSettings, ReplicaClass, replay_job
from hpcflow.placement.network import Network
from hpcflow.plan.cost.replay_of_plan import (
    NodeSeconds,
    model_seconds,
    own_seconds,
    servers_seconds,
    template_of,
)
from hpcflow.plan.ir.program import Node, Plan
from hpcflow.plan.serialization.plan_cache_key import UNRELATED_SETTINGS
from hpcflow.ps import script_rules
from hpcflow.report.measured_steps import measured_steps
from hpcflow.report.run_comparison import script_words
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.step.plan_cache import PlanPreview
from hpcflow.settings import PREFIX, Settings
from hpcflow.train.run_records import MANIFEST

LEAST_ERROR = 0.095  # of a predicted step, relative: 16 of 19 runs were within it
MOST_LATENCY_S, LATENCY_STEP_S = 2e-2, 1e-5  # of a fitted latency
MOST_NOISE = 0.5  # a larger spread of the rows of paces.csv comes from slow changes of the speed
FLAGS = {"True": "1", "False": "0"}  # of a manifest -> of the environment
FEW_ROWS = 5  # of paces.csv, of all workers: fewer have no spread


class MeasuredRun:
    """A finished run in a folder. Errors: DataError if the folder does not say what is needed."""

    def __init__(self, folder: Path) -> None:
        faults: list[str] = []
        manifest = FileFacts(folder / MANIFEST, faults)
        self.script = manifest.get("script", str, "")
        roles = manifest.get("roles", [str], [])
        if not self.script or not roles or faults:
            raise DataError(
                "; ".join(faults) or f"{folder / MANIFEST} does not name a script and its ranks",
                hint="give a script, or the folder of a run (hpcflow run --run-dir DIR)",
            )
        self.folder, self.script_args = folder, script_words(manifest)
        self._started_in = manifest.get("folder", str, "")
        self.ranks, self.servers = len(roles), sum(role.startswith("/job:ps/") for role in roles)
        nodes = manifest.get("nodes", {}, {})
        self.ranks_per_node = max(
            (len(on) for on in nodes.values() if isinstance(on, list)), default=1
        )
        self._settings = {k: str(v) for k, v in manifest.get("settings", {}, {}).items()}
        topology = os.path.join(self._started_in, self._settings.get("topology", ""))
        self._topology = topology if os.path.isfile(topology) else ""
        self._steps = measured_steps(folder)
        self.scripts = ScriptPlans(self._run_script)
        self._own_plan: Plan | None = None
        self.replayed = (
            0.0  # seconds of the run's own median step by its replay, after `fit_latency`
        )

    @property
    def measured(self) -> float:
        """The measured median step of the run, in seconds, waiting included."""
        return self._steps.median

    @property
    def sigma(self) -> float:
        """The noise of a step: the standard deviation of the logarithm of a worker's own work.

        A row of paces.csv is the mean of n steps, which deviates 1 / sqrt(n) times as much. The
        spread of the rows is their median absolute deviation (0.6745 standard deviations of a
        normal distribution) from the median of their worker, pooled over workers. A median of m
        rows is near them, so their deviations count sqrt(m / (m - 1)) times.
        """
        deviations = []
        for rows in self._steps.work.values():
            middle = statistics.median(rows)
            if len(rows) > 1 and middle:
                factor = math.sqrt(len(rows) / (len(rows) - 1))
                deviations += [factor * abs(row / middle - 1) for row in rows]
        if len(deviations) < FEW_ROWS:
            return JobSettings().sigma
        spread = statistics.median(deviations) / 0.6745  # of a normal distribution
        steps = statistics.median(self._steps.counts)
        return min(MOST_NOISE, spread * math.sqrt(max(1.0, steps)))

    def classes(self, replicas: int) -> list[ReplicaClass]:
        """Return the speeds of the run's workers as those of `replicas` replicas."""
        return self._steps.classes(replicas)

    @property
    def environment(self) -> dict[str, str]:
        """Its settings as `HPCFLOW_*` variables, without those that no plan depends on."""
        return {
            PREFIX + name.upper(): FLAGS.get(value, value)
            for name, value in self._settings.items()
            if name not in UNRELATED_SETTINGS and name not in ("inject", "page", "serve")
        }

    def planned(self, ranks: int, chosen: Mapping[str, str]) -> TrainingPlan:
        """Plan the script for `ranks` ranks with other settings, and for those of the run.

        Errors: LaunchError if its script is not there any more.
        """
        if not os.path.isfile(self.script):
            raise LaunchError(
                f"the script of {self.folder} is not there any more: {self.script}",
                hint="give a script",
            )
        script_rules.look_in(self.script)
        own = self.environment
        found = self._plan(ranks, {**own, **chosen})
        if self._own_plan is not None or found.code:
            return found
        is_own = ranks == self.ranks and all(own.get(k) == v for k, v in chosen.items())
        measured = found if is_own else self._plan(self.ranks, own)
        self._own_plan = measured.plan
        return found if not measured.code else measured

    def _plan(self, ranks: int, chosen: Mapping[str, str]) -> TrainingPlan:
        known = {PREFIX + "TOPOLOGY": self._topology} if ranks == self.ranks else {}
        settings = Settings.from_environ({**os.environ, **known, **chosen})
        return self.scripts.planned(ranks, settings)

    def _run_script(
        self, ranks: int, settings: Settings
    ) -> tuple[list[PlanPreview], Mapping[str, Device], int]:
        is_there = os.path.isdir(self._started_in)
        with _working_in(self._started_in if is_there else "."), Graph().as_default():
            return plans_of(self.script, self.script_args, ranks, settings)

    def _known_plan(self) -> Plan:
        assert self._own_plan is not None, "planned() comes first"
        return self._own_plan

    def node_seconds(self) -> NodeSeconds:
        """The times of nodes: the cost model, scaled so that the run's own plan takes what it took.

        Copies from and into messages keep the model's time, as they depend on the memory alone.
        What servers compute is scaled so that they work for the measured share of the time.
        """
        plan = self._known_plan()
        copies = own_seconds(plan, _copy_seconds).median
        predicted = own_seconds(plan).median - copies
        middle = statistics.median(row for rows in self._steps.work.values() for row in rows)
        factor = max(middle - copies, 0.0) / predicted if predicted else 1.0
        on_servers, of_server = servers_seconds(plan), factor
        if on_servers and self._steps.server_shares:
            shares = statistics.mean(self._steps.server_shares.values())
            of_server = shares * self.servers * self._steps.median / on_servers

        def seconds(node: Node, inputs: Sequence[Spec]) -> Seconds:
            value = model_seconds(node, inputs).median
            if node.device.startswith("/job:ps/"):
                value *= of_server
            elif not node.row.message:
                value *= factor
            return Seconds(value, value, value)

        return seconds

    def fit_latency(self, network: Network, settings: JobSettings) -> tuple[Network, float]:
        """Return a network with the latency at which the run's replay takes what the run took.

        That latency contains the software's time for a message. Also returns the error of steps
        that are predicted with it, a factor of 1 + error either way: `LEAST_ERROR`, and what the
        replay of the run itself is wrong. `network` is that on which the run was.
        """
        plan, seconds = self._known_plan(), self.node_seconds()
        replicas, measured = plan.cluster.replicas, self._steps.median

        def own_step(latency: float) -> float:
            chosen = dataclasses.replace(network, latency=latency)
            template = template_of(plan, chosen, seconds)
            times = replay_job(template, chosen, self.classes(replicas), settings)
            return times.quantile(0.5)

        latency = _latency_of(own_step, measured)
        if own_step(MOST_LATENCY_S) == own_step(0.0):  # the run says nothing of messages
            latency = network.latency
        own = own_step(latency)
        wrong = max(measured / own, own / measured) - 1 if own and measured else 0.0
        self.replayed = own
        return dataclasses.replace(network, latency=latency), math.hypot(LEAST_ERROR, wrong)


def _latency_of(own_step: Callable[[float], float], measured: float) -> float:
    """The latency at which a replay takes the measured time, by bisection.

    0 if the replay takes longer without latency.
    """
    low, high = 0.0, MOST_LATENCY_S
    if own_step(low) >= measured:
        return 0.0
    while high - low > LATENCY_STEP_S:
        middle = (low + high) / 2
        low, high = (middle, high) if own_step(middle) < measured else (low, middle)
    return (low + high) / 2


def _copy_seconds(node: Node, inputs: Sequence[Spec]) -> Seconds:
    """The model's time of a node that copies from or into messages, else nothing."""
    return model_seconds(node, inputs) if node.row.message else NOTHING


@contextlib.contextmanager
def _working_in(folder: str) -> Iterator[None]:
    """Work in a folder, as the script of a run did."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
