"""Run records: manifest.json, metrics.csv, paces.csv, events.csv, TensorBoard events.

Only the chief writes them, and only into a given run directory (`--run-dir`). Other ranks' warnings
are in result.json, without times.
"""

from __future__ import annotations

import atexit
import contextlib
import csv
import dataclasses
import datetime
import importlib
import io
import logging
import os
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcflow.errors import HpcflowError, MissingPackageError
from hpcflow.launch import launcher_detection
from hpcflow.platform.git_state import git_state
from hpcflow.platform.install_hints import install_hint
from hpcflow.platform.rank_logging import logger, warning_counts
from hpcflow.platform.record_files import read_json_object, read_text, unreadable_error
from hpcflow.platform.terminal_escaping import escape_line
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.train.result_files import versions, write_json
from hpcflow.train.step_timing import StepTiming, TimingRow

if TYPE_CHECKING:
    from hpcflow.train.server_loads import LoadRow

MANIFEST, METRICS, PACES = "manifest.json", "metrics.csv", "paces.csv"
EVENTS = "events.csv"  # saves, resumes and warnings with their times
STEP = "step"  # a column of both tables
STEPS_IN_ALL = "steps_in_all"  # of the manifest: when the run is complete
EARLY = "stopped_early"  # of the manifest: the epoch after which a callback stopped the training
COLUMNS = ("time", "seconds", STEP, "epoch", "samples", "samples_per_second")
ENVIRONMENT = ("HPCFLOW_", "SLURM_", "OMP_", "OMPI_", "MPICH_", "I_MPI_", "UCX_", "FI_", "NCCL_",
               "CUDA_", "HDF5_", "OPENBLAS_", "MKL_", "NUMBA_", "PRTE_", "PMIX_MCA_", "MPI4PY_",
               "PYTHON", "LD_", "PATH", "TMPDIR", "VIRTUAL_ENV", "CONDA_PREFIX")  # fmt: skip
SECRET = ("JWT", "TOKEN", "KEY", "PASSWORD", "SECRET")
LEAST_S, SHARE = 0.1, 1 / 2000  # between rows: seconds, and share of the elapsed time
FEW_STEPS = 5  # of the row of an only worker, at least
FEW_WORKERS = 8  # paces of more workers are written less often
MOST_BYTES = 256 << 20  # of a table, before its rows are thinned out
EVENT_COLUMNS = ("time", STEP, "event", "text")  # time in seconds since 1970
WARNING, SAVE, SAVE_FAILED, RESUME = "warning", "save", "save failed", "resume"
MOST_WARNINGS, LONGEST_WARNING = 100, 500  # different ones of a start; characters
SHORT_EPOCH_S = 0.01  # the last step of a longer epoch has a row
_logs: weakref.WeakKeyDictionary[RankContext, RunLog] = weakref.WeakKeyDictionary()


def run_log_of(context: RankContext) -> RunLog | None:
    """The only log of the run; None on ranks other than the chief and without a run directory."""
    if not context.is_chief or not context.settings.run_dir:
        return None
    if context not in _logs:
        _logs[context] = RunLog(context)
    return _logs[context]


class RunLog:
    """Writes the manifest at the start and at the end, and rows during training."""

    def __init__(self, context: RankContext) -> None:
        self.folder = Path(context.settings.run_dir)
        self._manifest = {**manifest(context), "earlier": _earlier(self.folder / MANIFEST)}
        self._rows, self._paces = CsvRows(self.folder / METRICS), CsvRows(self.folder / PACES)
        self._spread = max(1.0, context.roles.replicas / FEW_WORKERS)
        self._paced: dict[int, float] = {}  # worker -> clock at its last row
        self._loaded: dict[int, tuple[float, float, float]] = {}  # server -> clock, work, wait
        self.events = EventRows(self.folder / EVENTS)
        self._events = _events(self.folder) if context.settings.tensorboard else None
        self._last = self._begun = time.perf_counter()
        self._samples = 0
        self._is_ended = False
        try:
            self._write()
        except OSError as error:
            raise HpcflowError(
                f"the run directory {self.folder} cannot be written: {error.strerror}",
                hint="use --run-dir DIR on a writable file system with space",
            ) from None
        self.events.begin()
        weakref.finalize(self, _close_all, self._rows, self._paces, self.events)
        atexit.register(self._at_exit, weakref.ref(self))

    def begin_training(self, data: object, steps: int) -> None:
        """Record the global batch of `data`, the number of workers, and that of all steps.

        A run whose result is written is unfinished again, until its next result.
        """
        if self._is_ended:
            self._is_ended = False
            self._manifest.update(end=None, finished=False)
            self.events.begin()
            self._events = _events(self.folder) if self._events is not None else None
        self._last, self._samples = time.perf_counter(), 0
        self._manifest.update({STEPS_IN_ALL: steps})
        batch = getattr(data, "batch", None)
        if isinstance(batch, int):
            self._manifest.update(batch=batch, workers=getattr(data, "replicas", 1))
        self._write()

    def add(
        self, step: int, epoch: int, samples: int, values: Mapping[str, Any], ends: str = ""
    ) -> None:
        """Add a row after `step` steps and `samples` samples of all workers, if due.

        `ends` is "epoch" or "run" if the step is the last of it.
        """
        clock = time.perf_counter()
        passed = clock - self._last
        usual = max(LEAST_S, (clock - self._begun) * SHARE)
        if passed < {"": usual, "epoch": SHORT_EPOCH_S, "run": 0.0}[ends]:
            return
        rate = (samples - self._samples) / max(passed, 1e-9)
        is_after_steps = samples > self._samples or not samples
        if is_after_steps:
            self._last, self._samples = clock, samples
        numbers = {name: float(value) for name, value in values.items()}
        row = dict(zip(COLUMNS, (
            round(time.time(), 3), round(clock - self._begun, 4), step, epoch, samples,
            round(rate, 1)), strict=True))  # fmt: skip
        if not is_after_steps:  # a validation has no rate
            del row["samples_per_second"]
        self._rows.add({**row, **numbers})
        if self._events is not None:
            rates = {"samples_per_second": rate} if is_after_steps else {}
            for name, number in {**numbers, **rates}.items():
                self._events.add_scalar(name, number, step)

    def pace(self, step: int, rows: Sequence[tuple[int, TimingRow]]) -> None:
        """Add a row for each worker with its pace at the chief's step `step`, if due."""
        clock = time.perf_counter()
        usual = max(LEAST_S, (clock - self._begun) * SHARE * self._spread)
        for worker, row in rows:
            if worker in self._paced and clock - self._paced[worker] < usual:
                continue
            self._paced[worker] = clock
            pace = {"steps": int(row.steps), "work": round(row.mean_work, 7)}
            pace |= {"wait": round(row.wait, 7), "input": round(row.input, 7)}
            pace |= {"samples": round(row.samples, 2)}
            self._paces.add(
                {"seconds": round(clock - self._begun, 4), "step": step, "worker": worker, **pace}
            )

    def own_pace(self, step: int, timing: StepTiming) -> None:
        """Add a row for the only worker of a job after its step `step`, if due."""
        if 0 not in self._paced:  # the first step, which includes planning
            self._paced[0] = timing.ended
            timing.window.clear()
        usual = max(LEAST_S, (timing.ended - self._begun) * SHARE)
        if timing.ended - self._paced[0] >= usual and timing.window.steps >= FEW_STEPS:
            self.pace(step, [(0, timing.window.row())])
            timing.window.clear()

    def load(self, step: int, rows: Sequence[LoadRow]) -> None:
        """Add a row for each server with its load since its last row, if due."""
        clock = time.perf_counter()
        usual = max(LEAST_S, (clock - self._begun) * SHARE * self._spread)
        for server, work, wait in rows:
            last, worked, waited = self._loaded.get(server, (-usual, 0.0, 0.0))
            if clock - last < usual:
                continue
            self._loaded[server] = clock, work, wait
            load = {"work": round(work - worked, 7), "wait": round(wait - waited, 7)}
            self._paces.add(
                {"seconds": round(clock - self._begun, 4), "step": step, "server": server, **load}
            )

    def first_step(self, seconds: float, plan: str) -> None:
        """Record the time from the launch of the job until the end of the chief's first step.

        `plan` is the digest of the plan of this step.
        """
        self._manifest.update(seconds_to_first_step=seconds, plan=plan)
        self._write_if_possible()

    def slow(self, stragglers: Sequence[Mapping[str, Any]]) -> None:
        """Record the persistent stragglers."""
        self._manifest.update(stragglers=stragglers)
        self._write()

    def stop(self, by: str, step: int) -> None:
        """Record that the job stops before `step`, and the reason."""
        self._manifest.update(stopped={"by": by, "step": step})
        self._write_if_possible()

    def trained(self, epoch: int, epochs: int) -> None:
        """Record that the epochs of a training are over: early, if `epoch` is not the last."""
        self._manifest.pop(EARLY, None)
        if epoch < epochs:
            self._manifest[EARLY] = {"epoch": epoch, "epochs": epochs}
            self._write_if_possible()

    def end(self, finished: bool = False) -> None:
        """Close the files and record the end time; `finished` if the result is written."""
        if not self._is_ended:
            self._is_ended = finished
            self._manifest.update(end=_now(), finished=finished)
            self._write_if_possible()
        _close_all(self._rows, self._paces, self.events)  # rows may have come after the end, too
        if self._events is not None:
            self._events.close()

    def _write(self) -> None:
        write_json(self.folder / MANIFEST, self._manifest)

    def _write_if_possible(self) -> None:
        """Write the manifest at the end; a full disk is ignored."""
        try:
            self._write()
        except OSError as error:
            logger.warning("%s cannot be written: %s", self.folder / MANIFEST, error)

    @staticmethod
    def _at_exit(reference: weakref.ref[RunLog]) -> None:
        log = reference()
        if log is not None:
            log.end()


class EventRows(logging.Handler):
    """Writes `events.csv`: events of the chief, and each warning that it logs, once.

    Any thread may add an event.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self._rows, self._seen = CsvRows(path), set[str]()

    def begin(self) -> None:
        """Record warnings from now on, and those that were logged before."""
        for text in warning_counts():
            self._warn(text)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Record a warning or an error."""
        self._warn(record.getMessage())

    def _warn(self, text: str) -> None:
        if text not in self._seen and len(self._seen) < MOST_WARNINGS:
            self._seen.add(text)
            self.add(WARNING, text)

    def add(self, event: str, text: str, step: int | None = None) -> None:
        """Record an event, now."""
        text = escape_line(text)[:LONGEST_WARNING]
        values = (round(time.time(), 3), "" if step is None else step, event, text)
        assert self.lock is not None
        with self.lock:
            self._rows.add(dict(zip(EVENT_COLUMNS, values, strict=True)))
            self._rows.close()  # events are rare

    def close(self) -> None:
        """Record no more warnings."""
        logger.removeHandler(self)
        super().close()


class CsvRows:
    """A CSV file; a resumed run appends, and a new column rewrites the file."""

    def __init__(self, path: Path) -> None:
        self._path, self._names = path, _header(path)
        self._file: Any = None
        self._is_broken = False

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row; a full disk is reported once and does not end the training."""
        if self._is_broken:
            return
        try:
            if not set(row) <= set(self._names):
                self._widen([*self._names, *(name for name in row if name not in self._names)])
            if self._file is None:
                self._file = open(self._path, "a", newline="", encoding="utf-8")
            csv.DictWriter(self._file, self._names, restval="").writerow(row)
            self._file.flush()
        except (OSError, HpcflowError) as error:
            self._is_broken = True
            with contextlib.suppress(OSError):  # the next rows are written with this one
                self.close()
            why = error.strerror if isinstance(error, OSError) else error
            logger.warning("%s: %s; no more rows are written", self._path, why)

    def _widen(self, names: list[str]) -> None:
        self.close()
        old = read_rows(self._path) if self._names else []
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with open(draft, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names, restval="")
            writer.writeheader()
            writer.writerows(old)
        draft.replace(self._path)
        self._names = names

    def close(self) -> None:
        """Close the file; `add` opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _close_all(*files: CsvRows | EventRows) -> None:
    for file in files:
        file.close()


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows as written, without a truncated last one; empty if there is no file.

    Errors: HpcflowError if it cannot be read, or is not a table.
    """
    text = read_text(path, MOST_BYTES)
    try:
        rows = list(csv.DictReader(io.StringIO(text or "", newline="")))
    except csv.Error as error:
        raise unreadable_error(path, f"it is not a CSV table ({error})") from None
    return [row for row in rows if None not in row and None not in row.values()]


def _header(path: Path) -> list[str]:
    """The column names of an existing file; an unreadable file is renamed."""
    try:
        text = read_text(path, MOST_BYTES)
        names = next(csv.reader(io.StringIO(text or "", newline="")), [])
        if names and STEP not in names:
            raise unreadable_error(path, f"it has no column {STEP!r}")
        return names
    except (HpcflowError, csv.Error) as error:
        aside = path.with_name(f"{path.stem}.damaged{path.suffix}")
        with contextlib.suppress(OSError):
            path.replace(aside)
        logger.warning("%s; a new file is started, the old one is kept as %s", error, aside)
        return []


def _events(folder: Path) -> Any:
    """A writer of TensorBoard events, if a library for it is installed."""
    tries = (("tensorboardX", "SummaryWriter"), ("tensorboard.summary", "Writer"))
    for module, name in tries:
        try:
            return getattr(importlib.import_module(module), name)(str(folder))
        except ImportError:
            continue
    raise MissingPackageError(
        "the setting tensorboard needs the package tensorboardX (or tensorboard)",
        hint=f"{install_hint('tensorboard')}, or leave it out: metrics.csv has the same values",
    )


def manifest(context: RankContext) -> dict[str, Any]:
    """All facts needed to repeat the run: hosts, time, script, settings, versions."""
    script = sys.argv[0] if sys.argv and os.path.exists(sys.argv[0]) else ""
    place = launcher_detection.detect_launcher()
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(context.hosts):
        nodes.setdefault(host, []).append(rank)
    return {
        "format": 1,
        "start": _now(),
        "end": None,
        "finished": False,
        "command": sys.orig_argv,
        "folder": os.getcwd(),
        "script": os.path.abspath(script) if script else None,
        "git": git_state(os.path.dirname(os.path.abspath(script))) if script else None,
        "versions": versions(),
        "python": sys.executable,
        "hpcflow": str(Path(__file__).parents[1]),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "launcher": place.launcher if place is not None else None,
        "mode": context.cluster.mode,
        "nodes": nodes,
        "crowded": sorted(context.crowded_hosts),
        "roles": [context.task_name(rank) for rank in range(context.size)],
        "settings": {k: str(v) for k, v in dataclasses.asdict(context.settings).items()},
        "environment": environment(os.environ),
    }


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that affect a run, without those that may hold secrets."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(ENVIRONMENT) and not any(word in name for word in SECRET)
    }


def _earlier(path: Path) -> list[dict[str, Any]]:
    """The earlier starts in the same directory, oldest first."""
    try:
        old = read_json_object(path) or {}
    except HpcflowError as error:
        logger.warning("%s: earlier starts are not known", error)
        return []
    summary = {name: old.get(name) for name in ("start", "end", "finished", "command", "nodes")}
    earlier = old.get("earlier")
    return [*(earlier if isinstance(earlier, list) else []), *([summary] if old else [])]


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
