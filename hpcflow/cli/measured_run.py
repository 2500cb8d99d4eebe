"""Measured run: the script of a finished run, planned again, with the times that it measured."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpcflow.cli.plan import plans_of
from hpcflow.errors import DataError, LaunchError
from hpcflow.graph.graph import Graph
from hpcflow.graph.static_shape import Spec
from hpcflow.placement.durations import Seconds
from hpcflow.placement.job_replay import JobSettings, ReplicaClass
from hpcflow.plan.cost.replay_of_plan import NodeSeconds, model_seconds, own_seconds
from hpcflow.plan.ir.program import Node, Plan
from hpcflow.plan.serialization.plan_cache_key import UNRELATED_SETTINGS
from hpcflow.ps import script_rules
from hpcflow.report.measured_steps import measured_steps
from hpcflow.report.run_comparison import script_words
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.runtime.device.device import Device
from hpcflow.settings import PREFIX, Settings
from hpcflow.train.run_records import MANIFEST

MOST_SPEEDS = 16  # classes of replicas with different speeds
LEAST_ERROR = 0.1  # relative error of a measured time in another run
MOST_NOISE = 0.5  # a larger spread of the rows of paces.csv is that of drifts
FLAGS = {"True": "1", "False": "0"}  # of a manifest -> of the environment
FEW_ROWS = 5  # of paces.csv: fewer have no spread


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
        self._steps = measured_steps(folder)
        self._plans: dict[int, Plan] = {}

    @property
    def sigma(self) -> float:
        """The noise of a step: of n steps the mean, a row of paces.csv, varies by 1 / sqrt(n)."""
        spreads = []
        for rows in self._steps.work.values():
            middle = statistics.median(rows)
            if len(rows) >= FEW_ROWS and middle:
                spreads.append(statistics.median(abs(row / middle - 1) for row in rows) / 0.6745)
        if not spreads:
            return JobSettings().sigma
        steps = statistics.median(self._steps.counts)
        return min(MOST_NOISE, statistics.median(spreads) * math.sqrt(max(1.0, steps)))

    def classes(self, replicas: int) -> list[ReplicaClass]:
        """Return the speeds of the run's workers as those of `replicas` replicas."""
        medians = sorted(statistics.median(rows) for rows in self._steps.work.values())
        middle = statistics.median(medians)
        count = min(len(medians), replicas, MOST_SPEEDS)
        factors = [medians[(2 * i + 1) * len(medians) // (2 * count)] / middle
                   for i in range(count)] if middle else [1.0]  # fmt: skip
        cuts = [replicas * i // len(factors) for i in range(len(factors) + 1)]
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        return [ReplicaClass(*pair) for pair in zip(sizes, factors, strict=True)]

    @property
    def environment(self) -> dict[str, str]:
        """Its settings as `HPCFLOW_*` variables, without those that no plan depends on."""
        return {
            PREFIX + name.upper(): FLAGS.get(value, value)
            for name, value in self._settings.items()
            if name not in UNRELATED_SETTINGS and name not in ("inject", "page", "serve")
        }

    def planned(
        self, ranks: int, chosen: Mapping[str, str]
    ) -> tuple[Plan | None, Mapping[str, Device], int]:
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
        plan, devices, code = self._plan(ranks, {**own, **chosen})
        measured: Plan | None = plan
        if self._plans:  # that of the run is known
            return plan, devices, code
        if ranks != self.ranks or any(own.get(k) != v for k, v in chosen.items()):
            measured, _, code = self._plan(self.ranks, own) if not code else (None, {}, code)
        if measured is not None:
            self._plans[0] = measured
        return plan, devices, code

    def _plan(
        self, ranks: int, chosen: Mapping[str, str]
    ) -> tuple[Plan | None, Mapping[str, Device], int]:
        settings = Settings.from_environ({**os.environ, **chosen})
        is_there = os.path.isdir(self._started_in)
        with _working_in(self._started_in if is_there else "."), Graph().as_default():
            plans, devices, code = plans_of(self.script, self.script_args, ranks, settings)
        return (plans[-1][0] if plans else None), devices, code

    def node_seconds(self) -> NodeSeconds:
        """The times of nodes: the model, scaled so that the run's own plan takes what it took."""
        predicted = own_seconds(self._plans[0]).median
        rows = sorted(row for rows in self._steps.work.values() for row in rows)
        middle = statistics.median(rows)
        factor = middle / predicted if predicted else 1.0
        low = min(1 - LEAST_ERROR, rows[len(rows) // 20] / middle) if middle else 1.0
        last = rows[len(rows) - 1 - len(rows) // 20]
        high = max(1 + LEAST_ERROR, last / middle) if middle else 1.0

        def seconds(node: Node, inputs: Sequence[Spec]) -> Seconds:
            value = factor * model_seconds(node, inputs).median
            return Seconds(value, value * low, value * high)

        return seconds


@contextlib.contextmanager
def _working_in(folder: str) -> Iterator[None]:
    """Work in a folder, as the script of a run did."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
