"""Step record: at its end a run adds a row of its steps to the profile of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcflow.platform.cpu_threads import chosen_threads
from hpcflow.platform.machine_profile import MachineProfile, ProfileFile
from hpcflow.platform.measured_costs import SampleSummary
from hpcflow.platform.measured_step_costs import StepCost, StepFeatures, StepKey
from hpcflow.report.measured_steps import rows_of_paces
from hpcflow.report.run_directory_reader import FileFacts
from hpcflow.train.run_records import MANIFEST, PACES

LEAST_STEPS = 10  # beside those of the first row
OTHER_TIMES = ("profile", "trace", "inject")  # settings of runs whose steps take longer
LONGEST_NAME = 200


def step_cost(folder: Path, features: StepFeatures, threads: int) -> StepCost | None:
    """The row of a finished run, of the steps of its chief; None if it has too few or unusual ones.

    Waiting for input data is left out: it depends on where the data are, not on the plan.
    """
    manifest = FileFacts(folder / MANIFEST, [])
    settings: Mapping[str, Any] = manifest.get("settings", {}, {})
    digest, roles = manifest.get("plan", str, ""), manifest.get("roles", [str], [])
    nodes = [on for on in manifest.get("nodes", {}, {}).values() if isinstance(on, list)]
    rows = [row for row in rows_of_paces(folder / PACES) if row.get("worker") == 0][1:]
    if any(settings.get(name, "") not in ("", "False") for name in OTHER_TIMES) or not nodes:
        return None
    if not digest or sum(row.get("steps", 1.0) for row in rows) < LEAST_STEPS:
        return None
    work = [max(row["work"] - row.get("input", 0.0), 1e-9) for row in rows]
    steps = [own + row["wait"] for own, row in zip(work, rows, strict=True)]
    on_node = next((len(on) for on in nodes if 0 in on), 1)
    if on_node * threads > (os.cpu_count() or 1):  # ranks wait for each other's time slices
        return None
    return StepCost(
        StepKey(digest, len(roles), on_node, len(nodes), threads),
        os.path.basename(manifest.get("script", str, ""))[:LONGEST_NAME],
        features,
        SampleSummary.of(work),
        SampleSummary.of(steps),
        int(time.time()),
    )


def keep_step(folder: Path, features: StepFeatures, file: ProfileFile) -> None:
    """Add the row of the run in a folder to a machine profile.

    A file that cannot be written is told by a warning.
    """
    row = step_cost(folder, features, chosen_threads().threads)
    if row is not None:
        file.add(MachineProfile(steps=(row,)))
