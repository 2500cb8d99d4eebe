"""Script plans: the training plan of a script by settings, for as few runs of it as possible.

The graph of a script, its fetches and the shapes of its feeds follow from the number of ranks and
from most settings. They do not follow from those in `REPLANNED`, which only the passes of the
planner read. So a run of the script serves all values of these. Nor do they follow from the threads
of a rank, by which only operations are placed automatically.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from hpcflow.plan.ir.program import Plan
from hpcflow.settings import Settings

if TYPE_CHECKING:
    from hpcflow.runtime.device.device import Device
    from hpcflow.runtime.step.plan_cache import PlanPreview

OF_SUMS = ("bucket_bytes", "overlap")  # they change the allreduces of a plan, and nothing else
OF_HOMES = ("dense", "shard_bytes")  # they change which tasks host variables
REPLANNED = (*OF_SUMS, *OF_HOMES)
OF_TIMES = ("threads",)  # only automatic placement reads them: it places by predicted times
MOST_KEPT = 12  # runs of the script whose graphs, with all constants, stay in memory
RunScript = Callable[
    [int, Settings], tuple[Sequence["PlanPreview"], Mapping[str, "Device"], int]
]  # from ranks to plans, devices and exit code: `hpcflow.cli.plan.plans_of`
RunKey = tuple[int, Settings]


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """The last plan of a script, None without one; its devices and the script's exit code."""

    plan: Plan | None
    devices: Mapping[str, Device]
    code: int


@dataclasses.dataclass(frozen=True)
class _ScriptRun:
    """A run of the script that made a plan."""

    settings: Settings
    previews: Sequence[PlanPreview]
    devices: Mapping[str, Device]

    def serves(self, settings: Settings) -> bool:
        """Whether the plan by other values of `REPLANNED` is that of another run of the script.

        Variables keep their homes and tasks when a graph grows, so these depend on the graphs of
        all earlier plans. A run serves other homes only if all its plans are of one graph.
        """
        if all(getattr(settings, name) == getattr(self.settings, name) for name in OF_HOMES):
            return True
        last = self.previews[-1]
        same = (p.graph is last.graph and p.version == last.version for p in self.previews)
        return all(same) and not settings.automatic


class ScriptPlans:
    """The training plans of one script. `runs` counts how often the script ran."""

    def __init__(self, run: RunScript) -> None:
        self.runs = 0
        self._run = run
        self._kept: dict[RunKey, _ScriptRun] = {}  # the last used at the end

    def planned(self, ranks: int, settings: Settings) -> TrainingPlan:
        """Return the plan of the first step that trains, for `ranks` ranks.

        Errors: those of `make_plan`, and those of starting the script.
        """
        names = REPLANNED if settings.automatic else (*REPLANNED, *OF_TIMES)
        defaults = {name: getattr(Settings, name) for name in names}
        key = ranks, dataclasses.replace(settings, **defaults)
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._kept[key] = kept
            if kept.serves(settings):
                plan = kept.previews[-1].replanned(settings)
                return TrainingPlan(plan, kept.devices, 0)
        self.runs += 1
        previews, devices, code = self._run(ranks, settings)
        if code or not previews:
            return TrainingPlan(None, devices, code)
        self._kept[key] = _ScriptRun(settings, previews, devices)
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return TrainingPlan(previews[-1].plan, devices, 0)
