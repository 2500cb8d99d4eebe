"""Experiment trackers: writes runs as an offline folder of Weights & Biases, or a store of MLflow.

Nothing is sent. `wandb sync DIR/wandb/offline-*` uploads; `mlflow ui` shows the store.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import HpcflowError, MissingPackageError
from hpcflow.platform.install_hints import install_hint
from hpcflow.report import run_outcome
from hpcflow.report.run_export import ExportedRun

PROJECT = "hpcflow"  # W&B's project, MLflow's experiment
GOOD = (run_outcome.FINISHED, run_outcome.ENDED)
MLFLOW_STATUS = {
    **dict.fromkeys(GOOD, "FINISHED"),
    run_outcome.RUNNING: "RUNNING",
    **dict.fromkeys((run_outcome.STOPPED, run_outcome.CANCELLED), "KILLED"),
}  # of other states: FAILED
MOST_METRICS, MOST_PARAMS = 1000, 100  # of one call of MLflow
LONGEST_NAME = 200  # MLflow's limit is 250
MLFLOW_ENVIRON = {  # MLflow 3 refuses a file store, and sends usage data, unless told otherwise
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def write_wandb(runs: Sequence[ExportedRun], folder: Path) -> list[Path]:
    """Write an offline run of W&B for each run; returns their folders below `folder`/wandb.

    Errors: MissingPackageError without wandb; HpcflowError if W&B refuses.
    """
    try:
        import wandb
    except ImportError as error:
        raise MissingPackageError("--wandb needs wandb", hint=install_hint("wandb")) from error
    folder.mkdir(parents=True, exist_ok=True)
    # no facts of this machine, which need not be the run's, but its name, which W&B always writes
    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,
    )
    try:
        return [_write_wandb_run(wandb, settings, run, folder) for run in runs]
    except wandb.errors.Error as error:
        raise HpcflowError(f"W&B cannot write to {folder}: {error}") from error


def _write_wandb_run(wandb: Any, settings: Any, run: ExportedRun, folder: Path) -> Path:
    """Write one run; returns its folder."""
    job = wandb.init(
        mode="offline",
        dir=str(folder),
        project=PROJECT,
        name=run.name,
        config=dict(run.config),
        settings=settings,
        reinit="finish_previous",
    )
    place = Path(job.dir).parent
    for row in run.rows:
        stamp = {"_timestamp": row["time"]} if "time" in row else {}
        job.log(row | stamp, step=int(row["step"]))
    facts = {"state": run.state, "ended": run.ended, "start": run.start, "end": run.end}
    job.summary.update(_named(facts | run.results))  # a metric may be called as a result
    job.finish(exit_code=int(run.state not in GOOD))
    return place


def write_mlflow(runs: Sequence[ExportedRun], folder: Path) -> list[str]:
    """Add the runs to the experiment `hpcflow` of the file store in `folder`; returns their ids.

    Errors: MissingPackageError without mlflow; HpcflowError if MLflow refuses.
    """
    with _mlflow_environ():
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise MissingPackageError(
                "--mlflow needs mlflow", hint=install_hint("mlflow")
            ) from error
        folder.mkdir(parents=True, exist_ok=True)
        try:
            client = MlflowClient(tracking_uri=folder.resolve().as_uri())
            found = client.get_experiment_by_name(PROJECT)
            experiment = found.experiment_id if found else client.create_experiment(PROJECT)
            return [_add_to_mlflow(client, experiment, run) for run in runs]
        except MlflowException as error:
            raise HpcflowError(f"MLflow cannot write to {folder}: {error}") from error


def _add_to_mlflow(client: Any, experiment: str, run: ExportedRun) -> str:
    """Write one run; returns its id."""
    from mlflow.entities import Metric, Param, RunTag

    begun, end = _milliseconds(run.start), _milliseconds(run.end)
    name = str(client.create_run(experiment, start_time=begun, run_name=run.name).info.run_id)
    metrics = [
        Metric(metric, number, _milliseconds(row.get("time")) or begun or 0, int(row["step"]))
        for row in run.rows
        for metric, number in clean(row).items()
        if metric != "step"
    ]
    results = clean(_named(run.results))
    metrics += [
        Metric(result, value, end or begun or 0, 0)
        for result, value in results.items()
        if isinstance(value, (int, float))
    ]
    tags = {"state": run.state, "ended": run.ended}
    tags |= {result: value for result, value in results.items() if isinstance(value, str)}
    params = [Param(option, text) for option, text in clean(run.config).items()]
    for i in range(0, len(metrics), MOST_METRICS):
        client.log_batch(name, metrics=metrics[i : i + MOST_METRICS])
    for i in range(0, len(params), MOST_PARAMS):
        client.log_batch(name, params=params[i : i + MOST_PARAMS])
    client.log_batch(name, tags=[RunTag(tag, text) for tag, text in tags.items()])
    client.set_terminated(name, MLFLOW_STATUS.get(run.state, "FAILED"), end_time=end or begun)
    return name


@contextlib.contextmanager
def _mlflow_environ() -> Iterator[None]:
    """Set MLFLOW_ENVIRON inside, but what the user has set."""
    mine = {name: value for name, value in MLFLOW_ENVIRON.items() if name not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            del os.environ[name]


def clean(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by names that MLflow allows, without folders: a name is a file in its store.

    Names that become equal are numbered.
    """
    cleaned: dict[str, Any] = {}
    for name, value in values.items():
        plain = re.sub(r"[^A-Za-z0-9_\-. ]", "_", name.replace("/", "."))[:LONGEST_NAME]
        plain = plain.strip(". ") or "_"
        number, unique = 1, plain
        while unique in cleaned:
            number, unique = number + 1, f"{plain}_{number + 1}"
        cleaned[unique] = value
    return cleaned


def _named(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of the whole run, by names that no metric has."""
    return {f"run/{name}": value for name, value in facts.items()}


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)
