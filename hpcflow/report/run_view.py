"""View of a run: what a page shows of it, from the files of its folder."""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError
from hpcflow.monitoring.failure_json import NAME as FAILURE
from hpcflow.platform.fault_specification import SEPARATOR
from hpcflow.platform.quantity_text import rounded_bytes
from hpcflow.platform.record_files import read_json_object
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.report import run_outcome
from hpcflow.report.job_accounting import Usage, ask_sacct, job_id, usage_of
from hpcflow.report.measured_steps import rows_of_paces
from hpcflow.report.run_directory_reader import FileFacts, seconds_left
from hpcflow.report.run_events import events_of
from hpcflow.report.run_limits import Limit, limits, start_limit
from hpcflow.report.run_summary import RESULT, SERVERS, RunSummary, load
from hpcflow.report.server_limits import Cause, Servers, cause
from hpcflow.report.wait_heat_map import HeatMap, heat_map
from hpcflow.train.run_records import MANIFEST, PACES, STEPS_IN_ALL

MOST_VALUE = 1e15  # of profile.json: more is damage
ROWS_OF_PACE = 200  # of metrics.csv, for the time that is left
HIDDEN = "(hidden)"
PROFILE = "profile.json"
SAVING = "saving"  # the resource of a Limit
DEFAULT = (
    "the script names no checkpoints: `hpcflow sweep` or the job's script has added them, so that "
    "a run that is stopped resumes; `--set default_checkpoints=` turns them off"
)


def views_of(
    folders: Sequence[str | Path],
    redacted: bool = False,
    is_over: bool | None = None,
    asks_slurm: bool = False,
    replays: bool = True,
) -> list[RunView]:
    """What a page shows of each run; `asks_slurm` for the accounting of its SLURM job.

    `replays` says whether steps with servers may be replayed, which takes up to some seconds.
    Errors: HpcflowError if no folder has a run.
    """
    runs = load([str(folder) for folder in folders], is_over)
    if not any(run.is_readable for run in runs):
        raise HpcflowError(
            "\n".join(fault for run in runs for fault in run.faults) or "there is no run",
            hint="start it with `hpcflow run --run-dir DIR ...` and give DIR",
        )
    views = [
        RunView(Path(folder), run, redacted, i + 1, replays)
        for i, (folder, run) in enumerate(zip(folders, runs, strict=True))
    ]
    rows = ask_sacct(job_id(view.manifest) for view in views) if asks_slurm else []
    for view in views:
        view.usage = usage_of(view.manifest, view.last_seen, rows)
    return views


class RunView:
    """What a page shows of one run."""

    def __init__(
        self, folder: Path, run: RunSummary, redacted: bool, number: int = 1, replays: bool = True
    ) -> None:
        self.number, self._replays = number, replays
        folder = folder.parent if folder.is_file() else folder
        self.folder, self.run, self.redacted = folder, run, redacted
        faults: list[str] = []
        self.manifest = FileFacts(folder / MANIFEST, faults)
        is_old = self.manifest.is_there and not self.manifest.get("finished", bool, False)
        self.result = FileFacts.none() if is_old else FileFacts(folder / RESULT, faults)
        self.failure = FileFacts(folder / FAILURE, faults)
        paces = rows_of_paces(folder / PACES)
        self.paces = [row for row in paces if "worker" in row]
        self.loads = [row for row in paces if "worker" not in row]
        self.map: HeatMap | None = heat_map(self.paces, run.seconds)
        self.events = events_of(folder, self.manifest, self.failure)
        self.usage: Usage | None = None

    @property
    def name(self) -> str:
        """The name of the run in the page."""
        return self.run.name if not self.redacted else f"run {self.number}"

    @functools.cached_property
    def profiled_ranks(self) -> list[Any]:
        """What profile.json says of each rank; [] without a profile."""
        return ranks_in(self.folder / PROFILE)

    @property
    def last_seen(self) -> float | None:
        """Now if the run goes on, else the time of its last row, in seconds since 1970."""
        if self.run.state == run_outcome.RUNNING:
            return time.time()
        return next((row["time"] for row in reversed(self.run.rows) if "time" in row), None)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the last step of a run that goes on; None if unknown."""
        if self.run.state != run_outcome.RUNNING:
            return None
        return seconds_left(self.run.rows[-ROWS_OF_PACE:], self.manifest.count(STEPS_IN_ALL))

    def told(self, text: str) -> str:
        """A text that names hosts, users or paths; hidden in a redacted page."""
        return HIDDEN if self.redacted and text else text

    @property
    def results(self) -> dict[str, str]:
        """What the script added to its result; in a redacted page only numbers."""
        results = self.run.results
        return {k: v for k, v in results.items() if not self.redacted or _is_number(v)}

    @property
    def workers(self) -> list[str]:
        """The names of the workers: number, rank and host."""
        roles = self.manifest.get("roles", [str], [])
        hosts = self.result.get("hosts", [str], [])
        ranks = [rank for rank, role in enumerate(roles) if role.startswith("/job:worker/")]
        settings = self.manifest.get("settings", {}, {})
        told = str(self.result.get("tasks_per_replica", int, settings.get("tasks_per_replica", 1)))
        span = max(1, int(told)) if told.isdigit() and len(told) < 6 else 1
        names = []
        for worker in range(min(max(self.run.replicas, 1), max(len(roles), len(hosts), 1))):
            rank = ranks[worker * span] if worker * span < len(ranks) else worker
            host = hosts[rank] if rank < len(hosts) else ""
            where = f" on {host}" if host and not self.redacted else ""
            names.append(f"worker {worker} (rank {rank}{where})")
        return names

    @property
    def inputs(self) -> list[float]:
        """Seconds that each worker waited for input."""
        return list(map(float, self.result.get("input_wait_seconds", [float], [])))

    @property
    def work(self) -> list[float]:
        """Seconds of own work in the steps of each worker."""
        return self._per_worker("work_seconds", "work")

    @property
    def waits(self) -> list[float]:
        """Seconds that each worker waited for others."""
        return self._per_worker("wait_seconds", "wait")

    def _per_worker(self, field: str, column: str) -> list[float]:
        told = list(map(float, self.result.get(field, [float], [])))
        if told or not self.paces:
            return told
        workers = int(max(row["worker"] for row in self.paces)) + 1
        totals, last = [0.0] * workers, [0.0] * workers
        for row in self.paces:  # a row has the means of a worker's last steps
            worker = int(row["worker"])
            totals[worker] += row[column] * max(0.0, row["step"] - last[worker])
            last[worker] = row["step"]
        return totals

    @property
    def server_work(self) -> list[float]:
        """Seconds of own work of each server; [] if unknown."""
        return self._per_server("server_work_seconds", "work")

    @property
    def server_waits(self) -> list[float]:
        """Seconds in which each server was idle; [] if unknown."""
        return self._per_server("server_wait_seconds", "wait")

    def _per_server(self, field: str, column: str) -> list[float]:
        told = list(map(float, self.result.get(field, [float], [])))
        if told or not self.loads:
            return told
        totals = [0.0] * (int(max(row["server"] for row in self.loads)) + 1)
        for row in self.loads:
            totals[int(row["server"])] += row[column]
        return totals

    @property
    def server_facts(self) -> Servers:
        """What the servers did, as far as the files tell."""
        pairs = list(zip(self.server_work, self.server_waits, strict=False))
        is_known = bool(pairs) and all(work + wait > 0 for work, wait in pairs)
        messages = sum(self.result.get("messages_sent", [int], []))
        nbytes = sum(self.result.get("bytes_sent", [int], []))
        sync = self.result.text("sync") or str(self.manifest.get("settings", {}, {}).get("sync"))
        return Servers(
            self.servers,
            self.server_rates,
            [work / (work + wait) for work, wait in pairs] if is_known else [],
            self.run.nodes,
            nbytes / messages if messages else 0.0,
            self.run.mode == "ps" and sync not in ("", "async"),
        )

    @property
    def waiting_cause(self) -> Cause | None:
        """What the workers wait for; None without servers, or if their load is not known."""
        servers = self.server_facts
        if not (servers.names and servers.busy and self.waits and self.run.seconds):
            return None
        return cause(self.run.seconds, self.work, self.waits, servers)

    @property
    def limits(self) -> list[Limit]:
        """What limits the run."""
        saves = self.result.get("saves", {}, {})
        found = limits(
            *(self.run.seconds, self.inputs, self.work, self.waits, self.workers, saves),
            self.server_facts,
            None if self.map is None else self.map.joint,
        )
        if not self._has_default_checkpoints:
            return found
        return [one._replace(remedy=DEFAULT) if one.resource == SAVING else one for one in found]

    @property
    def _has_default_checkpoints(self) -> bool:
        """Whether the checkpoints are not those of the script, but of `hpcflow sweep` or a job."""
        settings = self.manifest.get("settings", {}, {})
        folder = str(settings.get("default_checkpoints") or "")
        return bool(folder) and not settings.get("checkpoints") and os.path.isdir(folder)

    @property
    def own(self) -> list[float]:
        """Seconds of own work of each worker, without waiting for input; [] if unknown."""
        inputs = self.inputs or [0.0] * len(self.work)
        return [max(w - i, 0.0) for w, i in zip(self.work, inputs, strict=False)]

    @property
    def computing(self) -> float:
        """The median own work of the workers; without it the seconds that no limit explains."""
        if self.own:
            return statistics.median(self.own)
        return max(0.0, self.run.seconds - sum(one.seconds for one in self.limits))

    @property
    def start_limit(self) -> Limit | None:
        """The time until the first step, if that is a large share of launch and training."""
        compiled = self.result.get("compile", [{}], [])
        return start_limit(self.run.seconds, self.run.seconds_to_first_step, compiled)

    @functools.cached_property
    def setting_limit(self) -> Limit | None:
        """A setting that was set by hand and costs more than a better value, by the model."""
        if self.run.servers and not self._replays:
            return None
        from hpcflow.report.setting_advice import advice_of

        try:
            advice = advice_of(self.folder)
        except HpcflowError:  # the summary of the run names the file
            return None
        if advice is None:
            return None
        seconds = max(0.0, advice.measured - advice.predicted) * self.run.steps
        where = HIDDEN if self.redacted else str(self.folder)
        return Limit(seconds, "settings", advice.text(where), advice.remedy)

    @property
    def all_limits(self) -> list[Limit]:
        """What limits the run, its start, and its settings, largest first."""
        others = [one for one in (self.start_limit, self.setting_limit) if one is not None]
        return sorted([*self.limits, *others], reverse=True)

    @property
    def limit_lines(self) -> list[str]:
        """What limits the run, and what its time is lost to, as lines for a terminal."""
        found = self.all_limits
        return [f"{self.name}: limited by {self.limited_by}"] * bool(found) + [
            f"  {one.resource}: {escape_line(one.text)}\n  next  {escape_line(one.remedy)}"
            for one in found
        ]

    @property
    def limited_by(self) -> str:
        """The resource to which most seconds went: that of a limit, or computing."""
        found = self.limits
        is_lost = bool(found) and found[0].seconds > self.computing
        return found[0].resource if is_lost else "computing"

    @property
    def faults(self) -> list[str]:
        """The faults that were injected for a rehearsal."""
        text = str(self.manifest.get("settings", {}, {}).get("inject") or "")
        return [escape_line(one) for one in text.split(SEPARATOR) if one]

    @property
    def servers(self) -> list[str]:
        """The servers: task, rank and host."""
        hosts = self.result.get("hosts", [str], [])
        found = []
        for rank, role in enumerate(self.manifest.get("roles", [str], [])):
            if role.startswith(SERVERS):
                where = f" on {hosts[rank]}" if rank < len(hosts) and not self.redacted else ""
                found.append(f"{role} (rank {rank}{where})")
        return found

    @property
    def server_rates(self) -> list[str]:
        """The bytes per second of each server's port, as words; [] if unknown."""
        steps = sum(self.result.get("steps", [int], []))
        rows = self.run.traffic.get("servers", [])
        if not self.run.seconds:
            return []
        texts = []
        for row in rows:
            received, sent = (
                rounded_bytes(row["measured"][way] * steps / self.run.seconds)
                for way in ("received", "sent")
            )
            texts.append(f" received {received}/s and sent {sent}/s")
        return texts


def json_of(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file; {} if there is none."""
    try:
        return read_json_object(path) or {}
    except HpcflowError:
        return {}


def ranks_in(profile: Path) -> list[Any]:
    """What a profile says of each rank; [] without a profile."""
    ranks = json_of(profile).get("ranks")
    return ranks if isinstance(ranks, list) else []


def finite(value: float) -> float | None:
    """The value; None, which is JSON, for NaN and infinity."""
    return value if math.isfinite(value) else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def number_of(value: Any) -> float:
    """A number of a file; 0 for other values and for those that are damage."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < MOST_VALUE else 0.0
