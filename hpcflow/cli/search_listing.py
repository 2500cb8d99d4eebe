"""Listing of a search: the best combination of settings as text, as a command, and as JSON."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping
from typing import Any

from hpcflow.cli.setting_search import Change, Found
from hpcflow.plan.cost.step_prediction import StepPrediction
from hpcflow.plan.serialization.graph_fingerprint import plan_digest
from hpcflow.platform.quantity_text import format_bytes, format_seconds
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.settings import PREFIX, Settings

OPTIONS = ("ps", "sync", "tasks_per_replica")  # `hpcflow run` has options of these names
OF_THE_RUN = ("RUN_DIR", "CHECKPOINTS")  # a new run needs folders of its own


@dataclasses.dataclass(frozen=True)
class SearchListing:
    """What a search has found. `best` is predicted with its interval and memory.

    `runs` counts how often the script ran, `command` is that of a run with the best settings.
    """

    found: Found
    given: StepPrediction
    best: StepPrediction
    runs: int
    command: list[str]

    def as_data(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        found, best = self.found, self.best
        times = {name: getattr(best, name) for name in ("median", "p90", "low", "high")}
        return {
            "predicted": found.count,
            "script_runs": self.runs,
            "given": dataclasses.asdict(found.given.combination),
            "best": dataclasses.asdict(found.best.combination),
            "ranks": best.ranks,
            "plan": plan_digest(best.plan),
            "step_seconds": times,
            "samples_per_second": best.samples_per_second or None,
            "seconds_of_given_samples": found.best.seconds,
            "gain": 1 - found.best.seconds / found.given.seconds if found.given.seconds else 0.0,
            "memory": dict(best.memory),
            "busy": dict(best.busy),
            "limit": best.limit,
            "changes": [self._change_data(one) for one in found.changes],
            "run": self.command,
            "left_out": found.left_out,
        }

    def as_text(self) -> str:
        """Return the result as text."""
        found = self.found
        runs = "once" if self.runs == 1 else f"{self.runs} times"
        lines = [f"search: {found.count} combinations predicted; the script ran {runs}"]
        if not found.changes:
            lines.append(
                f"  the given settings are the best: {format_seconds(found.given.seconds)} a step"
            )
        else:
            lines += [self._headline(), *(f"  {self._reason(one)}" for one in found.changes)]
        tasks = [f"{task} {format_bytes(nbytes)}" for task, nbytes in self.best.memory.items()]
        lines.append(f"  memory: {', '.join(tasks)}")
        lines.append(f"run it: {escape_line(shlex.join(self.command))}")
        return "\n".join([*lines, *(f"not searched: {k}: {v}" for k, v in found.left_out.items())])

    def _headline(self) -> str:
        """The best step beside the given one."""
        new, old = self.found.best, self.found.given
        gain = 1 - new.seconds / old.seconds if old.seconds else 0.0
        best = self.best
        text = (
            f"  {format_seconds(best.median)} a step ({format_seconds(best.low)} to "
            f"{format_seconds(best.high)}) instead of {format_seconds(self.given.median)}, on "
            f"{best.ranks} ranks instead of {self.given.ranks}"
        )
        if new.combination.replicas != old.combination.replicas:
            rates = best.samples_per_second, self.given.samples_per_second
            text += f"; {rates[0]:,.0f} samples/s instead of {rates[1]:,.0f}"
        too_large = old.excess
        if too_large is not None:
            return f"{text}; as given, {too_large.task} exceeds its memory"
        return f"{text}: {gain:.0%} less for the same samples"

    def _reason(self, change: Change) -> str:
        """One line: a chosen value and what it is good for."""
        best, without = self.found.best, change.without
        head = f"{change.name}={change.value} (given {change.given})"
        if without is None:
            return f"{head}: with the others; alone the given value is not possible: {change.why}"
        if (excess := without.excess) is not None:
            sizes = f"{format_bytes(excess.needs)} of {format_bytes(excess.has)}"
            return f"{head}: fits the memory; without it {excess.task} needs {sizes}"
        saved = without.seconds - best.seconds
        ranks = without.combination.ranks - best.combination.ranks
        limit = without.prediction.limit
        shares = without.prediction.busy.get(limit, 0.0), best.prediction.busy.get(limit, 0.0)
        text = f"saves {format_seconds(saved)}" if saved > 0 else f"costs {format_seconds(-saved)}"
        if ranks > 0:
            text += f" and {ranks} rank{'s' if ranks > 1 else ''}"
        return f"{head}: {text}: {limit} busy {shares[0]:.0%} -> {shares[1]:.0%}"

    def _change_data(self, change: Change) -> dict[str, Any]:
        """A change as JSON data; without the change the job cannot run if a figure is null."""
        without = change.without
        best = self.found.best
        excess = None if without is None else without.excess
        return {
            "setting": change.name,
            "value": change.value,
            "given": change.given,
            "saves_seconds": None if without is None else without.seconds - best.seconds,
            "limit_without": None if without is None else without.prediction.limit,
            "exceeds_memory_without": None if excess is None else excess._asdict(),
            "reason": self._reason(change),
        }


def run_command(
    ranks: int, environ: Mapping[str, str], script: str, arguments: list[str]
) -> list[str]:
    """The command that starts a run with settings, given as `HPCFLOW_*` variables.

    Defaults are left out, unless the environment of the user has another value.
    """
    defaults = Settings()
    named = Settings.from_environ(environ)
    words = ["hpcflow", "run", "-n", str(ranks)]
    others = []
    for variable, text in environ.items():
        name = variable.removeprefix(PREFIX).lower()
        is_default = getattr(named, name) == getattr(defaults, name)
        if (is_default and variable not in os.environ) or name.upper() in OF_THE_RUN:
            continue
        if name in OPTIONS and text:
            words += [f"--{name.replace('_', '-')}", text]
        else:
            others += ["--set", f"{name}={text}"]
    return [*words, *others, script, *arguments]
