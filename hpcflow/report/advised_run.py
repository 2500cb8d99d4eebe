"""Advised run: what the files of a run that has ended well tell for advice on its settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcflow.errors import HpcflowError
from hpcflow.monitoring.failure_json import NAME as FAILURE
from hpcflow.placement.network import Network
from hpcflow.platform.quantity_text import format_seconds
from hpcflow.report import plan_file, run_outcome
from hpcflow.report.measured_steps import MeasuredSteps, measured_steps
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.settings import JUDGED, Settings
from hpcflow.train.run_records import MANIFEST

if TYPE_CHECKING:
    from hpcflow.placement.topology import Topology

LEAST_GAIN = 0.1  # of a step
FEW_ROWS = 5  # of a worker in paces.csv: a shorter run has only begun
MOST_PLAN_BYTES = 4 << 20  # of plan.json, which is read in a fraction of a second
DEFAULTS = {name: str(getattr(Settings(), name)) for name in JUDGED}


class Advice(NamedTuple):
    """A setting that was set by hand, and the seconds of a step with it and with a better value.

    `ranks` are those of the job with both values; None if the better value is the default.
    """

    setting: str
    given: str
    better: str
    measured: float
    predicted: float
    ranks: tuple[int, int] | None = None

    def text(self, folder: str) -> str:
        """The advice on one line."""
        better = f"the default {self.better}"
        if self.ranks is not None:
            own, other = self.ranks
            better = f"{self.setting}={self.better}, on {other} ranks instead of {own}"
        return (
            f"{self.setting}={self.given} was set by hand: the model predicts "
            f"{format_seconds(self.predicted)} instead of {format_seconds(self.measured)} a step "
            f"with {better} (hpcflow predict --compare {folder})"
        )

    @property
    def remedy(self) -> str:
        """What to do next."""
        change = f"leave {self.setting} out"
        if self.ranks is not None:
            change = f"--{self.setting} {self.better} with {self.ranks[1]} ranks"
        return f"{change}; `hpcflow predict --compare` tries other values"


@dataclasses.dataclass(frozen=True)
class AdvisedRun:
    """A run that has ended well; each of its replicas is one rank, with a plan on CPUs.

    `by_hand` are the settings of `JUDGED` that differ from their defaults.
    """

    folder: Path
    manifest: FileFacts
    settings: dict[str, str]
    by_hand: list[str]
    plan: plan_file.DrawnPlan
    steps: MeasuredSteps

    @property
    def ranks_per_node(self) -> int:
        """The most ranks of a node."""
        nodes = self.manifest.get("nodes", {}, {})
        return max((len(on) for on in nodes.values() if isinstance(on, list)), default=1)

    @property
    def topology(self) -> Topology | None:
        """The topology of the job; None without one.

        Errors: HpcflowError if it cannot be read, or is one of another job.
        """
        name = self.settings.get("topology", "")
        if not name:
            return None
        from hpcflow.placement.topology import read_topology

        topology = read_topology(Path(self.manifest.get("folder", str, "")) / name)
        ranks = self.plan.workers + self.plan.servers
        if topology.size != ranks:
            raise HpcflowError(f"{name} describes {topology.size} ranks, the run has {ranks}")
        return topology

    @property
    def network(self) -> Network:
        """The slowest link of the topology, else the network that `hpcflow predict` assumes.

        Errors: those of `topology`.
        """
        topology = self.topology
        if topology is None:
            return Network(ranks_per_node=self.ranks_per_node)
        return Network.between(topology, range(topology.size))


def advised_run(folder: Path, is_over: bool | None = None) -> AdvisedRun | None:
    """The run of a folder; None without a setting that was set by hand, or if it gets no advice.

    Runs that go on, failed or were short get none, nor those with GPUs, replicas of several ranks
    or without a plan. `is_over` is that of `outcome_of`.
    Errors: HpcflowError if a file of the run is not readable.
    """
    manifest = FileFacts(folder / MANIFEST, [])
    settings = {k: str(v) for k, v in manifest.get("settings", {}, {}).items()}
    by_hand = [name for name in JUDGED if settings.get(name, DEFAULTS[name]) != DEFAULTS[name]]
    if not by_hand or settings.get("tasks_per_replica", "1") != "1":
        return None
    failure = FileFacts(folder / FAILURE, [])
    outcome, _ = run_outcome.outcome_of(folder, manifest, failure, FileFacts.none(), is_over)
    if outcome not in (run_outcome.FINISHED, run_outcome.ENDED):
        return None
    path = folder / plan_file.NAME
    if not path.is_file() or path.stat().st_size > MOST_PLAN_BYTES:
        return None
    plan = plan_file.read_plan(path)
    if plan is None or any("/gpu:" in op.device for op in plan.picture.operations):
        return None
    steps = measured_steps(folder)
    if min(map(len, steps.work.values())) < FEW_ROWS:
        return None
    return AdvisedRun(folder, manifest, settings, by_hand, plan, steps)
